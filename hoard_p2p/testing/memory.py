"""A store in memory: `ChunkSink` and `LocalChunks` over dictionaries, verified by the contract suite of the real one.

Chunks are findable from `put` on; `flush` only marks them durable, so that a test can see who forgot to flush.
"""

from collections.abc import Sequence
from threading import Lock

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.catalog.root import decode, decode_list
from hoard_p2p.errors import ChunkCorrupt, StoreFailed
from hoard_p2p.ids import HOLE, Bytes, ChunkId, is_origin_key
from hoard_p2p.interfaces import Place

_SHARED = 1
_GENERATION = 1


class MemoryChunks:
    """`LocalChunks` over a dictionary. One lock, so any thread may call anything."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._places: dict[ChunkId, Place] = {}
        self._bytes: dict[Place, bytes] = {}
        self._shared_end = 0
        self._slabs = _SHARED

    def content(self, chunk_id: ChunkId) -> ChunkId | None:
        return None if is_origin_key(chunk_id) else chunk_id

    def contents(self, ids: Sequence[ChunkId]) -> list[ChunkId | None]:
        return [self.content(chunk_id) for chunk_id in ids]

    def place(self, chunk_id: ChunkId) -> Place | None:
        with self._lock:
            return self._places.get(chunk_id)

    def places(self, ids: Sequence[ChunkId]) -> list[Place | None]:
        with self._lock:
            return [self._places.get(chunk_id) for chunk_id in ids]

    def read_into(self, chunk_id: ChunkId, start: int, into: memoryview) -> Place | None:
        place = self.place(chunk_id)
        if place is not None:
            self.read_at(place, start, into)
        return place

    def read_at(self, place: Place, start: int, into: memoryview) -> None:
        with self._lock:
            data = self._bytes.get(place, b"")
        piece = data[start : start + len(into)]
        if len(piece) != len(into):
            raise ChunkCorrupt(f"slab {place.slab} ends before byte {place.offset + start + len(into)}")
        into[:] = piece

    def get(self, chunk_id: ChunkId) -> bytes:
        """The bytes of a chunk that must be here. Raises KeyError."""
        with self._lock:
            return self._bytes[self._places[chunk_id]]

    def ids(self) -> set[ChunkId]:
        """Every chunk that is here."""
        with self._lock:
            return set(self._places)

    def new_slab(self) -> int:
        """The number of a fresh slab, for the chunks of one file."""
        with self._lock:
            self._slabs += 1
            return self._slabs

    def add(self, chunk_id: ChunkId, data: Bytes) -> bool:
        """Keep a chunk at the end of the shared slab; False if it was here already."""
        with self._lock:
            if not self._add(chunk_id, data, _SHARED, self._shared_end):
                return False
            self._shared_end += len(data)
            return True

    def add_at(self, chunk_id: ChunkId, data: Bytes, slab: int, offset: int) -> bool:
        """Keep a chunk at an offset of a file's slab; False if it was here already."""
        with self._lock:
            return self._add(chunk_id, data, slab, offset)

    def _add(self, chunk_id: ChunkId, data: Bytes, slab: int, offset: int) -> bool:
        if chunk_id in self._places:
            return False
        place = Place(slab, offset, len(data), _GENERATION)
        self._places[chunk_id] = place
        self._bytes[place] = bytes(data)
        return True


class MemoryFileSink:
    """`FileSink` of a `MemorySink`: the file's new chunks get a slab number of their own."""

    def __init__(self, sink: "MemorySink", size: int) -> None:
        self._sink = sink
        self._size = size
        self._slab: int | None = None
        self._lock = Lock()

    def put(self, chunk_id: ChunkId, data: Bytes, offset: int) -> None:
        if offset + len(data) > self._size:
            raise StoreFailed(f"chunk at {offset} of {len(data)} bytes lies beyond a file of {self._size} bytes")
        with self._lock:
            if self._slab is None and not any(self._sink.has([chunk_id])):
                self._slab = self._sink.chunks.new_slab()
            if self._slab is not None:
                self._sink.count(self._sink.chunks.add_at(chunk_id, data, self._slab, offset), len(data))

    def finish(self, file_key: bytes, runs: Sequence[tuple[ChunkId, int]]) -> None:
        if sum(length for _, length in runs) != self._size:
            raise StoreFailed(f"the runs of file {file_key.hex()} do not add up to {self._size} bytes")
        if self._slab is None:
            return
        held = self._sink.chunks.places([chunk_id for chunk_id, _ in runs if chunk_id != HOLE])
        self._sink.files[file_key] = (self._slab, all(place and place.slab == self._slab for place in held))

    def abandon(self) -> None:
        self._slab = None


class MemorySink:
    """`ChunkSink` over `MemoryChunks`. `files`: file key -> (slab, complete) of finished large files."""

    def __init__(self) -> None:
        self.chunks = MemoryChunks()
        self.files: dict[bytes, tuple[int, bool]] = {}
        self.stored = 0
        """Bytes that were new when they were put."""
        self.flushed = True
        """Whether everything put so far was flushed."""
        self._lock = Lock()

    def has(self, ids: Sequence[ChunkId]) -> list[bool]:
        return [place is not None for place in self.chunks.places(ids)]

    def put(self, chunk_id: ChunkId, data: Bytes) -> None:
        self.count(self.chunks.add(chunk_id, data), len(data))

    def put_many(self, chunks: Sequence[tuple[ChunkId, Bytes]]) -> list[bool]:
        news = []
        for chunk_id, data in chunks:
            news.append(not any(self.has([chunk_id])))
            if news[-1]:
                self.put(chunk_id, data)
        return news

    def open_file(self, size: int) -> MemoryFileSink:
        return MemoryFileSink(self, size)

    def flush(self) -> None:
        with self._lock:
            self.flushed = True

    def count(self, new: bool, size: int) -> None:
        """Account for one `put`."""
        with self._lock:
            if new:
                self.stored += size
                self.flushed = False


def catalog_of(root: Bytes, chunks: MemoryChunks) -> Catalog:
    """The catalog of the snapshot with this encoded root. Raises KeyError if one of its chunks is not there."""
    record = decode(root)
    runs = record.catalog_runs
    if record.catalog_list is not None:
        runs = decode_list(chunks.get(record.catalog_list.chunk_id), record)
    return Catalog(memoryview(b"".join(_run_bytes(chunks, chunk, length) for chunk, length in runs)))


def bytes_of(catalog: Catalog, inode: int, chunks: MemoryChunks) -> bytes:
    """The whole content of a file. Raises KeyError if one of its chunks is not there."""
    runs = catalog.runs(inode)
    return b"".join(_run_bytes(chunks, catalog.chunk_id(run), catalog.length(run)) for run in runs)


def _run_bytes(chunks: MemoryChunks, chunk: ChunkId, length: int) -> bytes:
    return bytes(length) if chunk == HOLE else chunks.get(chunk)
