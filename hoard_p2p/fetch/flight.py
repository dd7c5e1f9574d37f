"""One segment on its way: which of its chunks are missing, who waits for which, and who was asked."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from hoard_p2p.errors import ChunkUnavailable
from hoard_p2p.fetch.segment import Landed, Segment, Wanted
from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import Place
from hoard_p2p.peer import Peer

NAMED = 8
"""Peers that an error names, each with its reason; of more it tells the number."""

REASON = 100
"""Characters of one peer's reason."""


class Flight:
    """See the module. For the event loop. `fills`: bring all of the segment, else only what somebody waits for.

    A round asks each source once. A chunk that is waited for since the round's beginning and is still missing at its
    end could not be had from anybody who answers; one that came to be waited for later has another round coming.
    """

    def __init__(self, segment: Segment, first: Peer | None, *, fills: bool) -> None:
        self.segment = segment
        self.first = first
        self.fills = fills
        self.missing: dict[ChunkId, Wanted] = {}
        self.unreachable = False
        """Somebody did not answer in this round: another one may go better."""
        self.unclear = False
        """Somebody sent wrong bytes in this round, and so did not tell what else it has."""
        self.first_round_over = asyncio.Event()
        self.ended: Callable[[], None] = lambda: None
        self._tried: dict[str, str] = {}
        self._waiting: dict[ChunkId, list[asyncio.Future[Landed]]] = {}
        self._wanted: dict[ChunkId, Wanted] = {}
        self._round: set[ChunkId] = set()
        self._nudge = asyncio.Event()

    def expect(self, chunk: Wanted) -> "asyncio.Future[Landed]":
        future: asyncio.Future[Landed] = asyncio.get_running_loop().create_future()
        self._wanted[chunk.chunk_id] = chunk
        self._waiting.setdefault(chunk.chunk_id, []).append(future)
        if chunk.chunk_id not in self._round:
            self._nudge.set()
        return future

    def waited(self) -> set[ChunkId]:
        """What somebody waits for. Those who gave up are forgotten."""
        for chunk_id, futures in list(self._waiting.items()):
            futures[:] = [future for future in futures if not future.done()]
            if not futures:
                del self._waiting[chunk_id], self._wanted[chunk_id]
        return set(self._waiting)

    def land(self, chunk_id: ChunkId, landed: Landed) -> None:
        self.missing.pop(chunk_id, None)
        self._round.discard(chunk_id)  # who comes for it from now on has another round coming
        self._wanted.pop(chunk_id, None)
        for future in self._waiting.pop(chunk_id, ()):
            if not future.done():
                future.set_result(landed)

    def begin_round(self, place: Callable[[ChunkId], Place | None]) -> None:
        """Look after chunks that are waited for and not counted missing: here already (they came between a reader's
        look and this flight), or lost since the flight began."""
        waited = self.waited()
        for chunk_id in waited - self.missing.keys():
            here = place(chunk_id)
            if here is None:
                self.missing[chunk_id] = self._wanted[chunk_id]
            else:
                self.land(chunk_id, Landed(here, b""))
        self._round = set(self.missing) if self.fills else self.missing.keys() & waited
        self._tried.clear()
        self._nudge.clear()
        self.unreachable = self.unclear = False

    def open(self) -> list[Wanted]:
        """The chunks to ask for now."""
        if self.fills:
            return list(self.missing.values())
        waited = self.waited()
        return [chunk for chunk_id, chunk in self.missing.items() if chunk_id in waited]

    def late(self) -> bool:
        """Whether somebody waits for a chunk that this round was not about from its beginning."""
        return not self.waited() <= self._round

    def tell(self, peer: Peer, reason: str = "") -> None:
        """Note that a peer is asked, or the reason why that was in vain; without one, it lacks what is missing yet."""
        name = f"{peer.name} ({peer.host}:{peer.port})"
        self._tried[name] = reason[:REASON] or self._tried.get(name, "lacks it")

    @property
    def asked(self) -> bool:
        """Whether this round asked anybody."""
        return bool(self._tried)

    def tried(self) -> str:
        """Whom this round asked, and with which outcome; one line of bounded length."""
        if not self._tried:
            return "no peer was there to ask"
        named = [f"{peer}: {reason}" for peer, reason in list(self._tried.items())[:NAMED]]
        more = len(self._tried) - len(named)
        return "asked: " + ", ".join(named) + (f", and {more} more" if more else "")

    async def pause(self, seconds: float) -> None:
        """Until the next round is due, or somebody comes for a chunk that no round has asked for."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._nudge.wait()

    def fail(self, message: Callable[[ChunkId], str]) -> None:
        """Whoever waits is told that it is in vain."""
        for chunk_id, futures in self._waiting.items():
            for future in futures:
                if not future.done():
                    future.set_exception(ChunkUnavailable(message(chunk_id)))
        self._waiting.clear()
        self._wanted.clear()


def shortened(names: Iterable[str]) -> str:
    """Some names, without repetition, for one line."""
    found: Sequence[str] = list(dict.fromkeys(names))
    return ", ".join(found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")
