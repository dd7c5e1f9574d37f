"""Whom to ask for a segment, in which order and how, and who is out of favour for a while.

Demand: the gateway of the rack, neighbours in the rack that hold it, homes, holders by residency record, the reader of
the origin. Fill: the predecessor in the segment's chain, then as demand. Demand never follows the chain. What a
neighbour holds does not come from another rack once more.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hoard_p2p.fetch.flight import Flight
from hoard_p2p.fetch.origins import NoOrigin, OriginLane
from hoard_p2p.fetch.records import AskResidency, Records
from hoard_p2p.fetch.segment import Segment
from hoard_p2p.ids import ChunkId, SnapshotId
from hoard_p2p.interfaces import AskMode
from hoard_p2p.peer import ClusterView, NodeId, Peer
from hoard_p2p.placement import candidates, draw

SHUN_SECONDS = 30.0
SLOW_SECONDS = 30.0
"""For so long others are asked before a peer whose question was broken off since it sent hardly anything."""

TIRED_SECONDS = 15.0
"""For so long a gateway that sent nothing in time is not asked: else each segment would wait for it anew."""

LAST_RESORT = 8
"""Peers asked though neither placement nor residency points at them: a part of a segment is in nobody's record."""

EVERYBODY = 1024
RESIDENCY_TIMEOUT = 2.0
"""Seconds that all peers together get to tell what they hold: a reader waits meanwhile."""

NEIGHBOUR_TIMEOUT = 0.1
"""The same for those in this node's rack, whom a reader may do without."""

KEPT_RANKS = 256
READERS_TRIED = 4
"""Readers of the origin that one round tries, each after the one before it failed."""


class Source(NamedTuple):
    """A peer to ask. `mode` None: for what it has (`PeerChunks`). `place`: this node's place in the chain, for CHAIN
    and GATE; for FETCH, the readers that were tried before. FETCH of this node itself: read the origin here."""

    peer: Peer
    mode: AskMode | None = None
    place: int = 0


class Course(NamedTuple):
    """How the participants of a segment pass it on, as this node sees it. `place`: its own, 0 for the first or who is
    not in the chain."""

    before: Peer | None
    gateways: tuple[Peer, ...]
    place: int


NO_COURSE = Course(None, (), 0)


@dataclass
class Favour:
    """Which peers sent wrong bytes lately, which said for too long that they were about to send something, and which
    sent hardly anything. Time is handed in."""

    _until: dict[NodeId, float] = field(default_factory=dict)
    _tired: dict[NodeId, float] = field(default_factory=dict)
    _slow: dict[NodeId, float] = field(default_factory=dict)
    counted: dict[NodeId, int] = field(default_factory=dict)

    def shun(self, node: NodeId, now: float) -> None:
        self._until[node] = now + SHUN_SECONDS
        self.counted[node] = self.counted.get(node, 0) + 1

    def shunned(self, node: NodeId, now: float) -> bool:
        return self._until.get(node, now) > now

    def tire(self, node: NodeId, now: float) -> None:
        self._tired = {known: until for known, until in self._tired.items() if until > now}
        self._tired[node] = now + TIRED_SECONDS

    def tired(self, node: NodeId, now: float) -> bool:
        return max(self._tired.get(node, now), self._slow.get(node, now)) > now

    def found_slow(self, node: NodeId, now: float) -> None:
        self._slow = {known: until for known, until in self._slow.items() if until > now}
        self._slow[node] = now + SLOW_SECONDS

    def slow(self, node: NodeId, now: float) -> bool:
        return self._slow.get(node, now) > now


