"""Claims: which chunks a running publish relies on, told to the node without a word.

A publish that finds a chunk stored does not store it again, though nothing in the index says yet that its snapshot
needs it. Before it looks, it marks the chunk here; whoever gives space back looks here last. The marks are bytes, one
for all ids with the same first 24 bits, in memory that both processes map: a chunk may seem claimed though another one
is, and stays until the next gc then, never the reverse. (A byte, not a bit: bits shared by processes lose updates.)
"""

import mmap
import os
from collections.abc import Iterable
from types import TracebackType

from hoard_p2p.errors import BadRequest
from hoard_p2p.ids import ChunkId

BUCKETS = 1 << 24


class Claims:
    """One table of marks. `fd` is a memfd to hand to another process, which opens it with `Claims(fd)`. Thread-safe."""

    def __init__(self, fd: int | None = None, *, lingers: bool = False) -> None:
        """A new table, or the one behind `fd`, which is the table's from now on. `lingers`: `close` only tells that
        nobody marks any more, and what is marked stays so until `free`. Raises BadRequest if `fd` is none."""
        self.fd = os.memfd_create("hoard-claims", os.MFD_CLOEXEC) if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, BUCKETS)
        elif os.fstat(fd).st_size != BUCKETS:
            raise BadRequest("the descriptor given for claims has another size; are node and command of one version?")
        self._marks = mmap.mmap(self.fd, BUCKETS)
        self._lingers = lingers
        self._freed = False
        self.closed = False

    def mark(self, ids: Iterable[ChunkId]) -> None:
        """Rely on these chunks from now on. Before the index is asked for them, else it is too late."""
        marks = self._marks
        for chunk_id in ids:
            marks[chunk_id[0] << 16 | chunk_id[1] << 8 | chunk_id[2]] = 1

    def has(self, chunk_id: bytes) -> bool:
        """Whether somebody relies on the chunk, or on one like it."""
        try:
            return self._marks[chunk_id[0] << 16 | chunk_id[1] << 8 | chunk_id[2]] != 0
        except ValueError:  # freed just now, in another thread
            return False

    def absorb(self, other: "Claims") -> None:
        """Mark all that `other` has. (Some ms.)"""
        both = int.from_bytes(self._marks[:], "little") | int.from_bytes(other._marks[:], "little")
        self._marks[:] = both.to_bytes(BUCKETS, "little")

    def close(self) -> None:
        """Nobody marks anything any more. Does nothing the second time."""
        self.closed = True
        if not self._lingers:
            self.free()

    def free(self) -> None:
        """Nobody relies on anything any more. Does nothing the second time."""
        self.closed = True
        if not self._freed:
            self._freed = True
            self._marks.close()
            os.close(self.fd)

    def __enter__(self) -> "Claims":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
