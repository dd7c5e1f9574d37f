"""The node as its peers see it: `transfer.service.PeerService` over `node.app.Node`."""

import logging
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from hoard_p2p.config import Json
from hoard_p2p.errors import ChunkCorrupt, HoardError
from hoard_p2p.ids import HOLE, ChunkId, SnapshotId, is_origin_key, short
from hoard_p2p.interfaces import Place, Residency, SegmentAsk
from hoard_p2p.node import contents, ranging
from hoard_p2p.node.app import Node
from hoard_p2p.node.feeding import Feeding
from hoard_p2p.node.handing import take
from hoard_p2p.node.homing import adopt
from hoard_p2p.node.meeting import answer_probe, unknown_standings
from hoard_p2p.node.metrics import Metrics
from hoard_p2p.node.removal import uses_here
from hoard_p2p.node.status import public_status
from hoard_p2p.objects import RangeAsk
from hoard_p2p.peer import NodeId, Standing
from hoard_p2p.storage.slabs import SlabFile
from hoard_p2p.transfer.service import Fed, FeedEnd, SendExtent
from hoard_p2p.transfer.wire import AdoptReply, AdoptRequest, Announcement, Hello, Record
from hoard_p2p.transfer.wire_contents import ContentsRequest
from hoard_p2p.transfer.wire_life import Handed, Use, VouchRequest
from hoard_p2p.transfer.wire_members import KnownStanding, ProbeMessage
from hoard_p2p.transfer.wire_names import Comparison, Differences, Kind, Lack, Supply

log = logging.getLogger(__name__)


ATTEMPTS = 10
"""Times that a chunk is looked for which moves to another place each time."""


class _Lent(NamedTuple):
    """A slab with its number, and how many extents of it are being sent."""

    slab: SlabFile
    number: int
    extents: int


