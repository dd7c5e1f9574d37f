"""Who is asked to vouch, what counts as enough, and promises that are kept."""

from itertools import permutations
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from hoard_p2p.ids import ChunkId, SnapshotId, chunk_id
from hoard_p2p.node.vouching import Promises
from hoard_p2p.peer import ClusterView, NodeId, Peer
from hoard_p2p.placement import homes
from hoard_p2p.repair.lastcopy import PROMISED_SECONDS, enough, whom_to_ask

SNAPSHOT = SnapshotId(b"s" * 32)
KEYS = {segment: ChunkId(chunk_id(b"%d" % segment)) for segment in range(40)}


def view(count: int, me: int = 0, racks: int = 1) -> ClusterView:
    peers = tuple(
        Peer(NodeId(bytes([number]) * 16), 1, f"n{number}", f"r{number % racks}", "127.0.0.1", 1000, 1 << 20)
        for number in range(count)
    )
    return ClusterView(peers[me].node_id, peers)


def test_only_nodes_that_come_before_this_one_are_asked_and_only_where_there_are_enough() -> None:
    cluster = view(6, me=3, racks=2)
    for replicas in (1, 2, 3):
        plan = whom_to_ask(cluster, KEYS, replicas)
        for segment, key in KEYS.items():
            ranked = [peer.node_id for peer in homes(cluster.peers, key, 6)]
            better = ranked[: ranked.index(cluster.me)]
            asked = {node for node, segments in plan.items() if segment in segments}
            assert asked <= set(better)
            assert bool(asked) is (len(better) >= replicas)
            assert len(asked) >= replicas or not asked


def test_the_only_node_asks_nobody() -> None:
    assert whom_to_ask(view(1), KEYS, 1) == {}


def test_a_segment_needs_as_many_nodes_as_there_are_replicas() -> None:
    answers = [(1, 2, 2), (2, 3), (3,)]
    assert enough(answers, 1) == {1, 2, 3}
    assert enough(answers, 2) == {2, 3}
    assert enough(answers, 3) == frozenset()


def test_a_promise_ends_after_its_time() -> None:
    now = [100.0]
    promises = Promises(lambda: now[0])
    promises.promise(SNAPSHOT, [1, 2])
    now[0] += PROMISED_SECONDS - 1
    promises.promise(SNAPSHOT, [3])
    assert promises.kept(SNAPSHOT) == {1, 2, 3}
    now[0] += 2
    assert promises.kept(SNAPSHOT) == {3}
    assert promises.kept(SnapshotId(b"x" * 32)) == set()


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 5), st.integers(1, 2), st.integers(0, 1 << 32))
def test_whatever_nodes_ask_whom_and_drop_in_whatever_order_a_copy_is_left(
    count: int, replicas: int, seed: int
) -> None:
    """Even where no two nodes agree on who comes before whom, as in different views: promises alone are enough."""
    random = Random(seed)
    holders, promises = set(range(count)), [Promises(lambda: 0.0) for _ in range(count)]
    vouched: dict[int, frozenset[int]] = {}
    for _ in range(6 * count):
        node = random.randrange(count)
        if random.random() < 0.5:
            others = random.sample(sorted({*range(count)} - {node}), random.randint(1, count - 1))
            asked = [other for other in others if other in holders]
            for other in asked:
                promises[other].promise(SNAPSHOT, [0])
            vouched[node] = enough([(0,) for _ in asked], replicas)
        elif vouched.get(node, frozenset()) - promises[node].kept(SNAPSHOT):
            holders.discard(node)
    assert holders


def test_two_that_promised_each_other_both_keep_theirs() -> None:
    for first, second in permutations((Promises(), Promises())):
        first.promise(SNAPSHOT, [0])
        second.promise(SNAPSHOT, [0])
        assert first.kept(SNAPSHOT) and second.kept(SNAPSHOT)
