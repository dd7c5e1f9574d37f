"""Reading files of any size at the speed of the machine: one thread reads and cuts, a pool hashes and puts.

Memory is what the rings hold, whatever the files: a window is read into the next buffer of a ring once the chunks
that lay in it before are in the sink.
"""

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from errno import EINVAL, ENOTSUP, ENXIO
from mmap import mmap
from queue import Empty, SimpleQueue
from threading import Lock
from typing import NamedTuple, overload

from hoard_p2p.catalog.reader import file_key
from hoard_p2p.chunking import MIB, MIN_WINDOW, Chunker, Cutter, Run, skippable
from hoard_p2p.ids import HOLE, ID_SIZE, ChunkId, chunk_id
from hoard_p2p.interfaces import ChunkSink, FileSink
from hoard_p2p.publish.deposit import Deposit, Piece
from hoard_p2p.publish.pages import Pages
from hoard_p2p.segments import LARGE_FILE, data_size

READ = 4 * MIB
"""Bytes that are read at once."""

WINDOW = MIN_WINDOW + READ
"""Bytes of one buffer: what was read, and in front of it the carried tail."""

BUFFERS = 3
"""Buffers of one ring: one is read and cut while the chunks of the others are hashed and put."""

LANES = 3
"""Files read at once by this way, each with a ring: 108 MiB in all."""


class PackedRuns(Sequence[tuple[ChunkId, int]]):
    """The (id, length) runs of one file at 40 bytes each; a list of tuples takes four times that."""

    def __init__(self) -> None:
        self._ids = bytearray()
        self._lengths = array("Q")

    def __len__(self) -> int:
        return len(self._lengths)

    @overload
    def __getitem__(self, index: int) -> tuple[ChunkId, int]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[ChunkId, int]]: ...
    def __getitem__(self, index: int | slice) -> tuple[ChunkId, int] | Sequence[tuple[ChunkId, int]]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        length = self._lengths[index]
        start = (index if index >= 0 else len(self) + index) * ID_SIZE
        return ChunkId(bytes(self._ids[start : start + ID_SIZE])), length

    def __iter__(self) -> Iterator[tuple[ChunkId, int]]:
        ids = bytes(self._ids)
        for number, length in enumerate(self._lengths):
            yield ChunkId(ids[number * ID_SIZE : (number + 1) * ID_SIZE]), length

    def packed(self) -> tuple[bytes, bytes]:
        """Ids and lengths, for `unpacked` in another process of this machine."""
        return bytes(self._ids), self._lengths.tobytes()

    @classmethod
    def unpacked(cls, ids: bytes, lengths: bytes) -> "PackedRuns":
        runs = cls()
        runs._ids += ids
        runs._lengths.frombytes(lengths)
        return runs

    def append(self, run: Run) -> None:
        """Add a run; a chunk's id is filled in by `name`."""
        self._ids += HOLE
        self._lengths.append(run.length)

    def name(self, number: int, chunk: ChunkId) -> None:
        """Set the id of run `number`."""
        self._ids[number * ID_SIZE : (number + 1) * ID_SIZE] = chunk


class Ring:
    """The buffers of one lane, each with the work that still reads from it."""

    def __init__(self) -> None:
        self._buffers = [memoryview(mmap(-1, WINDOW)) for _ in range(BUFFERS)]  # only what is used takes memory
        self._work: list[list[Future[None]]] = [[] for _ in range(BUFFERS)]
        self._next = 0

    def next_buffer(self) -> memoryview:
        """The buffer that was used longest ago, free of readers. Raises what its work raised."""
        work = self._work[self._next]
        while work:
            work.pop().result()
        return self._buffers[self._next]

    def busy(self, work: list[Future[None]]) -> None:
        """The buffer that `next_buffer` gave is in use until `work` is done; go on to the next one."""
        self._work[self._next] = work
        self._next = (self._next + 1) % BUFFERS

    def finish(self) -> None:
        """Return when no buffer is in use. Raises what work raised."""
        for _ in range(BUFFERS):
            self.next_buffer()
            self.busy([])

    def abandon(self) -> None:
        """Return when no buffer is in use, whatever became of the work."""
        wait([future for work in self._work for future in work])
        self._work = [[] for _ in range(BUFFERS)]


class WindowReader:
    """Cuts open files into runs, and keeps their chunks. Safe from as many threads as there are lanes."""

    def __init__(
        self,
        chunker: Chunker,
        deposit: Deposit,
        pool: Executor,
        *,
        threads: int,
        check: Callable[[], None],
    ) -> None:
        """`check` is called for each window and raises to stop."""
        self._chunker = chunker
        self._deposit = deposit
        self._pool = pool
        self._threads = threads
        self._check = check
        self._rings: SimpleQueue[Ring] = SimpleQueue()

    def runs(self, fd: int, size: int, sink: FileSink | None, moved: Callable[[int], None]) -> PackedRuns | None:
        """The runs of the first `size` bytes of `fd`, every chunk given to the deposit; `moved` is told of bytes done,
        from several threads. None if the file ended early. Raises OSError and what the sink raises."""
        ring = self._free_ring()
        try:
            runs = self._cut(fd, size, ring, _Keeper(self._pool, self._threads, self._deposit, sink, moved))
            ring.finish()
            return runs
        finally:
            ring.abandon()
            self._rings.put(ring)

    def close(self) -> None:
        """Give the buffers back. No thread may be reading any more."""
        self._rings = SimpleQueue()

    def _free_ring(self) -> Ring:
        """One that no thread uses: there are never more than lanes."""
        try:
            return self._rings.get_nowait()
        except Empty:
            return Ring()

    def _cut(self, fd: int, size: int, ring: Ring, keeper: "_Keeper") -> PackedRuns | None:
        cutter = Cutter(self._chunker, size)
        holes = _Holes(fd, size, self._chunker)
        tail = memoryview(b"")
        pages = Pages(fd, size)
        while (start := cutter.position) < size:
            self._check()
            buffer = ring.next_buffer()
            buffer[MIN_WINDOW - len(tail) : MIN_WINDOW] = tail  # so that what is read lies on a page boundary
            begin = start + len(tail)
            hole = holes.after(begin, begin + READ)
            end = min(begin + READ, hole.start)
            if not pages.fill(buffer[MIN_WINDOW:], begin, end - begin):
                return None
            window = buffer[MIN_WINDOW - len(tail) : MIN_WINDOW + end - begin]
            if hole and end == hole.start:
                found = cutter.skip_hole(window, len(hole))
            else:
                found = cutter.cut(window, final=end == size)
            ring.busy(keeper.keep(found, window, start))
            tail = window[cutter.position - start :]
        return keeper.runs


