"""Laws of placement: the same view gives the same plan, shares follow weights, racks differ, little moves."""

import math
import random
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.placement import homes, rank, weight_of

GIB = 1 << 30


def peer(source: random.Random, *, racks: int = 1, weight: int | None = None) -> Peer:
    node_id = NodeId(source.randbytes(16))
    weight = weight or weight_of(source.randrange(100 * GIB, 4000 * GIB))
    return Peer(node_id, 1, node_id.hex()[:6], f"r{source.randrange(racks)}", "10.0.0.1", 1, weight)


def cluster(seed: int, nodes: int, racks: int) -> list[Peer]:
    source = random.Random(seed)
    return [peer(source, racks=racks) for _ in range(nodes)]


def keys(seed: int, count: int) -> list[bytes]:
    source = random.Random(seed)
    return [source.randbytes(32) for _ in range(count)]


CLUSTERS = st.builds(cluster, st.integers(0, 1 << 20), st.integers(1, 24), st.integers(1, 6))
REPLICAS = st.integers(1, 4)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(CLUSTERS, REPLICAS, st.integers(0, 1 << 20), st.randoms(use_true_random=False))
def test_the_same_peers_in_any_order_give_the_same_homes(
    members: list[Peer], replicas: int, seed: int, order: random.Random
) -> None:
    shuffled = order.sample(members, len(members))
    for key in keys(seed, 5):
        assert homes(shuffled, key, replicas) == homes(members, key, replicas)
        assert rank(shuffled, key) == rank(members, key)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(CLUSTERS, REPLICAS, st.integers(0, 1 << 20))
def test_homes_are_distinct_nodes_in_distinct_racks_while_there_are_racks(
    members: list[Peer], replicas: int, seed: int
) -> None:
    racks = {member.rack for member in members}
    for key in keys(seed, 5):
        chosen = homes(members, key, replicas)
        assert len(set(chosen)) == len(chosen) == min(replicas, len(members))
        assert len({home.rack for home in chosen}) == min(replicas, len(racks), len(members))
        assert chosen == homes(members, key, len(members))[:replicas]
        assert chosen[0] == rank(members, key)[0]


@settings(derandomize=True, deadline=None, max_examples=60)
@given(CLUSTERS, REPLICAS, st.integers(0, 1 << 20), st.integers(1, 6))
def test_a_node_that_joins_takes_the_place_of_at_most_one_home(
    members: list[Peer], replicas: int, seed: int, racks: int
) -> None:
    joiner = peer(random.Random(seed + 1), racks=racks)
    for key in keys(seed, 10):
        before, after = set(homes(members, key, replicas)), set(homes([*members, joiner], key, replicas))
        assert after - before <= {joiner}
        assert len(before - after) <= 1
        if joiner not in after:
            assert before == after


def test_the_share_of_first_homes_follows_the_weights() -> None:
    source = random.Random(17)
    members = [peer(source, racks=3, weight=weight_of(GIB << source.randrange(6, 11))) for _ in range(9)]
    count = 6000
    found = Counter(homes(members, key, 1)[0] for key in keys(99, count))
    total = sum(member.weight for member in members)
    for member in members:
        share = member.weight / total
        deviation = math.sqrt(count * share * (1 - share))
        assert abs(found[member] - count * share) < 4 * deviation


def test_a_node_that_joins_takes_its_share_and_no_more() -> None:
    source = random.Random(23)
    members = [peer(source, weight=1 << 26) for _ in range(9)]
    joiner = peer(source, weight=1 << 26)
    count = 4000
    moved = 0
    for key in keys(5, count):
        before, after = homes(members, key, 1)[0], homes([*members, joiner], key, 1)[0]
        assert after in (before, joiner)
        moved += after is joiner
    assert abs(moved - count / 10) < 4 * math.sqrt(count * 0.1 * 0.9)


def test_a_node_without_weight_is_no_home() -> None:
    members = cluster(1, 3, 2)
    idle = replace(members[0], weight=0)
    for key in keys(1, 20):
        assert idle not in homes([idle, *members[1:]], key, 3)
        assert homes([idle], key, 2) == ()


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(0, 1 << 60))
def test_a_weight_is_the_capacity_rounded_down_by_less_than_a_root_of_two(capacity: int) -> None:
    units = max(1, capacity >> 14)
    weight = weight_of(capacity)
    assert weight <= units < (weight + 1) * math.sqrt(2) + 1
    assert weight_of(weight << 14) == weight