class NodeService:
    """Answers peers. What they claim is believed only as far as it can be checked here."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._metrics = Metrics(node)
        self._feeding = Feeding(node, self.locate, self.release)
        self._lent: dict[int, _Lent] = {}
        """Slabs that are being sent, by descriptor: they stay open meanwhile."""
        self._lock = threading.Lock()

    def hello(self) -> Hello:
        return self._node.hello()

    def greeted(self, caller: Hello) -> None:
        self._node.agent.greeted(caller)

    def probed(self, caller: ProbeMessage) -> ProbeMessage:
        return answer_probe(self._node.agent, self._node.hello(), caller)

    async def probe_for(self, node: NodeId) -> bool:
        return await self._node.agent.probe_for(node)

    def standings(self, known: Sequence[KnownStanding]) -> list[Standing]:
        return unknown_standings(self._node.agent, known)

    def status(self) -> Json:
        return public_status(self._node)

    def metrics(self) -> bytes:
        return self._metrics.text()

    async def root(self, snapshot: SnapshotId) -> bytes | None:
        return await self._node.blocking(self._node.names.root, snapshot)

    async def snapshots(self) -> Sequence[Record]:
        return await self._node.blocking(self._node.gossip.exchange.listed, Kind.SNAPSHOTS)

    async def refs(self) -> Sequence[Record]:
        return await self._node.blocking(self._node.gossip.exchange.listed, Kind.REFS)

    async def compare(self, comparison: Comparison) -> Differences:
        self._node.gossip.compared(comparison)
        return await self._node.blocking(self._node.gossip.exchange.compare, comparison)

    async def supply(self, lack: Lack) -> Supply:
        return await self._node.blocking(self._node.gossip.exchange.supply, lack)

    async def residency(self, snapshot: SnapshotId) -> Residency | None:
        return await self._node.residency(snapshot)

    def locate(self, ids: Sequence[ChunkId]) -> list[SendExtent | None]:
        # Once: what a key is may be known or forgotten a moment later. An unknown one is a hole, which lies nowhere.
        contents = [content or HOLE for content in self._node.writer.contents(ids)]
        counted = self._counted(contents)
        lent: list[SendExtent | None] = []
        try:
            for asked, content, place in zip(ids, contents, counted, strict=True):
                extent = None if place is None else self._lend(content, place)
                lent.append(extent and extent._replace(content=content if is_origin_key(asked) else b""))
        except BaseException:  # no descriptor is left, most likely
            self._node.store.reclaimer.sent(*(place for place in counted[len(lent) + 1 :] if place is not None))
            self.release([extent for extent in lent if extent is not None], 0)
            raise
        return lent

    def _lend(self, chunk_id: ChunkId, place: Place) -> SendExtent | None:
        """Of a place that is counted as being sent; counted no more if it cannot be."""
        try:
            slab = self._node.reader.slab_file(place.slab)
        except HoardError as error:
            self._node.store.reclaimer.sent(place)
            if not isinstance(error, ChunkCorrupt):
                raise
            log.warning("chunk %s cannot be sent: %s", short(chunk_id), error)
            return None
        with self._lock:
            lent = self._lent.get(slab.fd)
            self._lent[slab.fd] = _Lent(slab, place.slab, 1 if lent is None else lent.extents + 1)
        return SendExtent(slab.fd, place.offset, place.length)

    def _counted(self, ids: Sequence[ChunkId]) -> list[Place | None]:
        """Where chunks lie, counted as being sent. Counted first, then seen there: so they stay."""
        keeper, reclaimer = self._node.keeper, self._node.store.reclaimer
        places = keeper.places(ids)
        reclaimer.send(*(place for place in places if place is not None))
        for at, again in enumerate(keeper.places(ids)):
            place = places[at]
            if place is not None and (again is None or again[:3] != place[:3]):
                reclaimer.sent(place)
                places[at] = self._counted_again(ids[at])
        return places

    def _counted_again(self, chunk_id: ChunkId) -> Place | None:
        """The same for one chunk, which moves."""
        node = self._node
        for _ in range(ATTEMPTS):
            place = node.keeper.place(chunk_id)
            if place is None:
                return None
            node.store.reclaimer.send(place)
            again = node.keeper.place(chunk_id)
            if again is not None and again[:3] == place[:3]:
                return place
            node.store.reclaimer.sent(place)
        return None

    def release(self, extents: Sequence[SendExtent], sent: int) -> None:
        with self._lock:
            self._node.counters.chunks_sent += sent
            self._node.counters.bytes_sent += sum(extent.length for extent in extents[:sent])
            places = [Place(self._lent[one.fd].number, one.offset, one.length, 0) for one in extents]
            for fd, count in Counter(extent.fd for extent in extents).items():
                lent = self._lent[fd]
                if lent.extents > count:
                    self._lent[fd] = lent._replace(extents=lent.extents - count)
                else:
                    del self._lent[fd]
        self._node.store.reclaimer.sent(*places)

    def feed(self, ask: SegmentAsk, patience: float) -> AsyncGenerator[Sequence[Fed] | FeedEnd, None]:
        return self._feeding.feed(ask, patience)

    async def range(self, ask: RangeAsk) -> bytes | FeedEnd:
        try:
            data = await ranging.serve(self._node, ask)
        except HoardError as error:
            return FeedEnd(False, str(error))
        return FeedEnd(True, "it is on its way") if data is None else data

    async def contents(self, request: ContentsRequest) -> Sequence[bytes]:
        return await contents.answer(self._node, request)

    async def adopt(self, request: AdoptRequest) -> AdoptReply:
        """Pulls from a node of this node's own view only, whatever the caller says (CLUSTER 6)."""
        return await adopt(self._node, request)

    async def uses(self, snapshots: Sequence[SnapshotId]) -> Sequence[Use]:
        return uses_here(self._node, snapshots)

    async def vouch(self, request: VouchRequest) -> Sequence[int]:
        return await self._node.retention.evictions.vouch(request.snapshot, request.segments)

    def handed(self, handed: Handed) -> None:
        take(self._node, handed)

    async def announce(self, announcement: Announcement) -> None:
        node = self._node
        teller = node.agent.view().by_id.get(NodeId(announcement.node))
        sender = f"{teller.name} ({teller.url})" if teller is not None else "an announcement of a node not in the view"
        new = await node.blocking(node.names.merge_snapshots, announcement.snapshots, sender)
        new += await node.blocking(node.names.merge_refs, announcement.refs, sender)
        if new:
            node.gossip.heard(announcement)

    async def left(self, node: NodeId, incarnation: int) -> None:
        self._node.agent.left(node, incarnation)
