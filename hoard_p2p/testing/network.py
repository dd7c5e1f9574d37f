"""Verified fakes of the network: a node that serves chunks from a file, and peers that live in a dictionary.

Both pass the contract suites of `PeerChunks` and `PeerSegments` (the file service through the real server and client).
"""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from hoard_p2p.config import Json
from hoard_p2p.errors import ChunkCorrupt, PeerUnavailable
from hoard_p2p.ids import ChunkId, SnapshotId, chunk_id, is_origin_key, short
from hoard_p2p.interfaces import Residency, SegmentAsk, StreamEnd
from hoard_p2p.objects import RangeAsk, RangeEnd
from hoard_p2p.peer import News, NodeId, Peer, Standing
from hoard_p2p.transfer.intake import Named, believed
from hoard_p2p.transfer.keys import OPEN, Security
from hoard_p2p.transfer.server import DEFAULT_LIMITS, Limits, make_server
from hoard_p2p.transfer.service import Fed, FeedEnd, Located, PeerService, SendExtent
from hoard_p2p.transfer.wire import AdoptReply, AdoptRequest, Announcement, Hello, Record
from hoard_p2p.transfer.wire_contents import ContentsRequest
from hoard_p2p.transfer.wire_life import Handed, Use, VouchRequest
from hoard_p2p.transfer.wire_members import NO_NEWS, KnownStanding, ProbeMessage
from hoard_p2p.transfer.wire_names import Comparison, Differences, Kind, Lack, Supply

Wanted: TypeAlias = Sequence[tuple[ChunkId, int]]
Deliver: TypeAlias = Callable[[int, memoryview], None]
NOBODY = FeedEnd(False, "nobody has it")


def a_peer(number: int, host: str = "127.0.0.1", port: int = 0, *, incarnation: int = 1) -> Peer:
    """The record of a test node; `number` 0 - 255 is its whole identity."""
    return Peer(NodeId(bytes([number]) * 16), incarnation, f"n{number}", "", host, port, 1 << 16)


