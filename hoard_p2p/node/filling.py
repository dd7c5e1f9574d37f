"""Bringing whole snapshots here: in the background for mounts, and for `hoard warm`.

Thin: which segments are under way is `fill.window`'s to say, whom they come from `fetch.sources`'. What is reported as
here was found on the disk (I12).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import HoardError, StoreFull, Unavailable
from hoard_p2p.fetch.segment import Segment, segment_of
from hoard_p2p.fill.window import Window, common_order
from hoard_p2p.ids import SnapshotId, short
from hoard_p2p.interfaces import Residency
from hoard_p2p.limits import MAX_SEGMENT
from hoard_p2p.node.blocking import sleep_while
from hoard_p2p.node.catalogs import OpenSnapshot
from hoard_p2p.node.fetching import outlook
from hoard_p2p.placement import homes

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

log = logging.getLogger(__name__)

SEGMENT_SECONDS = 120.0
"""After so long it is looked at whether some of a segment came; if so, the rest is waited for."""

AWAY_SECONDS = 30.0
"""For so long without anything new a fill waits for members that do not answer."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 4.0

COUNT_SECONDS = 1.0
"""What has landed is looked for in the index so often: it gets there in groups."""

AGAIN_SECONDS = 60.0
"""After so long the background fill of a mount looks again for what it could not get."""

NEAR = 3
"""Segments behind a reader that are filled before the others."""

EXPECTED_SECONDS = 120.0
"""From the opening of a snapshot for a mount until that has attached, at most."""


@dataclass(slots=True)
class Fill:
    """How far a fill has come: bytes and segments that were found on the disk, of all."""

    total: int = 0
    segments: int = 0
    done: int = 0
    whole: int = 0
    lost: list[int] = field(default_factory=list)
    trouble: str = ""
    landed: set[int] = field(default_factory=set)
    """Segments that came, and are not found in the index yet."""
    moved: float = 0.0
    """When the last one came, by the loop's clock."""


Told = Callable[[Fill], Awaitable[None]]


