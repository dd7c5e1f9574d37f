"""One segment on its way: which of its chunks are missing, who waits for which, and who was asked.

Two lanes work on it at the same time. The *demand* lane asks for what somebody waits for, the *fill* lane for the rest;
no chunk is asked for by both, but where the fill lane makes no progress. What either brings lands here.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from hoard_p2p.errors import ChunkUnavailable
from hoard_p2p.fetch.following import Following
from hoard_p2p.fetch.segment import Landed, Segment, Wanted
from hoard_p2p.ids import ChunkId, short
from hoard_p2p.interfaces import Place
from hoard_p2p.peer import NodeId, Peer

NAMED = 8
"""Peers that an error names, each with its reason; of more it tells the number."""

REASON = 240
"""Characters of one peer's reason."""

PROGRESS_SECONDS = 0.25
"""The fill lane makes progress if a chunk came on it within this time: who waits for a chunk that it asked for waits
for it, rather than having the chunk cross the network a second time."""

BEGIN_SECONDS = 0.1
"""For so long a question of the fill lane counts as making progress though nothing came yet."""

MOMENT = 0.05
"""Seconds after which a lane looks again whether the other one still makes progress."""

LEAVE_SECONDS = 2.0
"""So long at most somebody who waits leaves a chunk to the fill lane, however well that gets on: it may have much to
bring before that one, or come from a peer that does not want to get on."""

LULL = 0.5
"""Seconds after which a lane looks again though nothing stirred; what it waits for stirs."""


@dataclass(slots=True)
class FillRound:
    """One round of the fill lane. `thorough`: it asks everybody that the demand lane would ask. `without`: as of the
    flight; who lacks what one lane wants may have what the other wants. `lacking`: what the source that it is at said
    that it has not; `sought`: what all of its sources said so of."""

    thorough: bool = False
    without: set[NodeId] = field(default_factory=set)
    lacking: set[ChunkId] = field(default_factory=set)
    sought: set[ChunkId] = field(default_factory=set)

    def asked(self) -> None:
        """It is through with one of its sources."""
        self.sought &= self.lacking
        self.lacking.clear()


