"""Keeping as many copies as were asked for: this node pulls what it should hold and does not (CLUSTER 3, "Repair").

`repair.planner` says what; here it is asked with what peers hold, and carried out: the most endangered first, at a
limited rate, from other nodes' disks alone. Nothing is remembered but what is still to be looked at, so a node that
starts again looks at everything.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hoard_p2p.config import Json
from hoard_p2p.errors import HoardError, StoreFull
from hoard_p2p.ids import SnapshotId, short
from hoard_p2p.interfaces import Residency
from hoard_p2p.node.catalogs import OpenSnapshot
from hoard_p2p.node.pulling import SegmentPull
from hoard_p2p.node.residencies import ask_residencies
from hoard_p2p.node.sharing import Sharing
from hoard_p2p.peer import ClusterView, NodeId, Peer
from hoard_p2p.placement import Row
from hoard_p2p.repair.patience import Pace, Patience
from hoard_p2p.repair.planner import Here, Plan, Pull, keeps_its_share, plan
from hoard_p2p.storage.records import SnapshotRecord

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

log = logging.getLogger(__name__)

TICK = 2.0
AT_ONCE = 0.0
LOOK_AGAIN, EACH_AGAIN = 300.0, 5.0
"""A snapshot is looked at again after so long, or so many times the number of snapshots, though nothing is known to
have changed: what others hold is asked for then, at most `ASKED_PEERS` questions each time."""
TRY_AGAIN = 30.0
"""What could not be had, or not be asked about."""
SNAPSHOTS_AT_ONCE = 32
"""Planned together, so that the most endangered segments of all of them come first."""
ASKED_PEERS = 64
ASK_SECONDS = 10.0
PULLS_AT_ONCE = 4
FULL_SECONDS = 60.0
"""For so long a node that was too full for a copy tells that it takes none."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A segment to copy: how many copies there are, where from, how long it is."""

    opened: OpenSnapshot
    pull: Pull
    size: int


