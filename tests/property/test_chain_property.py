"""Laws of the chain: the same for all, racks together, homes first, and about as much sent as received."""

import math
import random
from collections import Counter
from itertools import groupby

from hypothesis import given, settings
from hypothesis import strategies as st

from hoard_p2p.fill.chain import chain, gateways, predecessor
from hoard_p2p.ids import ChunkId
from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.placement import homes


def cluster(seed: int, nodes: int, racks: int) -> list[Peer]:
    source = random.Random(seed)
    ids = [NodeId(source.randbytes(16)) for _ in range(nodes)]
    return [
        Peer(node, 1, node.hex()[:6], f"r{source.randrange(racks)}", "10.0.0.1", 1, 1 << source.randrange(20, 27))
        for node in ids
    ]


def keys(seed: int, count: int) -> list[ChunkId]:
    source = random.Random(seed)
    return [ChunkId(source.randbytes(32)) for _ in range(count)]


CLUSTERS = st.builds(cluster, st.integers(0, 1 << 20), st.integers(1, 20), st.integers(1, 5))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(CLUSTERS, st.integers(1, 3), st.randoms(use_true_random=False))
def test_a_chain_has_each_participant_once_and_is_the_same_for_all(
    peers: list[Peer], replicas: int, order: random.Random
) -> None:
    wants = {peer.node_id for peer in order.sample(peers, len(peers) // 2)}
    for key in keys(len(peers), 4):
        found = chain(peers, wants, key, replicas)
        assert set(found) == set(homes(peers, key, replicas)) | {peer for peer in peers if peer.node_id in wants}
        assert len(set(found)) == len(found)
        assert found[0] == homes(peers, key, 1)[0]
        assert chain(order.sample(peers, len(peers)), wants, key, replicas) == found


@settings(derandomize=True, deadline=None, max_examples=60)
@given(CLUSTERS, st.integers(1, 3))
def test_a_chain_enters_each_rack_once_and_goes_to_a_home_there_first(peers: list[Peer], replicas: int) -> None:
    wants = {peer.node_id for peer in peers}
    for key in keys(len(peers), 4):
        found = chain(peers, wants, key, replicas)
        racks = [(rack, list(members)) for rack, members in groupby(found, key=lambda peer: peer.rack)]
        assert len({rack for rack, _ in racks}) == len(racks)
        at_home = set(homes(peers, key, replicas))
        for _, members in racks:
            flags = [peer in at_home for peer in members]
            assert flags == sorted(flags, reverse=True)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(CLUSTERS, st.integers(1, 3))
def test_whoever_follows_predecessors_comes_to_the_first_and_each_rack_asks_one_gateway(
    peers: list[Peer], replicas: int
) -> None:
    wants = {peer.node_id for peer in peers}
    for key in keys(len(peers), 4):
        found = chain(peers, wants, key, replicas)
        assert [predecessor(found, peer.node_id) for peer in found] == [None, *found[:-1]]
        for peer in found:
            asked = gateways(found, peer.node_id, peers, 1)
            assert len(asked) <= 1
            assert all(one.rack == peer.rack and not gateways(found, one.node_id, peers, 1) for one in asked)
        assert predecessor(found, NodeId(bytes(16))) is None


def test_a_cluster_of_one_rack_has_no_gateways() -> None:
    peers = cluster(3, 6, 1)
    for key in keys(3, 10):
        assert all(not gateways(chain(peers, set(), key, 6), peer.node_id, peers, 2) for peer in peers)


def test_a_chain_in_one_rack_of_several_has_a_gateway_since_what_is_wanted_may_be_in_another_one() -> None:
    peers = cluster(3, 6, 1)
    elsewhere = Peer(NodeId(b"e" * 16), 1, "e", "far", "10.0.0.1", 1, 1)
    for key in keys(3, 10):
        order = chain(peers, set(), key, 3)
        assert [gateways(order, peer.node_id, [*peers, elsewhere], 2) for peer in order] == [
            (),
            order[:1],
            order[:2],
        ]


@settings(derandomize=True, deadline=None, max_examples=60)
@given(CLUSTERS, st.integers(1, 3), st.randoms(use_true_random=False))
def test_a_chain_begins_in_the_rack_of_who_reads_the_origin_and_with_it_if_it_takes_part(
    peers: list[Peer], replicas: int, order: random.Random
) -> None:
    wants = {peer.node_id for peer in order.sample(peers, len(peers) // 2)}
    for key in keys(len(peers), 4):
        reader, plain = order.choice(peers), chain(peers, wants, key, replicas)
        found = chain(peers, wants, key, replicas, reader)
        assert set(found) == set(plain)
        assert len(list(groupby(found, key=lambda peer: peer.rack))) == len({peer.rack for peer in found})
        if reader in plain:
            assert found[0] == reader
        elif any(peer.rack == reader.rack for peer in plain):
            assert found[0].rack == reader.rack
        rest = [peer for peer in plain if peer.rack != reader.rack]
        assert [peer for peer in found if peer.rack != reader.rack] == rest


def test_every_node_of_equal_weight_is_the_last_of_the_chain_as_often_as_any_other() -> None:
    """Who is last sends nothing: so all nodes send about (N - 1) / N of the set."""
    peers = [Peer(NodeId(random.Random(n).randbytes(16)), 1, str(n), "", "10.0.0.1", 1, 1 << 24) for n in range(8)]
    wants = {peer.node_id for peer in peers}
    count = 4000
    last = Counter(chain(peers, wants, key, 2)[-1] for key in keys(7, count))
    for peer in peers:
        assert abs(last[peer] - count / 8) < 4 * math.sqrt(count / 8 * 7 / 8)