class Flight:
    """See the module. For the event loop. `fills`: bring all of the segment, else only what somebody waits for.

    A round of the demand lane asks each source once. A chunk that is waited for since the round's beginning and is
    still missing at its end could not be had from anybody who answers; one that came to be waited for later has
    another round coming.
    """

    def __init__(self, segment: Segment, first: Peer | None, clock: Callable[[], float]) -> None:
        self.segment = segment
        self.first = first
        self.fills = self.filling = False
        """All of it is to be brought; the fill lane is at work."""
        self.missing: dict[ChunkId, Wanted] = {}
        # Somebody did not answer in this round, and another one may go better; or sent wrong bytes, and so did not tell
        # what else it has.
        # Deferred: something that is waited for was left to the fill lane, so not everybody was asked for it.
        self.unreachable = self.unclear = self.deferred = False
        self.begun = asyncio.Event()
        """What is missing is known."""
        self.fill_over = asyncio.Event()
        self.fill = FillRound()
        self.ended: Callable[[], None] = lambda: None
        self.without: set[NodeId] = set()
        """Readers of the origin that said they cannot, or were silent for too long; for the demand lane."""
        self.hops = self.relied = self.landings = 0
        """How often the question for the origin that brought this flight about was passed on; those who count on all of
        the segment being brought; chunks that landed."""
        self._clock = clock
        self._tried: dict[str, str] = {}
        self._waiting: dict[ChunkId, list[asyncio.Future[Landed]]] = {}
        self._wanted: dict[ChunkId, Wanted] = {}
        self._followers: list[Following] = []
        self._round: set[ChunkId] = set()
        self._stir = asyncio.Event()
        self._demanded: Counter[ChunkId] = Counter()
        self._handed, self._once_handed = set[ChunkId](), set[ChunkId]()
        self._left_since: dict[ChunkId, float] = {}
        """Since when a chunk that is waited for is left to the fill lane."""
        self._filled: frozenset[ChunkId] = frozenset()
        self._progress = float("-inf")
        self._tellers: list[Callable[[], None]] = []

    def begin(self, missing: Iterable[Wanted]) -> None:
        self.missing = {chunk.chunk_id: chunk for chunk in missing}
        self.begun.set()

    # --- who waits

    def expect(self, chunk: Wanted) -> "asyncio.Future[Landed]":
        future: asyncio.Future[Landed] = asyncio.get_running_loop().create_future()
        self._wanted[chunk.chunk_id] = chunk
        self._waiting.setdefault(chunk.chunk_id, []).append(future)
        self._tell_landings()  # it may have come, untold since nobody waited
        if chunk.chunk_id not in self._round:
            self._stir.set()
        return future

    def follow(self, following: Following) -> Callable[[], None]:
        """What lands of the chunks of `following` is told to it, until the returned function is called."""
        self._followers.append(following)
        self._tell_landings()
        self._stir.set()

        def leave() -> None:
            with suppress(ValueError):
                self._followers.remove(following)
            self._stir.set()

        return leave

    def waited(self) -> set[ChunkId]:
        """What somebody waits for. Those who gave up are forgotten."""
        for chunk_id, futures in list(self._waiting.items()):
            futures[:] = [future for future in futures if not future.done()]
            if not futures:
                del self._waiting[chunk_id]
        waited = set(self._waiting)
        for following in self._followers:
            if following.waits and not following.reason:
                waited.update(following.outstanding)
        for chunk_id in self._wanted.keys() - waited:
            del self._wanted[chunk_id]
        for chunk_id in self._left_since.keys() - waited:
            del self._left_since[chunk_id]
        return waited

    def _wanted_chunk(self, chunk_id: ChunkId) -> Wanted:
        found = self._wanted.get(chunk_id)
        if found is not None:
            return found
        return next(one.outstanding[chunk_id] for one in self._followers if chunk_id in one.outstanding)

    # --- what arrives

    def awaited(self) -> bool:
        """Whether somebody is to be told of each landing at once. From any thread."""
        return bool(self._waiting or self._followers)

    @contextmanager
    def landing(self, tell: Callable[[], None]) -> Iterator[None]:
        """`tell` lands what came meanwhile and was not told yet."""
        self._tellers.append(tell)
        try:
            yield
        finally:
            self._tellers.remove(tell)

    def _tell_landings(self) -> None:
        for tell in list(self._tellers):
            tell()

    def land(self, chunk_id: ChunkId, landed: Landed) -> None:
        self.landings += 1
        self.missing.pop(chunk_id, None)
        self._round.discard(chunk_id)  # who comes for it from now on has another round coming
        self._wanted.pop(chunk_id, None)
        if chunk_id in self._filled:
            self._progress = self._clock()
        waiting = self._waiting.pop(chunk_id, ())
        for future in waiting:
            if not future.done():
                future.set_result(landed)
        for following in self._followers:
            following.land(chunk_id, landed)
        if waiting or self._followers or not self.missing:  # else nobody's plans depend on it
            self._stir.set()

    def begin_round(self, place: Callable[[ChunkId], Place | None]) -> None:
        """Look after chunks that are waited for and not counted missing: here already (they came between a reader's
        look and this flight), or lost since the flight began."""
        self._tell_landings()
        for chunk_id in self.waited() - self.missing.keys():
            here = place(chunk_id)
            if here is None:
                self.missing[chunk_id] = self._wanted_chunk(chunk_id)
            else:
                self.land(chunk_id, Landed(here, b""))
        self._round = {chunk.chunk_id for chunk in self.due()}
        self._tried.clear()
        self.without.clear()
        self.deferred = False
        self.unreachable = self.unclear = False

    # --- what to ask for

    def due(self) -> list[Wanted]:
        """What the demand lane is to ask for: all that is waited for, but for what the fill lane is bringing."""
        waited, now = self.waited(), self._clock()
        self.deferred |= not waited.isdisjoint(self._handed)
        waited -= self._handed
        if now - self._progress < PROGRESS_SECONDS:
            left = {
                chunk_id
                for chunk_id in waited & self._filled
                if now - self._left_since.setdefault(chunk_id, now) < LEAVE_SECONDS
            }
            self.deferred |= bool(left)
            waited -= left
        return [chunk for chunk_id, chunk in self.missing.items() if chunk_id in waited]

    def rest(self) -> list[Wanted]:
        """What the fill lane is to ask for: everything, but for what the demand lane is asking for."""
        if not self.fills:
            return []
        others = self._demanded.keys() | self._handed
        return [chunk for chunk_id, chunk in self.missing.items() if chunk_id not in others]

    def nowhere(self) -> list[ChunkId]:
        """What nobody has, now that all have answered: what is waited for, and what the fill asked everybody for."""
        if self.unclear:
            return list(self.waited())
        sought = self.fill.sought if self.fills and self.fill.thorough else set[ChunkId]()
        due = {chunk.chunk_id for chunk in self.due()}
        return [chunk_id for chunk_id in self.missing if chunk_id in due or chunk_id in sought]

    def asked_for(self) -> list[Wanted]:
        """What this round was about and is missing yet."""
        return [chunk for chunk_id in self._round & self.waited() if (chunk := self.missing.get(chunk_id)) is not None]

    def late(self) -> bool:
        """Whether somebody waits for a chunk that this round was not about from its beginning."""
        return not self.waited() <= self._round

    @contextmanager
    def demanding(self, batch: Collection[Wanted]) -> Iterator[None]:
        """The demand lane asks for these meanwhile, perhaps two peers at a time."""
        asked = Counter(chunk.chunk_id for chunk in batch)
        self._demanded += asked
        try:
            yield
        finally:
            self._demanded -= asked
            self._stir.set()

    def still_missing(self, chunks: Iterable[Wanted]) -> list[Wanted]:
        return [chunk for chunk in chunks if chunk.chunk_id in self.missing]

    @contextmanager
    def handing(self, chunks: Iterable[Wanted]) -> Iterator[list[Wanted]]:
        """Some of these come from who read them in this node's place meanwhile, and neither lane asks for them: each is
        waited for so but once, whoever says that he has it."""
        fresh = [chunk for chunk in self.still_missing(chunks) if chunk.chunk_id not in self._once_handed]
        handed = {chunk.chunk_id for chunk in fresh}
        self._once_handed |= handed
        self._handed |= handed
        try:
            yield fresh
        finally:
            self._handed -= handed
            self._stir.set()

    @contextmanager
    def brought(self, batch: Collection[Wanted]) -> Iterator[None]:
        """The fill lane asks for these meanwhile. Who waits for one of them gives it a moment to begin."""
        self._filled = frozenset(chunk.chunk_id for chunk in batch)
        self._progress = self._clock() - PROGRESS_SECONDS + BEGIN_SECONDS
        try:
            yield
        finally:
            self._filled = frozenset()
            self._stir.set()

    # --- what is told

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

    def stir(self) -> None:
        """Whoever waits in `stirred` looks again."""
        self._stir.set()

    async def stirred(self, seconds: float) -> None:
        """Until something landed that somebody waits for, or the last chunk, a lane ended its question, or somebody
        came; at most `seconds`."""
        self._stir.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stir.wait()

    async def pause(self, seconds: float, over: Callable[[], bool] = lambda: False) -> None:
        """Until the next round is due, it is `over`, or somebody comes for a chunk that no round has asked for."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not over() and not self.late() and self.waited() and (left := end - loop.time()) > 0:
            await self.stirred(left)

    def fill_begins(self) -> None:
        self.fill = FillRound(sought=set(self.missing))

    def fill_ended(self, *, over: bool = True) -> None:
        """`over`: all of its sources were asked."""
        if not over:
            self.fill.sought.clear()
        self.filling = False
        self.fill_over.set()
        self._stir.set()

    def lose(self, chunk_id: ChunkId, why: str) -> None:
        """Whoever waits for this chunk is told that it is in vain; it can be had from nobody."""
        for future in self._waiting.pop(chunk_id, ()):
            if not future.done():
                future.set_exception(ChunkUnavailable(f"chunk {short(chunk_id)} cannot be had: {why}"))
        for following in self._followers:
            if following.waits:
                following.lose(chunk_id, why)
        self._stir.set()

    def fail(self, message: Callable[[ChunkId], str]) -> None:
        """Whoever waits is told that it is in vain."""
        for chunk_id, futures in self._waiting.items():
            for future in futures:
                if not future.done():
                    future.set_exception(ChunkUnavailable(message(chunk_id)))
        self._waiting.clear()
        self._wanted.clear()
        for following in self._followers:
            if following.waits:
                following.end(message)

    def end(self, message: Callable[[ChunkId], str]) -> None:
        """The flight is over: nothing more lands."""
        self.fail(message)
        self.begun.set()
        self.fill_ended()
        for following in self._followers:
            following.end(message)
        self._followers.clear()


def shortened(names: Iterable[str]) -> str:
    """Some names, without repetition, for one line."""
    found: Sequence[str] = list(dict.fromkeys(names))
    return ", ".join(found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")
