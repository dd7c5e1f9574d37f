"""Writing chunks into slabs: puts from many threads, made durable in groups by one thread of the writer."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import copy

from hoard_p2p.errors import BadRequest, HoardError, StoreFailed
from hoard_p2p.ids import HOLE, Bytes, ChunkId
from hoard_p2p.interfaces import Extent, FileSink, Place, SlabBroker, SlabHandle, SlabKind
from hoard_p2p.storage.allowance import Allowance
from hoard_p2p.storage.claims import Claims
from hoard_p2p.storage.failures import store_failure
from hoard_p2p.storage.filesink import FileSlabSink, LingeringSink
from hoard_p2p.storage.groups import Groups, WriterSettings
from hoard_p2p.storage.openslab import SHARED_SIZE, Cursor, OpenSlab
from hoard_p2p.storage.reader import StoreReader
from hoard_p2p.storage.spots import Spot

LINGERING = 64
"""File slabs that stay open between the flights of one large file."""


class ChunkWriter:
    """ChunkSink over slabs that a broker makes. Safe from several threads; one per process is enough."""

    def __init__(
        self,
        broker: SlabBroker,
        reader: StoreReader,
        settings: WriterSettings | None = None,
        claims: Claims | None = None,
    ) -> None:
        """`claims`: where a publish marks each chunk before it looks whether it is stored."""
        self._claims = claims
        self._broker = broker
        self._reader = reader
        self._settings = settings or WriterSettings()
        self._allowance = Allowance(broker, self._settings.refused_seconds)
        self._groups = Groups(broker, self._vacancies, self._allowance, self._settings)
        self._shared = _SharedSpots(lambda: self._opened(lambda: broker.new_slab(SlabKind.SHARED, 0)))
        self._lock = threading.Lock()
        self._files: list[FileSlabSink] = []
        self._lingering: OrderedDict[bytes, FileSlabSink] = OrderedDict()
        self._leaving: dict[bytes, FileSlabSink] = {}
        self._closed = False

    def close(self) -> None:
        """Flush, stop the thread, give back reserved space and close every slab. Raises StoreFailed if chunks were
        lost since the last flush; closes all the same. Does nothing the second time."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            sinks = [*self._files, *self._lingering.values(), *self._leaving.values()]
        try:
            self._groups.flush(None)
        finally:
            self._groups.stop()
            self._shared.close()
            for sink in sinks:
                sink.close_parts()
                sink.abandon()
            self._allowance.settle()

    def __enter__(self) -> "ChunkWriter":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def has(self, ids: Sequence[ChunkId]) -> list[bool]:
        """See ChunkSink. A chunk that another thread is just writing does not count: that write may yet fail."""
        found = [content or HOLE for content in self.contents(ids)]
        self._claim(found)
        pending = [self._groups.pending(content) for content in found]  # first: what is committed later is in the index
        places = self._reader.places(found)
        return [place is not None or waiting is not None for place, waiting in zip(places, pending)]

    def know(self, key: ChunkId, content: ChunkId) -> None:
        """The bytes of the piece that an origin key stands for have this id, and were put before this call. Durable
        with the group at hand. If the key is known to be something else, that stays. Raises StoreFailed."""
        self._groups.know(key, content)

    def know_file(self, key: bytes, content_key: bytes) -> None:
        """Two keys of one large file: over origin keys, and over the ids of its chunks. Its slab is found by both."""
        self._groups.know(key, content_key)
        with self._lock:
            if content_key not in self._lingering and (sink := self._lingering.pop(key, None)) is not None:
                self._lingering[content_key] = sink

    def content(self, identifier: ChunkId) -> ChunkId | None:
        """See LocalChunks; also what was told to `know` and is not in the index yet."""
        return self.contents((identifier,))[0]

    def contents(self, ids: Sequence[ChunkId]) -> list[ChunkId | None]:
        """`content` of each, with one look at the index."""
        waiting = [self._groups.known(identifier) for identifier in ids]  # first: what is committed later is in it
        listed = self._reader.contents(ids)
        return [found if told is None else ChunkId(told) for told, found in zip(waiting, listed, strict=True)]

    def _claim(self, ids: Sequence[ChunkId]) -> None:
        if self._claims is not None:
            self._claims.mark(ids)

    def _vacancies(self, ids: Sequence[ChunkId]) -> list[int | None]:
        self._claim(ids)
        return self._reader.vacancies(ids)

    def pending(self, chunk_id: ChunkId) -> Place | None:
        """Where a chunk lies that was put and is not in the index yet: readable with `read_at` at once. None also for
        one that is committed: look here first, then in the index. For an origin key ask with its `content`."""
        return self._groups.pending(chunk_id)

    def put(self, chunk_id: ChunkId, data: Bytes) -> None:
        if len(data) > SHARED_SIZE:
            raise BadRequest(f"a chunk of {len(data)} bytes does not fit a slab of {SHARED_SIZE}")
        self._groups.keep(chunk_id, data, self._shared.take)

    def put_many(self, chunks: Sequence[tuple[ChunkId, Bytes]]) -> list[bool]:
        by_id = dict(chunks)
        if any(len(data) > SHARED_SIZE for data in by_id.values()):
            raise BadRequest(f"a chunk does not fit a slab of {SHARED_SIZE} bytes")
        stored = self._groups.keep_many(by_id, self._shared.take_many)
        news = []
        for chunk_id, _ in chunks:
            news.append(chunk_id in stored)
            stored.discard(chunk_id)  # a second time it is not new
        return news

    def open_file(self, size: int) -> FileSink:
        sink = self._file_sink(size, lambda: self._broker.new_slab(SlabKind.FILE, size))
        with self._lock:
            self._files = [known for known in self._files if not known.ended]
            self._files.append(sink)
        return sink

    def resume_file(self, file_key: bytes, size: int) -> LingeringSink:
        """A sink for the large file of `file_key`, whose chunks may arrive in any order and over a long time.

        Continues the file's slab if there is an unfinished one that nobody writes, of whatever start; several callers
        may hold sinks of one file at once. Each ends its own with `finish` (all chunks of the file are stored) or
        `abandon` (not yet)."""
        return LingeringSink(lambda: self._lingering_sink(file_key, size))

    @property
    def full(self) -> bool:
        """Whether a chunk was refused lately for want of room, and the next would be too."""
        return self._allowance.refusing

    @property
    def copy_share(self) -> float:
        """See WriterSettings."""
        return self._settings.copy_share

    def complete_file(self, handle: SlabHandle, file_key: bytes, runs: Sequence[tuple[ChunkId, int]]) -> bool:
        """Complete an unfinished slab of a file by copies; false if it cannot be, or if that would take too many.
        Takes over the handle. The record is durable with the next flush."""
        return self._file_sink(handle.size, lambda: handle).complete(file_key, runs)

    def mark(self) -> int:
        """A point in time for `flush(since)`."""
        return self._groups.mark()

    def flush(self, since: int | None = None) -> None:
        """Return once everything put so far is durable and in the index.

        Raises StoreFailed if something put after `since` (a `mark`; by default the last `flush` without one) was lost;
        pass a mark where several users share the writer, so that each hears of its own losses."""
        self._groups.flush(since)

    def read_whole(self, chunk_id: ChunkId, into: memoryview) -> bool:
        """Fill `into` with a chunk of just that length, committed or pending; False if there is none."""
        place = self._groups.pending(chunk_id) or self._reader.place(chunk_id)
        if place is None or place.length != len(into):
            return False
        self._reader.read_at(place, 0, into)
        return True

    def listed(self, extents: Sequence[Extent]) -> list[Extent]:
        """Those of `extents` that the index lists, or that are on their way to it."""
        waiting = {extent for extent in extents if self._is_pending(extent)}  # first: see `pending`
        return [*waiting, *self._reader.committed([extent for extent in extents if extent not in waiting])]

    def _is_pending(self, extent: Extent) -> bool:
        place = self._groups.pending(extent.chunk_id)
        return place is not None and place[:3] == extent[:3]

    def _lingering_sink(self, file_key: bytes, size: int) -> FileSlabSink:
        """The open sink of a large file; of too many, the one used longest ago is put aside.

        A slab that is put aside stays locked until what was put is committed. Who wants it back before that gets the
        same sink: a second one would find the lock taken, and begin another slab."""
        file_key = self._groups.known(file_key) or self._reader.file_name(file_key)
        with self._lock:
            sink = self._lingering.pop(file_key, None) or self._leaving.pop(file_key, None)
            if sink is None or (sink.ended and not sink.revive()):
                sink = self._file_sink(size, lambda: self._broker.resume_slab(file_key, size))
            self._lingering[file_key] = sink
            if len(self._lingering) > LINGERING:
                self._put_aside(*self._lingering.popitem(last=False))
        return sink

    @property
    def closed(self) -> bool:
        return self._closed

    def put_copy(self, chunk_id: ChunkId, data: Bytes) -> None:
        """Keep one more place of a chunk that is stored: where it lies now is to be given up. Raises StoreFailed."""
        self._groups.keep_copy(chunk_id, data, self._shared.take(len(data)))

    def note_space(self) -> None:
        """Somebody punched what was written: count again. Waits for nobody who may be waiting for room."""
        self._shared.note_space()
        self._allowance.report()

    def put_aside(self, slab: int) -> None:
        """Write the slab no more, if nobody is just doing so; its lock goes when what was put is committed."""
        self._shared.put_aside(slab)
        with self._lock:
            for key in [key for key, sink in self._lingering.items() if sink.slab == slab]:
                self._put_aside(key, self._lingering.pop(key))

    def _put_aside(self, file_key: bytes, sink: FileSlabSink) -> None:
        sink.abandon()
        self._leaving = {key: known for key, known in self._leaving.items() if not known.closed}
        if not sink.closed:
            self._leaving[file_key] = sink

    def _file_sink(self, size: int, make_slab: Callable[[], SlabHandle]) -> FileSlabSink:
        return FileSlabSink(size, self._groups, self, lambda: self._opened(make_slab), self._settings.copy_share)

    def _opened(self, make_slab: Callable[[], SlabHandle]) -> OpenSlab:
        """Whatever keeps a broker from making a slab (its node is gone, say) is, to who puts, a store that failed."""
        try:
            return OpenSlab(make_slab(), self._allowance)
        except StoreFailed:
            raise
        except HoardError as error:
            raise StoreFailed(f"no slab to write to: {error}") from error


