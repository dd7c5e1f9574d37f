"""When a reader that waits may read the origin past the node whose turn it is, so that nobody is slower than without
us, and the origin is still read (almost) once. Pure (CLUSTER 4, "Bypass budget").
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

LEAST_WAIT = 0.05
PATIENCE = 3
"""A reader is late after so many times the origin's own median first byte."""

SHARE = 200
"""One byte past the reader for so many bytes received: 0.5 %."""

BUCKET = 8 << 20
"""Bytes past readers that can be saved up for one snapshot."""

LAST_SECONDS = 60.0
"""For so long a reader that was replaced, or passed by too often, ranks last."""

PASSED_BYTES = 8 << 20
"""So many bytes past one reader, and it ranks last. (Not fewer: who ranks a reader last and is next itself reads what
that one may read, too.)"""

N = TypeVar("N", bound=Hashable)


def late_after(median_first_byte: float) -> float:
    """Seconds after which a reader counts as late."""
    return max(LEAST_WAIT, PATIENCE * median_first_byte)


@dataclass(slots=True)
class Budget:
    """What may be read past the readers of one snapshot: a bucket that starts empty. One caller at a time."""

    _saved: int = 0
    """In bytes times `SHARE`: whole numbers, so that small chunks are counted exactly."""

    @property
    def left(self) -> int:
        """Bytes that may be read now."""
        return self._saved // SHARE

    def received(self, size: int) -> None:
        """That many bytes of the snapshot came, from wherever."""
        self._saved = min(BUCKET * SHARE, self._saved + size)

    def may_bypass(self, size: int, waited: float, median_first_byte: float) -> bool:
        """Whether a demand for `size` bytes that waited so long for the reader may go to the origin itself."""
        return waited >= late_after(median_first_byte) and size <= self.left

    def bypassed(self, size: int) -> None:
        """It did."""
        self._saved = max(0, self._saved - size * SHARE)


@dataclass(slots=True)
class Late(Generic[N]):
    """Readers that were late; times are handed in."""

    _until: dict[N, float] = field(default_factory=dict)
    _passed: dict[N, int] = field(default_factory=dict)

    def was_late(self, node: N, now: float) -> None:
        self._until = {known: until for known, until in self._until.items() if until > now}
        self._until[node] = now + LAST_SECONDS
        self._passed.pop(node, None)

    def passed(self, node: N, size: int, now: float) -> None:
        """That many bytes were read past it."""
        self._passed[node] = self._passed.get(node, 0) + size
        if self._passed[node] > PASSED_BYTES:
            self.was_late(node, now)

    def last(self, nodes: Iterable[N], now: float) -> list[N]:
        """The same nodes in the same order, but those that were late behind the others."""
        return sorted(nodes, key=lambda node: self._until.get(node, now) > now)
