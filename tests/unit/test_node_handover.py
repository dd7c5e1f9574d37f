"""Which homes are asked for which segments, and what happens when they do not take them."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from hoard_p2p.errors import PeerUnavailable
from hoard_p2p.ids import ChunkId, chunk_id
from hoard_p2p.node.handover import Copies, hand_over
from hoard_p2p.peer import ClusterView, NodeId, Peer
from hoard_p2p.placement import homes

KEYS = {segment: ChunkId(chunk_id(b"%d" % segment)) for segment in range(60)}


def peer(number: int, rack: str = "") -> Peer:
    return Peer(NodeId(bytes([number]) * 16), 1, f"n{number}", rack, "127.0.0.1", 1000 + number, 1 << 20)


def view(count: int, racks: int = 1) -> ClusterView:
    peers = tuple(peer(number, f"r{number % racks}") for number in range(count))
    return ClusterView(peers[0].node_id, peers)


def spread(copies: Copies, refusing: frozenset[str] = frozenset()) -> tuple[list[int], dict[str, set[int]]]:
    """Hand over; the segments short of copies, and what each peer took."""
    taken: dict[str, set[int]] = {}

    async def adopt(home: Peer, segments: Sequence[int]) -> Sequence[int]:
        if home.name in refusing:
            raise PeerUnavailable(f"{home.name} is away")
        taken.setdefault(home.name, set()).update(segments)
        return segments

    async def report(settled: int) -> None:
        assert 0 <= settled <= len(KEYS)

    return asyncio.run(hand_over(copies, adopt, report)), taken


def test_every_segment_goes_to_its_homes_and_nowhere_else() -> None:
    cluster = view(5, racks=2)
    short, taken = spread(Copies(cluster, KEYS, 2))
    assert short == []
    for segment, key in KEYS.items():
        expected = {home.name for home in homes(cluster.peers, key, 2)} - {"n0"}
        assert {name for name, segments in taken.items() if segment in segments} == expected


def test_a_cluster_of_one_is_asked_nothing() -> None:
    copies = Copies(view(1), KEYS, 2)
    assert copies.next_round() == {}
    assert copies.under_replicated() == []
    assert copies.mine() == list(KEYS)


@pytest.mark.expect_warnings
def test_the_next_node_in_order_takes_the_place_of_a_home_that_is_away() -> None:
    short, taken = spread(Copies(view(4), KEYS, 2), refusing=frozenset({"n1"}))
    assert short == []
    assert "n1" not in taken
    assert set().union(*taken.values()) == set(KEYS)


@pytest.mark.expect_warnings
def test_segments_that_nobody_else_takes_are_under_replicated() -> None:
    short, taken = spread(Copies(view(2), KEYS, 2), refusing=frozenset({"n1"}))
    assert taken == {}
    assert sorted(short) == sorted(KEYS)


@pytest.mark.expect_warnings
def test_what_is_settled_and_short_agrees_with_a_recount_after_every_answer() -> None:
    random = Random(5)
    cluster = view(9, racks=3)
    copies = Copies(cluster, KEYS, 3)
    holders = {segment: {"n0"} if segment in copies.mine() else set() for segment in KEYS}
    asked: dict[int, list[str]] = {segment: [] for segment in KEYS}

    async def adopt(home: Peer, segments: Sequence[int]) -> Sequence[int]:
        await asyncio.sleep(0)
        if random.random() < 0.3:
            raise PeerUnavailable(f"{home.name} is away")
        stored = [segment for segment in segments if random.random() < 0.8]
        for segment in segments:
            assert home.name not in asked[segment], "nobody is asked twice"
            asked[segment].append(home.name)
        for segment in stored:
            holders[segment].add(home.name)
        return [*stored, *stored, 10**9]  # a home may claim anything

    async def report(settled: int) -> None:
        assert settled == sum(len(names) >= 3 for names in holders.values())

    short = asyncio.run(hand_over(copies, adopt, report))
    assert short == [segment for segment, names in holders.items() if len(names) < 3]
    assert copies.settled() == len(KEYS) - len(short)


def test_nodes_are_asked_in_the_order_of_placement_until_nobody_is_left() -> None:
    cluster = view(9, racks=3)
    copies = Copies(cluster, KEYS, 2)
    asked: dict[int, list[str]] = {segment: [] for segment in KEYS}
    while plan := copies.next_round():
        for home, segments in plan.items():
            copies.answered(home, segments, ())
            for segment in segments:
                asked[segment].append(home.name)
    for segment, key in KEYS.items():
        order = [home.name for home in homes(cluster.peers, key, 9) if home.name != "n0"]
        needed = 1 if segment in copies.mine() else 2
        rounds = [asked[segment][at : at + needed] for at in range(0, 8, needed)]
        assert sorted(asked[segment]) == sorted(order)
        assert [set(names) for names in rounds] == [set(order[at : at + needed]) for at in range(0, 8, needed)]


def test_planning_does_not_hold_up_the_event_loop() -> None:
    planned_in: set[str] = set()

    class Watched(Copies):
        def next_round(self) -> dict[Peer, list[int]]:
            planned_in.add(threading.current_thread().name)
            return super().next_round()

    async def adopt(home: Peer, segments: Sequence[int]) -> Sequence[int]:
        return segments

    async def report(settled: int) -> None:
        return

    with ThreadPoolExecutor(1, "planner") as pool:
        assert asyncio.run(hand_over(Watched(view(4), KEYS, 2), adopt, report, executor=pool)) == []
    assert planned_in == {"planner_0"}


def test_what_a_home_did_not_store_is_asked_of_another() -> None:
    copies = Copies(view(3), KEYS, 3)
    first = copies.next_round()
    for home, segments in first.items():
        copies.answered(home, segments, segments[1:])
    assert copies.next_round() == {}, "three nodes for three copies: nobody else is left"
    assert set(copies.under_replicated()) == {segments[0] for segments in first.values()}
