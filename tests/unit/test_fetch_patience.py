"""Whom a flight waits for, and for how long: peers that say again and again that they are about to, drip, or stop."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence

import pytest

from hoard_p2p.errors import PeerBusy
from hoard_p2p.fetch.fetcher import MOST_PLANNED, Fetcher
from hoard_p2p.fetch.flight import LEAVE_SECONDS, Flight
from hoard_p2p.fetch.segment import Landed, Segment, Wanted
from hoard_p2p.fetch.silence import CHAIN_LONGEST, READER_SECONDS, Silence
from hoard_p2p.fetch.sources import Course
from hoard_p2p.fetch.turns import AT_ONCE, Turns
from hoard_p2p.ids import ChunkId, chunk_id
from hoard_p2p.interfaces import AskMode, Place, SegmentAsk, StreamEnd
from hoard_p2p.peer import Peer
from hoard_p2p.testing.network import Deliver, MemoryPeers
from hoard_p2p.transfer.service import FeedEnd
from tests.unit.fetch_cluster import (
    ALL,
    CHUNKS,
    DATA,
    ME,
    N1,
    N2,
    N3,
    SEGMENT,
    SNAPSHOT,
    Cluster,
    Dripping,
    MemoryOrigin,
    a_cluster,
    asked,
    everywhere,
    nowhere,
)

HERE = Landed(Place(1, 0, 1, 1), b"")


async def until(done: Callable[[], bool]) -> None:
    """The scenario's deadline ends it."""
    while not done():  # noqa: ASYNC110 - what is waited for signals nothing
        await asyncio.sleep(0.01)


class Slow(MemoryPeers):
    """A network whose streams last for a while before they end."""

    seconds = 0.1

    def stream(
        self,
        peer: Peer,
        ask: SegmentAsk,
        wanted: Sequence[tuple[ChunkId, int]],
        deliver: Deliver,
        *,
        patience: float,
        timeout: float,
    ) -> StreamEnd:
        end = super().stream(peer, ask, wanted, deliver, patience=patience, timeout=timeout)
        if end.absent:
            time.sleep(self.seconds)
        return end


def test_a_follower_that_was_told_that_it_is_in_vain_is_not_asked_for_again() -> None:
    cluster = a_cluster(nowhere())
    cluster.origins = origin = MemoryOrigin(N3)

    async def scenario(fetcher: Fetcher) -> None:
        with fetcher.followed(SEGMENT, CHUNKS, waits=True) as following:  # its peer takes nothing: it does not look
            await until(lambda: bool(following.reason))
            await until(lambda: fetcher.under_way == 0)

    cluster.run(scenario)
    assert len(cluster.network.asks) == 1
    assert origin.reads == []


def test_a_chunk_is_left_for_a_while_only_to_a_fill_that_gets_on_with_others() -> None:
    async def main() -> None:
        now = 100.0
        flight = Flight(SEGMENT, None, lambda: now)
        flight.begin(CHUNKS)
        future = flight.expect(CHUNKS[5])
        with flight.brought(CHUNKS):
            for chunk in CHUNKS[:5]:
                flight.land(chunk.chunk_id, HERE)
                assert flight.due() == []
                now += LEAVE_SECONDS / 5
            flight.land(CHUNKS[4].chunk_id, HERE)
            assert flight.due() == [CHUNKS[5]]
        future.cancel()

    asyncio.run(main())


def test_the_fill_of_others_outlives_the_last_reader() -> None:
    cluster = a_cluster(everywhere(), Course(N2, (), 1))
    cluster.network.holdings[N2.node_id] = {CHUNKS[0].chunk_id: DATA[0]}
    cluster.network = cluster.segments = dripping = Dripping(cluster.network.holdings)

    async def scenario(fetcher: Fetcher) -> None:
        fetcher.ahead(SEGMENT)
        assert await asyncio.to_thread(dripping.dripped.wait, 10)
        async with asyncio.TaskGroup() as group:
            group.create_task(fetcher.whole(SEGMENT, timeout=5))
            await asyncio.sleep(0)
            fetcher.stop_ahead(SNAPSHOT)
            dripping.go_on.set()
        assert cluster.keeper.missing(SEGMENT) == []

    cluster.run(scenario)


def test_no_more_than_a_bounded_number_of_segments_is_planned_ahead() -> None:
    cluster = a_cluster(nowhere())
    ended: list[int] = []

    async def scenario(fetcher: Fetcher) -> None:
        def ends(number: int) -> Callable[[], None]:
            return lambda: ended.append(number)

        for number in range(MOST_PLANNED + 10):
            fetcher.ahead(Segment(SNAPSHOT, number, CHUNKS, SEGMENT.key), ends(number))
        assert len(ended) == 6, "four fly"
        fetcher.stop_ahead(SNAPSHOT)
        await until(lambda: len(ended) == MOST_PLANNED + 10)

    cluster.run(scenario)
    assert len(set(ended)) == MOST_PLANNED + 10