@dataclass
class FileService:
    """A `PeerService` whose chunks lie one after the other in one file, and whose records are set by the test.

    `located` counts extents that were lent, `open_extents` those not yet released,
    `sent` those that went out whole. Run i of any segment is the chunk i of `chunks`, or has the origin key of
    `keys[i]`; streams carry those in `unstored` as bytes. What is not there ends a stream with `feed_end`; `asks` are
    the questions that came. `contents_of` tells what origin keys are.
    """

    me: Peer
    path: Path
    chunks: Iterable[bytes] = ()
    cluster: str = "test"
    boot: bytes = b"boot-one"
    members: tuple[Peer, ...] = ()
    roots: dict[SnapshotId, bytes] = field(default_factory=dict)
    residencies: dict[SnapshotId, Residency] = field(default_factory=dict)
    snapshot_records: list[Record] = field(default_factory=list)
    ref_records: list[Record] = field(default_factory=list)
    reply: AdoptReply = field(default_factory=lambda: AdoptReply(()))
    used: dict[SnapshotId, Use] = field(default_factory=dict)
    promised: frozenset[int] = frozenset()
    callers: list[Hello] = field(default_factory=list)
    adopted: list[AdoptRequest] = field(default_factory=list)
    given: list[Handed] = field(default_factory=list)
    announced: list[Announcement] = field(default_factory=list)
    digests: tuple[bytes, bytes] = (b"", b"")
    compared: list[Comparison] = field(default_factory=list)
    lacked: list[Lack] = field(default_factory=list)
    gone: list[tuple[NodeId, int]] = field(default_factory=list)
    probes: list[ProbeMessage] = field(default_factory=list)
    news: News = NO_NEWS
    reachable: frozenset[NodeId] = frozenset()
    stood: list[Standing] = field(default_factory=list)
    unstored: dict[ChunkId, bytes] = field(default_factory=dict)
    keys: dict[int, ChunkId] = field(default_factory=dict)
    contents_of: dict[ChunkId, ChunkId] = field(default_factory=dict)
    feed_end: FeedEnd = NOBODY
    asks: list[tuple[SegmentAsk, float]] = field(default_factory=list)
    ranges: list[RangeAsk] = field(default_factory=list)
    segment_contents: dict[int, bytes] = field(default_factory=dict)
    located: int = 0
    open_extents: int = 0
    sent: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self.places: dict[ChunkId, tuple[int, int]] = {}
        self.runs: list[ChunkId] = []
        with self.path.open("wb") as file:
            for chunk in self.chunks:
                self.runs.append(chunk_id(chunk))
                self.places[self.runs[-1]] = (file.tell(), len(chunk))
                file.write(chunk)
        self.contents_of.update((key, self.runs[run]) for run, key in self.keys.items())
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._fd)

    def hello(self) -> Hello:
        return Hello(self.me, self.cluster, self.members, boot=self.boot)

    def greeted(self, caller: Hello) -> None:
        self.callers.append(caller)

    def probed(self, caller: ProbeMessage) -> ProbeMessage:
        self.probes.append(caller)
        return ProbeMessage(self.hello(), self.news)

    async def probe_for(self, node: NodeId) -> bool:
        return node in self.reachable

    def standings(self, known: Sequence[KnownStanding]) -> Sequence[Standing]:
        return [each for each in self.stood if each.node_id not in {one.node_id for one in known}]

    def status(self) -> Json:
        return {"node": self.me.name}

    def metrics(self) -> bytes:
        return b"hoard_chunks 1\n"

    async def root(self, snapshot: SnapshotId) -> bytes | None:
        return self.roots.get(snapshot)

    async def snapshots(self) -> Sequence[Record]:
        return self.snapshot_records

    async def refs(self) -> Sequence[Record]:
        return self.ref_records

    async def compare(self, comparison: Comparison) -> Differences:
        self.compared.append(comparison)
        return Differences(self.digests[0], self.digests[1])

    async def supply(self, lack: Lack) -> Supply:
        self.lacked.append(lack)
        told = self.snapshot_records if lack.kind is Kind.SNAPSHOTS else self.ref_records
        return Supply(tuple(told[lack.skip :]), more=False)

    async def residency(self, snapshot: SnapshotId) -> Residency | None:
        return self.residencies.get(snapshot)

    def locate(self, ids: Sequence[ChunkId]) -> Located:
        extents = [self._extent(one) for one in ids]
        with self._lock:
            lent = sum(extent is not None for extent in extents)
            self.located += lent
            self.open_extents += lent
        return extents

    def _extent(self, wanted: ChunkId) -> SendExtent | None:
        content = self.contents_of.get(wanted, wanted)
        place = self.places.get(content)
        if place is None:
            return None
        return SendExtent(self._fd, *place, content if is_origin_key(wanted) else b"")

    def release(self, extents: Sequence[SendExtent], sent: int) -> None:
        with self._lock:
            self.sent += sent
            self.open_extents -= len(extents)

    async def feed(self, ask: SegmentAsk, patience: float) -> AsyncGenerator[Sequence[Fed] | FeedEnd, None]:
        self.asks.append((ask, patience))
        missing = 0
        for start in range(0, len(ask.runs), FEED_BATCH):
            batch = [self._fed(index, ask.runs[index]) for index in range(start, len(ask.runs))[:FEED_BATCH]]
            missing += batch.count(None)
            yield [fed for fed in batch if fed is not None]
        yield self.feed_end if missing else FeedEnd(False)

    def _fed(self, index: int, run: int) -> Fed | None:
        wanted = self.runs[run] if run < len(self.runs) else ChunkId(bytes(32))
        if wanted in self.unstored:
            return Fed(index, None, self.unstored[wanted], wanted if run in self.keys else b"")
        extent = self.locate([self.keys.get(run, wanted)])[0]
        return None if extent is None else Fed(index, extent)

    async def range(self, ask: RangeAsk) -> bytes | FeedEnd:
        self.ranges.append(ask)
        if ask.run >= len(self.runs):
            return self.feed_end
        offset, length = self.places[self.runs[ask.run]]
        stop = ask.start + ask.length
        return os.pread(self._fd, ask.length, offset + ask.start) if stop <= length else self.feed_end

    async def contents(self, request: ContentsRequest) -> Sequence[bytes]:
        return [self.segment_contents[segment] for segment in request.segments]

    async def adopt(self, request: AdoptRequest) -> AdoptReply:
        self.adopted.append(request)
        return self.reply

    async def uses(self, snapshots: Sequence[SnapshotId]) -> Sequence[Use]:
        return [self.used.get(snapshot, Use(snapshot, (), 0)) for snapshot in snapshots]

    async def vouch(self, request: VouchRequest) -> Sequence[int]:
        return [segment for segment in request.segments if segment in self.promised]

    def handed(self, handed: Handed) -> None:
        self.given.append(handed)

    async def announce(self, announcement: Announcement) -> None:
        self.announced.append(announcement)

    async def left(self, node: NodeId, incarnation: int) -> None:
        self.gone.append((node, incarnation))