class _Keeper:
    """Collects the runs of one file, and has their chunks hashed and kept by the pool."""

    def __init__(
        self, pool: Executor, threads: int, deposit: Deposit, sink: FileSink | None, moved: Callable[[int], None]
    ) -> None:
        self.runs = PackedRuns()
        self._pool = pool
        self._threads = threads
        self._deposit = deposit
        self._sink = sink
        self._moved = moved
        self._end = 0

    def keep(self, found: Sequence[Run], window: memoryview, start: int) -> list[Future[None]]:
        """Take the next runs of the file, whose chunks lie in `window`, which lies at file offset `start`. The work
        that is returned reads from it."""
        chunks = []
        for run in found:
            if run.hole:
                self._moved(run.length)
            else:
                begin = self._end - start
                chunks.append(_Unnamed(len(self.runs), self._end, window[begin : begin + run.length]))
            self.runs.append(run)
            self._end += run.length
        share = len(window) // self._threads
        return [self._pool.submit(self._name_and_keep, group) for group in _groups(chunks, share)]

    def _name_and_keep(self, chunks: Sequence["_Unnamed"]) -> None:
        pieces = [Piece(chunk_id(chunk.data), chunk.data, chunk.offset) for chunk in chunks]
        self._deposit.keep(pieces, self._sink)
        for chunk, piece in zip(chunks, pieces, strict=True):
            self.runs.name(chunk.run, piece.chunk_id)
        self._moved(sum(len(chunk.data) for chunk in chunks))


class _Unnamed(NamedTuple):
    """A chunk that was cut and not hashed: the number of its run, its offset in the file, its bytes."""

    run: int
    offset: int
    data: memoryview


def _groups(chunks: Sequence[_Unnamed], share: int) -> Iterator[list[_Unnamed]]:
    """`chunks` in groups of about `share` bytes."""
    group: list[_Unnamed] = []
    size = 0
    for chunk in chunks:
        group.append(chunk)
        size += len(chunk.data)
        if size >= share:
            yield group
            group, size = [], 0
    if group:
        yield group


class LargeFile:
    """Takes in one file through the windows. For one file at a time."""

    def __init__(self, reader: WindowReader, sink: ChunkSink, moved: Callable[[int], None]) -> None:
        self._reader = reader
        self._sink = sink
        self._report = moved
        self._lock = Lock()
        self._moved = 0
        self._file: FileSink | None = None

    def takes(self, size: int) -> bool:
        """Whether a file of this size can be read this way: any can."""
        return size >= 0

    def read(self, fd: int, size: int) -> Sequence[tuple[ChunkId, int]] | None:
        """The file's runs; None if it ended early. Afterwards, also after an exception, `accept` or `reject` is due."""
        self._file = self._sink.open_file(size) if size > LARGE_FILE else None
        return self._reader.runs(fd, size, self._file, self._count)

    def accept(self, runs: Sequence[tuple[ChunkId, int]]) -> None:
        """What was read is the file."""
        file, self._file = self._file, None
        self._moved = 0
        if file is None:
            return
        if data_size(runs) > LARGE_FILE:
            file.finish(file_key(runs), runs)
        else:
            file.abandon()  # mostly holes: its few chunks are stored, but to the catalog it is no large file

    def reject(self) -> None:
        """What was read is not the file, or it could not be read."""
        file, self._file = self._file, None
        self._report(-self._moved)
        self._moved = 0
        if file is not None:
            file.abandon()

    def _count(self, size: int) -> None:
        with self._lock:
            self._moved += size
        self._report(size)


class _Holes:
    """Where the file system knows of holes that the cutter can skip. Looks at every extent once."""

    def __init__(self, fd: int, size: int, chunker: Chunker) -> None:
        self._fd = fd
        self._size = size
        self._chunker = chunker
        self._hole = range(0)
        self._examined = 0

    def after(self, offset: int, limit: int) -> range:
        """The first skippable hole that starts at `offset` or later, if it does before `limit`; else an empty range at
        the end of the file, or one beyond `limit`."""
        if self._hole.start >= offset and self._hole:
            return self._hole
        position = max(offset, self._examined)
        while position < min(limit, self._size):
            start = self._seek(position, os.SEEK_HOLE)
            position = self._examined = self._seek(start, os.SEEK_DATA)
            self._hole = skippable(self._chunker, start, position, self._size)
            if self._hole:
                return self._hole
        return range(self._size, self._size)

    def _seek(self, offset: int, what: int) -> int:
        if offset >= self._size:
            return self._size
        try:
            return min(self._size, os.lseek(self._fd, offset, what))
        except OSError as error:
            if error.errno in (ENXIO, EINVAL, ENOTSUP):  # no more data, or a file system that knows no holes
                return self._size
            raise
