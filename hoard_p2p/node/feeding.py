"""What this node gives a peer of a segment: what is here, then what it gets while the peer waits (`POST /v1/stream`).

Believes nothing: whether this node passes the segment on, or may read its origin, it takes from its own view.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from hoard_p2p.errors import CatalogCorrupt, HoardError
from hoard_p2p.fetch.following import Arrived
from hoard_p2p.fetch.segment import Segment, Wanted
from hoard_p2p.ids import ChunkId, SnapshotId, chunk_id, is_origin_key, short
from hoard_p2p.interfaces import AskMode, SegmentAsk
from hoard_p2p.node.blocking import in_executor
from hoard_p2p.node.catalogs import OpenSnapshot
from hoard_p2p.transfer.service import Fed, FeedEnd, Located, SendExtent

T = TypeVar("T")

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

log = logging.getLogger(__name__)

STEP = 256
"""Chunks that are lent to the server at a time."""

MOST_HOPS = 2
LAST_PLACE = 255
"""Places in a chain are told up to this one; from there on they are not compared."""

MOST_FLIGHTS = 256
"""Flights under way here beyond which none is begun for a peer."""

FULL_FLIGHTS = 4
"""The same while nothing can be stored: all that comes is in memory until the slowest peer has taken it."""


class Feeding:
    """For the event loop."""

    def __init__(
        self,
        node: "Node",
        locate: Callable[[Sequence[ChunkId]], Located],
        release: Callable[[Sequence[SendExtent], int], None],
    ) -> None:
        """`locate`, `release`: as of `PeerService`."""
        self._node = node
        self._locate = locate
        self._release = release
        self._opening: dict[SnapshotId, asyncio.Task[OpenSnapshot | HoardError]] = {}

    async def feed(self, ask: SegmentAsk, patience: float) -> AsyncGenerator[Sequence[Fed] | FeedEnd, None]:
        """See `PeerService.feed`."""
        segment = await self._segment(ask, patience)
        if isinstance(segment, FeedEnd):
            yield segment
            return
        by_run = {chunk.run: chunk for chunk in segment.chunks}
        if not all(run in by_run for run in ask.runs):
            yield FeedEnd(False, f"segment {ask.segment} has other chunk runs")
            return
        left = {by_run[run].chunk_id: (at, by_run[run]) for at, run in enumerate(ask.runs)}
        for part in _parts(list(left)):
            yield await self._here(part, left)
        if not left:
            yield FeedEnd(False)
            return
        refusal = self._refusal(ask, segment) or await self._unsettled(ask, patience)
        if refusal is not None:
            yield refusal
            return
        if ask.mode is AskMode.CHAIN and not await self._node.fetcher.room_for_peer(segment, patience):
            yield FeedEnd(True, f"{self._node.me.name} has enough segments under way for others")
            return
        async for item in self._coming(ask, segment, left, patience):
            yield item

    async def _coming(
        self, ask: SegmentAsk, segment: Segment, left: dict[ChunkId, tuple[int, Wanted]], patience: float
    ) -> AsyncGenerator[Sequence[Fed] | FeedEnd, None]:
        """What is not here, as it lands."""
        fetcher = self._node.fetcher
        hops = ask.hops + 1 if ask.mode is AskMode.FETCH else 0
        wanted = [chunk for _, chunk in left.values()]
        with fetcher.followed(segment, wanted, waits=ask.mode is not AskMode.CHAIN, hops=hops) as following:
            for part in _parts(list(left)):  # what landed between the look and this line is not told
                yield await self._here(part, left)
            while left:
                arrived = await following.arrived(patience)
                if not arrived:
                    break
                for some in _parts(arrived):
                    yield await self._fed(some, left)
            reason = following.reason
            if left and not reason and ask.mode is AskMode.FETCH:  # it is tried again and again: who waits hears why
                reason = self._node.origins.why(segment)
            yield FeedEnd(bool(left) and not following.reason, reason)

    async def _segment(self, ask: SegmentAsk, patience: float) -> Segment | FeedEnd:
        """The segment that is asked about, or what to answer instead."""
        opened = await self._opened(ask.snapshot, patience)
        if opened is None:
            return FeedEnd(True, "the catalog is on its way")
        if isinstance(opened, HoardError):
            return FeedEnd(False, str(opened))
        if ask.segment >= opened.catalog.segments:
            return FeedEnd(False, f"snapshot {short(ask.snapshot)} has {opened.catalog.segments} segments")
        with suppress(CatalogCorrupt):
            return self._node.demand.segment(opened, ask.segment)
        return FeedEnd(False, f"the catalog of {short(ask.snapshot)} is not sound")

    async def _opened(self, snapshot: SnapshotId, patience: float) -> OpenSnapshot | HoardError | None:
        """An open snapshot, None if that takes longer: it goes on."""
        known = self._node.catalogs.peek(snapshot)
        if known is not None:
            return known
        record = self._node.names.snapshot(snapshot)
        if record is None or record.removed:
            return HoardError(f"{self._node.me.name} knows no snapshot {short(snapshot)}")
        task = self._opening.get(snapshot)
        if task is None:
            task = self._opening[snapshot] = self._node.group.create_task(self._open(snapshot))
            task.add_done_callback(lambda _: self._opening.pop(snapshot, None))
        done, _ = await asyncio.wait({task}, timeout=patience)
        return task.result() if done else None

    async def _open(self, snapshot: SnapshotId) -> OpenSnapshot | HoardError:
        try:
            return await self._node.open(snapshot)
        except HoardError as error:
            return error

    def _refusal(self, ask: SegmentAsk, segment: Segment) -> FeedEnd | None:
        """Why this node does not get for others what it lacks, if it does not."""
        node, name = self._node, self._node.me.name
        most = FULL_FLIGHTS if node.writer.full else MOST_FLIGHTS
        if node.fetcher.under_way >= most:
            return FeedEnd(True, f"{name} has {most} segments under way")
        if ask.mode is AskMode.FETCH:
            reader = node.origins.reader(segment, ())
            if reader is None or (reader.node_id != node.me.node_id and ask.hops >= MOST_HOPS):
                return FeedEnd(False, f"{name} does not read its origin")
            return None
        order = node.courses.order(segment)
        place = next((at for at, peer in enumerate(order) if peer.node_id == node.me.node_id), None)
        if place is None:
            return FeedEnd(False, f"{name} does not take part")
        # Places fall along whoever waits for whom, so that nobody waits for himself where views differ.
        # Place 0 is that of nobody who asks: an older node asks a gateway with it.
        told = ask.hops < LAST_PLACE and (ask.hops > 0 or ask.mode is AskMode.CHAIN)
        if told and place >= ask.hops:
            return FeedEnd(False, f"{name} comes later in the chain")
        return None

    async def _unsettled(self, ask: SegmentAsk, patience: float) -> FeedEnd | None:
        """What fills with a view that still fills up comes to nothing here, and the peer, which saw enough earlier,
        would go and get from another rack what comes along the chain soon."""
        seconds = self._node.courses.unsettled(ask.snapshot) if ask.mode is AskMode.CHAIN else 0.0
        if not seconds:
            return None
        await asyncio.sleep(min(seconds, patience))
        return FeedEnd(True, f"{self._node.me.name} has not settled yet")

    async def _here(self, ids: Sequence[ChunkId], left: dict[ChunkId, tuple[int, Wanted]]) -> list[Fed]:
        """What of `ids` is stored here, lent; no longer `left` then."""
        extents = await self._lent(ids)
        fed = [Fed(left[one][0], extent) for one, extent in zip(ids, extents, strict=True) if extent is not None]
        for one, extent in zip(ids, extents, strict=True):
            if extent is not None:
                del left[one]
        return fed

    async def _fed(self, arrived: Sequence[Arrived], left: dict[ChunkId, tuple[int, Wanted]]) -> list[Fed]:
        """What has just landed. One that is gone again is left: the peer asks again."""
        news = [one for one in arrived if one.chunk_id in left]
        unstored = [(left.pop(one.chunk_id)[0], one) for one in news if one.landed.place is None]
        fed = [Fed(at, None, one.landed.data, await self._named(one)) for at, one in unstored]
        stored = [one.chunk_id for one in news if one.landed.place is not None]
        return fed + (await self._here(stored, left) if stored else [])

    async def _named(self, arrived: Arrived) -> bytes:
        """The content id of what is sent from memory, where it has an origin key."""
        if not is_origin_key(arrived.chunk_id):
            return b""
        return await in_executor(self._node.executor, chunk_id, arrived.landed.data)

    async def _lent(self, ids: Sequence[ChunkId]) -> Located:
        """Located in a thread; given back if this is cancelled meanwhile."""
        future = asyncio.get_running_loop().run_in_executor(self._node.executor, self._locate, ids)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(self._give_back)
            raise

    def _give_back(self, future: "asyncio.Future[Located]") -> None:
        if not future.cancelled() and future.exception() is None:
            self._release([extent for extent in future.result() if extent is not None], 0)


def _parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[at : at + STEP] for at in range(0, len(items), STEP))