FEED_BATCH = 700
"""Chunks of one item of a feed."""


@contextmanager
def serving(service: PeerService, limits: Limits = DEFAULT_LIMITS, security: Security = OPEN) -> Iterator[int]:
    """A real server for `service` on loopback, on an event loop in a thread of its own; gives its port."""
    started: Future[tuple[int, Callable[[], None]]] = Future()

    async def serve() -> None:
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()

        def stop() -> None:
            loop.call_soon_threadsafe(stopped.set)

        server = make_server(service, limits=limits, security=security)
        try:
            port = await server.start("127.0.0.1", 0)
            started.set_result((port, stop))
            await stopped.wait()
        finally:
            await server.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="test-server")
    thread.start()
    port, stop = started.result(10)
    try:
        yield port
    finally:
        stop()
        thread.join(10)


class MemoryPeers:
    """A `PeerChunks`, `PeerSegments` and `PeerRanges` whose peers are dictionaries: what `holdings` has for a node id
    can be fetched from it; a node that is not there does not answer. Parts are those of `pieces`, by their runs.
    Streams and ranges end as `ends` says of the node; `asks` and `ranges` are the questions that came."""

    def __init__(self, holdings: dict[NodeId, dict[ChunkId, bytes]], named: Named = believed) -> None:
        self.holdings = holdings
        self._named = named
        self.fetched: list[tuple[NodeId, ChunkId]] = []
        self.ends: dict[NodeId, FeedEnd] = {}
        self.asks: list[tuple[NodeId, SegmentAsk]] = []
        self.abandoned: list[NodeId] = []
        self.pieces: dict[NodeId, dict[int, bytes]] = {}
        self.ranges: list[tuple[NodeId, RangeAsk]] = []

    def fetch(self, peer: Peer, wanted: Wanted, deliver: Deliver, *, timeout: float) -> list[int]:
        if not wanted:
            return []
        if peer.node_id not in self.holdings:
            raise PeerUnavailable(f"{peer.url} cannot be reached")
        held, missing = self.holdings[peer.node_id], []
        for index, (expected, length) in enumerate(wanted):
            data = held.get(expected)
            if data is None:
                missing.append(index)
                continue
            content = chunk_id(data)
            if len(data) != length or (content != expected and not is_origin_key(expected)):
                raise ChunkCorrupt(f"{peer.url} sent wrong bytes: chunk {short(expected)}")
            if is_origin_key(expected):
                self._named(peer, expected, content)
            self.fetched.append((peer.node_id, expected))
            deliver(index, memoryview(data))
        return missing

    def range(self, peer: Peer, ask: RangeAsk, into: memoryview, *, timeout: float) -> RangeEnd:
        if peer.node_id not in self.holdings:
            raise PeerUnavailable(f"{peer.url} cannot be reached")
        self.ranges.append((peer.node_id, ask))
        piece = self.pieces.get(peer.node_id, {}).get(ask.run, b"")
        if ask.start + ask.length > len(piece):
            end = self.ends.get(peer.node_id, NOBODY)
            return RangeEnd(False, end.pending, end.reason)
        into[:] = piece[ask.start : ask.start + ask.length]
        return RangeEnd(True, False, "")

    def abandon(self, peer: Peer, reason: str) -> None:
        self.abandoned.append(peer.node_id)

    def stream(
        self, peer: Peer, ask: SegmentAsk, wanted: Wanted, deliver: Deliver, *, patience: float, timeout: float
    ) -> StreamEnd:
        if wanted:
            self.asks.append((peer.node_id, ask))
        absent = self.fetch(peer, wanted, deliver, timeout=timeout)
        end = self.ends.get(peer.node_id, NOBODY) if absent else FeedEnd(False)
        return StreamEnd(absent, end.pending, end.reason)
