"""Readers that want a range of a long piece of a lazy snapshot: each is given just that, at once (CLUSTER 4, "First
epoch"): from what is here of the piece, from the node whose turn it is to read the segment, or from the origin.

What nodes hold whole already goes the ordinary way, as a chunk. Nobody waits for a reader that is late, within the
budget for that, and nothing but what failed is read twice.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeAlias

from hoard_p2p.errors import ChunkUnavailable, HoardError, ObjectChanged, Unavailable
from hoard_p2p.fetch.segment import Landed, Segment, Wanted
from hoard_p2p.ids import short
from hoard_p2p.interfaces import Place
from hoard_p2p.node.blocking import in_executor
from hoard_p2p.node.ranges import Awaited, Here, Ranges
from hoard_p2p.peer import NodeId, Peer

log = logging.getLogger(__name__)

RANGE_THREADS = 32
"""Ranges that are read, or asked of peers, at a time."""

LOOK_SECONDS = 0.05
"""So often it is asked whether a reader may be passed by that has not answered."""

SILENT_SECONDS = 5.0
"""A reader that sent nothing for so long is replaced."""

MOST_HOPS = 2


class Part(NamedTuple):
    """What a reader is given: the whole piece at `place` (or in `data`), or, with `partial`, the range that it asked
    for, there."""

    place: Place | None
    data: bytes
    partial: bool


class Lane(Protocol):
    """What of `node.originreads` is needed. `read_range` is blocking, for any thread; the rest is for the loop."""

    def reader(self, segment: Segment, without: Container[NodeId]) -> Peer | None: ...

    def read_range(self, segment: Segment, chunk: Wanted, start: int, stop: int) -> bytes: ...

    def may_bypass(self, segment: Segment, size: int, waited: float) -> bool: ...

    def bypassed(self, segment: Segment, reader: Peer, size: int) -> None: ...

    def silent(self, reader: Peer) -> None: ...


class Range(NamedTuple):
    """Bytes `start` to `stop` of a piece. `hops`: how often the question for them was passed on."""

    segment: Segment
    chunk: Wanted
    start: int
    stop: int
    hops: int = 0


AskPeer: TypeAlias = Callable[[Peer, Range], bytes | None]
"""The bytes; None: they are on their way there, ask again. Blocking, for any thread. Raises Unavailable: the peer
cannot, or does not answer."""

Chunk: TypeAlias = Callable[[Segment, Wanted, float], Awaitable[Landed]]
"""The ordinary way to a chunk, within so many seconds."""


class Ranged:
    """For the event loop."""

    def __init__(
        self,
        *,
        me: NodeId,
        ranges: Ranges,
        lane: Lane,
        place: Callable[[Wanted], Place | None],
        chunk: Chunk,
        held: Callable[[Segment], Awaitable[bool]],
        landed: Callable[[Segment, Wanted, Landed], None],
        ask: AskPeer,
        group: asyncio.TaskGroup,
    ) -> None:
        """`held`: whether a peer is known to hold the segment. `landed` is told of pieces that became whole here."""
        self._me = me
        self._ranges = ranges
        self._lane = lane
        self._place = place
        self._chunk = chunk
        self._held = held
        self._landed = landed
        self._ask = ask
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(RANGE_THREADS, "range")

    def close(self) -> None:
        """Blocking."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def need(self, wanted: Range, timeout: float) -> Part:
        """For who waits `timeout` seconds at most; what was begun goes on behind that. Raises Unavailable, with the
        reason; ObjectChanged names the object."""
        end = self._loop.time() + timeout
        try:
            async with asyncio.timeout(timeout):
                while (part := await self._attempt(wanted, end)) is None:
                    pass
                return part
        except TimeoutError:
            piece = short(wanted.chunk.chunk_id)
            message = f"bytes {wanted.start} to {wanted.stop} of piece {piece} did not come within {timeout:g} s"
            raise ChunkUnavailable(message) from None

    async def _attempt(self, wanted: Range, end: float) -> Part | None:
        segment, chunk = wanted.segment, wanted.chunk
        place = self._place(chunk)
        if place is not None:
            return Part(place, b"", False)
        look = self._ranges.look(segment, chunk, wanted.start, wanted.stop)
        if isinstance(look, Here):
            return Part(look.place, look.data, True)
        if isinstance(look, Awaited):
            if look.flight:
                return await self._whole(wanted, end)
            await self._ranges.changed(chunk)
            return None
        claimed = [wanted._replace(start=start, stop=stop) for start, stop in look.ranges]
        came = await asyncio.shield(self._group.create_task(self._brought(wanted, claimed, end)))
        if isinstance(came, HoardError):
            raise came
        return came

    async def _whole(self, wanted: Range, end: float) -> Part:
        landed = await self._chunk(wanted.segment, wanted.chunk, max(0.0, end - self._loop.time()))
        return Part(landed.place, landed.data, False)

    async def _brought(self, wanted: Range, left: list[Range], end: float) -> Part | HoardError | None:
        """Have claimed ranges of a piece brought; what was wanted, or the whole piece, if that came instead."""
        try:
            if await self._ordinary(wanted.segment):
                self._release(left)
                return await self._whole(wanted, end)
            while left:
                came = await self._one(wanted, left[0])
                if isinstance(came, bytes):
                    return Part(None, came, True)
                left.pop(0)
                if came is not None:
                    self._landed(wanted.segment, wanted.chunk, came)
                    return Part(came.place, came.data, False)
            return None
        except HoardError as error:
            return error
        except Exception as error:  # the door of this task: a bug must not end the group, and the node with it
            log.exception("a range of piece %s could not be brought", short(wanted.chunk.chunk_id))
            return HoardError(f"internal error: {error!r}; the node's log has the details")
        finally:
            self._release(left)

    async def _ordinary(self, segment: Segment) -> bool:
        """Whether its pieces come as other chunks do: a peer holds them, or nobody is there to read their origin, which
        the ordinary way explains."""
        return await self._held(segment) or self._lane.reader(segment, ()) is None

    def _release(self, left: list[Range]) -> None:
        while left:
            lost = left.pop()
            self._ranges.release(lost.chunk, lost.start, lost.stop)

    async def _one(self, wanted: Range, claimed: Range) -> Landed | bytes | None:
        """A claimed range, read here; or all that is wanted, from the reader of the segment or who takes over. What a
        peer sends can be compared with nothing: it is for the read at hand, and no chunk is made of it."""
        without: set[NodeId] = set()
        failure: Unavailable = ChunkUnavailable("no node is there that reads its origin")
        while (reader := self._lane.reader(wanted.segment, without)) is not None:
            try:
                if reader.node_id == self._me:
                    return await self._read(claimed)
                if wanted.hops >= MOST_HOPS:
                    raise ChunkUnavailable("another node reads that segment, and the question was passed on twice")
                return await self._ask_reader(reader, wanted, claimed)
            except ObjectChanged:
                raise
            except Unavailable as error:
                log.info("bytes of piece %s, from %s: %s", short(wanted.chunk.chunk_id), reader.name, error)
                without.add(reader.node_id)
                failure = error
        raise failure

    async def _read(self, wanted: Range) -> Landed | None:
        return await in_executor(self._pool, self._read_here, wanted)

    def _read_here(self, wanted: Range) -> Landed | None:
        data = self._lane.read_range(wanted.segment, wanted.chunk, wanted.start, wanted.stop)
        if len(data) != wanted.stop - wanted.start:
            raise Unavailable(f"{len(data)} bytes came instead of {wanted.stop - wanted.start}")
        return self._ranges.land(wanted.segment, wanted.chunk, wanted.start, memoryview(data))

    async def _ask_reader(self, reader: Peer, wanted: Range, claimed: Range) -> Landed | bytes | None:
        """Ask until the bytes come; past a reader that is late, as far as the budget goes."""
        size, began = claimed.stop - claimed.start, self._loop.time()
        passed_on = wanted._replace(hops=wanted.hops + 1)
        asking = self._loop.run_in_executor(self._pool, self._ask, reader, passed_on)
        try:
            while True:
                done, _ = await asyncio.wait({asking}, timeout=LOOK_SECONDS)
                data = asking.result() if done else None
                if data is not None:
                    return data
                waited = self._loop.time() - began
                if waited >= SILENT_SECONDS:
                    self._lane.silent(reader)
                    raise Unavailable(f"{reader.name} sent nothing for {SILENT_SECONDS:g} s")
                if self._lane.may_bypass(wanted.segment, size, waited):
                    self._lane.bypassed(wanted.segment, reader, size)
                    return await self._read(claimed)
                if done:
                    asking = self._loop.run_in_executor(self._pool, self._ask, reader, passed_on)
        finally:
            asking.add_done_callback(_retrieved)


def _retrieved(future: "asyncio.Future[bytes | None]") -> None:
    """Nobody waits for it any more, however it ends."""
    with suppress(asyncio.CancelledError, HoardError):
        future.result()
