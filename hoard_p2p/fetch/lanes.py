"""How a lane of a flight drains one source: batch by batch, until that has given what it can.

Thin: what is asked is `Flight`'s to say, whom is `Sources`', how is `Questions`'.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from hoard_p2p.fetch.asking import Answer, Lane, Questions
from hoard_p2p.fetch.flight import MOMENT, Flight
from hoard_p2p.fetch.origins import OriginLane
from hoard_p2p.fetch.segment import Wanted, next_batch
from hoard_p2p.fetch.sources import Favour, Source
from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import AskMode
from hoard_p2p.peer import NodeId, Peer

PATIENCE_WRONG = 16
"""Times that a peer may send wrong bytes that did so before, and is the last resort."""


class Ask(NamedTuple):
    """One lane of one flight. `candidates`: what to ask for now; `asking`: says so while it is being asked for;
    `reader_waits`: this is the demand lane; `without`: readers of the origin that it does not ask any more; `lacking`:
    what the source that it is at said that it has not."""

    flight: Flight
    lane: Lane
    candidates: Callable[[], Sequence[Wanted]]
    asking: Callable[[Collection[Wanted]], AbstractContextManager[None]]
    reader_waits: bool
    without: set[NodeId]
    lacking: set[ChunkId]


def demand_of(flight: Flight, lane: Lane) -> Ask:
    return Ask(flight, lane, flight.due, flight.demanding, True, flight.without, set())


def fill_of(flight: Flight, lane: Lane) -> Ask:
    return Ask(flight, lane, flight.rest, flight.brought, False, flight.fill.without, flight.fill.lacking)


class Drain:
    """See the module. For the event loop."""

    def __init__(
        self,
        *,
        questions: Questions,
        origins: OriginLane,
        favour: Favour,
        me: NodeId,
    ) -> None:
        self._questions = questions
        self._origins = origins
        self._favour = favour
        self._me = me

    async def drain(self, ask: Ask, source: Source) -> None:
        """Take what `source` has, or gets, of what the lane wants."""
        if source.mode is None:
            await self._take(ask, source)
        elif source.mode is AskMode.FETCH and source.peer.node_id == self._me:
            await self._read_here(ask, source.peer)
        else:
            await self._follow(ask, source)

    async def _take(self, ask: Ask, source: Source) -> None:
        """What a peer has, batch by batch.

        A peer is left when it sends wrong bytes; one that did so before, and is the last resort, only when it did so
        `PATIENCE_WRONG` times, and is asked each time without the first chunk that it did not give."""
        flight, refused = ask.flight, set[ChunkId]()
        patience = PATIENCE_WRONG if self._favour.shunned(source.peer.node_id, asyncio.get_running_loop().time()) else 0
        while candidates := [chunk for chunk in ask.candidates() if chunk.chunk_id not in refused]:
            flight.tell(source.peer)
            batch = next_batch(candidates, flight.waited())
            before = len(flight.missing)
            answer = await self._asked(ask, source, batch)
            if answer.wrong and patience:
                patience -= 1
                refused.update(chunk.chunk_id for chunk in batch[: answer.absent[0] + 1])
                continue
            if answer.useless or answer.wrong or (not answer.absent and len(flight.missing) == before):
                return
            refused.update(batch[index].chunk_id for index in answer.absent)
            ask.lacking.update(refused)
            if len(answer.absent) == len(batch) == len(candidates):
                return

    async def _asked(self, ask: Ask, source: Source, batch: Sequence[Wanted]) -> Answer:
        with ask.asking(batch):
            return await self._questions.ask(ask.flight, ask.lane, source, batch)

    async def _follow(self, ask: Ask, source: Source) -> None:
        """What a peer gets while it is asked. It may say again and again that it is about to: it is left when it says
        that it cannot, fails, or sent nothing for too long. That is counted while it is being asked: not what its other
        questions, or our own threads, keep this one waiting."""
        flight, peer = ask.flight, source.peer
        silence, waited, why = 0.0, 0.0, ""
        while candidates := ask.candidates():
            flight.tell(peer, f"has not got it yet{why}")
            answer = await self._asked(ask, source, candidates)
            silence, waited = (0.0, 0.0) if answer.given else (silence + answer.took, waited + answer.took)
            why = f": {answer.reason}" if answer.reason else ""
            if answer.over and not answer.useless and not answer.wrong:
                ask.lacking.update(candidates[index].chunk_id for index in answer.absent)
            if answer.over or silence > self._allowed(ask, source):
                flight.tell(peer, answer.reason or answer.useless or f"sent nothing for {silence:.1f} s{why}")
                flight.unreachable |= not answer.over
                self._passed_by(ask, source, answer)
                break
            if ask.reader_waits and source.mode is AskMode.FETCH and await self._bypassed(ask, waited):
                waited = 0.0
            elif not answer.given:
                paused = await self._pause(flight, answer.took)
                silence, waited = silence + paused, waited + paused
        if source.mode is AskMode.FETCH and ask.candidates():
            ask.without.add(peer.node_id)

    @staticmethod
    def _allowed(ask: Ask, source: Source) -> float:
        """Seconds that this source may send nothing."""
        now = asyncio.get_running_loop().time()
        return ask.lane.silence.allowed(source.peer.node_id, source.mode, source.place, now)

    def _passed_by(self, ask: Ask, source: Source, answer: Answer) -> None:
        """A source that was silent is not waited for again so soon, for other segments."""
        if not answer.over:
            ask.lane.silence.passed_by(source.peer.node_id)
        elif not answer.useless:
            return
        if source.mode is AskMode.GATE:
            self._favour.tire(source.peer.node_id, asyncio.get_running_loop().time())
        elif source.mode is AskMode.FETCH:
            self._origins.silent(source.peer)

    @staticmethod
    async def _pause(flight: Flight, took: float) -> float:
        """Between two questions that brought nothing: a moment if the peer waited for us, as it should; else longer.
        The seconds that it took."""
        clock = asyncio.get_running_loop().time
        began = clock()
        await flight.stirred(MOMENT / 10 if took >= MOMENT else 2 * MOMENT)
        return clock() - began

    async def _read_here(self, ask: Ask, me: Peer) -> None:
        """Read what is missing from the origin: this node is the one to do that. What it cannot give is left to who may
        see more of it."""
        refused = set[ChunkId]()
        while candidates := [chunk for chunk in ask.candidates() if chunk.chunk_id not in refused]:
            batch = next_batch(candidates, ask.flight.waited())
            with ask.asking(batch):
                answer = await self._questions.read(ask.flight, ask.lane, me, batch)
            refused.update(batch[index].chunk_id for index in answer.absent)
            ask.lacking.update(refused)
            given = {batch[index].chunk_id for index in answer.given}
            lost = any(chunk.chunk_id not in refused | given for chunk in ask.flight.still_missing(batch))
            if answer.useless or lost:
                ask.flight.unreachable |= bool(answer.useless)
                ask.without.add(me.node_id)
                return
        if refused:
            ask.without.add(me.node_id)

    async def _bypassed(self, ask: Ask, waited: float) -> bool:
        """Whether the origin was read here although another node should, since that one is late."""
        flight = ask.flight
        batch = next_batch(ask.candidates(), flight.waited())
        size = sum(chunk.length for chunk in batch)
        reader = self._origins.reader(flight.segment, ask.without)
        if not batch or reader is None or reader.node_id == self._me:
            return False
        if not self._origins.may_bypass(flight.segment, size, waited):
            return False
        self._origins.bypassed(flight.segment, reader, size)
        with ask.asking(batch):
            answer = await self._questions.read(flight, ask.lane, reader, batch)
        self._origins.handed(flight.segment, reader, [batch[index] for index in answer.given])
        return True

    async def take_handed(self, flight: Flight, lane: Lane, peer: Peer, chunks: Sequence[Wanted]) -> None:
        """Another node has read these in this one's place."""
        with flight.handing(chunks) as fresh:
            ask = Ask(flight, lane, lambda: flight.still_missing(fresh), flight.demanding, False, set(), set())
            await self._take(ask, Source(peer))
