"""Which homes are asked for which segments, and what happens when they do not take them."""

import asyncio
from collections.abc import Sequence

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


def test_what_a_home_did_not_store_is_asked_of_another() -> None:
    copies = Copies(view(3), KEYS, 3)
    first = copies.next_round()
    for home, segments in first.items():
        copies.answered(home, segments, segments[1:])
    assert copies.next_round() == {}, "three nodes for three copies: nobody else is left"
    assert set(copies.under_replicated()) == {segments[0] for segments in first.values()}
