"""Getting chunks from peers: one flight per segment, chunks that are waited for first, every wait with a deadline.

Promises: a chunk is delivered only after it matched its id; a peer that sends wrong bytes is shunned for a while and
counted; failing to store fails no read (I5). Blind to how chunks are stored (`Keeper`), to the wire (`PeerChunks`,
`PeerSegments`) and to what an origin is (`OriginLane`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import NamedTuple

from hoard_p2p.errors import ChunkUnavailable, HoardError
from hoard_p2p.fetch.asking import Keeper, Lane, Questions
from hoard_p2p.fetch.beside import Beside
from hoard_p2p.fetch.flight import LULL, MOMENT, Flight, shortened
from hoard_p2p.fetch.following import Following
from hoard_p2p.fetch.lanes import Drain, fill_of
from hoard_p2p.fetch.origins import NoOrigin, OriginLane
from hoard_p2p.fetch.rounds import Rounds
from hoard_p2p.fetch.segment import Landed, Segment, Wanted
from hoard_p2p.fetch.sources import Favour, Sources
from hoard_p2p.fetch.tally import Tally
from hoard_p2p.fetch.unstored import Unstored
from hoard_p2p.fetch.verdicts import Verdicts, in_vain
from hoard_p2p.ids import SnapshotId, short
from hoard_p2p.interfaces import PeerChunks, PeerSegments
from hoard_p2p.peer import NodeId, Peer

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0
"""Seconds between two rounds of a flight over its sources, while somebody waits and somebody does not answer."""

LINGER_SECONDS = 1.0
"""For so long what a peer waits for is looked for although it has hung up: it was told to ask again."""

AHEAD_FLIGHTS = 4
"""Flights that nobody waits for, of those who share the fetch threads; one that is waited for starts at once."""

MOST_PLANNED = 256
"""Segments planned ahead, each with the list of its chunks; the one planned first is forgotten for another."""

_Key = tuple[SnapshotId, int]


@dataclass(frozen=True, slots=True)
class Outlook:
    """Whether asking again later can help: members that are known but do not answer now, each as it is
    named in messages."""

    absent: tuple[str, ...]


class _Planned(NamedTuple):
    """A segment that nobody waits for yet; `ended` is called once it is here, or not coming."""

    segment: Segment
    ended: Callable[[], None]


class Fetcher:
    """Flights run in the TaskGroup handed in; blocking parts of their demand lanes in `executor`, of their fill lanes
    in `fillers`."""

    def __init__(
        self,
        *,
        group: asyncio.TaskGroup,
        executor: Executor,
        fillers: Executor,
        keeper: Keeper,
        peers: PeerChunks,
        segments: PeerSegments | None = None,
        sources: Sources,
        favour: Favour,
        failed: Callable[[NodeId], None],
        outlook: Callable[[], Outlook],
        me: NodeId,
        rack: str = "",
        origins: OriginLane | None = None,
        asked: int = 48,
    ) -> None:
        """`asked`: flights at most that are under way only since peers asked for whole segments."""
        self._group = group
        self._executor = executor
        self._keeper = keeper
        self._sources = sources
        self._outlook = outlook
        self._demand, self._fill = Lane(executor), Lane(fillers)
        self._origins = origins = origins or NoOrigin()
        self._questions = Questions(
            keeper=keeper,
            peers=peers,
            segments=segments,
            origins=origins,
            favour=favour,
            failed=failed,
            lanes=(self._demand, self._fill),
            rack=rack,
        )
        self._drain = Drain(
            questions=self._questions,
            origins=origins,
            favour=favour,
            me=me,
        )
        self._flights: dict[_Key, Flight] = {}
        self._planned: dict[_Key, _Planned] = {}
        self._ahead: set[_Key] = set()
        self._verdicts = Verdicts()
        self._beside = Beside(asked)
        self._rounds = Rounds(group, sources, self._drain, self._demand, me)

    @property
    def received(self) -> int:
        """Bytes received from peers and origins since the start."""
        return self._questions.tally.total

    @property
    def tally(self) -> Tally:
        """The same, by where it came from."""
        return self._questions.tally

    @property
    def unstored(self) -> Unstored:
        """Chunks that came and could not be stored."""
        return self._questions.unstored

    @property
    def under_way(self) -> int:
        """Flights. Free."""
        return len(self._flights)

    async def chunk(self, segment: Segment, chunk: Wanted, *, timeout: float, fill: bool = True) -> Landed:
        """One chunk, as soon as it is here; with `fill` the rest of its segment follows by itself.

        Asks again while a member that may hold it does not answer. Raises ChunkUnavailable, which names whom it
        tried and with which outcome: at once if every member answered that it has not, else after `timeout` seconds.
        """
        place = self._keeper.place(chunk.chunk_id)
        if place is not None:
            return Landed(place, b"")
        self._verdicts.check((segment.snapshot, segment.number), chunk.chunk_id, asyncio.get_running_loop().time())
        flight = self._flight(segment, None)
        if fill:
            self._begin_fill(flight, None)
        try:
            async with asyncio.timeout(timeout):
                return await flight.expect(chunk)
        except TimeoutError:
            absent = shortened(self._outlook().absent)
            how = f"within {timeout:g} s" + (f"; not answering: {absent}" if absent else "")
            tried = flight.tried() if flight.asked or not absent else ""
            raise ChunkUnavailable(in_vain(chunk.chunk_id, how, tried)) from None

    async def whole(self, segment: Segment, *, timeout: float, first: Peer | None = None) -> None:
        """Bring all chunks of `segment` here, one round over the sources, `first` before the others.

        Returns when the round is over or after `timeout` seconds: what came and was stored is for the store to say.
        Cancelling leaves the flight running.
        """
        flight = self._flight(segment, first)
        self._begin_fill(flight, first)
        with suppress(TimeoutError), _relied_on(flight):
            async with asyncio.timeout(timeout):
                await flight.fill_over.wait()

    @contextmanager
    def followed(
        self, segment: Segment, chunks: Iterable[Wanted], *, waits: bool, hops: int = 0
    ) -> Iterator[Following]:
        """Have chunks that are not here brought here, and told of as they land. `waits`: as for a reader; else as a
        part of the whole segment, which is filled. `hops`: how often the question was passed on already."""
        following = Following(chunks, waits=waits)
        key = (segment.snapshot, segment.number)
        if not waits and key not in self._flights:
            self._beside.begin(key)
        flight = self._flight(segment, None)
        flight.hops = max(flight.hops, hops)
        leave = flight.follow(following)
        if not waits:
            self._begin_fill(flight, None)
        try:
            with nullcontext() if waits else _relied_on(flight):
                yield following
        finally:
            if waits and following.outstanding and not following.reason:  # it was told `pending`, and asks again
                asyncio.get_running_loop().call_later(LINGER_SECONDS, leave)
            else:
                leave()

    def comes_for_peer(self, snapshot: SnapshotId, segment: int) -> bool:
        """Whether the segment is under way since a peer asked for all of it."""
        return (snapshot, segment) in self._beside

    async def room_for_peer(self, segment: Segment, seconds: float) -> bool:
        """Wait until a flight may begin for a peer that asks for all of the segment, or until there is one; false after
        `seconds`."""
        key = (segment.snapshot, segment.number)
        return await self._beside.room(lambda: key in self._flights, seconds)

    def handed(self, segment: Segment, peer: Peer, chunks: Iterable[Wanted]) -> None:
        """A peer has read these in this node's place: what a flight lacks of them comes from there."""
        flight = self._flights.get((segment.snapshot, segment.number))
        if flight is not None:
            self._group.create_task(self._drain.take_handed(flight, self._demand, peer, tuple(chunks)))

    def landed(self, segment: Segment, chunk: Wanted, landed: Landed) -> None:
        """A chunk came here past the flight of its segment."""
        flight = self._flights.get((segment.snapshot, segment.number))
        if flight is not None:
            flight.land(chunk.chunk_id, landed)

    def last_tried(self, segment: Segment) -> str:
        """Who was asked in vain for a segment lately, for people; empty if nobody was."""
        return self._verdicts.last_tried((segment.snapshot, segment.number))

    def ahead(self, segment: Segment, ended: Callable[[], None] = lambda: None) -> None:
        """The same without waiting, when there is nothing better to do: after those planned before it, a few at a
        time. Who waits for one of its chunks meanwhile has it started at once."""
        key = (segment.snapshot, segment.number)
        if key in self._flights or key in self._planned:
            ended()
            return
        if len(self._planned) >= MOST_PLANNED:
            self._planned.pop(next(iter(self._planned))).ended()
        self._planned[key] = _Planned(segment, ended)
        self._start_ahead()

    def stop_ahead(self, snapshot: SnapshotId) -> None:
        """Nobody reads this snapshot any more: what is planned is dropped, what is under way and nobody else counts on
        ends with the batch that it is at."""
        for key in [key for key in self._planned if key[0] == snapshot]:
            self._planned.pop(key).ended()
        for key in [key for key in self._ahead if key[0] == snapshot]:
            self._flights[key].fills = bool(self._flights[key].relied)

    def _start_ahead(self) -> None:
        while self._planned and len(self._ahead) < AHEAD_FLIGHTS:
            key = next(iter(self._planned))
            planned = self._planned.pop(key)
            self._ahead.add(key)
            flight = self._flight(planned.segment, None)
            flight.ended = planned.ended
            self._begin_fill(flight, None)

    def _flight(self, segment: Segment, first: Peer | None) -> Flight:
        key = (segment.snapshot, segment.number)
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = Flight(segment, first, asyncio.get_running_loop().time)
            planned = self._planned.pop(key, None)
            if planned is not None:
                flight.ended = planned.ended
            self._group.create_task(self._fly(key, flight))
            self._beside.stir()
        return flight

    def _begin_fill(self, flight: Flight, first: Peer | None) -> None:
        """From now on the flight brings all of its segment: another round of the fill lane, if none is under way."""
        flight.fills = True
        flight.first = flight.first or first
        if not flight.filling:
            flight.filling = True
            flight.fill_over.clear()
            self._group.create_task(self._fill_lane(flight))

    async def _fly(self, key: _Key, flight: Flight) -> None:
        loop = asyncio.get_running_loop()
        why = "its segment could not be fetched; see the node's log"
        try:
            missing = await loop.run_in_executor(self._executor, self._keeper.missing, flight.segment)
            flight.begin(missing)
            while True:
                await self._demand_lane(key, flight)
                if flight.filling:
                    await flight.stirred(LULL)
                    continue
                await loop.run_in_executor(self._executor, self._keeper.ended, flight.segment, not flight.missing)
                if not flight.waited() and not flight.filling:
                    break
            why = "it could not be had"
        except HoardError as error:
            why = str(error)
            log.warning("segment %d of %s: %s", flight.segment.number, short(flight.segment.snapshot), error)
        except Exception:  # the door of this task: a bug must not end the group, and the node with it
            log.exception("segment %d of %s failed", flight.segment.number, short(flight.segment.snapshot))
        finally:
            del self._flights[key]
            flight.fills = False
            flight.end(lambda chunk_id: f"chunk {short(chunk_id)}: {why}")
            flight.ended()
            self._beside.end(key)
            self._ahead.discard(key)
            self._start_ahead()

    async def _fill_lane(self, flight: Flight) -> None:
        """One round over the sources of the fill, for all that nobody waits for."""
        over = False
        try:
            await flight.begun.wait()
            flight.fill_begins()
            if flight.rest():
                async for source in self._sources.fill(flight):
                    while not flight.rest() and flight.fills and flight.missing:
                        await flight.stirred(LULL)  # the demand lane asks for what is left
                    if not flight.rest():
                        break
                    await self._drain.drain(fill_of(flight, self._fill), source)
                    flight.fill.asked()
                else:
                    over = True
        except HoardError as error:
            log.warning("segment %d of %s: %s", flight.segment.number, short(flight.segment.snapshot), error)
        except Exception:  # the door of this task: a bug must not end the group, and the node with it
            log.exception("filling segment %d of %s failed", flight.segment.number, short(flight.segment.snapshot))
        finally:
            flight.fill_ended(over=over)

    async def _demand_lane(self, key: _Key, flight: Flight) -> None:
        """Ask the sources again and again until nobody waits for anything that may yet come."""
        pause = FIRST_PAUSE
        while flight.waited():
            flight.begin_round(self._keeper.place)
            if flight.waited() and not flight.due():  # all of it is being brought
                await flight.stirred(MOMENT)
                continue
            over = await self._rounds.demand(flight)
            self._lose_changed(flight)
            if flight.filling:  # it may bring what the others lack; who did not answer may do so before it is over
                await flight.pause(pause, lambda: not flight.filling)
                pause = min(2 * pause, LONGEST_PAUSE)
            if not over or flight.filling or flight.late() or not flight.waited():
                continue
            if flight.deferred:
                await flight.stirred(MOMENT)
                continue
            if not flight.unreachable and not self._outlook().absent:
                self._give_up(key, flight)
                return
            await flight.pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _lose_changed(self, flight: Flight) -> None:
        """No other round is needed for what was seen to have changed in this one."""
        for chunk in flight.asked_for():
            why = self._origins.changed(flight.segment, chunk)
            if why:
                flight.lose(chunk.chunk_id, why)

    def _give_up(self, key: _Key, flight: Flight) -> None:
        """Everybody answered, and nobody has what is asked for."""
        nowhere = frozenset(flight.nowhere())
        tried = flight.tried()
        self._verdicts.note(key, nowhere, tried, asyncio.get_running_loop().time())
        flight.fail(lambda chunk_id: in_vain(chunk_id, "anywhere", tried))


@contextmanager
def _relied_on(flight: Flight) -> Iterator[None]:
    flight.relied += 1
    try:
        yield
    finally:
        flight.relied -= 1
