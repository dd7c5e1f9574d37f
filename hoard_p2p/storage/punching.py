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


class Blocks:
    """Which blocks of a slab are touched by something; a byte for each."""

    def __init__(self, size: int) -> None:
        self._marks = bytearray(-(-size // BLOCK))

    def mark(self, offset: int, length: int) -> None:
        """An extent touches these; what lies beyond the slab's end does not count."""
        first, end = offset // BLOCK, min(-(-(offset + length) // BLOCK), len(self._marks))
        if first < end:
            self._marks[first:end] = b"\1" * (end - first)

    def __bool__(self) -> bool:
        return 1 in self._marks

    def touches(self, span: Span) -> bool:
        """Whether one of the blocks of a span is marked."""
        return self._marks.find(1, span.start // BLOCK, span.end // BLOCK) >= 0

    def gaps(self) -> Iterator[Span]:
        """The blocks that are not marked, in order, as few spans as possible."""
        start = self._marks.find(0)
        while start >= 0:
            end = self._marks.find(1, start)
            end = len(self._marks) if end < 0 else end
            yield Span(start * BLOCK, end * BLOCK)
            start = self._marks.find(0, end)


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
