"""The two lanes of a flight: fills along the chain, readers past it, and the origin read by one node."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from hoard_p2p.errors import ChunkUnavailable
from hoard_p2p.fetch.fetcher import Fetcher
from hoard_p2p.fetch.flight import Flight
from hoard_p2p.fetch.segment import Segment, Wanted
from hoard_p2p.fetch.sources import Course
from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import AskMode
from hoard_p2p.peer import ClusterView, NodeId, Peer
from hoard_p2p.testing.network import Deliver, MemoryPeers, a_peer
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
    Cluster,
    Dripping,
    MemoryOrigin,
    SilentPeers,
    a_cluster,
    asked,
    everywhere,
    nowhere,
)


def test_a_fill_comes_from_the_predecessor_in_the_chain_which_is_told_the_asker_s_place() -> None:
    cluster = a_cluster(everywhere(), Course(N2, (), 3))

    async def scenario(fetcher: Fetcher) -> None:
        await fetcher.whole(SEGMENT, timeout=5)

    cluster.run(scenario)
    assert asked(cluster) == [(N2.node_id, AskMode.CHAIN, 3)]
    assert sorted(cluster.network.fetched) == sorted((N2.node_id, chunk.chunk_id) for chunk in CHUNKS)


def in_racks(cluster: Cluster, *racks: str) -> None:
    """Me, then N1 ... N4."""
    peers = tuple(replace(peer, rack=rack) for peer, rack in zip((ME, *cluster.peers), racks, strict=True))
    cluster.view = ClusterView(ME.node_id, peers)


@pytest.mark.parametrize("fill", [True, False])
def test_what_a_neighbour_holds_does_not_come_from_another_rack_once_more(fill: bool) -> None:
    cluster = Cluster(everywhere(), records=[3])
    cluster.segments = cluster.network
    in_racks(cluster, "here", "there", "there", "here", "here")
    cluster.course = Course(cluster.view.by_id[N2.node_id], (), 3)

    async def scenario(fetcher: Fetcher) -> None:
        if fill:
            await fetcher.whole(SEGMENT, timeout=5)
        else:
            await fetcher.chunk(SEGMENT, CHUNKS[1], timeout=5, fill=False)

    cluster.run(scenario)
    assert asked(cluster) == []
    assert {node for node, _ in cluster.network.fetched} == {N3.node_id}


def test_a_neighbour_that_does_not_tell_what_it_holds_is_not_waited_for_again_and_again() -> None:
    cluster = Cluster(everywhere())
    in_racks(cluster, "here", "there", "there", "here", "there")
    cluster.silent = N3.node_id

    async def scenario(fetcher: Fetcher) -> None:
        await fetcher.chunk(SEGMENT, CHUNKS[1], timeout=5, fill=False)
        await fetcher.chunk(SEGMENT, CHUNKS[2], timeout=5, fill=False)

    cluster.run(scenario)
    assert cluster.told.count(N3.node_id) == 1


def test_a_predecessor_that_cannot_is_passed_by_for_the_homes() -> None:
    cluster = a_cluster(nowhere(), Course(N2, (), 1))
    home = next(node for node in cluster.order() if node != N2.node_id)
    cluster.network.holdings[home] = dict(ALL)

    async def scenario(fetcher: Fetcher) -> None:
        await fetcher.whole(SEGMENT, timeout=5)
        assert cluster.keeper.missing(SEGMENT) == []

    cluster.run(scenario)
    assert {node for node, _ in cluster.network.fetched} == {home}


def test_while_the_view_is_unsettled_a_fill_takes_what_is_there_and_follows_no_chain_and_reads_no_origin() -> None:
    cluster = a_cluster(nowhere(), Course(N2, (), 1))
    cluster.origins = origin = MemoryOrigin(ME)
    cluster.settled = False

    async def scenario(fetcher: Fetcher) -> None:
        await fetcher.whole(SEGMENT, timeout=5)
        assert cluster.keeper.missing(SEGMENT) == list(CHUNKS)
        assert origin.reads == []
        landed = await fetcher.chunk(SEGMENT, CHUNKS[1], timeout=5, fill=False)
        assert landed.place is not None

    cluster.run(scenario)
    assert origin.reads == [CHUNKS[1].chunk_id], "what a reader waits for is read at once"
    assert asked(cluster) == []


def test_a_reader_s_chunk_comes_from_the_gateway_of_the_rack_or_from_who_takes_over() -> None:
    cluster = a_cluster(everywhere(), Course(N3, (N1, N2), 3))
    cluster.network.holdings[N1.node_id] = {}

    async def scenario(fetcher: Fetcher) -> None:
        await fetcher.chunk(SEGMENT, CHUNKS[1], timeout=5, fill=False)

    cluster.run(scenario)
    assert asked(cluster) == [(N1.node_id, AskMode.GATE, 3), (N2.node_id, AskMode.GATE, 3)]
    assert cluster.network.fetched == [(N2.node_id, CHUNKS[1].chunk_id)]


def test_a_reader_waits_for_a_chunk_that_the_fill_is_bringing_rather_than_have_it_come_twice() -> None:
    cluster = a_cluster(everywhere(), Course(N2, (), 1))
    cluster.network = cluster.segments = dripping = Dripping(cluster.network.holdings)

    async def scenario(fetcher: Fetcher) -> None:
        fetcher.ahead(SEGMENT)
        assert await asyncio.to_thread(dripping.dripped.wait, 10)
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(fetcher.chunk(SEGMENT, CHUNKS[5], timeout=5))
            await asyncio.sleep(0)
            dripping.go_on.set()
        assert reader.result().place is not None

    cluster.run(scenario)
    assert len(dripping.fetched) == len(CHUNKS)


def test_a_reader_overtakes_a_fill_that_makes_no_progress() -> None:
    cluster = a_cluster(everywhere(), Course(N2, (), 1))
    cluster.network = cluster.segments = dripping = Dripping(cluster.network.holdings)

    async def scenario(fetcher: Fetcher) -> None:
        fetcher.ahead(SEGMENT)
        assert await asyncio.to_thread(dripping.dripped.wait, 10)
        landed = await fetcher.chunk(SEGMENT, CHUNKS[5], timeout=5)
        assert landed.place is not None
        dripping.go_on.set()

    cluster.run(scenario)
    assert next(node for node, chunk in dripping.fetched if chunk == CHUNKS[5].chunk_id) == cluster.order()[0]


def test_the_reader_of_the_origin_reads_each_chunk_once_however_many_wait() -> None:
    cluster = a_cluster(nowhere())
    cluster.origins = origin = MemoryOrigin(ME)

    async def scenario(fetcher: Fetcher) -> None:
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(fetcher.chunk(SEGMENT, chunk, timeout=5)) for chunk in CHUNKS * 3]
        assert all(reader.result().place for reader in readers)

    cluster.run(scenario)
    assert sorted(origin.reads) == sorted(chunk.chunk_id for chunk in CHUNKS)


def test_what_somebody_holds_is_not_read_from_the_origin() -> None:
    cluster = a_cluster(nowhere())
    cluster.origins = origin = MemoryOrigin(ME)
    holder = cluster.order()[3]
    cluster.network.holdings[holder] = dict(ALL)
    cluster.records = {holder}

    async def scenario(fetcher: Fetcher) -> None:
        await fetcher.whole(SEGMENT, timeout=5)
        assert cluster.keeper.missing(SEGMENT) == []

    cluster.run(scenario)
    assert origin.reads == []


def test_another_node_that_reads_the_origin_is_asked_again_while_it_says_that_it_is_about_to() -> None:
    cluster = a_cluster(nowhere())
    cluster.origins = MemoryOrigin(N3)
    cluster.network.ends[N3.node_id] = FeedEnd(True, "soon")

    async def scenario(fetcher: Fetcher) -> None:
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(fetcher.chunk(SEGMENT, CHUNKS[2], timeout=5, fill=False))
            while len(cluster.network.asks) < 3:  # noqa: ASYNC110 - the scenario's deadline ends it
                await asyncio.sleep(0.01)
            cluster.network.holdings[N3.node_id] = dict(ALL)
        assert reader.result().place is not None

    cluster.run(scenario)
    assert set(asked(cluster)) == {(N3.node_id, AskMode.FETCH, 0)}


def test_a_reader_of_the_origin_that_cannot_is_replaced_by_the_next_one_and_in_the_end_by_this_node() -> None:
    cluster = a_cluster(nowhere())
    cluster.origins = origin = MemoryOrigin(N3, N1, ME)

    async def scenario(fetcher: Fetcher) -> None:
        await fetcher.whole(SEGMENT, timeout=5)
        assert cluster.keeper.missing(SEGMENT) == []

    cluster.run(scenario)
    assert [node for node, _, _ in asked(cluster)] == [N3.node_id, N1.node_id]
    assert len(origin.reads) == len(CHUNKS)


def test_a_question_for_the_origin_that_was_passed_on_says_so_when_it_is_passed_on_again() -> None:
    cluster = a_cluster(nowhere())
    cluster.origins = MemoryOrigin(N3)
    cluster.network.ends[N3.node_id] = FeedEnd(True)

    async def scenario(fetcher: Fetcher) -> None:
        with fetcher.followed(SEGMENT, CHUNKS[:2], waits=True, hops=1) as following:
            while not cluster.network.asks:  # noqa: ASYNC110 - the scenario's deadline ends it
                await asyncio.sleep(0.01)
            cluster.network.holdings[N3.node_id] = dict(ALL)
            came = set[ChunkId]()
            while len(came) < 2:
                came |= {one.chunk_id for one in await following.arrived(5)}

    cluster.run(scenario)
    assert {hops for _, _, hops in asked(cluster)} == {1}


def test_where_the_reader_of_the_origin_is_late_a_reader_here_may_have_its_bytes_past_it() -> None:
    cluster = a_cluster(nowhere())
    cluster.origins = origin = MemoryOrigin(N3)
    origin.patient = False
    cluster.network.ends[N3.node_id] = FeedEnd(True)

    async def scenario(fetcher: Fetcher) -> None:
        assert (await fetcher.chunk(SEGMENT, CHUNKS[4], timeout=5, fill=False)).place is not None

    cluster.run(scenario)
    assert origin.bypasses == [(N3.node_id, len(DATA[4]))]
    assert origin.reads == [CHUNKS[4].chunk_id]
    assert origin.given == [(N3.node_id, CHUNKS[4].chunk_id)]


def test_an_origin_that_cannot_be_read_is_named_in_the_error() -> None:
    cluster = a_cluster(nowhere())
    cluster.origins = origin = MemoryOrigin(ME)
    origin.broken = "dir:/data is gone"

    async def scenario(fetcher: Fetcher) -> None:
        with pytest.raises(ChunkUnavailable, match="dir:/data is gone"):
            await fetcher.chunk(SEGMENT, CHUNKS[0], timeout=0.5)

    cluster.run(scenario)


def test_who_follows_a_fill_is_told_what_lands_and_when_nothing_more_will() -> None:
    cluster = a_cluster(nowhere(), Course(N2, (), 1))
    cluster.network.holdings[N2.node_id] = {chunk.chunk_id: DATA[chunk.run] for chunk in CHUNKS[:4]}

    async def scenario(fetcher: Fetcher) -> None:
        with fetcher.followed(SEGMENT, CHUNKS, waits=False) as following:
            came = set[ChunkId]()
            while not following.reason:
                came |= {one.chunk_id for one in await following.arrived(5)}
            assert came == {chunk.chunk_id for chunk in CHUNKS[:4]}
            assert [chunk.run for chunk in following.outstanding.values()] == [4, 5]

    cluster.run(scenario)


@pytest.mark.expect_warnings
def test_what_cannot_be_stored_is_passed_on_from_memory() -> None:
    cluster = a_cluster(everywhere(), Course(N2, (), 1))
    cluster.keeper.full = True

    async def scenario(fetcher: Fetcher) -> None:
        with fetcher.followed(SEGMENT, CHUNKS, waits=False) as following:
            came: dict[ChunkId, bytes] = {}
            while following.outstanding:
                came |= {one.chunk_id: one.landed.data for one in await following.arrived(5)}
            assert came == ALL

    cluster.run(scenario)


def test_a_home_that_is_slow_is_not_waited_for_while_another_one_has_the_chunk() -> None:
    cluster = a_cluster({})
    slow, other = cluster.order()[:2]
    holdings = {a_peer(number).node_id: dict[ChunkId, bytes]() for number in range(1, 5)}
    holdings[slow] = holdings[other] = dict(ALL)
    cluster.network = cluster.segments = peers = SilentPeers(holdings, slow)

    async def scenario(fetcher: Fetcher) -> None:
        landed = await fetcher.chunk(SEGMENT, CHUNKS[3], timeout=5, fill=False)
        assert landed.place is not None
        assert not peers.go_on.is_set()
        peers.go_on.set()

    cluster.run(scenario)
    assert peers.fetched == [(other, CHUNKS[3].chunk_id)]


def test_a_gateway_that_sends_hardly_anything_is_not_waited_for_while_a_home_has_the_chunk() -> None:
    cluster = a_cluster(everywhere(), Course(None, (N2,), 0))
    cluster.network.holdings[N2.node_id] = {CHUNKS[0].chunk_id: DATA[0]}
    cluster.network = cluster.segments = dripping = Dripping(cluster.network.holdings)

    async def scenario(fetcher: Fetcher) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                readers = [
                    group.create_task(fetcher.chunk(SEGMENT, chunk, timeout=10, fill=False)) for chunk in CHUNKS[:2]
                ]
            assert all(reader.result().place is not None for reader in readers)
            assert dripping.dripped.is_set() and not dripping.go_on.is_set()
        finally:
            dripping.go_on.set()

    cluster.run(scenario)


def test_nobody_says_that_a_chunk_is_nowhere_before_a_slow_peer_has_answered() -> None:
    cluster = a_cluster({})
    slow = cluster.order()[0]
    holdings = {a_peer(number).node_id: dict[ChunkId, bytes]() for number in range(1, 5)}
    cluster.network = cluster.segments = peers = SilentPeers(holdings, slow)

    async def scenario(fetcher: Fetcher) -> None:
        with pytest.raises(ChunkUnavailable, match=r"within 1\.2 s"):
            await fetcher.chunk(SEGMENT, CHUNKS[3], timeout=1.2, fill=False)
        assert set(peers.asked) == {a_peer(number).node_id for number in range(1, 5)}
        peers.go_on.set()

    cluster.run(scenario)


def test_what_was_left_to_a_fill_that_then_fails_is_asked_for_everywhere_before_it_is_given_up() -> None:
    cluster = a_cluster(everywhere(), Course(N2, (), 1))
    cluster.network.holdings = {a_peer(number).node_id: {} for number in range(1, 5)}
    cluster.network.holdings[N2.node_id] = {CHUNKS[0].chunk_id: DATA[0]}
    cluster.network = cluster.segments = dripping = Dripping(cluster.network.holdings)
    cluster.origins = origin = MemoryOrigin(N1, ME)

    async def scenario(fetcher: Fetcher) -> None:
        fetcher.ahead(SEGMENT)
        assert await asyncio.to_thread(dripping.dripped.wait, 10)
        cluster.settled = False  # so that the fill does not come to the origin
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(fetcher.chunk(SEGMENT, CHUNKS[5], timeout=5))
            await asyncio.sleep(0)
            dripping.go_on.set()
        assert reader.result().place is not None

    cluster.run(scenario)
    assert CHUNKS[5].chunk_id in origin.reads


def test_the_origin_s_reader_asks_no_gateway_which_would_ask_it() -> None:
    cluster = a_cluster(everywhere(), Course(N3, (N1,), 2))
    cluster.network.holdings = {a_peer(number).node_id: {} for number in range(1, 5)}
    cluster.origins = MemoryOrigin(ME)

    async def scenario(fetcher: Fetcher) -> None:
        await fetcher.chunk(SEGMENT, CHUNKS[1], timeout=5, fill=False)

    cluster.run(scenario)
    assert asked(cluster) == []


class HalfOfIt(MemoryOrigin):
    """An origin that lacks a chunk, and tells when a reader was told so."""

    def __init__(self, *order: Peer, data: dict[ChunkId, bytes]) -> None:
        super().__init__(*order, data=data)
        self.refused = threading.Event()

    def read(
        self, segment: Segment, wanted: Sequence[Wanted], deliver: Callable[[int, memoryview], None], *, urgent: bool
    ) -> list[int]:
        absent = super().read(segment, wanted, deliver, urgent=urgent)
        if absent and urgent:
            self.refused.set()
        return absent


class SlowToFill(MemoryPeers):
    """A peer that takes its time until `go_on` with questions for several chunks, as a fill has them."""

    def __init__(self, holdings: dict[NodeId, dict[ChunkId, bytes]], slow: NodeId, go_on: threading.Event) -> None:
        super().__init__(holdings)
        self.slow, self.go_on = slow, go_on

    def fetch(
        self, peer: Peer, wanted: Sequence[tuple[ChunkId, int]], deliver: Deliver, *, timeout: float
    ) -> list[int]:
        if peer.node_id == self.slow and len(wanted) > 1:
            assert self.go_on.wait(10)
        return super().fetch(peer, wanted, deliver, timeout=timeout)


def test_a_chunk_that_the_origin_lacks_keeps_the_fill_from_nothing_else() -> None:
    cluster = a_cluster(nowhere())
    lacks = CHUNKS[3].chunk_id
    cluster.origins = origin = HalfOfIt(ME, data={name: data for name, data in ALL.items() if name != lacks})
    cluster.network = SlowToFill(cluster.network.holdings, cluster.order()[1], origin.refused)
    cluster.segments = cluster.network

    async def scenario(fetcher: Fetcher) -> None:
        with pytest.raises(ChunkUnavailable):
            await fetcher.chunk(SEGMENT, CHUNKS[3], timeout=10)
        for chunk in (*CHUNKS[:3], *CHUNKS[4:]):
            assert (await fetcher.chunk(SEGMENT, chunk, timeout=5)).place is not None

    cluster.run(scenario)
    assert len(origin.reads) == len(CHUNKS) - 1


def test_what_the_fill_asked_nobody_for_is_not_taken_for_lost() -> None:
    lacks = CHUNKS[3].chunk_id
    flight = Flight(SEGMENT, None, lambda: 100.0)
    flight.begin(CHUNKS)
    flight.fills = True
    flight.fill_begins()
    flight.fill.thorough = True
    flight.fill.lacking.add(lacks)
    flight.fill.asked()
    flight.fill_ended()
    assert flight.nowhere() == [lacks]
    flight.fill_begins()
    flight.fill_ended(over=False)
    assert flight.nowhere() == []


def test_who_waits_for_what_has_changed_hears_so_at_once_whoever_does_not_answer() -> None:
    cluster = a_cluster(nowhere())
    gone = CHUNKS[3].chunk_id
    cluster.origins = origin = MemoryOrigin(ME, data={name: data for name, data in ALL.items() if name != gone})
    origin.changes = {gone: "s3://b/k has changed: version 1 then, 2 now"}
    cluster.absent = ("a node that is away",)
    attempts = list[bool]()
    origin.looked = lambda chunks: attempts.append(gone in chunks)

    async def scenario(fetcher: Fetcher) -> None:
        with pytest.raises(ChunkUnavailable, match="version 1 then, 2 now"):
            await fetcher.chunk(SEGMENT, CHUNKS[3], timeout=15)
        assert (await fetcher.chunk(SEGMENT, CHUNKS[2], timeout=5)).place is not None

    cluster.run(scenario)
    assert attempts.count(True) <= 2, "once for the reader, and perhaps once by the fill"


def test_a_peer_that_waits_hears_why_the_last_of_what_it_asked_for_does_not_come() -> None:
    cluster = a_cluster(nowhere())
    gone = CHUNKS[3].chunk_id
    cluster.origins = origin = MemoryOrigin(ME, data={name: data for name, data in ALL.items() if name != gone})
    origin.changes = {gone: "s3://b/k has changed"}
    cluster.absent = ("a node that is away",)

    async def scenario(fetcher: Fetcher) -> None:
        with fetcher.followed(SEGMENT, CHUNKS[2:5], waits=True) as following:
            came = set[ChunkId]()
            while not following.reason:
                came |= {one.chunk_id for one in await following.arrived(5)}
            assert came == {CHUNKS[2].chunk_id, CHUNKS[4].chunk_id}
            assert following.reason == "s3://b/k has changed"

    cluster.run(scenario)
