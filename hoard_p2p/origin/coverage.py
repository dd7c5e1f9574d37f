"""Which pages of a piece of a lazy snapshot are here before the piece is whole, and which are being read. Pure.

A reader that misses is given its own range at once; whoever reads next reads only what is missing yet, so that nothing
is read twice (CLUSTER 4, "First epoch").
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from hoard_p2p.limits import PAGE

Ranges: TypeAlias = list[tuple[int, int]]
"""(start, stop) of each, in bytes, in order."""


@dataclass(slots=True)
class Coverage:
    """One piece of `length` bytes. One caller at a time. Ranges are rounded outwards to pages, the last of which ends
    where the piece does."""

    length: int
    _here: int = 0
    """A bit per page: its bytes are here."""
    _coming: int = 0
    """The same: somebody reads it now."""
    _all: int = field(init=False)

    def __post_init__(self) -> None:
        self._all = (1 << -(-self.length // PAGE)) - 1

    @property
    def whole(self) -> bool:
        return self._here == self._all

    @property
    def begun(self) -> bool:
        """Whether anything of it is here."""
        return self._here != 0

    @property
    def busy(self) -> bool:
        """Whether somebody reads a part of it now."""
        return self._coming != 0

    def has(self, start: int, stop: int) -> bool:
        mask = self._pages(start, stop)
        return self._here & mask == mask

    def claim(self, start: int, stop: int) -> Ranges:
        """What of a range is neither here nor coming; it is coming from now on."""
        fresh = self._pages(start, stop) & ~(self._here | self._coming)
        self._coming |= fresh
        return self._ranges(fresh)

    def land(self, start: int, stop: int) -> None:
        """A range that was claimed is here."""
        pages = self._pages(start, stop)
        self._here |= pages
        self._coming &= ~pages

    def release(self, start: int, stop: int) -> None:
        """A range that was claimed did not come."""
        self._coming &= ~self._pages(start, stop)

    def forget(self) -> None:
        """What was here is lost."""
        self._here = 0

    def _pages(self, start: int, stop: int) -> int:
        if not 0 <= start < stop <= self.length:
            raise ValueError(f"bytes {start} to {stop} of a piece of {self.length}")
        first, behind = start // PAGE, -(-stop // PAGE)
        return ((1 << (behind - first)) - 1) << first

    def _ranges(self, pages: int) -> Ranges:
        found: Ranges = []
        at = 0
        while pages:
            zeros = (pages & -pages).bit_length() - 1
            pages >>= zeros
            ones = (~pages & (pages + 1)).bit_length() - 1
            pages >>= ones
            start = (at + zeros) * PAGE
            at += zeros + ones
            found.append((start, min(at * PAGE, self.length)))
        return found
