"""One question to one peer, or to the origin: carried out in a thread, its chunks land in the flight.

Promises: a chunk lands only after it matched its id; a peer that sends wrong bytes is shunned for a while and counted;
failing to store fails no read (I5).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from hoard_p2p.errors import ChunkCorrupt, Corrupt, PeerBusy, PeerUnavailable, StoreFailed, Unavailable
from hoard_p2p.fetch.delivery import Delivery, Received
from hoard_p2p.fetch.flight import Flight
from hoard_p2p.fetch.landings import Landings
from hoard_p2p.fetch.origins import OriginLane
from hoard_p2p.fetch.pace import Drag
from hoard_p2p.fetch.segment import Landed, Segment, Wanted, ids_of
from hoard_p2p.fetch.silence import Silence
from hoard_p2p.fetch.sources import Favour, Source
from hoard_p2p.fetch.tally import Tally, Way, way_of
from hoard_p2p.fetch.turns import Turns
from hoard_p2p.fetch.unstored import Unstored
from hoard_p2p.fetch.watching import watched
from hoard_p2p.ids import ChunkId, short
from hoard_p2p.interfaces import AskMode, PeerChunks, PeerSegments, Place, SegmentAsk
from hoard_p2p.peer import NodeId, Peer

log = logging.getLogger(__name__)

STALL_TIMEOUT = 5.0
"""Seconds without progress after which a peer is given up for this batch."""

PATIENCE = {AskMode.GATE: 0.1, AskMode.FETCH: 0.1, AskMode.CHAIN: 1.0}
"""Seconds without a chunk after which a peer is to say `pending`."""

Deliver: TypeAlias = Callable[[int, memoryview], None]
T = TypeVar("T")


class Note(Protocol):
    """Counts a chunk that came; see `Tally.note`."""

    def __call__(self, size: int, *, again: bool) -> None: ...


class Keeper(Protocol):
    """Where arriving chunks go. Blocking, called from fetch threads."""

    def missing(self, segment: Segment) -> list[Wanted]:
        """The chunks of `segment` that are not stored here (nor on their way to the index)."""
        ...

    def place(self, chunk_id: ChunkId) -> Place | None:
        """Where a chunk lies by now, in the index or on its way to it."""
        ...

    def keep(self, segment: Segment, chunk: Wanted, data: memoryview) -> Place:
        """Store a chunk. Raises StoreFailed."""
        ...

    def keep_many(self, segment: Segment, chunks: Sequence[tuple[Wanted, memoryview]]) -> list[Place]:
        """`keep` for several chunks. Raises StoreFailed: then some may be stored."""
        ...

    def ended(self, segment: Segment, whole: bool) -> None:
        """A flight for `segment` ended; `whole`: all its chunks are here."""
        ...


@dataclass(frozen=True, slots=True)
class Lane:
    """What the demand lanes of all flights share, or the fill lanes: threads, turns at each peer, and how long it may
    be silent. So a reader waits behind no fill."""

    executor: Executor
    turns: Turns = field(default_factory=Turns)
    silence: Silence = field(default_factory=Silence)


class Answer(NamedTuple):
    """How a question for a batch ended. `given`, `absent`: indexes of the batch. `useless`: why the peer is of no use
    now, empty if it answered. `wrong`: it ended with bytes that are not their chunk's."""

    given: Sequence[int] = ()
    absent: Sequence[int] = ()
    pending: bool = False
    reason: str = ""
    useless: str = ""
    wrong: bool = False
    took: float = 0.0
    """Seconds from the question to the end, for a stream."""

    @property
    def over(self) -> bool:
        """Whether asking the same peer again is of no use."""
        return bool(self.useless) or self.wrong or not self.pending