class Repairing:
    """For the event loop."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._patience = Patience(node.settings.repair_grace)
        self._pace = Pace(node.settings.repair_limit)
        self._sharing = Sharing(node.executor)
        self._due: dict[SnapshotId, float] = {}
        """Snapshots to look at, and from when on."""
        self._peers: tuple[tuple[NodeId, str, int], ...] = ()
        self._digest = b""
        self._replicas: dict[SnapshotId, int] = {}
        self._full_until = 0.0
        self.paused = False
        """Set while this node drains: it copies nothing any more."""
        self._working = False
        self._short: dict[SnapshotId, int] = {}
        self._pulled = Counter({"segments": 0, "bytes": 0})

    @property
    def full(self) -> bool:
        """Whether this node takes no copies now: what it lacks is due at others."""
        return self.paused or self._node.writer.full or time.monotonic() < self._full_until

    def view_changed(self, view: ClusterView) -> None:
        self._patience.see(view, time.monotonic())

    def look_at(self, snapshot: SnapshotId) -> None:
        """Something about the snapshot changed."""
        self._due[snapshot] = AT_ONCE

    def short_of(self, snapshot: SnapshotId) -> int:
        """Bytes of which this node should hold a copy and does not, by its last look."""
        return self._short.get(snapshot, 0)

    def body(self) -> dict[str, Json]:
        return {
            "working": self._working,
            "waiting_bytes": sum(self._short.values()),
            "pulled_segments": self._pulled["segments"],
            "pulled_bytes": self._pulled["bytes"],
            "full": self.full,
        }

    # --- in the background

    async def run(self) -> None:
        """Until cancelled. Nothing is repaired before this node has run for the grace time: what it did not meet yet is
        not away."""
        self._patience.see(self._node.agent.view(), time.monotonic())
        await asyncio.sleep(self._patience.grace)
        while True:
            try:
                await self.look()
            except (HoardError, OSError) as error:
                log.warning("copies were not looked after: %s", error)
            except Exception:  # the door of this task: a bug must not end the node
                log.exception("copies were not looked after")
            await asyncio.sleep(TICK)

    async def look(self) -> None:
        """Look at what is due, and copy what is missing until the view changes or all is done."""
        if self.paused:
            return
        await self._node.settled()
        await self._note_changes()
        now = time.monotonic()
        due = [snapshot for snapshot, when in self._due.items() if when <= now]
        self._working = bool(due)
        try:
            for at in range(0, len(due), SNAPSHOTS_AT_ONCE):
                await self._look_at(due[at : at + SNAPSHOTS_AT_ONCE])
                if self.paused or await self._note_changes():
                    return
        finally:
            self._working = False

    def view(self) -> ClusterView:
        """With those that have not been away for long."""
        return self._patience.view(time.monotonic()) or self._node.agent.view()

    async def _note_changes(self) -> bool:
        """Whether who has shares changed: then all is to be looked at. Else what is new, or kept in other numbers."""
        peers = tuple((peer.node_id, peer.rack, peer.weight) for peer in self.view().peers)
        digest, _ = self._node.names.digests()
        if (peers, digest) == (self._peers, self._digest):
            return False
        records = await self._node.blocking(self._node.names.snapshots)
        replicas = {record.id: record.replicas for record in records}
        moved = peers != self._peers
        changed = [one for one, count in replicas.items() if moved or self._replicas.get(one) != count]
        self._due = {one: when for one, when in self._due.items() if one in replicas} | dict.fromkeys(changed, AT_ONCE)
        self._short = {one: size for one, size in self._short.items() if one in replicas}
        self._peers, self._digest, self._replicas = peers, digest, replicas
        return moved

    async def _look_at(self, snapshots: Sequence[SnapshotId]) -> None:
        view, jobs = self.view(), list[_Job]()
        for snapshot in snapshots:
            hurried = self._due.get(snapshot) == AT_ONCE
            again = max(LOOK_AGAIN, EACH_AGAIN * len(self._due))
            self._due[snapshot] = time.monotonic() + again * (0.5 + random.random())
            record = self._node.names.snapshot(snapshot)
            if record is None or record.removed or not self._wanted(record):
                continue
            try:
                jobs += await self._plan(view, record, hurried=hurried)
            except HoardError as error:
                log.info("copies of %s are not looked after now: %s", short(snapshot), error)
                self._due[snapshot] = time.monotonic() + TRY_AGAIN
        jobs.sort(key=lambda job: len(job.pull.sources))
        await self._carry_out(view, jobs)

    def _wanted(self, record: SnapshotRecord) -> bool:
        """What has an origin is copied only while somebody uses it: it can be read again, and was evicted on purpose
        where it was. Not where all that can read it drain."""
        node = self._node
        return not record.origin or bool(node.agent.wanting(record.id)) or node.origins.leaves(record.id)

    # --- planning

    async def _plan(self, view: ClusterView, record: SnapshotRecord, *, hurried: bool) -> list[_Job]:
        """What to copy; holds are moved already. `hurried`: nobody is asked if this node keeps exactly what it is home
        of (whether it has to stand in for a home without room is seen the next time). Raises HoardError."""
        node, me = self._node, self._node.me.node_id
        opened = await node.open(record.id)
        replicas = min(record.replicas, len(view.peers))
        placed = await self._sharing.placed(opened, view.peers, replicas)
        held = await node.blocking(node.store.holds, record.id)
        here = await node.blocking(node.held.residency, record.id, opened.catalog)
        orders = await node.blocking(placed.of, me, held)
        if hurried and keeps_its_share(me, orders, replicas, Here(Bits(here), frozenset(held))):
            self._short.pop(record.id, None)
            return []
        others = await self._others(view, orders, here)
        known = Here(Bits(here), frozenset(held), self.full)
        full = {node for node, told in others.items() if told.full}
        todo = await node.blocking(lambda: plan(me, orders, replicas, known, others, full=full))
        await node.blocking(node.store.add_holds, record.id, todo.hold)
        await node.blocking(node.store.life.drop_holds, record.id, todo.release)
        return self._jobs(opened, todo)

    def _jobs(self, opened: OpenSnapshot, todo: Plan) -> list[_Job]:
        size = opened.catalog.segment_size
        self._short[opened.id] = sum(map(size, todo.nowhere)) + sum(size(pull.segment) for pull in todo.pulls)
        if todo.pulls or todo.hold or todo.release:
            log.info(
                "snapshot %s: %d segments to copy here, %d kept as home from now on, %d left to others",
                short(opened.id), len(todo.pulls), len(todo.hold), len(todo.release),
            )  # fmt: skip
        return [_Job(opened, pull, size(pull.segment)) for pull in todo.pulls]

    async def _others(self, view: ClusterView, orders: dict[int, Row], here: Residency) -> dict[NodeId, Residency]:
        """What peers hold: all of them in a small cluster, in a large one those that share segments with this node."""
        peers = await self._node.blocking(whom_to_ask, view, orders, Bits(here))
        told = await ask_residencies(self._node.control, peers, here.snapshot, seconds=ASK_SECONDS)
        return {node: record for node, record in told.items() if record is not None}

    # --- carrying out

    async def _carry_out(self, view: ClusterView, jobs: Collection[_Job]) -> None:
        """Copies a few at a time, until the view is another."""
        left = iter(jobs)

        async def work() -> None:
            for job in left:
                await asyncio.sleep(self._pace.wait(job.size, time.monotonic()))
                if self._is_removed(job.opened.id):
                    continue
                if self.paused or self.view().peers != view.peers or not await self._copy(job):
                    self._due[job.opened.id] = min(self._due.get(job.opened.id, 0.0), time.monotonic() + TRY_AGAIN)

        async with asyncio.TaskGroup() as group:
            for _ in range(PULLS_AT_ONCE):
                group.create_task(work())

    def _is_removed(self, snapshot: SnapshotId) -> bool:
        record = self._node.names.snapshot(snapshot)
        return record is None or bool(record.removed)

    async def _copy(self, job: _Job) -> bool:
        known = self._node.agent.view().by_id
        pull = SegmentPull(self._node, job.opened, job.pull.segment)
        try:
            whole = await pull.run([known[node] for node in job.pull.sources if node in known])
        except StoreFull as error:
            log.info("no room for copies of %s: %s", short(job.opened.id), error)
            self._full_until = time.monotonic() + FULL_SECONDS
            whole = False
        except HoardError as error:
            log.warning("segment %d of %s was not copied: %s", job.pull.segment, short(job.opened.id), error)
            whole = False
        self._pulled["bytes"] += pull.received
        if whole:
            self._pulled["segments"] += 1
            self._short[job.opened.id] = max(0, self._short.get(job.opened.id, 0) - job.size)
        return whole


class Bits:
    """The segments of a residency record, as a container."""

    def __init__(self, told: Residency) -> None:
        self._told = told

    def __contains__(self, segment: object) -> bool:
        return isinstance(segment, int) and self._told.holds(segment)


def whom_to_ask(view: ClusterView, orders: dict[int, Row], here: Bits) -> list[Peer]:
    """The peers whose records are needed, at most `ASKED_PEERS`: those that share most of the segments that are not
    here, or are due elsewhere. Pure."""
    if len(view.peers) <= ASKED_PEERS:
        return list(view.others)
    shared = Counter(
        node for segment, row in orders.items() if segment not in here or view.me not in row for node in row
    )
    shared.update(node for row in orders.values() for node in row[:1])  # and some that are likely to have the rest
    chosen = [node for node, _ in shared.most_common(ASKED_PEERS + 1) if node != view.me and node in view.by_id]
    return [view.by_id[node] for node in chosen[:ASKED_PEERS]]
