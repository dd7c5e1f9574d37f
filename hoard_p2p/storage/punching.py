"""Blocks of files: which ranges of a slab may go back to the file system, and the system calls for that."""

import ctypes
import fcntl
import os
import signal
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hoard_p2p.storage.openslab import BLOCK, align

_KEEP_SIZE = 1
_PUNCH_HOLE = 2  # linux/falloc.h
_LIBC = ctypes.CDLL(None, use_errno=True)
_FALLOCATE = getattr(_LIBC, "fallocate64", _LIBC.fallocate)
_FALLOCATE.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class Span(NamedTuple):
    """Bytes of a slab, end-exclusive."""

    start: int
    end: int


WINDOW = 4096
"""Blocks that one number has the bits of: 16 MiB of a slab."""
_FULL = (1 << WINDOW) - 1


class Blocks:
    """Which blocks of a slab are touched by something: a bit for each, where not all or none of a window are."""

    def __init__(self, size: int) -> None:
        self._count = -(-size // BLOCK)
        self._windows: dict[int, int] = {}

    def mark(self, offset: int, length: int) -> None:
        """An extent touches these; what lies beyond the slab's end does not count."""
        for window, bits in self._bits(offset // BLOCK, min(-(-(offset + length) // BLOCK), self._count)):
            marks = self._windows.get(window, 0) | bits
            self._windows[window] = _FULL if marks == _FULL else marks  # one object for all that are full

    def __bool__(self) -> bool:
        return bool(self._windows)

    def touches(self, span: Span) -> bool:
        """Whether one of the blocks of a span is marked."""
        pieces = self._bits(span.start // BLOCK, span.end // BLOCK)
        return any(self._windows.get(window, 0) & bits for window, bits in pieces)

    def gaps(self) -> Iterator[Span]:
        """The blocks that are not marked, in order, as few spans as possible."""
        start, end = 0, 0
        for first, last in self._runs():
            if first > end:
                if end > start:
                    yield Span(start * BLOCK, end * BLOCK)
                start = first
            end = last
        if end > start:
            yield Span(start * BLOCK, end * BLOCK)

    @staticmethod
    def _bits(first: int, end: int) -> Iterator[tuple[int, int]]:
        """Blocks by window: its number, and their bits."""
        while first < end:
            window, low = divmod(first, WINDOW)
            count = min(WINDOW - low, end - first)
            yield window, (1 << count) - 1 << low
            first += count

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Blocks that are not marked, in order, end-exclusive; those of two windows apart."""
        for window in range(-(-self._count // WINDOW)):
            at = window * WINDOW
            size = min(WINDOW, self._count - at)
            free = ~self._windows.get(window, 0) & (1 << size) - 1
            while free:
                low = (free & -free).bit_length() - 1
                high = (~(free >> low) & (free >> low) + 1).bit_length() - 1
                yield at + low, at + low + high
                free = free >> low + high << low + high


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same bytes in as few spans as possible, in order."""
    found: list[Span] = []
    for span in sorted(spans):
        if found and span.start <= found[-1].end:
            found[-1] = Span(found[-1].start, max(found[-1].end, span.end))
        else:
            found.append(span)
    return found


def covered(dead: Iterable[Span]) -> Iterator[Span]:
    """The whole blocks that `dead` covers without a gap. A chunk of a block or more starts at a block of a shared slab
    and has the rest of its last block to itself; `dead` spans of such chunks are to be given rounded up."""
    for start, end in merged(dead):
        whole = Span(align(start), end // BLOCK * BLOCK)
        if whole.start < whole.end:
            yield whole


def punch(fd: int, spans: Iterable[Span]) -> int:
    """Give the blocks of `spans` back; how many bytes of disk that freed. Raises OSError."""
    before = os.fstat(fd).st_blocks
    for start, end in spans:
        if _FALLOCATE(fd, _PUNCH_HOLE | _KEEP_SIZE, start, end - start):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    return max(0, before - os.fstat(fd).st_blocks) * 512


def reserve(fd: int, offset: int, size: int) -> None:
    """Have the disk set aside blocks for these bytes; the file does not become longer. Raises OSError."""
    if _FALLOCATE(fd, _KEEP_SIZE, offset, size):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def is_alone(fd: int) -> bool:
    """Whether no other descriptor, mapping or backing id has the file of `fd`: then the kernel grants a write lease."""
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # who opens it in this moment makes the kernel tell us: not by SIGIO
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return False
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True
