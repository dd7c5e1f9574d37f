"""A fetcher with peers that live in dictionaries: who has what, who misbehaves how, and who reads an origin."""

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor

from hoard_p2p.errors import PeerUnavailable, StoreFailed, Unavailable
from hoard_p2p.fetch.fetcher import Fetcher, Outlook
from hoard_p2p.fetch.origins import NoOrigin, OriginLane
from hoard_p2p.fetch.segment import Segment, Wanted
from hoard_p2p.fetch.sources import NO_COURSE, Course, Favour, Sources
from hoard_p2p.ids import ChunkId, SnapshotId, chunk_id
from hoard_p2p.interfaces import AskMode, PeerSegments, Place, Residency, SegmentAsk, StreamEnd
from hoard_p2p.peer import ClusterView, NodeId, Peer
from hoard_p2p.placement import homes
from hoard_p2p.testing.memory import MemorySink
from hoard_p2p.testing.network import Deliver, MemoryPeers, a_peer

SNAPSHOT = SnapshotId(b"s" * 32)
ME = a_peer(0)
DATA = [b"chunk %d" % number * (number + 1) for number in range(6)]
CHUNKS = tuple(Wanted(run, chunk_id(data), len(data)) for run, data in enumerate(DATA))
SEGMENT = Segment(SNAPSHOT, 3, CHUNKS, CHUNKS[-1].chunk_id)
ALL = {chunk.chunk_id: data for chunk, data in zip(CHUNKS, DATA, strict=True)}


class MemoryKeeper:
    """A `Keeper` over a `MemorySink`. `full`: nothing can be stored."""

    def __init__(self) -> None:
        self.sink = MemorySink()
        self.full = False
        self.ends: list[bool] = []
        self.looked: Callable[[], None] = lambda: None
        """Called when a flight starts."""

    def missing(self, segment: Segment) -> list[Wanted]:
        self.looked()
        return [chunk for chunk in segment.chunks if self.place(chunk.chunk_id) is None]

    def place(self, identifier: ChunkId) -> Place | None:
        return self.sink.chunks.place(identifier)

    def keep(self, segment: Segment, chunk: Wanted, data: memoryview) -> Place:
        if self.full:
            raise StoreFailed("the disk is full")
        self.sink.put(chunk.chunk_id, data)
        place = self.place(chunk.chunk_id)
        assert place is not None
        return place

    def keep_many(self, segment: Segment, chunks: Sequence[tuple[Wanted, memoryview]]) -> list[Place]:
        return [self.keep(segment, chunk, data) for chunk, data in chunks]

    def ended(self, segment: Segment, whole: bool) -> None:
        self.ends.append(whole)


class GatedPeers(MemoryPeers):
    """Peers that stop in the middle of an answer until `go_on`: before their first chunk, or after chunk `stop_after`
    of the request."""

    def __init__(self, holdings: dict[NodeId, dict[ChunkId, bytes]], stop_after: int = -1) -> None:
        super().__init__(holdings)
        self.stopped, self.go_on = threading.Event(), threading.Event()
        self._stop_after = stop_after

    def fetch(
        self,
        peer: Peer,
        wanted: Sequence[tuple[ChunkId, int]],
        deliver: Callable[[int, memoryview], None],
        *,
        timeout: float,
    ) -> list[int]:
        def deliver_and_stop(index: int, data: memoryview) -> None:
            deliver(index, data)
            self._stop(index)

        self._stop(-1)
        return super().fetch(peer, wanted, deliver_and_stop, timeout=timeout)

    def _stop(self, index: int) -> None:
        if index == self._stop_after:
            self.stopped.set()
            assert self.go_on.wait(10)


class SilentPeers(MemoryPeers):
    """Peers of which one takes its time to not answer: until `go_on`, as one whose machine is off."""

    def __init__(self, holdings: dict[NodeId, dict[ChunkId, bytes]], silent: NodeId) -> None:
        super().__init__(holdings)
        self.silent, self.go_on = silent, threading.Event()
        self.asked: Counter[NodeId] = Counter()

    def fetch(
        self,
        peer: Peer,
        wanted: Sequence[tuple[ChunkId, int]],
        deliver: Callable[[int, memoryview], None],
        *,
        timeout: float,
    ) -> list[int]:
        self.asked[peer.node_id] += 1
        if peer.node_id == self.silent:
            self.go_on.wait(10)
            raise PeerUnavailable("no answer")
        return super().fetch(peer, wanted, deliver, timeout=timeout)


