"""What a fetch is about: one segment's chunks, in order, and what arrived. Pure."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.ids import HOLE, ChunkId, SnapshotId
from hoard_p2p.interfaces import Place

BATCH_BYTES = 16 << 20
"""Bytes asked of a peer in one request: what a chunk that is waited for may have to wait behind."""

BATCH_CHUNKS = 4096


class Wanted(NamedTuple):
    """A chunk to get: its canonical run in the snapshot's chunk table (for a file's place), id and length."""

    run: int
    chunk_id: ChunkId
    length: int


class Landed(NamedTuple):
    """A chunk that arrived and matched its id. `place` None: it could not be stored, `data` holds it (I5)."""

    place: Place | None
    data: bytes


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment of a snapshot. `number` -1 stands for the chunks of the catalog itself; then `catalog` is None.
    `key`: its placement key. `file`: the inode of the large file it lies in, 0 if none."""

    snapshot: SnapshotId
    number: int
    chunks: tuple[Wanted, ...]
    key: ChunkId
    file: int = 0
    catalog: Catalog | None = None


def segment_of(catalog: Catalog, snapshot: SnapshotId, number: int) -> Segment:
    """The segment `number` of an open snapshot. Raises CatalogCorrupt."""
    chunks = tuple(Wanted(*chunk) for chunk in catalog.segment_chunks(number))
    return Segment(
        snapshot, number, chunks, catalog.placement_key(number) or HOLE, catalog.segment_file(number), catalog
    )


def next_batch(missing: Iterable[Wanted], waited: Container[ChunkId]) -> list[Wanted]:
    """The chunks to ask for next: those that somebody waits for, then the rest in order, at most `BATCH_BYTES`
    (but always one)."""
    ordered = sorted(missing, key=lambda chunk: (chunk.chunk_id not in waited, chunk.run))
    batch: list[Wanted] = []
    size = 0
    for chunk in ordered:
        if batch and (size + chunk.length > BATCH_BYTES or len(batch) >= BATCH_CHUNKS):
            break
        batch.append(chunk)
        size += chunk.length
    return batch


def ids_of(chunks: Sequence[Wanted]) -> list[tuple[ChunkId, int]]:
    return [(chunk.chunk_id, chunk.length) for chunk in chunks]
