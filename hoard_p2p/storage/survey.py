"""What a data directory holds, seen from two sides: the index, and the sidecars and slab files themselves.

For scrub, `hoard doctor` and the rebuild of an index. Reads only, and never holds a transaction for long.
"""

import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from hoard_p2p.errors import Corrupt
from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import Extent, Place, SlabKind
from hoard_p2p.storage import sidecar
from hoard_p2p.storage.extents import MAX_PLACES, get_file
from hoard_p2p.storage.index import Index, Table, Transaction
from hoard_p2p.storage.layout import DataDir, sidecar_path
from hoard_p2p.storage.records import FileSlab, SlabRecord, decode_places, decode_slab

STEP = 8192
"""Rows that are read in one transaction."""

UNLISTED = 0
"""The generation of a place that the index has no room for; real ones are 1 - 255."""

_NAME = re.compile(r"([SF])-(\d+)-(\d+)\.slab")
_KINDS = {"S": SlabKind.SHARED, "F": SlabKind.FILE}


class Stored(NamedTuple):
    """A chunk, and one place that should hold it."""

    chunk_id: ChunkId
    place: Place


class Slab(NamedTuple):
    """A slab as the index lists it. `complete`: a large file's own slab, recorded to have all of it."""

    number: int
    record: SlabRecord
    path: Path
    complete: bool


class SlabName(NamedTuple):
    """What the name of a slab's file says."""

    kind: SlabKind
    start: int
    number: int


class Contents(NamedTuple):
    """What a sidecar lists. `whole`: header and every record are right, and nothing is torn."""

    extents: list[Extent]
    whole: bool


def parse_name(path: Path) -> SlabName | None:
    match = _NAME.fullmatch(path.name)
    return SlabName(_KINDS[match[1]], int(match[2]), int(match[3])) if match else None


def slab_files(layout: DataDir) -> list[Path]:
    """The data files of all slabs, by number."""
    named = [(name.number, path) for path in layout.slabs.glob("*.slab") if (name := parse_name(path))]
    return [path for _, path in sorted(named)]


def contents(slab_path: Path, slab: int) -> Contents:
    """What the sidecar of a slab lists, as much of it as can be read: a damaged header or record costs only itself,
    since each record's crc is started with the slab's number. A chunk twice at one offset counts once."""
    try:
        with sidecar_path(slab_path).open("rb") as file:
            raw = file.read()
            whole = _header_is(file.fileno(), slab)
    except OSError:
        return Contents([], whole=False)
    extents: dict[tuple[int, bytes], Extent] = {}
    records = max(0, len(raw) - sidecar.HEADER_SIZE) // sidecar.RECORD_SIZE
    for at in range(sidecar.HEADER_SIZE, sidecar.HEADER_SIZE + records * sidecar.RECORD_SIZE, sidecar.RECORD_SIZE):
        offset, length, chunk_id, crc = sidecar.RECORD.unpack_from(raw, at)
        if crc != zlib.crc32(raw[at : at + sidecar.RECORD_SIZE - 4], slab):
            whole = False
        else:
            extents[offset, chunk_id] = Extent(slab, offset, length, ChunkId(chunk_id))
    torn = len(raw) - sidecar.HEADER_SIZE - records * sidecar.RECORD_SIZE
    return Contents(list(extents.values()), whole and not torn)


def _header_is(fd: int, slab: int) -> bool:
    try:
        return sidecar.read_header(fd).slab == slab
    except Corrupt:
        return False


class Inventory:
    """What the index lists, slab by slab. Safe from several threads."""

    def __init__(self, index: Index, layout: DataDir) -> None:
        self._index = index
        self._layout = layout

    @classmethod
    def open(cls, data_dir: Path) -> "Inventory":
        """In a process that has not opened the index yet. Raises as `StoreReader.open` does."""
        layout = DataDir(data_dir)
        layout.require_format()
        return cls(Index.for_reading(layout.index), layout)

    def close(self) -> None:
        """Only after `open`."""
        self._index.close()

    def slabs(self) -> list[Slab]:
        """By number."""
        found = []
        with self._index.read() as txn:
            for key, raw in txn.scan(Table.SLABS):
                found.append(self._slab(txn, int.from_bytes(key, "big"), decode_slab(raw)))
        return found

    def slab(self, number: int) -> Slab | None:
        with self._index.read() as txn:
            raw = txn.get(Table.SLABS, number.to_bytes(4, "big"))
            return None if raw is None else self._slab(txn, number, decode_slab(raw))

    def _slab(self, txn: Transaction, number: int, record: SlabRecord) -> Slab:
        path = self._layout.slab(record.kind, record.start, number)
        return Slab(
            number,
            record,
            path,
            bool(record.file_key) and get_file(txn, record.file_key) == FileSlab(number, True),
        )

    def listed(self, extents: Sequence[Extent], *, unlisted: bool = False) -> list[Stored]:
        """Those of `extents` that the index lists; with `unlisted` also those of chunks that have all the places that
        the index has room for."""
        found: list[Stored] = []
        for start in range(0, len(extents), STEP):
            with self._index.read() as txn:
                for extent in extents[start : start + STEP]:
                    found += _listed(txn, extent, unlisted)
        return found

    def still(self, stored: Stored) -> bool:
        """Whether the index lists a place exactly so (or, of an unlisted one, still has its chunk)."""
        with self._index.read() as txn:
            raw = txn.get(Table.CHUNKS, stored.chunk_id)
        return raw is not None and (stored.place.generation == UNLISTED or stored.place in decode_places(raw))

    def places_of(self, ids: Sequence[ChunkId]) -> list[Stored]:
        """Every place of these chunks."""
        found: list[Stored] = []
        with self._index.read() as txn:
            for chunk_id in ids:
                raw = txn.get(Table.CHUNKS, chunk_id)
                found += [Stored(chunk_id, place) for place in decode_places(raw)] if raw else []
        return found

    def counts(self) -> Counter[int]:
        """Places by slab. Goes through the whole index."""
        found: Counter[int] = Counter()
        for _, value in self._rows():
            found.update(place.slab for place in decode_places(value))
        return found

    def stored_in(self, slabs: Collection[int]) -> list[Stored]:
        """Every place in these slabs. Goes through the whole index."""
        return [
            Stored(ChunkId(key), place)
            for key, value in self._rows()
            for place in decode_places(value)
            if place.slab in slabs
        ]

    def sample(self, keys: Sequence[bytes]) -> list[Stored]:
        """The first place of the chunk after each key."""
        found: dict[bytes, Stored] = {}
        with self._index.read() as txn:
            for key in keys:
                for chunk_id, value in txn.page(Table.CHUNKS, key, 1):
                    found[chunk_id] = Stored(ChunkId(chunk_id), decode_places(value)[0])
        return list(found.values())

    def _rows(self) -> Iterator[tuple[bytes, bytes]]:
        """All of CHUNKS, in short transactions: one that lasted would keep space from being given back."""
        return chain.from_iterable(self._index.pages(Table.CHUNKS))


def _listed(txn: Transaction, extent: Extent, unlisted: bool) -> list[Stored]:
    raw = txn.get(Table.CHUNKS, extent.chunk_id)
    if raw is None:
        return []
    places = decode_places(raw)
    found = [Stored(extent.chunk_id, place) for place in places if place[:3] == extent[:3]]
    if not found and unlisted and len(places) >= MAX_PLACES:
        return [Stored(extent.chunk_id, Place(*extent[:3], UNLISTED))]
    return found
