"""The node: one object that owns the store, the cluster agent, the fetcher and the open catalogs, and what they do
together. Its doors are `node.service` (peers) and `node.operations` (this machine); `node.main` starts and stops it.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Self, TypeVar

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.catalog.root import MAX_CATALOG
from hoard_p2p.cluster.agent import ClusterAgent
from hoard_p2p.cluster.membership import IdConflict
from hoard_p2p.config import DEFAULT_REPLICAS
from hoard_p2p.errors import BadRequest, HoardError, SnapshotUnknown
from hoard_p2p.fetch.segment import Landed
from hoard_p2p.fetch.sources import Favour
from hoard_p2p.fill.window import ASKED_SEGMENTS, WINDOW_SEGMENTS
from hoard_p2p.ids import SnapshotId, short
from hoard_p2p.interfaces import Place, Residency
from hoard_p2p.node import removal
from hoard_p2p.node.autosealing import AutoSealing
from hoard_p2p.node.blocking import in_executor, sleep_while
from hoard_p2p.node.catalogs import Catalogs, OpenSnapshot
from hoard_p2p.node.completing import Completer
from hoard_p2p.node.courses import Courses
from hoard_p2p.node.deciding import make_namings
from hoard_p2p.node.demand import Demand
from hoard_p2p.node.fetching import make_fetcher
from hoard_p2p.node.filling import Fills
from hoard_p2p.node.gossip import Gossip
from hoard_p2p.node.handing import hand_over
from hoard_p2p.node.keeping import Held, StoreKeeper
from hoard_p2p.node.leases import Leases
from hoard_p2p.node.meeting import Told, WireQuestions, make_agent, own_record
from hoard_p2p.node.mountkeep import MountKeep
from hoard_p2p.node.names import Names
from hoard_p2p.node.originreads import OriginReads
from hoard_p2p.node.origins import Origins
from hoard_p2p.node.parts import Counters, NodeParts
from hoard_p2p.node.presence import Presence
from hoard_p2p.node.ranged import Part
from hoard_p2p.node.ranges import Ranges
from hoard_p2p.node.ranging import make_ranged
from hoard_p2p.node.registries import make_naming
from hoard_p2p.node.repairing import Repairing
from hoard_p2p.node.retention import Retention
from hoard_p2p.node.roots import find_root
from hoard_p2p.node.scrubbing import Scrubbing
from hoard_p2p.peer import ClusterView, Peer
from hoard_p2p.placement import homes
from hoard_p2p.storage.records import SnapshotRecord
from hoard_p2p.transfer.bulk import BulkClient
from hoard_p2p.transfer.wire import Announcement, Hello

log = logging.getLogger(__name__)

T = TypeVar("T")

CATALOG_TIMEOUT = 60.0
FETCH_THREADS = 16
FILL_THREADS = WINDOW_SEGMENTS + ASKED_SEGMENTS + 4
"""A question of the fill waits until the chunks have come along the chain; those that readers wait for have threads of
their own."""

STORE_THREADS = 8
SETTLE_SECONDS = 10.0
"""A node that has just started does not conclude from an empty view that nobody has a chunk."""

QUIET_SECONDS = 2.0
PULLS_AT_ONCE = 4
PULL_TIMEOUT = 120.0
MOST_REPLICAS = 16
SPARE_HOMES = 4
CLONE_SECONDS = 30.0
"""A node that meets its own id at another address within this time of its start is the later of the two."""


class Node:
    """See the module. For the event loop; blocking work goes to `blocking`."""

    def __init__(self, parts: NodeParts, port: int) -> None:
        """`port`: where the HTTP server of this node listens."""
        self.settings = parts.settings
        self.store = parts.store
        self.control = parts.control
        self.group = parts.group
        self.loop = asyncio.get_running_loop()
        self.stop = parts.stop
        self.boot = parts.boot
        self.security = parts.security
        self.counters = Counters()
        self.mounts = MountKeep(parts.settings.data_dir / "log")
        self.failed = ""
        """Why the node stops by itself, empty if it was asked to."""
        self._started = self._changed = time.monotonic()
        self._discovers = any(text != "none" for text in parts.settings.discovery)
        self.executor: Executor = ThreadPoolExecutor(STORE_THREADS, "store")
        self.fetchers: Executor = ThreadPoolExecutor(FETCH_THREADS, "fetch")
        self.fillers: Executor = ThreadPoolExecutor(FILL_THREADS, "fill")
        self.writer = self.store.writer()
        self.reader = self.store.reader()
        self._furnish(port)

    def _furnish(self, port: int) -> None:
        """The rooms, each handed what it needs of the others."""
        self.names = Names(self.store, self.store.node_id, time.time_ns)
        self.held = Held(self.store.node_id, self.reader)
        self.leases = Leases()
        self.fills = Fills(self)
        self.keeper = StoreKeeper(
            self.writer, self.reader, self.store.heal, self.fills.brought, take_over=self.store.take_over
        )
        self.ranges = Ranges(self.keeper)
        presence = Presence(self.store, self.names, self.executor)
        self.gossip = Gossip(
            self.names, self.control, self.executor, self.store.node_id, self.others, presence=presence
        )
        self.naming = make_naming(self.settings.discovery, self.names, self.executor, self.settings.cluster)
        self.agent = self._make_agent(port)
        self.known_origins = Origins(
            self.store, self.names, self.settings.allow_origin, lambda reads: self.agent.stand(reads=reads)
        )
        streams, hand = self.settings.origin_streams, partial(hand_over, self)
        limit = self.settings.origin_limit
        self.origins = OriginReads(self.names, self.known_origins, self.agent, streams=streams, limit=limit, hand=hand)
        self.favour = Favour()
        self.namings = make_namings(self)
        self.bulk = BulkClient(security=self.security, named=self.namings)
        self.courses = Courses(self)
        self.fetcher = make_fetcher(self)
        self.catalogs = Catalogs(
            store=self.store,
            fetcher=self.fetcher,
            get_root=partial(find_root, self),
            place=self.keeper.place,
            group=self.group,
            executor=self.executor,
            max_catalog=min(MAX_CATALOG, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4),
        )
        self.origins.parts, self.origins.catalog_here = self.ranges, self._catalog_here
        self.ranged = make_ranged(self)
        self.demand = Demand(
            store=self.store,
            fetcher=self.fetcher,
            held=self.held,
            counters=self.counters,
            executor=self.executor,
            open_snapshot=self.open,
            full=lambda: self.writer.full,
            near=self.fills.near,
            ranged=self.ranged,
        )
        self.completer = Completer(
            store=self.store,
            writer=self.writer,
            open_local=self.open_local,
            group=self.group,
            executor=self.executor,
        )
        self.retention = Retention(self)
        self.scrubbing = Scrubbing(self)
        self.repairing = Repairing(self)
        self.autosealing = AutoSealing(self)

    def _make_agent(self, port: int) -> ClusterAgent:
        self.me = own_record(self.settings, self.store, port)
        questions = WireQuestions(self.control, self.hello)
        told = Told(self.gossip.greeted, self._view_changed, self._conflict)
        prints = self.security.fingerprints
        return make_agent(self.me, self.settings, questions, told, lambda: self.agent, boot=self.boot, prints=prints)

    async def blocking(self, work: Callable[..., T], *args: object) -> T:
        """Run `work` in the store's executor."""
        return await in_executor(self.executor, work, *args)

    def _conflict(self, conflict: IdConflict) -> None:
        """Another node has this one's id, as in a cloned disk image: whoever started later stops."""
        if conflict.first.node_id == self.me.node_id and time.monotonic() - self._started < CLONE_SECONDS:
            log.error(
                "%s and %s are two nodes with one id (%s): a copied data directory? This one started later and stops; "
                "remove %s to give it an id of its own",
                conflict.first.url,
                conflict.second.url,
                self.me.node_id.hex(),
                self.settings.data_dir,
            )
            self.failed = "another node has this node's id; see the log"
            self.stop.set()

    def _view_changed(self, view: ClusterView) -> None:
        self._changed = time.monotonic()
        self.repairing.view_changed(view)

    async def settled(self) -> None:
        """Wait until the view was unchanged for `QUIET_SECONDS`, at most `SETTLE_SECONDS` after the start: who plans
        with a view that is still filling up gives all copies to the first nodes it met."""
        await sleep_while(lambda: self.unsettled(QUIET_SECONDS))

    def unsettled(self, quiet: float) -> float:
        """Seconds until the view was unchanged for `quiet` seconds, if it does not change meanwhile; 0: it was."""
        if not self._discovers:
            return 0.0
        return max(0.0, min(self._changed + quiet, self._started + SETTLE_SECONDS) - time.monotonic())

    @property
    def lonely(self) -> bool:
        """It has just started, looks for peers, and has met none."""
        alone = len(self.agent.view().peers) == 1
        return alone and self._discovers and time.monotonic() - self._started < SETTLE_SECONDS

    def replicas(self, snapshot: SnapshotId) -> int:
        """How many homes a segment of the snapshot has."""
        record = self.names.snapshot(snapshot)
        return DEFAULT_REPLICAS if record is None else record.replicas

    def others(self) -> tuple[Peer, ...]:
        """The other nodes of the view."""
        return self.agent.view().others

    def hello(self) -> Hello:
        snapshots, refs = self.names.digests()
        return Hello(self.me, self.settings.cluster, self.agent.view().others, snapshots, refs, self.boot)

    async def ask_names(self) -> None:
        """Learn what peers know of snapshots and refs, now."""
        await self.gossip.ask_some()

    async def announce(self, announcement: Announcement) -> None:
        await self.gossip.announce(announcement)

    async def say_goodbye(self) -> None:
        await self.gossip.say_goodbye(self.me)

    # --- snapshots and chunks

    async def resolve(self, text: str) -> SnapshotId:
        """The snapshot that a user means, asking peers before giving up. Raises SnapshotUnknown, SnapshotAmbiguous."""
        try:
            return self.names.resolve(text)
        except SnapshotUnknown:
            await self.settled()  # a node that has just started knows few peers yet
            await self.ask_names()
            return self.names.resolve(text)

    async def open(self, snapshot: SnapshotId, *, first: Peer | None = None) -> OpenSnapshot:
        record = self.names.snapshot(snapshot)
        if record is not None and record.removed:
            raise SnapshotUnknown(f"snapshot {snapshot.hex()} was removed; publish it again to have it back")
        return await self.catalogs.open(snapshot, timeout=CATALOG_TIMEOUT, first=first)

    async def need(
        self, snapshot: SnapshotId, run: int, *, wrong: Place | None, timeout: float, fill: bool = True
    ) -> Landed:
        """See Demand."""
        return await self.demand.need(snapshot, run, wrong=wrong, timeout=timeout, fill=fill)

    async def part(
        self, snapshot: SnapshotId, run: int, span: tuple[int, int], *, timeout: float, fill: bool = True
    ) -> Part:
        """See Demand."""
        return await self.demand.part(snapshot, run, span, timeout=timeout, fill=fill)

    async def touched(self, snapshot: SnapshotId, run: int) -> None:
        """See Demand."""
        await self.demand.touched(snapshot, run)

    def attached(self, snapshot: SnapshotId) -> None:
        """A mount of this snapshot is there."""
        self.completer.look_at(snapshot)
        self.fills.look_at_mounts()

    def detached(self, snapshot: SnapshotId) -> None:
        """A mount of this snapshot has hung up."""
        self.retention.unmounted()
        self.fills.look_at_mounts()
        if not any(kept.lines and kept.record.snapshot == snapshot for kept in self.mounts.mounts):
            self.demand.left(snapshot)
            self.completer.leave(snapshot)

    async def pull(self, snapshot: SnapshotId, segments: Sequence[int], source: Peer | None) -> list[int]:
        """Bring segments here because this node is a home of them, from `source` first; those that are durable then.

        Segments that this node's own view gives to other homes are left alone, whoever asks. Raises NotFound,
        Unavailable, Corrupt, BadRequest, StoreFailed."""
        opened = await self.open(snapshot, first=source)
        catalog = opened.catalog
        if any(segment >= catalog.segments for segment in segments):
            raise BadRequest(f"snapshot {short(snapshot)} has {catalog.segments} segments")
        mine = [number for number in dict.fromkeys(segments) if self._may_keep(catalog, number)]
        absent = [number for number in mine if not await self.blocking(self.held.whole, catalog, number)]
        await self.blocking(self.store.room.check, sum(_length(catalog, number) for number in absent))
        held = await self.blocking(self.store.holds, snapshot)
        fresh = [number for number in mine if number not in held]
        await self.blocking(self.store.add_holds, snapshot, fresh)  # before the first chunk: none of it is evicted
        stored: list[int] = []
        try:
            stored = await self._bring(opened, mine, source)
        finally:
            await asyncio.shield(self.blocking(self._settle_holds, opened, stored, fresh))
        return stored

    def _settle_holds(self, opened: OpenSnapshot, stored: Sequence[int], fresh: Sequence[int]) -> None:
        """Blocking. Hold what is `stored`, whatever another pull of it came to; not what is `fresh` and not whole."""
        self.store.add_holds(opened.id, stored)
        broken = [number for number in fresh if not self.held.whole(opened.catalog, number)]
        self.store.life.drop_holds(opened.id, broken)

    async def _bring(self, opened: OpenSnapshot, segments: Sequence[int], source: Peer | None) -> list[int]:
        """Fetch segments; those that are whole and durable then."""
        mark = self.writer.mark()
        limit = asyncio.Semaphore(PULLS_AT_ONCE)

        failures: list[HoardError] = []

        async def one(number: int) -> None:
            async with limit:
                try:
                    await self.fetcher.whole(self.demand.segment(opened, number), timeout=PULL_TIMEOUT, first=source)
                except HoardError as error:
                    failures.append(error)

        async with asyncio.TaskGroup() as group:
            for number in segments:
                group.create_task(one(number))
        await self.blocking(self.writer.flush, mark)
        stored = [number for number in segments if await self.blocking(self.held.whole, opened.catalog, number)]
        if failures and not stored:
            raise failures[0]
        return stored

    def _may_keep(self, catalog: Catalog, number: int) -> bool:
        """Whether a copy of a segment belongs here by this node's own view, with some slack: a home that is away or
        full is replaced by the next in order, and views may differ for a while."""
        key = catalog.placement_key(number)
        peers = self.agent.view().peers
        allowed = homes(peers, key, MOST_REPLICAS + SPARE_HOMES) if key is not None else ()
        return any(peer.node_id == self.me.node_id for peer in allowed)

    async def remove(self, snapshot: SnapshotId, *, force: bool) -> list[str]:
        """See `removal.remove`."""
        return await removal.remove(self, snapshot, force=force)

    async def residency(self, snapshot: SnapshotId) -> Residency | None:
        opened = await self.open_local(snapshot)
        if opened is None:
            return None
        return (await self.blocking(self.held.residency, snapshot, opened.catalog))._replace(full=self.repairing.full)

    async def open_local(self, snapshot: SnapshotId) -> OpenSnapshot | None:
        """The snapshot if its catalog is on this disk; asks no peer."""
        root = await self.blocking(self.names.root, snapshot)
        return None if root is None else await self.catalogs.local(snapshot, root)

    def _catalog_here(self, snapshot: SnapshotId) -> Catalog | None:
        """Blocking, not for the loop's thread: the catalog, if it is on this disk."""
        opening = asyncio.run_coroutine_threadsafe(self.open_local(snapshot), self.loop)
        try:
            opened = opening.result(CATALOG_TIMEOUT)
        except (HoardError, TimeoutError):
            return None
        return None if opened is None else opened.catalog

    async def keep_published(self, root: bytes, record: SnapshotRecord) -> OpenSnapshot:
        """Keep a root that was just ingested, not yet shown, and open its catalog."""
        await self.blocking(self.names.add_snapshot, root, replace(record, shown=False))
        return await self.open(record.id)

    def close(self) -> None:
        """Blocking: end threads and writers. The store is its opener's."""
        self.retention.close()
        self.bulk.close()
        self.known_origins.close()  # first: what is being read ends
        self.origins.close()
        self.ranged.close()
        for pool in (self.fetchers, self.fillers, self.executor):
            pool.shutdown(wait=True, cancel_futures=True)
        self.writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _length(catalog: Catalog, segment: int) -> int:
    return sum(length for _, _, length in catalog.segment_chunks(segment))