def test_a_gateway_that_never_comes_to_anything_is_waited_for_once_and_not_for_each_segment() -> None:
    cluster = a_cluster(everywhere(), Course(N3, (N1,), 2))
    cluster.network = cluster.segments = Slow({**cluster.network.holdings, N1.node_id: {}})
    cluster.network.ends[N1.node_id] = FeedEnd(True, "soon")

    async def scenario(fetcher: Fetcher) -> None:
        await fetcher.chunk(SEGMENT, CHUNKS[1], timeout=10, fill=False)
        before = len(cluster.network.asks)
        assert before > 2
        await fetcher.chunk(SEGMENT, CHUNKS[2], timeout=10, fill=False)
        assert len(cluster.network.asks) == before

    cluster.run(scenario)


def test_who_reads_for_another_node_asks_no_gateway() -> None:
    cluster = a_cluster(nowhere(), Course(N1, (N1,), 2))
    cluster.origins = MemoryOrigin(N3)

    async def scenario(fetcher: Fetcher) -> None:
        with fetcher.followed(SEGMENT, CHUNKS[:1], waits=True, hops=1) as following:
            await until(lambda: bool(following.reason))

    cluster.run(scenario)
    assert [(node, mode) for node, mode, _ in asked(cluster)] == [(N3.node_id, AskMode.FETCH)]


def test_the_origin_is_not_read_past_a_gateway() -> None:
    cluster = a_cluster(everywhere(), Course(N3, (N1,), 2))
    cluster.network = cluster.segments = Slow({**cluster.network.holdings, N1.node_id: {}})
    cluster.network.ends[N1.node_id] = FeedEnd(True, "soon")
    cluster.origins = origin = MemoryOrigin(N3)
    origin.patient = False

    async def scenario(fetcher: Fetcher) -> None:
        await fetcher.chunk(SEGMENT, CHUNKS[1], timeout=10, fill=False)

    cluster.run(scenario)
    assert origin.bypasses == []
    assert origin.reads == []


def test_a_file_that_changed_keeps_nothing_from_being_read_behind_it() -> None:
    cluster = a_cluster(nowhere())
    size = 9 << 20  # so that a question is about one of them
    large = [bytes([number]) * size for number in range(3)]
    segment = _segment_of(large)
    good = {chunk.chunk_id: large[chunk.run] for chunk in segment.chunks if chunk.run != 0}
    cluster.origins = MemoryOrigin(ME, data=good)

    async def scenario(fetcher: Fetcher) -> None:
        await fetcher.whole(segment, timeout=10)
        assert [chunk.run for chunk in cluster.keeper.missing(segment)] == [0]

    cluster.run(scenario)


def _segment_of(data: Sequence[bytes]) -> Segment:
    chunks = tuple(Wanted(run, chunk_id(one), len(one)) for run, one in enumerate(data))
    return Segment(SNAPSHOT, 4, chunks, chunks[-1].chunk_id)


def test_a_busy_peer_is_asked_again_and_not_taken_for_failed() -> None:
    class Busy(MemoryPeers):
        def fetch(
            self, peer: Peer, wanted: Sequence[tuple[ChunkId, int]], deliver: Deliver, *, timeout: float
        ) -> list[int]:
            if peer.node_id == N3.node_id and len(self.asks) < 3:
                raise PeerBusy("it is busy")
            return super().fetch(peer, wanted, deliver, timeout=timeout)

    cluster = a_cluster(nowhere())
    cluster.network = cluster.segments = Busy(cluster.network.holdings)
    cluster.origins = MemoryOrigin(N3)
    cluster.network.holdings[N3.node_id] = dict(ALL)

    async def scenario(fetcher: Fetcher) -> None:
        assert (await fetcher.chunk(SEGMENT, CHUNKS[2], timeout=10, fill=False)).place is not None

    cluster.run(scenario)
    assert N3.node_id not in cluster.failed


@pytest.mark.parametrize(
    ("mode", "place", "seconds"),
    [
        (AskMode.CHAIN, 900, CHAIN_LONGEST),
        (AskMode.FETCH, 0, READER_SECONDS),
        (AskMode.FETCH, 1, 2 * READER_SECONDS),
        (AskMode.FETCH, 3, 3 * READER_SECONDS),
    ],
)
def test_silence_is_allowed_for_as_long_as_others_may_have_to_wait_themselves(
    mode: AskMode, place: int, seconds: float
) -> None:
    assert Silence().allowed(N1.node_id, mode, place, 100.0) == seconds


