"""Reading chunks from the slabs of this machine, in the node and in other processes."""

from collections.abc import Sequence
from pathlib import Path

from hoard_p2p.errors import ChunkCorrupt, Refused
from hoard_p2p.ids import HOLE, ChunkId, is_origin_key
from hoard_p2p.interfaces import Extent, Place
from hoard_p2p.storage.extents import content_of, get_file, get_slab, lists, may_serve, next_generation
from hoard_p2p.storage.index import Index, Table
from hoard_p2p.storage.layout import DataDir
from hoard_p2p.storage.records import FileSlab, decode_place, decode_places
from hoard_p2p.storage.slabs import SlabFile, SlabFiles


class StoreReader:
    """LocalChunks and FileSlabs over the index and the slabs. Safe from several threads; blocking, and short.

    In the node: `Store.reader()`. In other processes: `StoreReader.open`, in a process where neither it nor,
    since the last `exec`, those that it was forked from opened the index before (LMDB allows neither).
    """

    def __init__(self, index: Index, data_dir: DataDir, *, owns_index: bool) -> None:
        self._index = index
        self._data_dir = data_dir
        self._owns_index = owns_index
        self._slabs = SlabFiles(self.slab_path)

    @classmethod
    def open(cls, data_dir: Path) -> "StoreReader":
        """Raises NoNode if there is no store, StoreFormatUnknown, and Refused if this user may not read the index
        (then read through the node)."""
        layout = DataDir(data_dir)
        try:
            layout.require_format()
        except PermissionError as error:
            raise Refused(f"the store {data_dir} is not open to this user ({error}); read through the node") from error
        return cls(Index.for_reading(layout.index), layout, owns_index=True)

    def close(self) -> None:
        """Close the slabs, and the index if `open` opened it. Nothing may be read any more."""
        self._slabs.close()
        if self._owns_index:
            self._index.close()

    def __enter__(self) -> "StoreReader":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def content(self, chunk_id: ChunkId) -> ChunkId | None:
        """See LocalChunks."""
        if not is_origin_key(chunk_id):
            return chunk_id
        with self._index.read() as txn:
            return content_of(txn, chunk_id)

    def contents(self, ids: Sequence[ChunkId]) -> list[ChunkId | None]:
        """`content` of each, in one transaction."""
        if not any(is_origin_key(identifier) for identifier in ids):
            return list(ids)
        with self._index.read() as txn:
            return [content_of(txn, identifier) for identifier in ids]

    def file_name(self, file_key: bytes) -> bytes:
        """The key that a large file is recorded under: the one over the ids of its chunks once all are known."""
        with self._index.read() as txn:
            return txn.get(Table.KEYS, file_key) or file_key

    def place(self, chunk_id: ChunkId) -> Place | None:
        known = self.content(chunk_id)
        value = None if known is None else self._index.get_chunk(known)
        return None if value is None else decode_place(value)

    def places(self, ids: Sequence[ChunkId]) -> list[Place | None]:
        with self._index.read() as txn:
            values = [txn.get(Table.CHUNKS, content_of(txn, chunk_id) or HOLE) for chunk_id in ids]
        return [None if value is None else decode_place(value) for value in values]

    def places_of(self, chunk_id: ChunkId) -> list[Place]:
        """See ListedSlabs."""
        known = self.content(chunk_id)
        value = None if known is None else self._index.get_chunk(known)
        return [] if value is None else decode_places(value)

    def read_into(self, chunk_id: ChunkId, start: int, into: memoryview) -> Place | None:
        """See LocalChunks. Raises ValueError if `start` and `into` reach beyond the chunk."""
        opened: list[tuple[int, SlabFile]] = []

        def copy(value: bytes) -> Place:
            place = decode_place(value)
            file = self._slabs.peek(place.slab) or next((f for slab, f in opened if slab == place.slab), None)
            if file is None:
                raise _NotOpen(place.slab)
            _check_bounds(place, start, into)
            file.read(place.offset + start, into)
            return place

        known = self.content(chunk_id)
        while known is not None:
            try:
                return self._index.look_up(known, copy)
            except _NotOpen as miss:  # its path is in the index: look outside this transaction, they do not nest
                file = self._open_for(known, miss.slab)
                if file is not None:
                    opened.append((miss.slab, file))
        return None

    def _open_for(self, chunk_id: ChunkId, slab: int) -> SlabFile | None:
        """A slab in which the chunk was listed a moment ago; None if it is not there, and the chunk not listed there
        any more. Raises ChunkCorrupt, StoreFailed."""
        try:
            return self._slabs.get(slab)
        except ChunkCorrupt:
            place = self.place(chunk_id)
            if place is None or place.slab != slab:
                return None
            raise

    def read_at(self, place: Place, start: int, into: memoryview) -> None:
        """See LocalChunks. Raises ValueError if `start` and `into` reach beyond the chunk."""
        _check_bounds(place, start, into)
        self._slabs.get(place.slab).read(place.offset + start, into)

    def slab_file(self, slab: int) -> SlabFile:
        """The slab's descriptor for `sendfile`: open as long as the returned object is referenced. Raises ChunkCorrupt
        if the slab is not there."""
        return self._slabs.get(slab)

    def forget_slab(self, slab: int) -> None:
        """Keep the slab open no longer than somebody reads it."""
        self._slabs.forget(slab)

    def open_slab(self, slab: int) -> int:
        """See FileSlabs."""
        return self._slabs.open_apart(slab)

    def file_slab(self, file_key: bytes) -> FileSlab | None:
        """See FileSlabs."""
        with self._index.read() as txn:
            return get_file(txn, file_key)

    def committed(self, extents: Sequence[Extent], *, repeats: bool = False) -> list[Extent]:
        """Those of `extents` (from a sidecar) that the index lists, hence whose bytes were synced (I2); with `repeats`,
        for a file slab, also those that it has no room to list."""
        if repeats:
            with self._index.read() as txn:
                return [extent for extent in extents if may_serve(txn, extent)]
        with self._index.read() as txn:
            return [extent for extent in extents if lists(txn, extent)]

    def forget_dead(self) -> None:
        """In the node: make room in the index's table of readers. Processes that were killed leave their entries."""
        self._index.forget_dead()

    def vacancies(self, ids: Sequence[ChunkId]) -> list[int | None]:
        """For each chunk None if it is stored; else the generation that its next place will have."""
        with self._index.read() as txn:
            quarantines = txn.count(Table.GENERATIONS) > 0
            return [
                next_generation((), txn.get(Table.GENERATIONS, chunk_id) if quarantines else None)
                if txn.get(Table.CHUNKS, chunk_id) is None
                else None
                for chunk_id in ids
            ]

    def slab_path(self, slab: int) -> Path:
        """Where the slab's data file is, or should be. Raises ChunkCorrupt if the index does not list it."""
        with self._index.read() as txn:
            record = get_slab(txn, slab)
        if record is None:
            raise ChunkCorrupt(f"slab {slab} is not listed; fetch its chunks again")
        return self._data_dir.slab(record.kind, record.start, slab)


class _NotOpen(Exception):
    """The slab of a place has to be opened first."""

    def __init__(self, slab: int) -> None:
        super().__init__(slab)
        self.slab = slab


def _check_bounds(place: Place, start: int, into: memoryview) -> None:
    if start + len(into) > place.length:
        raise ValueError(f"bytes {start} - {start + len(into)} of a chunk of {place.length}")