class Fills:
    """For the event loop. `run` until cancelled."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._wants: dict[SnapshotId, int] = {}
        self._expected: dict[SnapshotId, float] = {}
        self._background: dict[SnapshotId, asyncio.Task[None]] = {}
        self._brought: dict[SnapshotId, set[int]] = {}
        self._windows: dict[SnapshotId, list[Window]] = {}
        self._near: dict[SnapshotId, int] = {}
        self.away_seconds = AWAY_SECONDS
        self.running: dict[SnapshotId, Fill] = {}
        """Background fills, for status."""

    # --- who takes part

    @contextmanager
    def wanting(self, snapshot: SnapshotId) -> Iterator[None]:
        """This node takes part in the fill of the snapshot meanwhile."""
        self._wants[snapshot] = self._wants.get(snapshot, 0) + 1
        self._stand()
        try:
            yield
        finally:
            self._wants[snapshot] -= 1
            if not self._wants[snapshot]:
                del self._wants[snapshot]
            self._stand()

    def expect_mount(self, snapshot: SnapshotId) -> None:
        """A mount is about to be made: others hear of it now, so that all is settled soon after."""
        self._expected[snapshot] = asyncio.get_running_loop().time() + EXPECTED_SECONDS
        self._stand()

    def look_at_mounts(self) -> None:
        """A mount has come or gone: fill what is mounted, stop filling what is not."""
        kept = self._node.mounts.mounts
        mounted = {one.record.snapshot for one in kept if one.lines and one.plan.fill}
        for one in kept:
            self._expected.pop(one.record.snapshot, None)
        for snapshot in self._background.keys() - mounted:
            self._background.pop(snapshot).cancel()
        for snapshot in mounted - self._background.keys():
            self._background[snapshot] = self._node.group.create_task(self._fill_behind(snapshot))
        self._stand()

    def _stand(self) -> None:
        now = asyncio.get_running_loop().time()
        for snapshot in [snapshot for snapshot, until in self._expected.items() if until < now]:
            del self._expected[snapshot]
        agent, me = self._node.agent, self._node.me.node_id
        wants = self._wants.keys() | self._expected.keys() | self._mounted()
        before = agent.standing(me)
        agent.stand(wants=wants)
        for snapshot in wants - (before.wants if before is not None else frozenset()):
            self._node.courses.begin(snapshot)

    def _mounted(self) -> set[SnapshotId]:
        return {one.record.snapshot for one in self._node.mounts.mounts if one.lines and one.plan.fill}

    # --- filling

    async def _fill_behind(self, snapshot: SnapshotId) -> None:
        """The background fill of a mounted snapshot."""
        fill = self.running[snapshot] = Fill()
        try:
            opened = await self._node.open(snapshot)
            await self._fill(opened, fill, _untold)
            while fill.whole < fill.segments and not self._node.writer.full:
                log.info("%d segments of %s are not here yet: %s", len(fill.lost), short(snapshot), fill.trouble)
                await asyncio.sleep(AGAIN_SECONDS)
                fill = self.running[snapshot] = Fill()
                await self._fill(opened, fill, _untold)
        except StoreFull as error:
            log.info("%s is not filled, only what is read is fetched: %s", short(snapshot), error)
        except HoardError as error:
            log.warning("%s is not filled: %s", short(snapshot), error)
        except Exception:  # the door of this task: a bug must not end the group, and the node with it
            log.exception("filling %s failed", short(snapshot))
        finally:
            if self.running.get(snapshot) is fill:
                del self.running[snapshot]

    async def warm(self, opened: OpenSnapshot, told: Told) -> Fill:
        """Bring all of the snapshot here; returns when it is on the disk, counted there.

        Raises StoreFull before anything is fetched if there is no room, and Unavailable if something could not be had.
        """
        fill = Fill()
        with self.wanting(opened.id):
            await self._fill(opened, fill, told)
        if fill.whole < fill.segments:
            raise Unavailable(
                f"{fill.segments - fill.whole} of {fill.segments} segments of {short(opened.id)} could not be had"
                + (f": {fill.trouble}" if fill.trouble else "; hoard where tells who has them")
            )
        return fill

    async def _fill(self, opened: OpenSnapshot, fill: Fill, told: Told) -> None:
        node, catalog = self._node, opened.catalog
        residency = await node.blocking(node.held.residency, opened.id, catalog)
        order = await node.blocking(_order, opened, residency, fill)
        await node.blocking(node.retention.could_fit, fill.total - fill.done)
        await told(fill)
        if order:
            await sleep_while(lambda: node.courses.unsettled(opened.id))
        fill.moved = asyncio.get_running_loop().time()
        window = Window(order, lambda number: min(catalog.segment_size(number), MAX_SEGMENT))
        comes = partial(node.fetcher.comes_for_peer, opened.id)
        async with self._hastened(opened.id, window), self._counting(opened, fill, told), asyncio.TaskGroup() as group:
            stirred = asyncio.Event()
            while not window.over:
                for number in window.take(comes):
                    group.create_task(self._one(opened, number, window, fill, stirred))
                await stirred.wait()
                stirred.clear()
                if fill.trouble and node.writer.full:
                    window.stop()
        fill.lost = window.lost
        await node.blocking(node.writer.flush)
        await self._count(opened, fill)
        await told(fill)

    async def _one(self, opened: OpenSnapshot, number: int, window: Window, fill: Fill, stirred: asyncio.Event) -> None:
        """Fetch one segment, and tell the window how that ended."""
        try:
            segment = await self._node.blocking(segment_of, opened.catalog, opened.id, number)
            missing = await self._bring(segment, fill)
        except HoardError as error:
            fill.trouble = str(error)
            window.failed(number)
        else:
            if missing:
                fill.trouble = self._why(segment, missing)
                window.failed(number)
            else:
                fill.landed.add(number)
                fill.moved = asyncio.get_running_loop().time()
                window.done(number)
        stirred.set()

    async def _bring(self, segment: Segment, fill: Fill) -> int:
        """Ask for a segment again and again while that brings some of it, or may bring some soon; how many of its
        chunks are missing in the end."""
        node, pause = self._node, FIRST_PAUSE
        left = len(await node.blocking(node.keeper.missing, segment))
        while left:
            was_unsettled = node.courses.unsettled(segment.snapshot) > 0
            await node.fetcher.whole(segment, timeout=SEGMENT_SECONDS)
            before, left = left, len(await node.blocking(node.keeper.missing, segment))
            if not left or node.writer.full:
                break
            if was_unsettled or node.courses.unsettled(segment.snapshot) > 0:
                await sleep_while(lambda: node.courses.unsettled(segment.snapshot))
            elif left == before:
                if not self._may_come(fill):
                    break
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        return left

    def _may_come(self, fill: Fill) -> bool:
        """Whether members are away that may be back soon."""
        moved = asyncio.get_running_loop().time() - fill.moved
        return moved < self.away_seconds and bool(outlook(self._node).absent)

    def _why(self, segment: Segment, missing: int) -> str:
        if self._node.writer.full:
            return "there is no room for them here"
        tried = self._node.fetcher.last_tried(segment) or self._node.origins.why(segment)
        return f"{missing} chunks of segment {segment.number} are nowhere" + (f" ({tried})" if tried else "")

    def near(self, snapshot: SnapshotId, segment: int) -> None:
        """A reader is at this segment: what lies behind it is filled next."""
        windows = self._windows.get(snapshot)
        if windows and self._near.get(snapshot) != segment:
            self._near[snapshot] = segment
            for number in range(segment + NEAR, segment, -1):
                for window in windows:
                    window.hasten(number)

    @asynccontextmanager
    async def _hastened(self, snapshot: SnapshotId, window: Window) -> AsyncIterator[None]:
        """Readers hasten the window meanwhile."""
        windows = self._windows.setdefault(snapshot, [])
        windows.append(window)
        try:
            yield
        finally:
            windows.remove(window)
            if not windows:
                self._windows.pop(snapshot, None)
                self._near.pop(snapshot, None)

    # --- counting

    @asynccontextmanager
    async def _counting(self, opened: OpenSnapshot, fill: Fill, told: Told) -> AsyncIterator[None]:
        """Tell every second what is on the disk."""

        async def tell() -> None:
            while True:
                await asyncio.sleep(COUNT_SECONDS)
                await self._count(opened, fill)
                await told(fill)

        async with asyncio.TaskGroup() as group:
            teller = group.create_task(tell())
            try:
                yield
            finally:
                teller.cancel()

    async def _count(self, opened: OpenSnapshot, fill: Fill) -> None:
        """Look on the disk for what has landed."""
        landed = sorted(fill.landed)
        found = await self._node.blocking(_whole, self._node.held.whole, opened.catalog, landed)
        for number in found:
            fill.landed.discard(number)
            fill.done += opened.catalog.segment_size(number)
            fill.whole += 1

    # --- holds

    def brought(self, segment: Segment) -> None:
        """All of a segment came here: kept, if this node is home of it. From any thread."""
        if segment.number >= 0:
            self._node.loop.call_soon_threadsafe(self._note_brought, segment)

    def _note_brought(self, segment: Segment) -> None:
        at_home = homes(self._node.agent.view().peers, segment.key, self._node.replicas(segment.snapshot))
        if any(peer.node_id == self._node.me.node_id for peer in at_home):
            self._brought.setdefault(segment.snapshot, set()).add(segment.number)

    async def run(self) -> None:
        """Note what this node holds, in groups."""
        while True:
            await asyncio.sleep(COUNT_SECONDS)
            self._stand()
            brought, self._brought = self._brought, {}
            for snapshot, segments in brought.items():
                try:
                    await self._node.blocking(self._node.store.add_holds, snapshot, sorted(segments))
                except HoardError as error:
                    log.warning("what is kept of %s is not noted: %s", short(snapshot), error)


async def _untold(_fill: Fill) -> None:
    """Nobody wants to know."""


def _order(opened: OpenSnapshot, residency: Residency, fill: Fill) -> list[int]:
    """Blocking: the segments that are not here, in the common order; counts the others."""
    catalog = opened.catalog
    order = []
    for number in common_order(opened.id, catalog.segments):
        size = catalog.segment_size(number)
        fill.segments += 1
        fill.total += size
        if residency.holds(number):
            fill.whole += 1
            fill.done += size
        else:
            order.append(number)
    return order


def _whole(whole: Callable[[Catalog, int], bool], catalog: Catalog, segments: list[int]) -> list[int]:
    return [number for number in segments if whole(catalog, number)]
