"""Dropping this node's copies of one snapshot, a few segments at a time, once enough others keep theirs (I4)."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.catalog.root import decode as decode_root
from hoard_p2p.errors import ChunkUnavailable, Corrupt, Refused, SnapshotUnknown
from hoard_p2p.ids import HOLE, ChunkId, SnapshotId, short
from hoard_p2p.node import vouching
from hoard_p2p.node.blocking import in_executor
from hoard_p2p.node.collecting import ids_of_open
from hoard_p2p.node.course import Report, silent
from hoard_p2p.node.marking import SharedIds, known, load_catalog, stored_ids
from hoard_p2p.node.readback import asker
from hoard_p2p.node.vouching import Promises, Vouched
from hoard_p2p.printing import size_text
from hoard_p2p.repair.lastcopy import may_drop
from hoard_p2p.storage.eviction import Part
from hoard_p2p.storage.reader import StoreReader
from hoard_p2p.storage.records import SnapshotRecord
from hoard_p2p.storage.store import Store

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

T = TypeVar("T")

BATCH = 256
"""Segments that are asked for and dropped in one go: at most `wire_life.MAX_VOUCHED`."""


@dataclass(slots=True)
class Outcome:
    """What was freed, or would be. `reclaimed`: bytes that are back on the disk already. `kept`: what stays and why,
    for people."""

    chunks: int = 0
    size: int = 0
    reclaimed: int = 0
    removed: list[SnapshotId] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


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
    """Blocking. What is here of these segments, by the ids of the bytes."""
    batch = Batch()
    for number in segments:
        listed = catalog.segment_chunks(number)
        contents = [one or HOLE for one in reader.contents([chunk.chunk_id for chunk in listed])]
        found = zip(contents, listed, reader.places(contents), strict=True)
        here = [(content, chunk.length) for content, chunk, place in found if place is not None]
        key = catalog.placement_key(number) if here else None
        if key is not None:
            batch.keys[number], batch.chunks[number] = key, here
    return batch


@dataclass(frozen=True, slots=True)
class Evictor:
    """Drops batches of one snapshot. `shared`: ids that other snapshots here name, too: those in `covered`, to which
    are added those that come meanwhile."""

    store: Store
    promises: Promises
    snapshot: SnapshotId
    shared: SharedIds
    covered: set[SnapshotId]

    def going(self, batch: Batch, vouched: Vouched) -> Going:
        """What `drop` would drop."""
        ids = self._ids(batch, vouched.segments - self.promises.kept(self.snapshot))
        return Going(len(ids), sum(ids.values()))

    def drop(self, batch: Batch, vouched: Vouched) -> Going:
        """Blocking. Drop what is vouched for, unless that is too old by now, or this node promised to keep it."""
        with self.promises.deciding:
            promised = self.promises.kept(self.snapshot)
            segments = may_drop(vouched.segments, vouched.asked, promised, time.monotonic())  # it may have waited
            if not segments:
                return Going(0, 0)
            self.store.life.drop_holds(self.snapshot, segments)  # before its chunks: a hold means that they are here
            dropped = self.store.reclaimer.drop(self._ids(batch, segments))
            return Going(dropped.chunks, dropped.bytes)

    def shared_size(self, batch: Batch, vouched: Vouched) -> int:
        """Bytes that would go, if other snapshots did not name them, too."""
        chunks = {chunk for segment in vouched.segments for chunk in batch.chunks.get(segment, ())}
        return sum(length for chunk_id, length in chunks if chunk_id in self.shared)

    def _ids(self, batch: Batch, segments: Iterable[int]) -> dict[ChunkId, int]:
        return {
            chunk_id: length
            for segment in segments
            for chunk_id, length in batch.chunks.get(segment, ())
            if chunk_id not in self.shared
        }


class Evictions:
    """For the event loop."""

    def __init__(self, node: "Node", executor: Executor, turn: asyncio.Lock) -> None:
        """`turn` is held while something is dropped."""
        self._node = node
        self._executor = executor
        self._turn = turn
        self.promises = Promises()

    async def thread(self, work: Callable[..., T], *args: object) -> T:
        return await in_executor(self._executor, work, *args)

    def refuse_needed(self, snapshot: SnapshotId) -> None:
        """Raises Refused while it is leased here, or pinned; SnapshotUnknown."""
        record = self._node.names.snapshot(snapshot)
        if record is None or record.removed:
            raise SnapshotUnknown(f"no snapshot {snapshot.hex()} is known here")
        if users := self._node.leases.users(snapshot):
            raise Refused(f"{snapshot.hex()} is {'; '.join(users[:8])} here; end that first")
        if record.pinned:
            raise Refused(f"{snapshot.hex()} is pinned; take that back first: hoard unpin {short(snapshot)}")

    async def evict(self, snapshot: SnapshotId, *, dry_run: bool = False, report: Report = silent) -> Outcome:
        """Drop this node's copies of a snapshot that enough others keep. Raises Refused while it is leased or pinned
        here, SnapshotUnknown, Corrupt."""
        self.refuse_needed(snapshot)
        outcome = Outcome()
        record = self._node.names.snapshot(snapshot)
        catalog = await self.catalog(snapshot)
        if record is None or catalog is None:
            outcome.kept.append(
                f"all of {short(snapshot)} stays: its catalog is not whole here, so what is its is not known"
            )
            return outcome
        evictor = await self.evictor(snapshot)
        for part in Part:
            await self.evict_part(record, catalog, evictor, part, outcome, dry_run=dry_run, report=report)
        return outcome

    async def evictor(self, snapshot: SnapshotId) -> Evictor:
        """Reads the catalogs of all other snapshots here."""
        evictor = Evictor(self._node.store, self.promises, snapshot, SharedIds(), {snapshot})
        await self.thread(self._cover, evictor)
        return evictor

    async def evict_part(
        self,
        record: SnapshotRecord,
        catalog: Catalog,
        evictor: Evictor,
        part: Part,
        outcome: Outcome,
        *,
        dry_run: bool = False,
        report: Report = silent,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """Drop one part of a set, batch by batch, until `enough`."""
        node, stays, stayed, shared = self._node, 0, 0, 0
        held = await self.thread(node.store.holds, record.id)
        rounds = batches(catalog, part, held)
        for number, segments in enumerate(rounds):
            batch = await self.thread(look, node.reader, catalog, segments)
            vouched = await self._vouched(record, catalog, batch)
            going = await self._drop(record.id, evictor, batch, vouched, dry_run=dry_run)
            outcome.chunks, outcome.size = outcome.chunks + going.chunks, outcome.size + going.size
            left = [segment for segment in batch.chunks if segment not in vouched.segments]
            stays, stayed = stays + len(left), stayed + batch.size(left)
            shared += evictor.shared_size(batch, vouched)
            await report(
                {"phase": f"evicting {part.name.lower()} copies", "segments": len(rounds), "segments_done": number + 1}
            )
            if enough():
                return
        if stays:
            outcome.kept.append(self._why_kept(record, stays, stayed))
        if shared:
            twin = (
                "; the lazy one that it was sealed from goes by itself, an hour after its last use"
                if record.origin
                else ""
            )
            outcome.kept.append(
                f"{size_text(shared)} of {short(record.id)} stay: other snapshots that are known here have them, too "
                f"(hoard ls{twin})"
            )

    async def _vouched(self, record: SnapshotRecord, catalog: Catalog, batch: Batch) -> Vouched:
        """What others keep, or can be read again where it was published (I4)."""
        node, asked = self._node, time.monotonic()
        if batch.keys and await node.origins.has(record.id, catalog, [*batch.keys]):
            return Vouched(frozenset(batch.keys), asked)
        ask = self.asker(record.id, catalog)
        return await vouching.vouched(ask, node.agent.view(), batch.keys, record.replicas)

    def asker(self, snapshot: SnapshotId, catalog: Catalog) -> vouching.Ask:
        """Asks others to vouch for segments of a snapshot."""
        return asker(self._node.control, self._node.bulk, self.thread, snapshot, catalog)

    async def _drop(
        self,
        snapshot: SnapshotId,
        evictor: Evictor,
        batch: Batch,
        vouched: vouching.Vouched,
        *,
        dry_run: bool,
    ) -> Going:
        if dry_run:
            return evictor.going(batch, vouched)
        async with self._turn:
            with self._node.retention.deciding():
                await self.thread(self._cover, evictor)
                self.refuse_needed(snapshot)
                if self._node.leases.leased() - evictor.covered:
                    raise Refused(f"snapshots were mounted while {short(snapshot)} was evicted; try again")
                going = await self.thread(evictor.drop, batch, vouched)
        self._node.held.forget()
        return going

    def _why_kept(self, record: SnapshotRecord, segments: int, size: int) -> str:
        nodes = len(self._node.agent.view().peers)
        what = f"{segments:,} segments ({size_text(size)}) of {short(record.id)} stay: "
        if nodes == 1:
            return (
                f"{what}this is the only node of the cluster, and the last copy of a living snapshot is never evicted; "
                f"to be rid of it: hoard rm {short(record.id)}"
            )
        return (
            f"{what}they go only when {record.replicas} nodes that come before this one in their order vouch for their "
            f"copies; there are {nodes} nodes. To be rid of it everywhere: hoard rm {short(record.id)}"
        )

    async def catalog(self, snapshot: SnapshotId) -> Catalog | None:
        """None if it is not whole here: then nothing of the snapshot can be told apart. Asks no peer, and none of the
        store's threads."""
        opened = self._node.catalogs.peek(snapshot)
        return opened.catalog if opened is not None else await self.thread(self._load, snapshot)

    def _load(self, snapshot: SnapshotId) -> Catalog | None:
        encoded = self._node.store.root(snapshot)
        if encoded is None:
            return None
        try:
            return Catalog(memoryview(load_catalog(decode_root(encoded), self._node.reader)))
        except (ChunkUnavailable, Corrupt):
            return None

    def _cover(self, evictor: Evictor) -> None:
        """Blocking. What other living or leased snapshots name stays theirs: of those that can be read."""
        node = self._node
        for other in ({record.id for record in node.names.known()} | node.leases.leased()) - evictor.covered:
            encoded, opened = node.store.root(other), node.catalogs.peek(other)
            if encoded is None and opened is None:
                continue
            blocks = ids_of_open(opened) if opened is not None else stored_ids(decode_root(encoded or b""), node.reader)
            with suppress(ChunkUnavailable, Corrupt):
                for block in known(blocks, node.reader):
                    evictor.shared.add(block)
                evictor.covered.add(other)

    # --- vouch

    async def vouch(self, snapshot: SnapshotId, segments: Sequence[int]) -> list[int]:
        """Which of the segments are here whole; they stay for `vouching.PROMISED_SECONDS`, and are held from now: who
        asked may drop his copies because of these."""
        record = self._node.names.snapshot(snapshot)
        catalog = None if record is None or record.removed else await self.catalog(snapshot)
        return [] if catalog is None else await self.thread(self._vouch, snapshot, catalog, segments)

    def _vouch(self, snapshot: SnapshotId, catalog: Catalog, segments: Sequence[int]) -> list[int]:
        with self.promises.deciding:
            known = [number for number in segments if number < catalog.segments]
            whole = [number for number in known if self._node.held.whole(catalog, number)]
            self._node.store.add_holds(snapshot, set(whole) - self._node.store.holds(snapshot))
            self.promises.promise(snapshot, whole)
            return whole
