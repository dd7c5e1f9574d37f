"""Laws of repair: nobody plans another's copy, and once all plans are carried out nobody has one (I7)."""

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from hoard_p2p.ids import ChunkId, SnapshotId
from hoard_p2p.interfaces import Residency
from hoard_p2p.peer import ClusterView, NodeId, Peer
from hoard_p2p.placement import homes, weight_of
from hoard_p2p.repair.planner import Here, Plan, copies, keeps_its_share, lacking, orders, plan

SNAPSHOT = SnapshotId(b"s" * 32)
GIB = 1 << 30


@dataclass
class Cluster:
    """Nodes that hold some of a snapshot's segments; some are full, some drain (weight 0)."""

    peers: tuple[Peer, ...]
    keys: dict[int, ChunkId]
    replicas: int
    whole: dict[NodeId, set[int]]
    held: dict[NodeId, set[int]]
    full: set[NodeId] = field(default_factory=set)

    def told(self, node: NodeId) -> Residency:
        bits = sum(1 << segment for segment in self.whole[node])
        return Residency(SNAPSHOT, node, 1, bits.to_bytes((len(self.keys) + 7) // 8, "little"))

    def plan_of(self, node: NodeId) -> Plan:
        view = ClusterView(node, self.peers)
        here = Here(self.whole[node], frozenset(self.held[node]), node in self.full)
        others = {peer.node_id: self.told(peer.node_id) for peer in view.others}
        return plan(node, orders(view, self.keys, self.replicas), self.replicas, here, others, full=self.full - {node})

    def carry_out(self, node: NodeId, todo: Plan) -> None:
        pulled = {pull.segment for pull in todo.pulls}
        self.whole[node] |= pulled
        self.held[node] = (self.held[node] | pulled | set(todo.hold)) - set(todo.release)

    def copies_of(self, segment: int) -> int:
        return sum(segment in whole for whole in self.whole.values())


def cluster(seed: int) -> Cluster:
    random = Random(seed)
    racks = random.randint(1, 4)
    peers = tuple(
        Peer(
            NodeId(random.randbytes(16)),
            1,
            f"n{number}",
            f"r{random.randrange(racks)}",
            "10.0.0.1",
            1,
            0 if random.random() < 0.15 else weight_of(random.randrange(100 * GIB, 3000 * GIB)),
        )
        for number in range(random.randint(1, 9))
    )
    keys = {segment: ChunkId(random.randbytes(32)) for segment in range(random.randint(1, 20))}
    share = random.random()
    whole = {peer.node_id: {segment for segment in keys if random.random() < share} for peer in peers}
    held = {node: {segment for segment in there if random.random() < 0.5} for node, there in whole.items()}
    full = {peer.node_id for peer in peers if random.random() < 0.15}
    return Cluster(peers, keys, random.randint(1, 4), whole, held, full)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.integers(0, 1 << 32))
def test_once_everybody_has_carried_out_its_plan_nobody_has_one(seed: int) -> None:
    nodes = cluster(seed)
    lost = {segment for segment in nodes.keys if not nodes.copies_of(segment)}
    plans = {peer.node_id: nodes.plan_of(peer.node_id) for peer in nodes.peers}
    for node, todo in plans.items():
        nodes.carry_out(node, todo)
    for peer in nodes.peers:  # what became surplus by the pulls of others is released in a second round
        nodes.carry_out(peer.node_id, nodes.plan_of(peer.node_id))
    for peer in nodes.peers:
        left = nodes.plan_of(peer.node_id)
        assert not left
        assert set(left.nowhere) <= lost


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.integers(0, 1 << 32))
def test_afterwards_each_segment_that_was_anywhere_is_whole_at_its_homes_that_have_room(seed: int) -> None:
    nodes = cluster(seed)
    nodes.full = set()
    there = {segment for segment in nodes.keys if nodes.copies_of(segment)}
    plans = {peer.node_id: nodes.plan_of(peer.node_id) for peer in nodes.peers}
    for node, todo in plans.items():
        nodes.carry_out(node, todo)
    for segment in there:
        for home in homes(nodes.peers, nodes.keys[segment], nodes.replicas):
            assert segment in nodes.whole[home.node_id] and segment in nodes.held[home.node_id]


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.integers(0, 1 << 32))
def test_a_node_pulls_only_what_it_should_keep_and_never_more_copies_than_are_wanted(seed: int) -> None:
    """In any order of carrying out, from one view: no two plans make the same copy, none makes one too many."""
    nodes = cluster(seed)
    made = Counter(pull.segment for peer in nodes.peers for pull in nodes.plan_of(peer.node_id).pulls)
    for peer in nodes.peers:
        for pull in nodes.plan_of(peer.node_id).pulls:
            assert pull.segment not in nodes.whole[peer.node_id]
            assert peer.weight > 0 and peer.node_id not in nodes.full
            assert set(pull.sources) == {node for node, whole in nodes.whole.items() if pull.segment in whole}
    assert all(count <= nodes.replicas for count in made.values())


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(0, 1 << 32))
def test_what_is_released_is_whole_at_all_that_keep_it_instead(seed: int) -> None:
    nodes = cluster(seed)
    for peer in nodes.peers:
        for segment in nodes.plan_of(peer.node_id).release:
            others = sum(segment in nodes.whole[other.node_id] for other in nodes.peers if other != peer)
            able = sum(other.weight > 0 for other in nodes.peers)
            assert others >= min(nodes.replicas, able) >= 1


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(0, 1 << 32))
def test_who_keeps_its_share_has_nothing_to_do_while_homes_have_room(seed: int) -> None:
    nodes = cluster(seed)
    nodes.full = set()
    for _ in range(2):
        for peer in nodes.peers:
            view = ClusterView(peer.node_id, nodes.peers)
            here = Here(nodes.whole[peer.node_id], frozenset(nodes.held[peer.node_id]))
            todo = nodes.plan_of(peer.node_id)
            if keeps_its_share(peer.node_id, orders(view, nodes.keys, nodes.replicas), nodes.replicas, here):
                assert not todo and not todo.nowhere
            nodes.carry_out(peer.node_id, todo)


def test_the_most_endangered_segments_are_pulled_first() -> None:
    nodes = cluster(3)
    nodes.full = set()
    for peer in nodes.peers:
        counts = [len(pull.sources) for pull in nodes.plan_of(peer.node_id).pulls]
        assert counts == sorted(counts)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(st.binary(min_size=3, max_size=3), max_size=6), st.integers(1, 4), st.integers(0, 24))
def test_copies_are_counted_bit_by_bit(held: list[bytes], replicas: int, segments: int) -> None:
    numbers = [int.from_bytes(bits, "little") for bits in held]
    counts = [sum(number >> segment & 1 for number in numbers) for segment in range(segments)]
    assert lacking(held, replicas, segments) == [at for at, count in enumerate(counts) if count < replicas]
    assert copies(held, replicas, segments) == sum(1 << at for at, count in enumerate(counts) if count >= replicas)