class Cluster:
    """Four peers and me; `holdings` says who has what, `records` whose residency names segment 3."""

    def __init__(self, holdings: dict[int, dict[ChunkId, bytes]], records: Sequence[int] = ()) -> None:
        self.peers = [a_peer(number) for number in range(1, 5)]
        self.view = ClusterView(ME.node_id, (ME, *self.peers))
        self.network: MemoryPeers = MemoryPeers({a_peer(number).node_id: held for number, held in holdings.items()})
        self.records = {a_peer(number).node_id for number in records}
        self.silent: NodeId | None = None
        """Who does not tell what it holds."""
        self.told: list[NodeId] = []
        """Who was asked what it holds."""
        self.keeper = MemoryKeeper()
        self.favour = Favour()
        self.failed: list[NodeId] = []
        self.failure = asyncio.Event()
        self.absent: tuple[str, ...] = ()
        self.segments: PeerSegments | None = None
        self.course: Course = NO_COURSE
        self.settled = True
        self.origins: OriginLane = NoOrigin()

    async def residency(self, peer: Peer, snapshot: SnapshotId) -> Residency | None:
        self.told.append(peer.node_id)
        if peer.node_id == self.silent:
            await asyncio.Event().wait()
        return Residency(snapshot, peer.node_id, 1, b"\x08" if peer.node_id in self.records else b"\x00")

    def run(self, scenario: Callable[[Fetcher], Awaitable[None]]) -> None:
        async def main() -> None:
            with ThreadPoolExecutor(16) as pool, ThreadPoolExecutor(16) as fillers:
                async with asyncio.timeout(20), asyncio.TaskGroup() as group:
                    await scenario(self._fetcher(group, pool, fillers))

        asyncio.run(main())

    def _fetcher(self, group: asyncio.TaskGroup, pool: ThreadPoolExecutor, fillers: ThreadPoolExecutor) -> Fetcher:
        return Fetcher(
            group=group,
            executor=pool,
            fillers=fillers,
            keeper=self.keeper,
            peers=self.network,
            sources=Sources(
                view=lambda: self.view,
                replicas=lambda _: 2,
                residency=self.residency,
                group=group,
                favour=self.favour,
                suspects=lambda: (),
                clock=lambda: 100.0,
                course=lambda _: self.course,
                settled=lambda _: self.settled,
                origins=self.origins,
            ),
            favour=self.favour,
            failed=self.report_failure,
            outlook=lambda: Outlook(self.absent),
            me=ME.node_id,
            segments=self.segments,
            origins=self.origins,
        )

    def report_failure(self, node: NodeId) -> None:
        self.failed.append(node)
        self.failure.set()

    def order(self) -> list[NodeId]:
        """Homes of the segment in order, me left out."""
        return [peer.node_id for peer in homes(self.view.peers, SEGMENT.key, 5) if peer.node_id != ME.node_id]


def number_of(node: NodeId) -> int:
    return node[0]


def everywhere() -> dict[int, dict[ChunkId, bytes]]:
    return {number: dict(ALL) for number in range(1, 5)}


N1, N2, N3 = a_peer(1), a_peer(2), a_peer(3)


def nowhere() -> dict[int, dict[ChunkId, bytes]]:
    return {number: {} for number in range(1, 5)}


class MemoryOrigin:
    """An `OriginLane` over a dictionary. `order`: its readers, best first; `broken`: it cannot be read here."""

    def __init__(self, *order: Peer, data: dict[ChunkId, bytes] = ALL) -> None:
        self.order = order
        self.data = data
        self.broken = ""
        self.changes: dict[ChunkId, str] = {}
        self.looked: Callable[[Sequence[ChunkId]], None] = lambda _: None
        self.patient = True
        self.reads: list[ChunkId] = []
        self.bypasses: list[tuple[NodeId, int]] = []
        self.silences: list[NodeId] = []
        self.given: list[tuple[NodeId, ChunkId]] = []

    def reader(self, segment: Segment, without: Container[NodeId]) -> Peer | None:
        return next((peer for peer in self.order if peer.node_id not in without), None)

    def last(self, segment: Segment) -> Peer | None:
        return None

    def read(
        self, segment: Segment, wanted: Sequence[Wanted], deliver: Callable[[int, memoryview], None], *, urgent: bool
    ) -> list[int]:
        if self.broken:
            raise Unavailable(self.broken)
        self.looked([chunk.chunk_id for chunk in wanted])
        for index, chunk in enumerate(wanted):
            if chunk.chunk_id in self.data:
                self.reads.append(chunk.chunk_id)
                deliver(index, memoryview(self.data[chunk.chunk_id]))
        return [index for index, chunk in enumerate(wanted) if chunk.chunk_id not in self.data]

    def why(self, segment: Segment) -> str:
        return ""

    def changed(self, segment: Segment, chunk: Wanted) -> str:
        return self.changes.get(chunk.chunk_id, "")

    def received(self, snapshot: SnapshotId, size: int) -> None:
        return None

    def may_bypass(self, segment: Segment, size: int, waited: float) -> bool:
        return not self.patient

    def bypassed(self, segment: Segment, reader: Peer, size: int) -> None:
        self.bypasses.append((reader.node_id, size))

    def handed(self, segment: Segment, reader: Peer, chunks: Sequence[Wanted]) -> None:
        self.given += [(reader.node_id, chunk.chunk_id) for chunk in chunks]

    def silent(self, reader: Peer) -> None:
        self.silences.append(reader.node_id)


class Dripping(MemoryPeers):
    """Streams stop after their first chunk until `go_on`."""

    def __init__(self, holdings: dict[NodeId, dict[ChunkId, bytes]]) -> None:
        super().__init__(holdings)
        self.dripped, self.go_on = threading.Event(), threading.Event()

    def stream(
        self,
        peer: Peer,
        ask: SegmentAsk,
        wanted: Sequence[tuple[ChunkId, int]],
        deliver: Deliver,
        *,
        patience: float,
        timeout: float,
    ) -> StreamEnd:
        def slowly(index: int, data: memoryview) -> None:
            deliver(index, data)
            if index == 0:
                self.dripped.set()
                assert self.go_on.wait(10)

        return super().stream(peer, ask, wanted, slowly, patience=patience, timeout=timeout)


def asked(cluster: Cluster) -> list[tuple[NodeId, AskMode, int]]:
    return [(node, ask.mode, ask.hops) for node, ask in cluster.network.asks]


def a_cluster(holdings: dict[int, dict[ChunkId, bytes]], course: Course = NO_COURSE) -> Cluster:
    cluster = Cluster(holdings)
    cluster.segments = cluster.network
    cluster.course = course
    return cluster