class Sources:
    """Homes in placement order (those that failed lately last), then holders by residency record, then the reader of
    the origin, then a few others, then those that sent wrong bytes lately: what they send is checked, and they may be
    the only ones."""

    def __init__(
        self,
        *,
        view: Callable[[], ClusterView],
        replicas: Callable[[SnapshotId], int],
        residency: AskResidency,
        group: asyncio.TaskGroup,
        favour: Favour,
        suspects: Callable[[], Container[NodeId]],
        clock: Callable[[], float],
        course: Callable[[Segment], Course] = lambda _: NO_COURSE,
        settled: Callable[[SnapshotId], bool] = lambda _: True,
        origins: OriginLane | None = None,
    ) -> None:
        """`course`: how a segment is passed on in this node's view. `settled`: whether the view, and who wants the
        snapshot, were unchanged for a while: before, nothing is filled along a chain or from the origin."""
        self._view = view
        self._replicas = replicas
        self._favour = favour
        self._suspects = suspects
        self._clock = clock
        self._course = course
        self._settled = settled
        self._origins = origins or NoOrigin()
        self._ranked: OrderedDict[ChunkId, tuple[ClusterView, list[Peer]]] = OrderedDict()
        self._records = Records(residency, clock, group)

    async def demand(self, flight: Flight) -> AsyncIterator[Source]:
        """Whom to ask for what somebody waits for, best first; `flight.first` before all others."""
        course = self._course_of(flight)
        for gateway in course.gateways:
            if gateway.node_id not in self._suspects() and not self._favour.tired(gateway.node_id, self._clock()):
                yield Source(gateway, AskMode.GATE, course.place)
        async for source in self._having(flight, flight.without, reads=True):
            yield source

    def _course_of(self, flight: Flight) -> Course:
        """Who brings things into this node's rack. Nobody for the origin's reader, or for whom another node takes for
        that: the gateway would ask it in turn."""
        if flight.segment.number < 0 or flight.first is not None or flight.hops:
            return NO_COURSE
        reader = self._origins.reader(flight.segment, ())
        is_reader = reader is not None and reader.node_id == self._view().me
        return NO_COURSE if is_reader else self._course(flight.segment)

    async def fill(self, flight: Flight) -> AsyncIterator[Source]:
        """Whom to ask for the whole segment. Nobody passes on to, or reads for, a node whose view is still filling
        up, unless a reader waits."""
        settled = flight.fill.thorough = self._settled(flight.segment.snapshot)
        if flight.segment.number >= 0 and flight.first is None and settled:
            head = self._head(flight)
            if head is not None:
                if head.peer.rack != self._my_rack():
                    for neighbour in await self._neighbours(flight.segment):
                        yield Source(neighbour)
                yield head
        async for source in self._having(flight, flight.fill.without, reads=settled):
            yield source

    def _head(self, flight: Flight) -> Source | None:
        """Who passes the segment on to this node. The origin's reader waits for nobody; it is the first of the chain,
        but where views differ, or another one took over from who was."""
        course = self._course(flight.segment)
        reader = self._origins.reader(flight.segment, flight.fill.without)
        if (
            course.before is None
            or self._favour.slow(course.before.node_id, self._clock())
            or (reader is not None and reader.node_id == self._view().me)
        ):
            return None
        return Source(course.before, AskMode.CHAIN, course.place)

    def _my_rack(self) -> str:
        view = self._view()
        return view.by_id[view.me].rack

    async def _neighbours(self, segment: Segment) -> list[Peer]:
        """Who in this node's rack holds the segment, if there are other racks that it would come from."""
        now, view, suspects, rack = self._clock(), self._view(), self._suspects(), self._my_rack()
        if segment.number < 0 or all(peer.rack == rack for peer in view.peers):
            return []
        near = [peer for peer in view.others if peer.rack == rack and peer.node_id not in suspects]
        favour = self._favour
        usable = [peer for peer in near if not favour.shunned(peer.node_id, now) and not favour.slow(peer.node_id, now)]
        return await self._records.holders(draw(usable, segment.key), segment, NEIGHBOUR_TIMEOUT)

    async def _having(self, flight: Flight, without: Container[NodeId], *, reads: bool) -> AsyncIterator[Source]:
        """`without`: readers of the origin that the lane does not ask; it grows while they are asked."""
        segment = flight.segment
        now, view, suspects = self._clock(), self._view(), self._suspects()
        ranked = [peer for peer in self._candidates(view, segment) if peer.node_id != view.me]
        ranked.sort(key=lambda peer: peer.node_id in suspects or self._favour.slow(peer.node_id, now))
        usable = [peer for peer in ranked if not self._favour.shunned(peer.node_id, now)]
        asked: set[NodeId] = set()
        near = [flight.first] if flight.first is not None else await self._neighbours(segment)
        for peer in (*near, *usable[: self._replicas(segment.snapshot)]):
            if peer.node_id not in asked:
                asked.add(peer.node_id)
                yield Source(peer)
        rest = [peer for peer in usable if peer.node_id not in asked]
        if segment.number >= 0:
            for peer in await self._records.holders(rest, segment, RESIDENCY_TIMEOUT):
                asked.add(peer.node_id)
                yield Source(peer)
        for source in self._readers(segment, without) if reads else ():
            yield source
        for peer in [peer for peer in rest if peer.node_id not in asked][: self._last_resort(segment)]:
            asked.add(peer.node_id)
            yield Source(peer)
        shunned = [peer for peer in ranked if self._favour.shunned(peer.node_id, now)]
        for source in self._desperate(segment, shunned, without, reads):
            yield source

    def _desperate(
        self, segment: Segment, shunned: Sequence[Peer], without: Container[NodeId], reads: bool
    ) -> Iterator[Source]:
        """A peer that sent a wrong chunk may be the only one with others: its disk is damaged, it need not be hostile.
        Also one that did so in this very round: it was left at the first wrong byte. Then what nobody has may be in the
        origin of another snapshot."""
        for peer in shunned[:LAST_RESORT]:
            yield Source(peer)
        last = self._origins.last(segment) if reads else None
        if last is not None and last.node_id not in without:
            yield Source(last, AskMode.FETCH, READERS_TRIED)

    def _candidates(self, view: ClusterView, segment: Segment) -> list[Peer]:
        """Kept: of 1,000 peers it takes milliseconds, and a flight has many rounds."""
        known = self._ranked.pop(segment.key, None)
        if known is None or known[0] is not view:
            known = (view, candidates(view.peers, segment.key))
        self._ranked[segment.key] = known
        if len(self._ranked) > KEPT_RANKS:
            self._ranked.popitem(last=False)
        return known[1]

    def _readers(self, segment: Segment, without: Container[NodeId]) -> Iterator[Source]:
        """The reader of the origin, and who takes over while each one fails."""
        for tried in range(READERS_TRIED):
            reader = self._origins.reader(segment, without)
            if reader is None:
                return
            yield Source(reader, AskMode.FETCH, tried)
            if reader.node_id not in without:
                return

    @staticmethod
    def _last_resort(segment: Segment) -> int:
        """How many peers to try blindly. No record tells who has a catalog, so for its chunks it is all of them."""
        return LAST_RESORT if segment.number >= 0 else EVERYBODY