class _SharedSpots:
    """Spots for chunks in shared slabs, one slab after the other."""

    def __init__(self, make_slab: Callable[[], OpenSlab]) -> None:
        self._make_slab = make_slab
        self._lock = threading.Lock()
        self._slab: OpenSlab | None = None
        self._cursor = Cursor(SHARED_SIZE)
        self._closed = False

    def take(self, length: int) -> Spot:
        """Raises StoreFailed."""
        return self.take_many((length,))[0]

    def take_many(self, lengths: Sequence[int]) -> list[Spot]:
        """Spots for chunks of these lengths. Raises StoreFailed."""
        spots: list[Spot] = []
        with self._lock:
            try:
                while len(spots) < len(lengths):
                    self._take_here(lengths[len(spots) :], spots)
            except BaseException:
                for spot in spots:
                    spot.slab.leave()
                raise
        return spots

    def _take_here(self, lengths: Sequence[int], spots: list[Spot]) -> None:
        """As many spots as the present slab has, with the space reserved; it is full if they are not enough."""
        slab = self._entered(len(lengths))
        before = copy(self._cursor)
        taken = []
        for length in lengths:
            offset = self._cursor.take(length)
            if offset is None:
                break
            taken.append((offset, length))
        try:
            if taken:
                slab.reserve(*max(taken))
        except (OSError, StoreFailed) as error:
            self._cursor = before  # what is reserved next would have to cover these
            slab.leave(len(lengths))
            if isinstance(error, OSError):
                raise store_failure(f"no room for {len(taken)} chunks in slab {slab.slab}", error) from error
            raise
        spots += [Spot(slab, offset) for offset, _ in taken]
        if len(taken) < len(lengths):
            slab.leave(len(lengths) - len(taken))
            slab.retire()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._slab is not None:
                self._slab.retire()

    def note_space(self) -> None:
        slab = self._slab
        if slab is not None:
            slab.note_space()

    def put_aside(self, slab: int) -> None:
        """Does nothing while somebody takes a spot: he may be waiting for the room that the caller is making."""
        if self._lock.acquire(blocking=False):
            try:
                if self._slab is not None and self._slab.slab == slab:
                    self._slab.retire()
                    self._slab = None
            finally:
                self._lock.release()

    def _entered(self, times: int) -> OpenSlab:
        if self._closed:
            raise StoreFailed("the store's writer is closed")
        if self._slab is None or not self._slab.enter(times):
            if self._slab is not None:
                self._slab.retire()
            self._slab = self._make_slab()
            self._cursor = Cursor(SHARED_SIZE)
            self._slab.enter(times)
        return self._slab
