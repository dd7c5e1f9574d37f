"""Where a file's bytes are cut: into holes and chunks, by content alone.

The same bytes give the same runs on every machine and for ever (I6; docs/formats.md, "Cutting"). Pure: the caller
reads, hashes and stores. Neither the windows in which a file is offered nor the holes that its file system happens to
keep change the result.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from pyfastcdc import FastCDC

from hoard_p2p.ids import Bytes
from hoard_p2p.limits import MAX_CHUNK

KIB = 1 << 10
MIB = 1 << 20

SMALL_FILE = MIB
"""In a file of at most this size each extent between holes is one chunk."""

MIN_WINDOW = 8 * MIB
"""A window of at least this size always gives at least one run or moves `Cutter.position`."""

_ZEROS = bytes(64 * KIB)


class ChunkerKind(Enum):
    """How data is cut; the values are stored in roots."""

    FASTCDC = 1
    FIXED = 2
    PIECES = 3


@dataclass(frozen=True, slots=True)
class Chunker:
    """A way to cut and its parameters, all in bytes. `hole_block` is the unit in which zeros become holes."""

    kind: ChunkerKind
    min_size: int
    avg_size: int
    max_size: int
    hole_block: int


FASTCDC = Chunker(ChunkerKind.FASTCDC, 256 * KIB, MIB, MAX_CHUNK, 64 * KIB)
"""Cut by content (FastCDC 2020, normalisation level 1): changed versions share most chunks."""

FIXED = Chunker(ChunkerKind.FIXED, MAX_CHUNK, MAX_CHUNK, MAX_CHUNK, MAX_CHUNK)
"""Cut at multiples of 4 MiB: pieces of one file can be read in any order."""


PIECES = Chunker(ChunkerKind.PIECES, MAX_CHUNK, MAX_CHUNK, MAX_CHUNK, MAX_CHUNK)
"""Cut like `FIXED`, but without a look at the bytes, so that zeros are data; segments are cut and placed by the places
of pieces in the data set (`ids.slot_id`). What was read from an origin by all nodes together is cut so."""


def piece_lengths(size: int) -> list[int]:
    """The pieces of an origin object of that many bytes, in order."""
    if size <= SMALL_FILE:
        return [size] if size else []
    whole, rest = divmod(size, MAX_CHUNK)
    return [MAX_CHUNK] * whole + [rest] * bool(rest)


class Run(NamedTuple):
    """The next `length` bytes of a file: one chunk, or a hole."""

    length: int
    hole: bool


class Cutter:
    """Cuts one file that is offered in consecutive windows.

    Usage: read from file offset `position` into a window, call `cut`, use the runs, repeat until `position == size`.
    The runs of all calls, concatenated, cover the file exactly; a run's offset is the sum of the lengths before it.
    A chunk run lies wholly inside the window it was returned for; a hole run may have begun in earlier windows. What
    lies behind `position` after a call (less than `MIN_WINDOW` bytes) is offered again at the front of the next window.
    """

    def __init__(self, chunker: Chunker, size: int) -> None:
        """`size` is the length of the file; all of it must be offered."""
        self._chunker = chunker
        self._size = size
        self._position = 0
        self._hole = 0  # bytes of a hole that ends at position and has not been returned
        self._scanned = 0  # bytes from position to here, if any, are known to be data
        self._fastcdc: FastCDC | None = None
        if chunker.kind is ChunkerKind.FASTCDC and size > SMALL_FILE:
            self._fastcdc = FastCDC(
                chunker.avg_size, min_size=chunker.min_size, max_size=chunker.max_size, normalized_chunking=1
            )

    @property
    def position(self) -> int:
        """Offset of the first byte that the next window must start with; `size` when the file is done."""
        return self._position

    def cut(self, window: memoryview, *, final: bool) -> list[Run]:
        """The runs that are certain now that `window` is known, which starts at `position`.

        `final` says that the window reaches the end of the file; then everything is covered. A window that is not
        final should have at least `MIN_WINDOW` bytes; a shorter one is not wrong but may give nothing. Raises
        ValueError if the window and `final` contradict the file's size.
        """
        if final != (self._position + len(window) == self._size):
            raise ValueError(f"window of {len(window)} at {self._position}, final={final}, file of {self._size} bytes")
        return self._cut(window, 0)

    def skip_hole(self, window: memoryview, length: int) -> list[Run]:
        """Like `cut(window)`, with `length` zero bytes after the window that the caller knows of and need not read.

        The window may be empty. It must end, and the hole must start, at a multiple of `hole_block`; `length` must be
        a multiple of it or reach the end of the file (`skippable` gives such a range). All of the window and the hole
        is covered: afterwards `position` is the end of the hole. Raises ValueError for other ranges.
        """
        start = self._position + len(window)
        if length <= 0 or skippable(self._chunker, start, start + length, self._size) != range(start, start + length):
            raise ValueError(f"hole of {length} bytes at {start} is not made of whole blocks")
        return self._cut(window, length)

    def _cut(self, window: memoryview, hole: int) -> list[Run]:
        base = self._position
        extents = self._extents(window)
        runs: list[Run] = []
        for number, (start, stop, zero) in enumerate(extents, 1):
            if zero:
                self._extend_hole(stop - start)
                continue
            runs += self._end_hole()
            closed = number < len(extents) or hole > 0 or stop == self._size
            for length in self._lengths(window[start - base : stop - base], closed):
                runs.append(Run(length, False))
                self._position += length
        if hole:
            self._extend_hole(hole)
        if self._position == self._size:
            runs += self._end_hole()
        return runs

    def _extents(self, window: memoryview) -> list[tuple[int, int, bool]]:
        """The whole blocks of `window` as (start, stop, zero) in file offsets, equal neighbours merged."""
        base, end = self._position, self._position + len(window)
        extents: list[tuple[int, int, bool]] = []
        start = here = base
        kind = False
        if self._scanned > base:
            here = min(self._scanned, end)
        while here < end:
            stop = min(here - here % self._chunker.hole_block + self._chunker.hole_block, self._size)
            if stop > end:
                break
            zero = _all_zero(window[here - base : stop - base])
            if zero is not kind and here > start:
                extents.append((start, here, kind))
                start = here
            kind = zero
            here = stop
        if here > start:
            extents.append((start, here, kind))
        self._scanned = max(self._scanned, here)
        return extents

    def _lengths(self, data: memoryview, closed: bool) -> Iterator[int]:
        """Chunk lengths of an extent that begins at position; `closed`: nothing can follow that belongs to it."""
        if self._size <= SMALL_FILE:
            return iter((len(data),) if closed else ())
        if self._fastcdc is None:
            return self._fixed_lengths(len(data), closed)
        return self._content_lengths(self._fastcdc, data, closed)

    def _fixed_lengths(self, length: int, closed: bool) -> Iterator[int]:
        step = self._chunker.max_size
        here = self._position
        end = here + length
        while here < end:
            stop = here - here % step + step
            if stop > end and not closed:
                return
            yield min(stop, end) - here
            here = stop

    def _content_lengths(self, fastcdc: FastCDC, data: memoryview, closed: bool) -> Iterator[int]:
        for chunk in fastcdc.cut_buf(data):
            # Only a cut before the end of the buffer is independent of what follows it.
            if not closed and chunk.offset + chunk.length == len(data):
                return
            yield chunk.length

    def _extend_hole(self, length: int) -> None:
        self._hole += length
        self._position += length

    def _end_hole(self) -> list[Run]:
        length, self._hole = self._hole, 0
        return [Run(length, True)] if length else []


def skippable(chunker: Chunker, start: int, stop: int, size: int) -> range:
    """The part of a known hole `start` to `stop` of a file of `size` bytes that `Cutter.skip_hole` can take: whole
    aligned blocks, and the last, partial one. Empty if there is none; the rest must be read."""
    block = chunker.hole_block
    first = -(-start // block) * block
    last = size if stop >= size else stop - stop % block
    return range(first, max(first, last))


def runs_of(chunker: Chunker, data: Bytes) -> list[Run]:
    """The runs of a file whose bytes are all in `data`."""
    view = memoryview(data)
    size = len(view)
    if size <= SMALL_FILE and not any(
        _all_zero(view[start : start + chunker.hole_block]) for start in range(0, size, chunker.hole_block)
    ):
        return [Run(size, False)] if size else []
    return Cutter(chunker, size).cut(view, final=True)


def _all_zero(view: memoryview) -> bool:
    """Whether a non-empty view holds zeros only. Costs 0.1 us for a block that does not begin with a zero."""
    if view[0]:
        return False
    # `bytes.startswith` compares any buffer by memcmp; comparing memoryviews goes item by item, 50 times slower.
    step = len(_ZEROS)
    return all(_ZEROS.startswith(view[start : start + step]) for start in range(0, len(view), step))
