"""Getting chunks from peers: one flight per segment, chunks that are waited for first, every wait with a deadline.

Promises: a chunk is delivered only after it matched its id; a peer that sends wrong bytes is shunned for a while and
counted; failing to store fails no read (I5). Blind to how chunks are stored (`Keeper`) and to the wire (`PeerChunks`).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from hoard_p2p.errors import ChunkCorrupt, ChunkUnavailable, Corrupt, HoardError, PeerUnavailable, StoreFailed
from hoard_p2p.fetch.flight import Flight, shortened
from hoard_p2p.fetch.segment import Landed, Segment, Wanted, ids_of, next_batch
from hoard_p2p.fetch.sources import Favour, Sources
from hoard_p2p.fetch.turns import Turns
from hoard_p2p.fetch.unstored import Unstored
from hoard_p2p.ids import ChunkId, SnapshotId, short
from hoard_p2p.interfaces import PeerChunks, Place
from hoard_p2p.peer import NodeId, Peer

log = logging.getLogger(__name__)

STALL_TIMEOUT = 5.0
"""Seconds without progress after which a peer is given up for this batch."""

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0
"""Seconds between two rounds of a flight over its sources, while somebody waits and somebody does not answer."""

NOWHERE_SECONDS = 1.0
"""For so long a chunk that every member lacks is not looked for again: readers in a storm of errors ask in vain."""

PATIENCE = 16
KEPT_VERDICTS = 256
AHEAD_FLIGHTS = 4
"""Flights that nobody waits for, of those who share the fetch threads; one that is waited for starts at once."""

_Key = tuple[SnapshotId, int]


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

    def ended(self, segment: Segment, whole: bool) -> None:
        """A flight for `segment` ended; `whole`: all its chunks are here."""
        ...


@dataclass(frozen=True, slots=True)
class Outlook:
    """Whether asking again later can help: members that are known but do not answer now, each as it is
    named in messages."""

    absent: tuple[str, ...]


class _Verdict(NamedTuple):
    """These chunks of a segment were nowhere; good until a time of the loop's clock."""

    until: float
    nowhere: frozenset[ChunkId]
    tried: str


class _WrongBytes(NamedTuple):
    """A peer's answer to a batch ended with bytes that are not their chunk's: of index `at`, or of a later one if it
    lacks that."""

    at: int


class _Planned(NamedTuple):
    """A segment that nobody waits for yet; `ended` is called once it is here, or not coming."""

    segment: Segment
    ended: Callable[[], None]


