"""Laws of reading origins: one reader for all, takeover by the next, and a budget that is kept."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from hoard_p2p.ids import ChunkId
from hoard_p2p.origin.budget import BUCKET, LAST_SECONDS, PASSED_BYTES, SHARE, Budget, Late, late_after
from hoard_p2p.origin.readers import reader_set, readers
from hoard_p2p.peer import NodeId, OriginId, Peer

QUICK = settings(derandomize=True, deadline=None, max_examples=60)


def cluster(seed: int, nodes: int) -> list[Peer]:
    source = random.Random(seed)
    ids = [NodeId(source.randbytes(16)) for _ in range(nodes)]
    return [Peer(node, 1, node.hex()[:6], "", "10.0.0.1", 1, source.choice([0, 1 << 16, 1 << 26])) for node in ids]


CLUSTERS = st.builds(cluster, st.integers(0, 1 << 20), st.integers(1, 30))
ORIGINS = st.binary(min_size=8, max_size=8).map(OriginId)
KEYS = st.integers(0, 1 << 30).map(lambda seed: ChunkId(random.Random(seed).randbytes(32)))


@QUICK
@given(CLUSTERS, ORIGINS, KEYS, st.integers(1, 8), st.randoms(use_true_random=False))
def test_all_nodes_with_one_view_agree_on_the_reader(
    peers: list[Peer], origin: OriginId, key: ChunkId, streams: int, order: random.Random
) -> None:
    able = {peer.node_id for peer in order.sample(peers, (len(peers) + 1) // 2)}
    members = reader_set(peers, able, origin, streams)
    assert len(members) == min(streams, len(able))
    assert {peer.node_id for peer in members} <= able, "of those that can, whatever their weight"
    again = reader_set(order.sample(peers, len(peers)), able, origin, streams)
    assert readers(again, key) == readers(members, key)
    assert set(readers(members, key)) == set(members)


@QUICK
@given(CLUSTERS, ORIGINS, KEYS)
def test_who_cannot_is_replaced_by_the_next_and_nobody_else_moves(
    peers: list[Peer], origin: OriginId, key: ChunkId
) -> None:
    members = reader_set(peers, {peer.node_id for peer in peers}, origin, 8)
    ordered = readers(members, key)
    for gone in ordered:
        assert readers(members, key, {gone.node_id}) == tuple(peer for peer in ordered if peer != gone)


@QUICK
@given(CLUSTERS, ORIGINS, st.integers(1, 8))
def test_a_reader_set_changes_by_one_when_a_node_goes(peers: list[Peer], origin: OriginId, streams: int) -> None:
    able = {peer.node_id for peer in peers}
    before = set(reader_set(peers, able, origin, streams))
    for gone in peers:
        after = set(reader_set(peers, able - {gone.node_id}, origin, streams))
        assert before - after <= {gone}
        assert len(after - before) <= 1


STEPS = st.lists(st.tuples(st.sampled_from(("received", "asked")), st.integers(1, 64 << 20)), max_size=60)


@QUICK
@given(STEPS)
def test_the_budget_never_lets_more_past_than_its_share_of_what_came(steps: list[tuple[str, int]]) -> None:
    budget, received, past = Budget(), 0, 0
    for what, size in steps:
        if what == "received":
            budget.received(size)
            received += size
        elif budget.may_bypass(size, waited=60.0, median_first_byte=0.0):
            budget.bypassed(size)
            past += size
            assert size <= BUCKET
        assert past * SHARE <= received
        assert budget.left <= BUCKET


@QUICK
@given(st.floats(0, 10), st.floats(0, 10))
def test_a_reader_is_late_after_three_times_the_median_first_byte_and_never_before_50_ms(
    median: float, waited: float
) -> None:
    budget = Budget()
    budget.received(1 << 40)
    assert budget.may_bypass(1, waited, median) is (waited >= max(0.05, 3 * median))
    assert late_after(median) >= 0.05


@QUICK
@given(st.lists(st.integers(0, 9), unique=True), st.sets(st.integers(0, 9)))
def test_late_readers_rank_last_for_a_while(nodes: list[int], late: set[int]) -> None:
    book: Late[int] = Late()
    for node in late:
        book.was_late(node, 100.0)
    expected = [node for node in nodes if node not in late] + [node for node in nodes if node in late]
    assert book.last(nodes, 100.0 + LAST_SECONDS - 1) == expected
    assert book.last(nodes, 100.0 + LAST_SECONDS) == nodes


@QUICK
@given(st.lists(st.integers(1, PASSED_BYTES)))
def test_a_reader_that_is_passed_by_a_little_keeps_its_rank(sizes: list[int]) -> None:
    book, rest = Late[int](), 0
    for size in sizes:
        book.passed(0, size, 100.0)
        rest += size
    assert (book.last([0, 1], 101.0) == [0, 1]) is (rest <= PASSED_BYTES)
