"""Which chunks living snapshots name: read from the catalogs in the store, in parts that fit into memory.

Blocking, for threads. Nothing is believed: each catalog chunk is hashed as it is read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from hoard_p2p.catalog.layout import Column, sections
from hoard_p2p.catalog.root import CatalogRun, Root, decode_list
from hoard_p2p.errors import ChunkUnavailable, Corrupt
from hoard_p2p.ids import HOLE, ID_SIZE, ORIGIN_KEY_TAG, Bytes, ChunkId, chunk_id, short
from hoard_p2p.interfaces import LocalChunks

MOST_IDS = 500_000
"""Ids in memory at one time: some 60 MB of Python's sets."""
BLOCK = 1 << 20
"""Bytes of a catalog's ids that are looked at in one go: 32,768 ids."""
FILTER_BITS = 27

Ids = Callable[[], Iterator[bytes]]
"""The ids that one snapshot names, afresh at each call: blocks of whole ids, one after the other. Holes and repetitions
occur."""


def catalog_ids(root: Root, chunks: LocalChunks) -> list[ChunkId]:
    """The chunks that a snapshot's catalog consists of. Raises ChunkUnavailable, Corrupt where its list is not here."""
    listed = [] if root.catalog_list is None else [root.catalog_list.chunk_id]
    return [*listed, *(run.chunk_id for run in _runs(root, chunks) if run.chunk_id != HOLE)]


def load_catalog(root: Root, chunks: LocalChunks) -> bytearray:
    """The bytes of a catalog that is whole in the store. Raises ChunkUnavailable, Corrupt."""
    data = bytearray(root.catalog_length)
    at = 0
    with memoryview(data) as view:
        for run in _runs(root, chunks):
            if run.chunk_id != HOLE:
                _read(run, chunks, view[at : at + run.length])
            at += run.length
    return data


def stored_ids(root: Root, chunks: LocalChunks) -> Iterator[bytes]:
    """The ids of a snapshot whose catalog is in the store: those of its catalog first. Raises as `load_catalog`."""
    yield b"".join(catalog_ids(root, chunks))
    yield from ids_in(load_catalog(root, chunks))


def known(blocks: Iterable[bytes], chunks: LocalChunks) -> Iterator[bytes]:
    """The same ids, with what origin keys were found to be in their place; those that nothing is known of are left
    out: no chunk here is theirs."""
    for block in blocks:
        if ORIGIN_KEY_TAG in block:
            block = b"".join(filter(None, chunks.contents([ChunkId(one) for one in _split(block)])))  # noqa: PLW2901
        yield block


def ids_in(catalog: Bytes) -> Iterator[bytes]:
    """The ids of a catalog's chunk table. Raises CatalogCorrupt."""
    column = sections(memoryview(catalog))[1][Column.CHUNK_ID]
    for at in range(0, len(column), BLOCK):
        yield column[at : at + BLOCK].tobytes()


def _runs(root: Root, chunks: LocalChunks) -> Sequence[CatalogRun]:
    if root.catalog_list is None:
        return root.catalog_runs
    data = bytearray(root.catalog_list.length)
    _read(root.catalog_list, chunks, memoryview(data))
    return decode_list(data, root)


def _read(run: CatalogRun, chunks: LocalChunks, into: memoryview) -> None:
    place = chunks.place(run.chunk_id)
    if place is None or place.length != run.length or chunks.read_into(run.chunk_id, 0, into) is None:
        raise ChunkUnavailable(f"catalog chunk {short(run.chunk_id)} is not here")
    if chunk_id(into) != run.chunk_id:
        raise Corrupt(f"catalog chunk {short(run.chunk_id)} is damaged here")


def known_ids(source: Ids, chunks: LocalChunks) -> Iterator[bytes]:
    """`known` of what a source gives."""
    return known(source(), chunks)


class LiveIds:
    """Whether a chunk is named by one of some snapshots. Exact; holds the ids of one range at a time, so ask in order
    of ids. One thread."""

    def __init__(self, sources: Sequence[Ids], count: int, *, most: int = MOST_IDS) -> None:
        """`count`: ids of all sources together, repetitions too."""
        self._sources = sources
        parts = 1
        while count > parts * most and parts < 1 << 16:
            parts *= 2
        self._shift = 17 - parts.bit_length()
        self._part = -1
        self._ids: set[bytes] = set()
        self.loads = 0

    def __call__(self, identifier: bytes) -> bool:
        """Raises what the sources raise."""
        part = int.from_bytes(identifier[:2], "big") >> self._shift
        if part != self._part:
            self._load(part)
        return identifier in self._ids

    def _load(self, part: int) -> None:
        self._ids, self._part = set(), -1
        low = (part << self._shift).to_bytes(2, "big")
        last = (((part + 1) << self._shift) - 1).to_bytes(2, "big") + b"\xff" * (ID_SIZE - 2)
        for source in self._sources:
            for block in source():
                self._ids.update(one for one in _split(block) if low <= one <= last)
        self._part = part
        self.loads += 1


class SharedIds:
    """Ids of some snapshots in a fixed 16 MiB, as a Bloom filter: `in` may be wrong with yes (1 in 4,500 for a million
    ids, 1 in 50 for ten), never with no."""

    def __init__(self) -> None:
        self._bits = bytearray(1 << (FILTER_BITS - 3))

    def add(self, block: bytes) -> None:
        bits, mask = self._bits, (1 << FILTER_BITS) - 1
        for one in _split(block):
            low, high = int.from_bytes(one[:8], "little") & mask, int.from_bytes(one[8:16], "little") & mask
            bits[low >> 3] |= 1 << (low & 7)
            bits[high >> 3] |= 1 << (high & 7)

    def __contains__(self, one: bytes) -> bool:
        bits, mask = self._bits, (1 << FILTER_BITS) - 1
        low, high = int.from_bytes(one[:8], "little") & mask, int.from_bytes(one[8:16], "little") & mask
        return bool(bits[low >> 3] >> (low & 7) & 1 and bits[high >> 3] >> (high & 7) & 1)


def _split(block: bytes) -> list[bytes]:
    return [block[at : at + ID_SIZE] for at in range(0, len(block), ID_SIZE)]