class Questions:
    """Asks on behalf of flights. For the event loop."""

    def __init__(
        self,
        *,
        keeper: Keeper,
        peers: PeerChunks,
        segments: PeerSegments | None,
        origins: OriginLane,
        favour: Favour,
        failed: Callable[[NodeId], None],
        lanes: Sequence[Lane],
        rack: str,
    ) -> None:
        self._keeper = keeper
        self._peers = peers
        self._segments = segments
        self._origins = origins
        self._favour = favour
        self._failed = failed
        self._lanes = lanes
        self._drag = Drag()
        self._rack = rack
        self.unstored = Unstored()
        self.tally = Tally()

    async def ask(self, flight: Flight, lane: Lane, source: Source, batch: Sequence[Wanted]) -> Answer:
        """Ask a peer for `batch`; what comes lands in the flight."""
        loop = asyncio.get_running_loop()
        peer, landings = source.peer, Landings(loop, flight.land, flight.awaited)
        delivery = self._delivery(flight, batch, landings, self._note(lane, source))
        given = delivery.given
        async with lane.turns.turn(peer.node_id):
            silent = lane.turns.silent(peer.node_id, loop.time())
            if silent:
                flight.tell(peer, silent)
                flight.unreachable = True
                return Answer(useless=silent)
            work, began = _ended(self._work(flight, lane, source, batch, delivery), delivery), loop.time()
            try:
                with (
                    flight.landing(landings.tell),
                    watched(self._drag, peer, given, self._break_off, loop) as begins,
                ):
                    answer = await loop.run_in_executor(lane.executor, begins(work))
            except PeerBusy as error:
                flight.unreachable = True
                useless, took = "" if source.mode else str(error), loop.time() - began
                return Answer(given, pending=True, reason=str(error), useless=useless, took=took)
            except PeerUnavailable as error:
                return self._unreachable(flight, peer, given, str(error))
            except ChunkCorrupt as error:
                self._corrupt(flight, peer, error)
                return Answer(given, [given[-1] + 1 if given else 0], wrong=True)
        lane.turns.answered(peer.node_id)
        return answer._replace(given=given)

    def _break_off(self, peer: Peer, reason: str) -> None:
        """It drags: its questions end, and others are asked before it for a while."""
        self._favour.found_slow(peer.node_id, asyncio.get_running_loop().time())
        self._peers.abandon(peer, reason)

    def _note(self, lane: Lane, source: Source) -> Note:
        way, far = way_of(source.mode), source.peer.rack != self._rack
        clock = asyncio.get_running_loop().time

        def note(size: int, *, again: bool) -> None:
            self.tally.note(way, size, far=far, again=again)
            lane.silence.gave(source.peer.node_id, clock())

        return note

    def _work(
        self, flight: Flight, lane: Lane, source: Source, batch: Sequence[Wanted], deliver: Deliver
    ) -> Callable[[], Answer]:
        """What to do in a thread."""
        mode, ids = source.mode, ids_of(batch)
        if mode is None:
            return lambda: Answer(absent=self._peers.fetch(source.peer, ids, deliver, timeout=STALL_TIMEOUT))
        segments = self._segments
        if segments is None:
            return lambda: Answer(useless="this node asks nobody for what is on its way")
        hops = flight.hops if mode is AskMode.FETCH else source.place
        runs = tuple(chunk.run for chunk in batch)
        ask = SegmentAsk(flight.segment.snapshot, flight.segment.number, mode, min(hops, 255), runs)

        def stream() -> Answer:
            began = time.monotonic()
            silence = min(STALL_TIMEOUT, lane.silence.allowed(source.peer.node_id, mode, source.place, began))
            end = segments.stream(source.peer, ask, ids, deliver, patience=PATIENCE[mode], timeout=silence)
            return Answer(absent=end.absent, pending=end.pending, reason=end.reason, took=time.monotonic() - began)

        return stream

    async def read(self, flight: Flight, lane: Lane, me: Peer, batch: Sequence[Wanted]) -> Answer:
        """Read `batch` from the origin, here."""
        loop = asyncio.get_running_loop()
        landings = Landings(loop, flight.land, flight.awaited)
        delivery = self._delivery(flight, batch, landings, partial(self.tally.note, Way.ORIGIN, far=False))
        given = delivery.given
        urgent = lane is self._lanes[0]
        work = _ended(partial(self._origins.read, flight.segment, batch, delivery, urgent=urgent), delivery)
        try:
            async with lane.turns.turn(me.node_id):  # an origin that hangs does not take all threads
                with flight.landing(landings.tell):
                    absent = await loop.run_in_executor(lane.executor, work)
        except Unavailable as error:
            log.info("segment %d of %s: %s", flight.segment.number, short(flight.segment.snapshot), error)
            flight.tell(me, str(error))
            return Answer(given, useless=str(error))
        if absent:
            flight.tell(
                me, self._origins.why(flight.segment) or f"its origin no longer has {len(absent)} of the chunks"
            )
        return Answer(given, absent)

    def _delivery(self, flight: Flight, batch: Sequence[Wanted], landings: Landings, note: Note) -> Delivery:
        """For a thread: stores chunks, and lands them."""
        return Delivery(batch, partial(self._keep_all, flight, note), landings)

    def _keep_all(self, flight: Flight, note: Note, burst: Sequence[Received]) -> list[Landed]:
        segment = flight.segment
        for received in burst:
            note(received.chunk.length, again=received.chunk.chunk_id not in flight.missing)
        self._origins.received(segment.snapshot, sum(received.chunk.length for received in burst))
        if len(burst) > 1:
            with suppress(StoreFailed, Corrupt):  # each by itself then: there may be room for some
                places = self._keeper.keep_many(segment, [(received.chunk, received.data) for received in burst])
                return [Landed(place, b"") for place in places]
        return [self._keep(segment, received.chunk, received.data) for received in burst]

    def _keep(self, segment: Segment, chunk: Wanted, data: memoryview) -> Landed:
        try:
            return Landed(self._keeper.keep(segment, chunk, data), b"")
        except (StoreFailed, Corrupt) as error:  # I5: the reader gets its bytes all the same
            self.unstored.note(chunk.chunk_id, error)
            return Landed(None, bytes(data))

    def _unreachable(self, flight: Flight, peer: Peer, given: Sequence[int], reason: str) -> Answer:
        log.info("peer %s gave no chunks: %s", peer.name, reason)
        flight.tell(peer, reason)
        flight.unreachable = True
        now = asyncio.get_running_loop().time()
        for lane in self._lanes:
            lane.turns.failed(peer.node_id, now, reason)
        self._failed(peer.node_id)
        return Answer(given, useless=reason)

    def _corrupt(self, flight: Flight, peer: Peer, error: ChunkCorrupt) -> None:
        now = asyncio.get_running_loop().time()
        flight.unclear = True
        flight.tell(peer, f"sent wrong bytes: {error}")
        known = self._favour.shunned(peer.node_id, now)
        log.log(
            logging.INFO if known else logging.WARNING,
            "peer %s sent wrong bytes and is asked last for a while: %s", peer.name, error,
        )  # fmt: skip
        self._favour.shun(peer.node_id, now)


def _ended(work: Callable[[], T], delivery: Delivery) -> Callable[[], T]:
    """`work`, and then the end of what it delivers, whatever becomes of it."""

    def both() -> T:
        try:
            return work()
        finally:
            delivery.end()

    return both
