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
from typing import Protocol

from hoard_p2p.errors import ChunkCorrupt, ChunkUnavailable, Corrupt, HoardError, PeerUnavailable, StoreFailed
from hoard_p2p.fetch.segment import Landed, Segment, Wanted, ids_of, next_batch
from hoard_p2p.fetch.sources import Favour, Sources
from hoard_p2p.ids import ChunkId, SnapshotId, short
from hoard_p2p.interfaces import PeerChunks, Place
from hoard_p2p.peer import NodeId, Peer

log = logging.getLogger(__name__)

STALL_TIMEOUT = 5.0
"""Seconds without progress after which a peer is given up for this batch."""

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0
LOST_PAUSE = 0.01
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
    """Whether asking again later can help: names of members that are known but do not answer now."""

    absent: tuple[str, ...]


class _Flight:
    """The chunks of one segment on their way, and who waits for which."""

    def __init__(self, segment: Segment, first: Peer | None) -> None:
        self.segment = segment
        self.first = first
        self.waiters: dict[ChunkId, list[asyncio.Future[Landed]]] = {}
        self.missing: dict[ChunkId, Wanted] = {}
        self.tried: list[str] = []
        self.unreachable = False
        self.done = asyncio.Event()

    def expect(self, chunk_id: ChunkId) -> "asyncio.Future[Landed]":
        future: asyncio.Future[Landed] = asyncio.get_running_loop().create_future()
        self.waiters.setdefault(chunk_id, []).append(future)
        return future

    def land(self, chunk_id: ChunkId, landed: Landed) -> None:
        self.missing.pop(chunk_id, None)
        for future in self.waiters.pop(chunk_id, ()):
            if not future.done():
                future.set_result(landed)

    def fail(self, message: str) -> None:
        for futures in self.waiters.values():
            for future in futures:
                if not future.done():
                    future.set_exception(ChunkUnavailable(message))
        self.waiters.clear()


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
        self._flights: dict[_Key, _Flight] = {}
        self.received = 0
        """Bytes received from peers since the start."""

    async def chunk(self, segment: Segment, chunk: Wanted, *, timeout: float) -> Landed:
        """One chunk, as soon as it is here; the rest of its segment follows by itself.

        Asks again while a member that may hold it does not answer. Raises ChunkUnavailable, which names whom it
        tried: at once if every member answered that it has not, else after `timeout` seconds.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        pause = FIRST_PAUSE
        while True:
            place = self._keeper.place(chunk.chunk_id)
            if place is not None:
                return Landed(place, b"")
            flight = self._flight(segment, None)
            try:
                async with asyncio.timeout_at(end):
                    return await flight.expect(chunk.chunk_id)
            except TimeoutError:
                raise self._gave_up(chunk, flight, f"within {timeout:g} s") from None
            except ChunkUnavailable:
                # Not among the missing: it was here when the flight began and was lost since, or it came before this
                # reader did and could not be stored (I5). The next flight brings it.
                lost = chunk.chunk_id not in flight.missing
                absent = self._outlook().absent
                if not lost and not flight.unreachable and not absent:
                    raise self._gave_up(chunk, flight, "anywhere") from None
                if loop.time() + pause >= end:
                    silent = f"within {timeout:g} s; not answering: {', '.join(dict.fromkeys(absent)) or 'those named'}"
                    raise self._gave_up(chunk, flight, silent) from None
            await asyncio.sleep(LOST_PAUSE if lost else pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    @staticmethod
    def _gave_up(chunk: Wanted, flight: _Flight, how: str) -> ChunkUnavailable:
        tried = ", ".join(dict.fromkeys(flight.tried)) or "no peer was there to ask"
        return ChunkUnavailable(f"chunk {short(chunk.chunk_id)} could not be had {how} (asked: {tried})")

    async def whole(self, segment: Segment, *, timeout: float, first: Peer | None = None) -> None:
        """Bring all chunks of `segment` here, one round over the sources, `first` before the others.

        Returns when the round is over or after `timeout` seconds: what came and was stored is for the store to say.
        Cancelling leaves the flight running.
        """
        flight = self._flight(segment, first)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await flight.done.wait()

    def start(self, segment: Segment) -> None:
        """The same without waiting: fetch ahead."""
        self._flight(segment, None)

    def _flight(self, segment: Segment, first: Peer | None) -> _Flight:
        key = (segment.snapshot, segment.number)
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(segment, first)
            self._group.create_task(self._fly(key, flight))
        return flight

    async def _fly(self, key: _Key, flight: _Flight) -> None:
        loop = asyncio.get_running_loop()
        try:
            missing = await loop.run_in_executor(self._executor, self._keeper.missing, flight.segment)
            flight.missing = {chunk.chunk_id: chunk for chunk in missing}
            self._answer_present(flight)
            async for peer in self._sources.of(flight.segment, flight.first):
                if not flight.missing:
                    break
                await self._drain(flight, peer)
            await loop.run_in_executor(self._executor, self._keeper.ended, flight.segment, not flight.missing)
        except HoardError as error:
            log.warning("segment %d of %s: %s", flight.segment.number, short(flight.segment.snapshot), error)
        except Exception:  # the door of this task: a bug must not end the group, and the node with it
            log.exception("segment %d of %s failed", flight.segment.number, short(flight.segment.snapshot))
        finally:
            self._flights.pop(key, None)
            self._answer_present(flight)
            flight.fail(f"{len(flight.missing)} chunks of segment {flight.segment.number} are nowhere")
            flight.done.set()

    def _answer_present(self, flight: _Flight) -> None:
        """Answer waiters for chunks that are here already (they came between their look-up and this flight)."""
        for chunk_id in [chunk_id for chunk_id in flight.waiters if chunk_id not in flight.missing]:
            place = self._keeper.place(chunk_id)
            if place is not None:
                flight.land(chunk_id, Landed(place, b""))

    async def _drain(self, flight: _Flight, peer: Peer) -> None:
        """Take what `peer` has of the missing chunks, batch by batch."""
        refused: set[ChunkId] = set()
        flight.tried.append(f"{peer.name} ({peer.host}:{peer.port})")
        while candidates := [chunk for chunk in flight.missing.values() if chunk.chunk_id not in refused]:
            batch = next_batch(candidates, flight.waiters)
            before = len(flight.missing)
            absent = await self._ask(flight, peer, batch)
            if absent is None or (not absent and len(flight.missing) == before):
                return
            refused.update(batch[index].chunk_id for index in absent)
            if len(absent) == len(batch) == len(candidates):
                return

    async def _ask(self, flight: _Flight, peer: Peer, batch: Sequence[Wanted]) -> list[int] | None:
        """Indexes of the batch that `peer` lacks; None if it is of no use now."""
        loop = asyncio.get_running_loop()

        def deliver(index: int, data: memoryview) -> None:
            chunk = batch[index]
            landed = self._keep(flight.segment, chunk, data)
            loop.call_soon_threadsafe(flight.land, chunk.chunk_id, landed)

        def fetch() -> list[int]:
            return self._peers.fetch(peer, ids_of(batch), deliver, timeout=STALL_TIMEOUT)

        try:
            absent = await loop.run_in_executor(self._executor, fetch)
        except PeerUnavailable as error:
            log.info("peer %s gave no chunks: %s", peer.name, error)
            flight.unreachable = True
            self._failed(peer.node_id)
            return None
        except ChunkCorrupt as error:
            log.warning("peer %s sent wrong bytes and is shunned for a while: %s", peer.name, error)
            self._favour.shun(peer.node_id, loop.time())
            return None
        return absent

    def _keep(self, segment: Segment, chunk: Wanted, data: memoryview) -> Landed:
        self.received += len(data)
        try:
            return Landed(self._keeper.keep(segment, chunk, data), b"")
        except (StoreFailed, Corrupt) as error:  # I5: the reader gets its bytes all the same
            log.warning("chunk %s was not stored: %s", short(chunk.chunk_id), error)
            return Landed(None, bytes(data))
