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
from hoard_p2p.fetch.sources import Source
from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import AskMode
from hoard_p2p.peer import NodeId, Peer

PATIENCE = 16
"""Times that a peer may send wrong bytes that did so before, and is the last resort."""


class Ask(NamedTuple):
    """One lane of one flight. `candidates`: what to ask for now; `asking`: says so while it is being asked for;
    `reader_waits`: this is the demand lane."""

    flight: Flight
    lane: Lane
    candidates: Callable[[], Sequence[Wanted]]
    asking: Callable[[Collection[Wanted]], AbstractContextManager[None]]
    reader_waits: bool


def demand_of(flight: Flight, lane: Lane) -> Ask:
    return Ask(flight, lane, flight.due, flight.demanding, True)


def fill_of(flight: Flight, lane: Lane) -> Ask:
    return Ask(flight, lane, flight.rest, flight.brought, False)


class Drain:
    """See the module. For the event loop."""

    def __init__(
        self,
        *,
        questions: Questions,
        origins: OriginLane,
        shunned: Callable[[NodeId], bool],
        me: NodeId,
    ) -> None:
        self._questions = questions
        self._origins = origins
        self._shunned = shunned
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
        `PATIENCE` times, and is asked each time without the first chunk that it did not give."""
        flight, refused = ask.flight, set[ChunkId]()
        patience = PATIENCE if self._shunned(source.peer.node_id) else 0
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
            if len(answer.absent) == len(batch) == len(candidates):
                return

    async def _asked(self, ask: Ask, source: Source, batch: Sequence[Wanted]) -> Answer:
        with ask.asking(batch):
            return await self._questions.ask(ask.flight, ask.lane, source, batch)

    async def _follow(self, ask: Ask, source: Source) -> None:
        """What a peer gets while it is asked. It may say again and again that it is about to: it is left when it says
        that it cannot, fails, or sent nothing for too long."""
        flight, peer = ask.flight, source.peer
        clock = asyncio.get_running_loop().time
        began = heard = clock()
        while candidates := ask.candidates():
            flight.tell(peer, "has not got it yet")
            answer = await self._asked(ask, source, candidates)
            if answer.given:
                began = heard = clock()
            if answer.over or clock() - heard > ask.lane.silence.allowed(
                peer.node_id, source.mode, source.place, clock()
            ):
                if not answer.over:
                    ask.lane.silence.passed_by(peer.node_id)
                flight.tell(peer, answer.reason or answer.useless or f"sent nothing for {clock() - heard:.1f} s")
                flight.unreachable |= not answer.over
                break
            if ask.reader_waits and await self._bypassed(ask, clock() - began):
                began = clock()
            elif not answer.given:
                await flight.stirred(MOMENT / 10)  # it waited for us, if it is as it should be
        if source.mode is AskMode.FETCH and ask.candidates():
            flight.without.add(peer.node_id)

    async def _read_here(self, ask: Ask, me: Peer) -> None:
        """Read what is missing from the origin: this node is the one to do that."""
        while candidates := ask.candidates():
            batch = next_batch(candidates, ask.flight.waited())
            with ask.asking(batch):
                answer = await self._questions.read(ask.flight, ask.lane, me, batch)
            if answer.useless or len(answer.given) < len(batch):
                if answer.useless:
                    ask.flight.unreachable = True
                ask.flight.without.add(me.node_id)
                return

    async def _bypassed(self, ask: Ask, waited: float) -> bool:
        """Whether the origin was read here although another node should, since that one is late."""
        flight = ask.flight
        batch = next_batch(ask.candidates(), flight.waited())
        size = sum(chunk.length for chunk in batch)
        reader = self._origins.reader(flight.segment, flight.without)
        if not batch or reader is None or reader.node_id == self._me:
            return False
        if not self._origins.may_bypass(flight.segment, size, waited):
            return False
        self._origins.bypassed(flight.segment, reader, size)
        with ask.asking(batch):
            await self._questions.read(flight, ask.lane, reader, batch)
        return True
