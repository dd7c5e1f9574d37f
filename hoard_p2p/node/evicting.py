"""Dropping this node's copies of one snapshot, a few segments at a time, once enough others keep theirs (I4)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.ids import ChunkId, SnapshotId
from hoard_p2p.node.marking import SharedIds
from hoard_p2p.node.vouching import Promises, Vouched
from hoard_p2p.storage.eviction import Part
from hoard_p2p.storage.reader import StoreReader
from hoard_p2p.storage.store import Store

BATCH = 256
"""Segments that are asked for and dropped in one go: at most `wire_life.MAX_VOUCHED`."""


@dataclass(slots=True)
class Batch:
    """Some segments of which this node has chunks: their placement keys, and what is here of each."""

    keys: dict[int, ChunkId] = field(default_factory=dict)
    chunks: dict[int, list[tuple[ChunkId, int]]] = field(default_factory=dict)

    def size(self, segments: Iterable[int] | None = None) -> int:
        wanted = self.chunks if segments is None else segments
        return sum(length for segment in wanted for _, length in self.chunks[segment])


@dataclass(frozen=True, slots=True)
class Going:
    """What a batch came to: chunks and bytes that go, or would."""

    chunks: int
    size: int


def batches(catalog: Catalog, part: Part, held: set[int]) -> list[list[int]]:
    """The segments of a part, in order, in rounds of `BATCH`. Pure."""
    wanted = [number for number in range(catalog.segments) if (number in held) is (part is Part.HOME)]
    return [wanted[at : at + BATCH] for at in range(0, len(wanted), BATCH)]


def look(reader: StoreReader, catalog: Catalog, segments: Sequence[int]) -> Batch:
    """Blocking. What is here of these segments."""
    batch = Batch()
    for number in segments:
        listed = catalog.segment_chunks(number)
        places = reader.places([chunk.chunk_id for chunk in listed])
        here = [
            (chunk.chunk_id, chunk.length) for chunk, place in zip(listed, places, strict=True) if place is not None
        ]
        key = catalog.placement_key(number) if here else None
        if key is not None:
            batch.keys[number], batch.chunks[number] = key, here
    return batch


@dataclass(frozen=True, slots=True)
class Evictor:
    """Drops batches of one snapshot. `shared`: ids that other snapshots here name, too."""

    store: Store
    promises: Promises
    snapshot: SnapshotId
    shared: SharedIds

    def going(self, batch: Batch, vouched: Vouched) -> Going:
        """What `drop` would drop."""
        ids = self._ids(batch, vouched.segments - self.promises.kept(self.snapshot))
        return Going(len(ids), sum(ids.values()))

    def drop(self, batch: Batch, vouched: Vouched, now: float) -> Going:
        """Blocking. Drop what is vouched for, unless that is too old by `now` (of the monotonic clock), or this node
        promised to keep it."""
        with self.promises.deciding:
            if now > vouched.until:
                return Going(0, 0)
            segments = vouched.segments - self.promises.kept(self.snapshot)
            if not segments:
                return Going(0, 0)
            self.store.drop_holds(self.snapshot, segments)  # before its chunks: a hold means that they are here
            dropped = self.store.reclaimer.drop(self._ids(batch, segments))
            return Going(dropped.chunks, dropped.bytes)

    def _ids(self, batch: Batch, segments: Iterable[int]) -> dict[ChunkId, int]:
        return {
            chunk_id: length
            for segment in segments
            for chunk_id, length in batch.chunks.get(segment, ())
            if chunk_id not in self.shared
        }
