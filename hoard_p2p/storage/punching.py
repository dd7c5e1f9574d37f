"""Returning blocks of slabs to the file system: which ranges may go, and the system call."""

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


def in_blocks(offset: int, length: int) -> Span:
    """The blocks that an extent touches."""
    return Span(offset // BLOCK * BLOCK, align(offset + length))


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same bytes in as few spans as possible, in order."""
    found: list[Span] = []
    for span in sorted(spans):
        if found and span.start <= found[-1].end:
            found[-1] = Span(found[-1].start, max(found[-1].end, span.end))
        else:
            found.append(span)
    return found


def gaps(kept: Iterable[Span], size: int) -> Iterator[Span]:
    """What `kept`, which are whole blocks, leaves of a slab of `size` bytes, in whole blocks."""
    at = 0
    for start, end in merged(kept):
        if at < start:
            yield Span(at, start)
        at = end
    if at < size:
        yield Span(at, align(size))


def touched(spans: Iterable[Span], wanted: Iterable[Span]) -> Iterator[Span]:
    """Those of the disjoint, sorted `spans` that share a byte with one of `wanted`."""
    rest = iter(merged(wanted))
    want = next(rest, None)
    for span in spans:
        while want is not None and want.end <= span.start:
            want = next(rest, None)
        if want is None:
            return
        if want.start < span.end:
            yield span


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


def is_alone(fd: int) -> bool:
    """Whether no other descriptor, mapping or backing id has the file of `fd`: then the kernel grants a write lease."""
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # who opens it in this moment makes the kernel tell us: not by SIGIO
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return False
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True