def test_a_peer_that_does_not_tell_what_it_holds_is_waited_for_once_and_asked_once_at_a_time() -> None:
    cluster = Cluster(nowhere())
    silent = cluster.silent = cluster.order()[3]
    segments = [Segment(SNAPSHOT, number, CHUNKS, SEGMENT.key) for number in range(4)]

    async def scenario(fetcher: Fetcher) -> None:
        async def bring(some: Sequence[Segment]) -> None:
            waits: list[Awaitable[None]] = [fetcher.whole(segment, timeout=10) for segment in some]
            async with asyncio.TaskGroup() as group:
                for wait in waits:
                    group.create_task(_awaited(wait))

        await bring(segments[:3])
        assert cluster.told.count(silent) == 1
        await bring(segments[3:])
        assert cluster.told.count(silent) == 1

    cluster.run(scenario)


async def _awaited(one: Awaitable[None]) -> None:
    await one


def test_who_failed_is_asked_one_thing_at_a_time_until_it_answers() -> None:
    async def main() -> None:
        turns, most, now = Turns(), list[int](), 0

        async def ask() -> None:
            nonlocal now
            async with turns.turn(N1.node_id):
                now += 1
                most.append(now)
                await asyncio.sleep(0)
                now -= 1

        async def storm() -> int:
            most.clear()
            async with asyncio.TaskGroup() as group:
                for _ in range(20):
                    group.create_task(ask())
            return max(most)

        assert await storm() == AT_ONCE
        turns.failed(N1.node_id, 0.0, "it is off")
        assert await storm() == 1
        turns.answered(N1.node_id)
        assert await storm() == AT_ONCE

    asyncio.run(main())


def test_a_home_that_comes_back_is_asked_again_while_the_fill_is_still_at_work() -> None:
    cluster = a_cluster(everywhere(), Course(N2, (), 1))
    back, cluster.network.holdings = cluster.network.holdings, {N2.node_id: {CHUNKS[0].chunk_id: DATA[0]}}
    cluster.network = cluster.segments = dripping = Dripping(cluster.network.holdings)

    async def scenario(fetcher: Fetcher) -> None:
        fetcher.ahead(SEGMENT)
        assert await asyncio.to_thread(dripping.dripped.wait, 10)
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(fetcher.chunk(SEGMENT, CHUNKS[5], timeout=9))
            await cluster.failure.wait()
            dripping.holdings.update({node: held for node, held in back.items() if node != N2.node_id})
            assert (await reader).place is not None
            dripping.go_on.set()

    cluster.run(scenario)


class Gated(MemoryOrigin):
    """An origin that stops before each read, until `go_on`."""

    def __init__(self, *order: Peer) -> None:
        super().__init__(*order)
        self.stopped, self.go_on = threading.Event(), threading.Event()

    def read(
        self, segment: Segment, wanted: Sequence[Wanted], deliver: Callable[[int, memoryview], None], *, urgent: bool
    ) -> list[int]:
        self.stopped.set()
        assert self.go_on.wait(10)
        return super().read(segment, wanted, deliver, urgent=urgent)


def test_what_another_node_read_in_this_one_s_place_is_taken_from_there_and_not_read_again() -> None:
    cluster = a_cluster(nowhere())
    large = [bytes([number]) * (9 << 20) for number in range(3)]  # so that a question is about one of them
    segment = _segment_of(large)
    cluster.origins = origin = Gated(ME)
    origin.data = {chunk.chunk_id: large[chunk.run] for chunk in segment.chunks}
    last = segment.chunks[2]

    async def scenario(fetcher: Fetcher) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fetcher.whole(segment, timeout=10))
            assert await asyncio.to_thread(origin.stopped.wait, 10)
            cluster.network.holdings[N2.node_id] = {last.chunk_id: large[2]}
            fetcher.handed(segment, N2, [last])
            await until(lambda: cluster.keeper.place(last.chunk_id) is not None)
            origin.go_on.set()
        assert cluster.keeper.missing(segment) == []
        fetcher.handed(segment, N2, [last])

    cluster.run(scenario)
    assert sorted(origin.reads) == sorted(chunk.chunk_id for chunk in segment.chunks[:2])


def test_what_a_peer_says_to_have_and_has_not_is_waited_for_once() -> None:
    async def main() -> None:
        flight = Flight(SEGMENT, None, lambda: 100.0)
        flight.begin(CHUNKS)
        flight.fills = True
        with flight.handing(CHUNKS[:2]) as first, flight.handing(CHUNKS[1:3]) as second:
            assert (first, second) == (list(CHUNKS[:2]), [CHUNKS[2]])
            assert flight.rest() == list(CHUNKS[3:])
        assert flight.rest() == list(CHUNKS)
        with flight.handing(CHUNKS) as third:
            assert third == list(CHUNKS[3:])

    asyncio.run(main())
