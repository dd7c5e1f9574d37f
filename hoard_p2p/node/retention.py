"""What lives on this node and what goes: eviction, collection, and room for who waits for it (CLUSTER 3 and 5).

Decides nothing by itself: `storage.eviction` says what goes first, `node.marking` what is still wanted,
`node.vouching` which copies others keep; the store's reclaimer gives the space back. Its threads are its own: who waits
for room may hold all of the store's.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from hoard_p2p.errors import Corrupt, HoardError, SnapshotUnknown, StoreFailed, Unavailable
from hoard_p2p.ids import SnapshotId, short
from hoard_p2p.node import collecting, removal
from hoard_p2p.node.blocking import in_executor
from hoard_p2p.node.catalogs import OpenSnapshot
from hoard_p2p.node.course import Course, Report, silent
from hoard_p2p.node.evicting import Evictions, Outcome
from hoard_p2p.node.mountleases import MountLeases, Seen
from hoard_p2p.node.parts import MountRecord
from hoard_p2p.node.relieving import Evictable, Relief
from hoard_p2p.node.shelf import Shelf
from hoard_p2p.printing import size_text
from hoard_p2p.storage.claims import Claims
from hoard_p2p.storage.reclaim import Dropped, Reclaimed

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

log = logging.getLogger(__name__)

T = TypeVar("T")

THREADS = 3
"""One that collects, one that gives space back, one for what is short."""
TICK = 5.0
START_SECONDS = 20.0
"""What a node that starts does before it collects: peers and mounts come first."""
GC_PAUSE = 30.0
GC_EVERY = 3600.0
RECLAIM_TRIES, RECLAIM_PAUSE = 20, 0.05
SWEEP_TRIES = 5
MOUNT_SECONDS = 120.0
"""From the opening of a snapshot for a mount until that has attached, at most."""


class Retention:
    """For the event loop, but for `relief`, `candidates` and `advice`, which any other thread may call."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._executor = ThreadPoolExecutor(THREADS, "retention")
        self.mounts = MountLeases(node.store, node.names, node.leases)
        self.mounts.restore()  # a few rows, and before anybody can ask for anything
        self._turn = asyncio.Lock()  # held while something is dropped, and while a mount is let in
        self.evictions = Evictions(node, self._executor, self._turn)
        self._relief = Relief(node, self.evictions)
        self._waiting_mounts = 0
        self._expected: dict[SnapshotId, tuple[ExitStack, float]] = {}
        self._failed: set[SnapshotId] = set()
        self._wake = asyncio.Event()
        self._collected = self._decisions = self._failures = 0
        self._due = 0.0
        self._claims: Claims | None = None
        self.waiting: Reclaimed = Reclaimed(0)
        """The last look at what could not be given back yet."""
        node.store.room.relief = self._relief.relief
        node.store.room.advice = self._relief.advice

    async def thread(self, work: Callable[..., T], *args: object) -> T:
        """Run `work` in a thread of its own: the store's may all wait for room that it is to make."""
        return await in_executor(self._executor, work, *args)

    def close(self) -> None:
        """Blocking."""
        self._node.store.room.relief = self._node.store.room.advice = None
        self._executor.shutdown(wait=True, cancel_futures=True)
        for stay, _ in self._expected.values():
            stay.close()
        self.mounts.close()
        if self._claims is not None:
            self._claims.close()

    # --- in the background

    async def run(self) -> None:
        """Until cancelled: collects what nobody wants, keeps some room free, renews leases."""
        self._due = time.monotonic() + START_SECONDS
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(TICK, max(0.0, self._due - time.monotonic()))):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._look()
            except (HoardError, OSError) as error:
                log.warning("what is not wanted any more was not collected: %s", error)
                self._due = max(self._due, time.monotonic() + GC_PAUSE)
            except Exception:  # the door of this task: a bug must not end the node
                log.exception("what is not wanted any more was not collected")
                self._due = max(self._due, time.monotonic() + GC_PAUSE)

    async def _look(self) -> None:
        await self.tend()
        now = time.monotonic()
        if now >= self._due:
            self._due = now + GC_EVERY
            await self.gc(course=Course(gently=lambda: not self._relief.busy))
        await self._relief.keep_headroom()
        await self._reclaim()

    async def tend(self) -> None:
        """Look at the mounts, and at what ended since the last time."""
        seen = {(kept.record.snapshot, kept.record.device): Seen(kept.alive()) for kept in self._node.mounts.mounts}
        if await self.thread(self.mounts.tend, seen):
            self.soon()
        for snapshot, (stay, until) in list(self._expected.items()):
            if time.monotonic() > until:
                del self._expected[snapshot]
                stay.close()
        for snapshot in [failed for failed in self._failed if not self._node.leases.users(failed)]:
            self._failed.discard(snapshot)
            await self.thread(self._node.names.forget, snapshot)
        if (ended := self.ended()) != self._collected:
            self._collected = ended
            self.soon()

    def ended(self) -> int:
        """Counts what left something to collect: snapshots that went, publishes that failed. For any thread."""
        return self._node.names.removals + self._failures

    @contextmanager
    def storing(self) -> Iterator[None]:
        """For all of a publish: what it stored before it failed, or was cancelled, is wanted by nobody."""
        try:
            yield
        except BaseException:
            self._failures += 1
            self._wake.set()
            raise

    def soon(self) -> None:
        """Something ended: collect before long."""
        self._due = min(self._due, time.monotonic() + 1.0)
        self._wake.set()

    async def _reclaim(self) -> Reclaimed:
        self.waiting = await self.thread(self._node.store.reclaimer.reclaim)
        if not self.waiting.waiting and self._claims is not None and not self._decisions:
            self._claims.close()
            self._claims = self._node.keeper.claims = None
        return self.waiting

    @contextmanager
    def publishing(self, snapshot: SnapshotId) -> Iterator[None]:
        """It is being published: in use until it is shown; forgotten if that fails."""
        with self._node.leases.held(snapshot, "being published"):
            try:
                yield
            except BaseException:
                self._failed.add(snapshot)
                raise
            finally:
                self.soon()

    # --- mounts

    async def expect_mount(self, snapshot: SnapshotId) -> None:
        """A mount of it is about to be made: from now on nothing of it goes. When this returns, whatever is being
        dropped is out of the index, so that the mount does not take it for whole."""
        stay = ExitStack()
        await self._let_in(lambda: stay.enter_context(self._node.leases.held(snapshot, "about to be mounted")))
        known = self._expected.pop(snapshot, None)
        self._expected[snapshot] = (stay, time.monotonic() + MOUNT_SECONDS)
        if known is not None:
            known[0].close()

    async def mounted(self, mount: MountRecord) -> None:
        """A mount has attached."""
        try:
            await self.let_in()
            await self.thread(self.mounts.attached, mount)
        except StoreFailed as error:
            log.warning("that %s is mounted is not noted on disk: %s", short(mount.snapshot), error)
        known = self._expected.pop(mount.snapshot, None)
        if known is not None:
            known[0].close()

    def unmounted(self) -> None:
        """A mount has hung up."""
        self._wake.set()

    async def _let_in(self, enter: Callable[[], object]) -> None:
        self._waiting_mounts += 1
        try:
            async with self._turn:
                enter()
        finally:
            self._waiting_mounts -= 1

    async def let_in(self) -> None:
        """Who has just leased a snapshot waits here until what was being dropped is out of the index."""
        await self._let_in(lambda: None)

    # --- evict

    async def evict(self, snapshot: SnapshotId, *, dry_run: bool = False, report: Report = silent) -> Outcome:
        """Drop this node's copies of a snapshot that enough others keep. Raises Refused while it is leased or pinned
        here, SnapshotUnknown, Corrupt."""
        outcome = await self.evictions.evict(snapshot, dry_run=dry_run, report=report)
        if not dry_run:
            await self.settle(outcome)
        return outcome

    def relief(self, size: int) -> bool:
        """See Relief."""
        return self._relief.relief(size)

    def could_fit(self, size: int) -> None:
        """See Relief."""
        self._relief.could_fit(size)

    def candidates(self) -> Sequence[Evictable]:
        """See Relief."""
        return self._relief.candidates()

    async def settle(self, outcome: Outcome) -> None:
        """Give back what was dropped; it takes until the readers of now are done."""
        for _ in range(RECLAIM_TRIES):
            seen = await self._reclaim()
            outcome.reclaimed += seen.bytes
            if not seen.waiting:
                return
            await asyncio.sleep(RECLAIM_PAUSE)
        outcome.kept += [f"{size_text(one.bytes)} come back later: {one.reason}" for one in self.waiting.waiting]

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """What goes is found out and dropped inside this block: what is committed meanwhile stays, and what a fetch or
        a publish finds here meanwhile."""
        reclaimer = self._node.store.reclaimer
        if not self._decisions and self._claims is not None:
            self._claims.close()  # what was found for an earlier decision need not stay now
            self._claims = None
        self._decisions += 1
        try:
            with reclaimer.marking():
                self._claims = self._node.keeper.claims = self._claims or reclaimer.new_claims()
                yield
        finally:
            self._decisions -= 1

    # --- gc

    async def gc(self, *, dry_run: bool = False, thorough: bool = True, course: Course | None = None) -> Outcome:
        """Collect what no living snapshot holds; if `thorough`, also what crashes left, which is slow.

        Raises Unavailable, and drops nothing, while the catalog of a snapshot that this node must keep cannot be read,
        or if mounts keep coming; StoreFailed."""
        node, outcome, course = self._node, Outcome(), course or Course()
        ended = await removal.end_expired(node, time.time_ns(), dry_run=dry_run)
        gone = {record.id for record in (*ended.removed, *ended.forgotten)}
        outcome.removed += [record.id for record in ended.removed]
        outcome.kept += ended.waiting
        with self.deciding():
            dropped = await self._sweep(gone, course, dry_run=dry_run)
        outcome.chunks, outcome.size = dropped
        if not dry_run:
            node.held.forget()
            node.catalogs.forget_all_but({record.id for record in node.names.known()})
            if thorough:
                tidy = partial(collecting.leftovers, node.store, course)
                outcome.reclaimed += await course.follow(self._executor, tidy)
            await self.settle(outcome)
            await self.thread(Shelf(node.settings.data_dir).clear, node.names)
        return outcome

    async def would_free(self, snapshot: SnapshotId, course: Course) -> Outcome:
        """What the removal of a snapshot would free on this node. Raises as `gc`."""
        dropped = [await self._sweep(gone, course, dry_run=True) for gone in (set[SnapshotId](), {snapshot})]
        return Outcome(*(after - before for before, after in zip(*dropped, strict=True)))

    async def _sweep(self, gone: set[SnapshotId], course: Course, *, dry_run: bool) -> Dropped:
        before = Dropped(0, 0)
        for _ in range(SWEEP_TRIES):
            try:
                return before.plus(await self._sweep_once(gone, course, dry_run=dry_run))
            except collecting.Interrupted as interruption:
                before = before.plus(interruption.dropped)
                await asyncio.sleep(RECLAIM_PAUSE)
        raise Unavailable("not all was collected: snapshots kept being mounted meanwhile; try again: hoard gc")

    async def _sweep_once(self, gone: set[SnapshotId], course: Course, *, dry_run: bool) -> Dropped:
        """Raises Interrupted."""
        node = self._node
        living = [record for record in node.names.known() if record.id not in gone]
        leased = node.leases.leased()
        must = await self.thread(node.store.life.held_snapshots)
        must |= leased | {record.id for record in living if record.pinned}
        wanted = {record.id for record in living} | (leased - gone)
        found = await self.thread(collecting.marks, node.store, sorted(wanted), must & wanted)
        for snapshot in found.unread:
            found.add_open(await self._readable(snapshot))
        for snapshot in found.partly:
            if (opened := node.catalogs.peek(snapshot)) is not None:  # in memory, if not on the disk
                found.add_open(opened)
        keys = set() if dry_run else await self.thread(collecting.file_keys, node.store, found)
        async with self._turn:
            if node.leases.leased() - gone - found.marked:
                raise collecting.Interrupted  # in use since just now, and not marked, or not all of it
            dropped = await course.follow(
                self._executor,
                lambda: collecting.sweep(node.store, found, lambda: self._waiting_mounts > 0, course, dry_run=dry_run),
            )
            if not dry_run:
                more = await self.thread(collecting.drop_redundant, node.store, keys)
                dropped = dropped.plus(more)
        return dropped

    async def _readable(self, snapshot: SnapshotId) -> OpenSnapshot:
        opened = self._node.catalogs.peek(snapshot)
        if opened is not None:
            return opened
        try:
            return await self._node.open(snapshot)
        except (Unavailable, Corrupt, SnapshotUnknown) as error:
            raise Unavailable(
                f"nothing is collected: the catalog of {short(snapshot)}, which is kept or in use here, cannot be "
                f"read, so what belongs to it is not known ({error})"
            ) from error
