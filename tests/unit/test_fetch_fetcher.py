"""Who is asked for a chunk, in which order, and what a reader gets when things go wrong."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from hoard_p2p.errors import ChunkUnavailable
from hoard_p2p.fetch.fetcher import AHEAD_FLIGHTS, Fetcher
from hoard_p2p.fetch.segment import BATCH_BYTES, Segment, Wanted, next_batch
from hoard_p2p.fetch.turns import AT_ONCE
from hoard_p2p.ids import ChunkId, chunk_id
from hoard_p2p.interfaces import Residency
from hoard_p2p.peer import ClusterView
from hoard_p2p.testing.memory import MemorySink
from hoard_p2p.testing.network import a_peer
from tests.unit.fetch_cluster import (
    ALL,
    CHUNKS,
    DATA,
    ME,
    SEGMENT,
    SNAPSHOT,
    Cluster,
    GatedPeers,
    SilentPeers,
    everywhere,
)


def test_the_first_home_is_asked_and_the_whole_segment_arrives() -> None:
    cluster = Cluster(everywhere())

    async def scenario(fetcher: Fetcher) -> None:
        landed = await fetcher.chunk(SEGMENT, CHUNKS[4], timeout=5)
        assert landed.place is not None
        await fetcher.whole(SEGMENT, timeout=5)
        assert cluster.keeper.missing(SEGMENT) == []
        assert fetcher.received == sum(map(len, DATA))

    cluster.run(scenario)
    assert {node for node, _ in cluster.network.fetched} == {cluster.order()[0]}
    assert cluster.network.fetched[0][1] == CHUNKS[4].chunk_id, "the chunk that is waited for comes first"
    assert len(cluster.network.fetched) == len(CHUNKS), "each chunk came once"


def test_a_home_that_does_not_answer_is_reported_and_the_next_one_asked() -> None:
    cluster = Cluster(everywhere())
    first, second = cluster.order()[:2]
    del cluster.network.holdings[first]

    async def scenario(fetcher: Fetcher) -> None:
        assert (await fetcher.chunk(SEGMENT, CHUNKS[0], timeout=5)).place is not None

    cluster.run(scenario)
    assert set(cluster.failed) == {first}
    assert {node for node, _ in cluster.network.fetched} == {second}


@pytest.mark.expect_warnings
def test_a_home_that_sends_wrong_bytes_is_shunned_and_counted() -> None:
    cluster = Cluster(everywhere())
    liar = cluster.order()[0]
    cluster.network.holdings[liar] = {identifier: b"x" * len(data) for identifier, data in ALL.items()}

    async def scenario(fetcher: Fetcher) -> None:
        await fetcher.whole(SEGMENT, timeout=5)
        assert cluster.keeper.missing(SEGMENT) == []

    cluster.run(scenario)
    assert cluster.favour.counted == {liar: 1}
    assert all(cluster.keeper.sink.chunks.get(identifier) == data for identifier, data in ALL.items())


def test_a_holder_that_is_no_home_is_found_by_its_residency_record() -> None:
    cluster = Cluster({number: {} for number in range(1, 5)})
    holder = cluster.order()[3]
    cluster.network.holdings[holder] = dict(ALL)
    cluster.records = {holder}

    async def scenario(fetcher: Fetcher) -> None:
        await fetcher.whole(SEGMENT, timeout=5)
        assert cluster.keeper.missing(SEGMENT) == []

    cluster.run(scenario)
    assert {node for node, _ in cluster.network.fetched} == {holder}


def test_chunks_spread_over_peers_that_no_record_names_are_gathered() -> None:
    holdings = {
        number: {chunk.chunk_id: DATA[chunk.run] for chunk in CHUNKS if chunk.run % 4 + 1 == number}
        for number in range(1, 5)
    }
    cluster = Cluster(holdings)

    async def scenario(fetcher: Fetcher) -> None:
        await fetcher.whole(SEGMENT, timeout=5)
        assert cluster.keeper.missing(SEGMENT) == []

    cluster.run(scenario)
    assert cluster.keeper.ends == [True]


def test_a_chunk_that_every_member_lacks_fails_at_once_and_names_whom_it_asked() -> None:
    cluster = Cluster({number: {} for number in range(1, 5)})

    async def scenario(fetcher: Fetcher) -> None:
        with pytest.raises(ChunkUnavailable, match="anywhere") as caught:
            await fetcher.chunk(SEGMENT, CHUNKS[0], timeout=1000)
        assert all(f"n{number} " in str(caught.value) for number in range(1, 5))

    cluster.run(scenario)


def test_while_a_member_is_away_a_reader_waits_until_its_deadline() -> None:
    cluster = Cluster({number: {} for number in range(1, 5)})
    cluster.absent = ("n9",)

    async def scenario(fetcher: Fetcher) -> None:
        with pytest.raises(ChunkUnavailable, match=r"within 0\.6 s; not answering: n9"):
            await fetcher.chunk(SEGMENT, CHUNKS[0], timeout=0.6)

    cluster.run(scenario)


def test_where_every_other_member_is_away_the_error_names_those_and_nobody_else() -> None:
    cluster = Cluster({})
    cluster.view = ClusterView(ME.node_id, (ME,))
    cluster.absent = ("n9 (10.0.0.9:7440)",)

    async def scenario(fetcher: Fetcher) -> None:
        with pytest.raises(ChunkUnavailable, match=r"within 0\.3 s; not answering: n9 \(10\.0\.0\.9:7440\)$"):
            await fetcher.chunk(SEGMENT, CHUNKS[0], timeout=0.3)

    cluster.run(scenario)


def test_a_member_that_comes_back_is_asked_again() -> None:
    cluster = Cluster({number: {} for number in range(1, 5)})
    home = cluster.order()[0]
    del cluster.network.holdings[home]

    async def scenario(fetcher: Fetcher) -> None:
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(fetcher.chunk(SEGMENT, CHUNKS[0], timeout=15))
            await asyncio.wait_for(cluster.failure.wait(), 5)
            cluster.network.holdings[home] = dict(ALL)
        assert reader.result().place is not None

    cluster.run(scenario)


@pytest.mark.expect_warnings
def test_a_full_disk_fails_no_read() -> None:
    cluster = Cluster(everywhere())
    cluster.keeper.full = True

    async def scenario(fetcher: Fetcher) -> None:
        landed = await fetcher.chunk(SEGMENT, CHUNKS[2], timeout=5)
        assert (landed.place, landed.data) == (None, DATA[2])

    cluster.run(scenario)


@pytest.mark.expect_warnings
def test_on_a_full_disk_a_reader_that_comes_after_its_chunk_did_gets_it_too() -> None:
    cluster = Cluster(everywhere())
    cluster.keeper.full = True
    cluster.network = gated = GatedPeers(cluster.network.holdings, stop_after=2)

    async def scenario(fetcher: Fetcher) -> None:
        fetcher.ahead(SEGMENT)
        assert await asyncio.to_thread(gated.stopped.wait, 10)
        async with asyncio.TaskGroup() as group:
            late = group.create_task(fetcher.chunk(SEGMENT, CHUNKS[1], timeout=5))
            await asyncio.sleep(0)
            gated.go_on.set()
        assert late.result().data == DATA[1]

    cluster.run(scenario)


def test_a_peer_that_stalls_does_not_hold_up_a_fetch_with_a_deadline() -> None:
    cluster = Cluster(everywhere())
    cluster.network = gated = GatedPeers(cluster.network.holdings)

    async def scenario(fetcher: Fetcher) -> None:
        await fetcher.whole(SEGMENT, timeout=0.2)
        assert cluster.keeper.missing(SEGMENT) == list(CHUNKS)
        gated.go_on.set()

    cluster.run(scenario)


def test_all_peers_are_asked_for_a_catalog_whatever_their_records_say() -> None:
    cluster = Cluster({number: {} for number in range(1, 5)}, records=(1, 2, 3, 4))
    last = cluster.order()[3]
    cluster.network.holdings[last] = dict(ALL)
    catalog = Segment(SNAPSHOT, -1, CHUNKS, CHUNKS[-1].chunk_id)

    async def scenario(fetcher: Fetcher) -> None:
        await fetcher.whole(catalog, timeout=5)
        assert cluster.keeper.missing(catalog) == []

    cluster.run(scenario)
    assert not Residency(SNAPSHOT, last, 1, b"\xff").holds(-1)
    assert not Residency(SNAPSHOT, last, 1, b"").holds(-1)


def test_readers_of_one_segment_share_one_flight() -> None:
    cluster = Cluster(everywhere())
    cluster.network = gated = GatedPeers(cluster.network.holdings)

    async def scenario(fetcher: Fetcher) -> None:
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(fetcher.chunk(SEGMENT, chunk, timeout=5)) for chunk in CHUNKS * 3]
            await asyncio.sleep(0)
            gated.go_on.set()
        assert all(reader.result().place for reader in readers)

    cluster.run(scenario)
    assert len(cluster.network.fetched) == len(CHUNKS)


def test_a_chunk_that_is_lost_while_its_segment_is_on_its_way_is_looked_for_again() -> None:
    cluster = Cluster(everywhere())
    lost = CHUNKS[2]
    cluster.keeper.sink.put(lost.chunk_id, DATA[2])
    cluster.network = gated = GatedPeers(cluster.network.holdings)

    async def scenario(fetcher: Fetcher) -> None:
        fetcher.ahead(SEGMENT)
        assert await asyncio.to_thread(gated.stopped.wait, 10)
        cluster.keeper.sink = MemorySink()
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(fetcher.chunk(SEGMENT, lost, timeout=5))
            await asyncio.sleep(0)
            gated.go_on.set()
        assert reader.result().place is not None

    cluster.run(scenario)


@pytest.mark.expect_warnings
def test_a_peer_with_one_damaged_chunk_gives_all_the_others_if_nobody_else_has_them() -> None:
    cluster = Cluster({number: {} for number in range(1, 5)})
    only = cluster.order()[1]
    cluster.network.holdings[only] = {**ALL, CHUNKS[1].chunk_id: b"x" * len(DATA[1])}

    async def scenario(fetcher: Fetcher) -> None:
        with pytest.raises(ChunkUnavailable, match=r"sent wrong bytes"):
            await fetcher.chunk(SEGMENT, CHUNKS[1], timeout=5)
        assert cluster.keeper.missing(SEGMENT) == [CHUNKS[1]]

    cluster.run(scenario)


def test_without_fill_a_flight_brings_what_is_waited_for_and_nothing_else() -> None:
    cluster = Cluster(everywhere())
    cluster.network = gated = GatedPeers(cluster.network.holdings)

    async def scenario(fetcher: Fetcher) -> None:
        async with asyncio.TaskGroup() as group:
            for chunk in (CHUNKS[1], CHUNKS[3]):
                group.create_task(fetcher.chunk(SEGMENT, chunk, timeout=5, fill=False))
            await asyncio.sleep(0)
            group.create_task(fetcher.chunk(SEGMENT, CHUNKS[5], timeout=5, fill=False))
            gated.go_on.set()

    cluster.run(scenario)
    assert {chunk for _, chunk in cluster.network.fetched} == {CHUNKS[number].chunk_id for number in (1, 3, 5)}


def test_without_fill_a_chunk_that_is_asked_for_late_is_looked_for_at_every_peer() -> None:
    cluster = Cluster({number: {} for number in range(1, 5)})
    first, second = cluster.order()[:2]
    cluster.network = gated = GatedPeers(cluster.network.holdings, stop_after=0)
    gated.holdings[first] = {CHUNKS[2].chunk_id: DATA[2]}
    gated.holdings[second] = {CHUNKS[0].chunk_id: DATA[0]}

    async def scenario(fetcher: Fetcher) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fetcher.chunk(SEGMENT, CHUNKS[0], timeout=5, fill=False))
            gated.go_on.clear()
            assert await asyncio.to_thread(gated.stopped.wait, 10)  # the second peer is sending: the first was asked
            late = group.create_task(fetcher.chunk(SEGMENT, CHUNKS[2], timeout=5, fill=False))
            await asyncio.sleep(0)
            gated.go_on.set()
        assert late.result().place is not None

    cluster.run(scenario)


def segment(number: int) -> Segment:
    """Another segment, of one chunk that is found at every peer that has it."""
    data = b"segment %d" % number
    chunk = Wanted(number, chunk_id(data), len(data))
    return Segment(SNAPSHOT, number, (chunk,), SEGMENT.key)


def data_of(segments: Sequence[Segment]) -> dict[ChunkId, bytes]:
    return {part.chunks[0].chunk_id: b"segment %d" % part.number for part in segments}


def test_a_miss_is_not_delayed_by_a_full_plan_of_segments_to_fetch_ahead() -> None:
    segments = [segment(number) for number in range(100, 140)]
    cluster = Cluster({number: {**ALL, **data_of(segments)} for number in range(1, 5)})
    cluster.network = gated = GatedPeers(cluster.network.holdings)
    started = threading.Semaphore(0)
    cluster.keeper.looked = started.release
    ended: list[int] = []

    async def scenario(fetcher: Fetcher) -> None:
        for part in segments:
            fetcher.ahead(part, lambda number=part.number: ended.append(number))  # type: ignore[misc]  # bound now
        for _ in range(AHEAD_FLIGHTS):
            assert await asyncio.to_thread(started.acquire, timeout=10)
        assert not started.acquire(blocking=False), "more flights ahead than may be"
        async with asyncio.TaskGroup() as group:
            miss = group.create_task(fetcher.chunk(SEGMENT, CHUNKS[0], timeout=10))
            planned = group.create_task(fetcher.chunk(segments[-1], segments[-1].chunks[0], timeout=10))
            for _ in range(2):  # both are started though every flight ahead is stuck
                assert await asyncio.to_thread(started.acquire, timeout=10)
            gated.go_on.set()
        assert miss.result().place is not None
        assert planned.result().place is not None
        while len(ended) < len(segments):  # noqa: ASYNC110 - the scenario's deadline ends it
            await asyncio.sleep(0.01)

    cluster.run(scenario)
    assert sorted(ended) == [part.number for part in segments]


def test_when_the_last_reader_left_nothing_more_is_fetched_ahead() -> None:
    segments = [segment(number) for number in range(100, 140)]
    cluster = Cluster({number: data_of(segments) for number in range(1, 5)})
    cluster.network = gated = GatedPeers(cluster.network.holdings)
    ended: list[int] = []

    async def scenario(fetcher: Fetcher) -> None:
        for part in segments:
            fetcher.ahead(part, lambda number=part.number: ended.append(number))  # type: ignore[misc]  # bound now
        fetcher.stop_ahead(SNAPSHOT)
        gated.go_on.set()

    cluster.run(scenario)
    assert sorted(ended) == [part.number for part in segments]
    assert len(cluster.network.fetched) <= AHEAD_FLIGHTS


def test_a_storm_of_reads_of_what_nobody_has_asks_each_peer_once_or_twice() -> None:
    cluster = Cluster({})
    cluster.network = peers = SilentPeers({a_peer(number).node_id: {} for number in range(1, 5)}, ME.node_id)

    async def scenario(fetcher: Fetcher) -> None:
        for _ in range(20):
            for chunk in CHUNKS:
                with pytest.raises(ChunkUnavailable, match=r"anywhere .*: lacks it"):
                    await fetcher.chunk(SEGMENT, chunk, timeout=5)

    cluster.run(scenario)
    assert max(peers.asked.values()) <= 4, "once by each lane, and again if a second went by meanwhile"


@pytest.mark.expect_warnings
def test_an_error_names_who_was_asked_and_why_that_was_in_vain_in_one_short_line() -> None:
    cluster = Cluster({number: {} for number in range(1, 5)})
    away = cluster.order()[0]
    del cluster.network.holdings[away]
    cluster.favour.shun(cluster.order()[1], 100.0)
    cluster.network.holdings[cluster.order()[1]] = {CHUNKS[0].chunk_id: b"x" * len(DATA[0])}

    async def scenario(fetcher: Fetcher) -> None:
        with pytest.raises(ChunkUnavailable) as caught:
            await fetcher.chunk(SEGMENT, CHUNKS[0], timeout=0.1)
        message = str(caught.value)
        assert "within 0.1 s" in message
        for reason in ("cannot be reached", "lacks it", "sent wrong bytes"):
            assert reason in message
        assert "\n" not in message
        assert len(message) < 1500

    cluster.run(scenario)


def test_a_thousand_readers_that_only_an_absent_peer_could_help_do_not_keep_others_waiting() -> None:
    segments = [segment(number) for number in range(1000, 2000)]
    here = segment(7)
    cluster = Cluster({})
    silent = cluster.order()[0]
    holdings = {a_peer(number).node_id: dict[ChunkId, bytes]() for number in range(1, 5)}
    holdings[cluster.order()[2]] = data_of([here])
    cluster.records = {cluster.order()[2]}
    cluster.network = peers = SilentPeers(holdings, silent)

    async def scenario(fetcher: Fetcher) -> None:
        async with asyncio.TaskGroup() as group:
            parked = [group.create_task(fetcher.chunk(part, part.chunks[0], timeout=60)) for part in segments]
            while peers.asked[silent] < AT_ONCE:  # noqa: ASYNC110 - the scenario's deadline ends it
                await asyncio.sleep(0.01)
            cluster.favour.shun(silent, 100.0)  # so that it is not the first that the next reader's flight asks
            found = await fetcher.chunk(here, here.chunks[0], timeout=15)
            assert found.place is not None
            assert not any(reader.done() for reader in parked)
            assert peers.asked[silent] <= 2 * AT_ONCE, "an absent peer holds a part of the threads, not all of them"
            peers.go_on.set()
            await asyncio.sleep(0)
            for reader in parked:
                reader.cancel()

    cluster.run(scenario)
    assert peers.asked[silent] < 100, "a thousand misses are not a thousand attempts"


def test_a_flight_that_nobody_waits_for_any_more_ends() -> None:
    cluster = Cluster({number: {} for number in range(1, 5)})
    cluster.absent = ("n9",)

    async def scenario(fetcher: Fetcher) -> None:
        with pytest.raises(ChunkUnavailable):
            await fetcher.chunk(SEGMENT, CHUNKS[0], timeout=0.1)

    cluster.run(scenario)  # returns: the flight's task is in the group


def test_a_batch_begins_with_what_is_waited_for_and_is_bounded() -> None:
    chunks = [Wanted(run, ChunkId(bytes([run]) * 32), 6 << 20) for run in range(10)]
    batch = next_batch(chunks, {chunks[7].chunk_id})
    assert [chunk.run for chunk in batch] == [7, 0]
    assert sum(chunk.length for chunk in batch) <= BATCH_BYTES
    huge = [Wanted(0, ChunkId(b"x" * 32), BATCH_BYTES + 1)]
    assert next_batch(huge, ()) == huge