class Fetcher:
    """Flights run in the TaskGroup handed in; blocking parts in `executor`."""

    def __init__(
        self,
        *,
        group: asyncio.TaskGroup,
        executor: Executor,
        keeper: Keeper,
        peers: PeerChunks,
        sources: Sources,
        favour: Favour,
        failed: Callable[[NodeId], None],
        outlook: Callable[[], Outlook],
    ) -> None:
        self._group = group
        self._executor = executor
        self._keeper = keeper
        self._peers = peers
        self._sources = sources
        self._favour = favour
        self._failed = failed
        self._outlook = outlook
        self._turns = Turns()
        self._flights: dict[_Key, Flight] = {}
        self._planned: dict[_Key, _Planned] = {}
        self._ahead: set[_Key] = set()
        self._verdicts: dict[_Key, _Verdict] = {}
        self.unstored = Unstored()
        self.received = 0
        """Bytes received from peers since the start."""

    async def chunk(self, segment: Segment, chunk: Wanted, *, timeout: float, fill: bool = True) -> Landed:
        """One chunk, as soon as it is here; with `fill` the rest of its segment follows by itself.

        Asks again while a member that may hold it does not answer. Raises ChunkUnavailable, which names whom it
        tried and with which outcome: at once if every member answered that it has not, else after `timeout` seconds.
        """
        place = self._keeper.place(chunk.chunk_id)
        if place is not None:
            return Landed(place, b"")
        self._raise_verdict(segment, chunk)
        flight = self._flight(segment, None, fills=fill)
        try:
            async with asyncio.timeout(timeout):
                return await flight.expect(chunk)
        except TimeoutError:
            absent = shortened(self._outlook().absent)
            how = f"within {timeout:g} s" + (f"; not answering: {absent}" if absent else "")
            tried = flight.tried() if flight.asked or not absent else ""
            raise ChunkUnavailable(_in_vain(chunk.chunk_id, how, tried)) from None

    def _raise_verdict(self, segment: Segment, chunk: Wanted) -> None:
        verdict = self._verdicts.get((segment.snapshot, segment.number))
        if verdict is not None and chunk.chunk_id in verdict.nowhere:
            if asyncio.get_running_loop().time() < verdict.until:
                raise ChunkUnavailable(_in_vain(chunk.chunk_id, "anywhere", verdict.tried))
            del self._verdicts[segment.snapshot, segment.number]

    async def whole(self, segment: Segment, *, timeout: float, first: Peer | None = None) -> None:
        """Bring all chunks of `segment` here, one round over the sources, `first` before the others.

        Returns when the round is over or after `timeout` seconds: what came and was stored is for the store to say.
        Cancelling leaves the flight running.
        """
        flight = self._flight(segment, first, fills=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await flight.first_round_over.wait()

    def ahead(self, segment: Segment, ended: Callable[[], None] = lambda: None) -> None:
        """The same without waiting, when there is nothing better to do: after those planned before it, a few at a
        time. Who waits for one of its chunks meanwhile has it started at once."""
        key = (segment.snapshot, segment.number)
        if key in self._flights or key in self._planned:
            ended()
            return
        self._planned[key] = _Planned(segment, ended)
        self._start_ahead()

    def stop_ahead(self, snapshot: SnapshotId) -> None:
        """Nobody reads this snapshot any more: what is planned is dropped, what is under way and not waited for ends
        with the batch that it is at."""
        for key in [key for key in self._planned if key[0] == snapshot]:
            self._planned.pop(key).ended()
        for key in [key for key in self._ahead if key[0] == snapshot]:
            self._flights[key].fills = False

    def _start_ahead(self) -> None:
        while self._planned and len(self._ahead) < AHEAD_FLIGHTS:
            key = next(iter(self._planned))
            planned = self._planned.pop(key)
            self._ahead.add(key)
            self._flight(planned.segment, None, fills=True).ended = planned.ended

    def _flight(self, segment: Segment, first: Peer | None, *, fills: bool) -> Flight:
        key = (segment.snapshot, segment.number)
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = Flight(segment, first, fills=fills)
            planned = self._planned.pop(key, None)
            if planned is not None:
                flight.ended = planned.ended
            self._group.create_task(self._fly(key, flight))
        flight.fills = flight.fills or fills
        return flight

    async def _fly(self, key: _Key, flight: Flight) -> None:
        loop = asyncio.get_running_loop()
        why = "its segment could not be fetched; see the node's log"
        try:
            missing = await loop.run_in_executor(self._executor, self._keeper.missing, flight.segment)
            flight.missing = {chunk.chunk_id: chunk for chunk in missing}
            while True:
                await self._rounds(key, flight)
                await loop.run_in_executor(self._executor, self._keeper.ended, flight.segment, not flight.missing)
                if not flight.waited():
                    break
        except HoardError as error:
            why = str(error)
            log.warning("segment %d of %s: %s", flight.segment.number, short(flight.segment.snapshot), error)
        except Exception:  # the door of this task: a bug must not end the group, and the node with it
            log.exception("segment %d of %s failed", flight.segment.number, short(flight.segment.snapshot))
        finally:
            del self._flights[key]
            flight.fail(lambda chunk_id: f"chunk {short(chunk_id)}: {why}")
            flight.first_round_over.set()
            flight.ended()
            self._ahead.discard(key)
            self._start_ahead()

    async def _rounds(self, key: _Key, flight: Flight) -> None:
        """Ask the sources again and again until nobody waits for anything that may yet come."""
        pause = FIRST_PAUSE
        while True:
            flight.begin_round(self._keeper.place)
            async for peer in self._sources.of(flight.segment, flight.first):
                if not flight.open():
                    break
                await self._drain(flight, peer)
            if not flight.waited():
                return
            flight.first_round_over.set()
            if flight.late():
                continue
            if not flight.unreachable and not self._outlook().absent:
                self._give_up(key, flight)
                return
            await flight.pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _give_up(self, key: _Key, flight: Flight) -> None:
        """Everybody answered, and nobody has what is asked for."""
        nowhere = frozenset(flight.waited() if flight.unclear else (chunk.chunk_id for chunk in flight.open()))
        tried = flight.tried()
        self._verdicts.pop(key, None)
        self._verdicts[key] = _Verdict(asyncio.get_running_loop().time() + NOWHERE_SECONDS, nowhere, tried)
        if len(self._verdicts) > KEPT_VERDICTS:
            del self._verdicts[next(iter(self._verdicts))]
        flight.fail(lambda chunk_id: _in_vain(chunk_id, "anywhere", tried))

    async def _drain(self, flight: Flight, peer: Peer) -> None:
        """Take what `peer` has of the missing chunks, batch by batch.

        A peer is left when it sends wrong bytes; one that did so before, and is the last resort, only when it did so
        `PATIENCE` times, and is asked each time without the first chunk that it did not give."""
        refused: set[ChunkId] = set()
        patience = PATIENCE if self._favour.shunned(peer.node_id, asyncio.get_running_loop().time()) else 0
        while candidates := [chunk for chunk in flight.open() if chunk.chunk_id not in refused]:
            flight.tell(peer)
            batch = next_batch(candidates, flight.waited())
            before = len(flight.missing)
            absent = await self._ask(flight, peer, batch)
            if isinstance(absent, _WrongBytes) and patience:
                patience -= 1
                refused.update(chunk.chunk_id for chunk in batch[: absent.at + 1])
                continue
            if absent is None or isinstance(absent, _WrongBytes) or (not absent and len(flight.missing) == before):
                return
            refused.update(batch[index].chunk_id for index in absent)
            if len(absent) == len(batch) == len(candidates):
                return

    async def _ask(self, flight: Flight, peer: Peer, batch: Sequence[Wanted]) -> "list[int] | _WrongBytes | None":
        """Indexes of the batch that `peer` lacks; None if it is of no use now."""
        given: list[int] = []
        loop = asyncio.get_running_loop()
        async with self._turns.turn(peer.node_id):
            silent = self._turns.silent(peer.node_id, loop.time())
            if silent:
                flight.tell(peer, silent)
                flight.unreachable = True
                return None
            try:
                absent = await loop.run_in_executor(self._executor, self._fetch, flight, peer, batch, given, loop)
            except PeerUnavailable as error:
                self._unreachable(flight, peer, str(error))
                return None
            except ChunkCorrupt as error:
                self._corrupt(flight, peer, error)
                return _WrongBytes(given[-1] + 1 if given else 0)
        self._turns.answered(peer.node_id)
        return absent

    def _fetch(
        self,
        flight: Flight,
        peer: Peer,
        batch: Sequence[Wanted],
        given: list[int],
        loop: asyncio.AbstractEventLoop,
    ) -> list[int]:
        """In a thread: ask for a batch, store each chunk as it comes; `given` are the indexes of those."""

        def deliver(index: int, data: memoryview) -> None:
            chunk = batch[index]
            landed = self._keep(flight.segment, chunk, data)
            given.append(index)
            loop.call_soon_threadsafe(flight.land, chunk.chunk_id, landed)

        return self._peers.fetch(peer, ids_of(batch), deliver, timeout=STALL_TIMEOUT)

    def _unreachable(self, flight: Flight, peer: Peer, reason: str) -> None:
        log.info("peer %s gave no chunks: %s", peer.name, reason)
        flight.tell(peer, reason)
        flight.unreachable = True
        self._turns.failed(peer.node_id, asyncio.get_running_loop().time(), reason)
        self._failed(peer.node_id)

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

    def _keep(self, segment: Segment, chunk: Wanted, data: memoryview) -> Landed:
        self.received += len(data)
        try:
            return Landed(self._keeper.keep(segment, chunk, data), b"")
        except (StoreFailed, Corrupt) as error:  # I5: the reader gets its bytes all the same
            self.unstored.note(chunk.chunk_id, error)
            return Landed(None, bytes(data))


def _in_vain(chunk_id: ChunkId, how: str, tried: str) -> str:
    return f"chunk {short(chunk_id)} could not be had {how}" + (f" ({tried})" if tried else "")
