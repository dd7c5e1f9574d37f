"""Which segments are under way at a time, and when a view has settled."""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hoard_p2p.fill.quiet import LONGEST, QUIET_SECONDS, Quiet
from hoard_p2p.fill.window import STRETCH, TRIES, Window, common_order
from hoard_p2p.ids import SnapshotId

MIB = 1 << 20


@given(st.binary(min_size=32, max_size=32), st.integers(0, 400))
def test_the_common_order_has_every_segment_once_and_stretches_in_order(snapshot: bytes, segments: int) -> None:
    order = common_order(SnapshotId(snapshot), segments)
    assert sorted(order) == list(range(segments))
    assert order == common_order(SnapshotId(snapshot), segments)
    breaks = sum(after != before + 1 for before, after in pairwise(order))
    assert breaks <= segments // STRETCH


def test_two_snapshots_have_orders_of_their_own() -> None:
    assert common_order(SnapshotId(b"a" * 32), 400) != common_order(SnapshotId(b"b" * 32), 400)


@given(st.lists(st.integers(0, 64), max_size=60), st.integers(1, 100), st.integers(1, 12), st.randoms())
def test_every_segment_is_begun_once_and_no_more_than_the_bounds_are_under_way(
    sizes: list[int], most_bytes: int, most: int, draw: random.Random
) -> None:
    window = Window(range(len(sizes)), sizes.__getitem__, most_bytes=most_bytes, most_segments=most)
    begun: list[int] = []
    while not window.over:
        taken = window.take()
        begun += taken
        under_way = list(window.under_way)
        assert under_way
        assert len(under_way) <= most
        assert len(under_way) == 1 or sum(sizes[number] for number in under_way) <= most_bytes
        window.done(draw.choice(under_way))
    assert begun == list(range(len(sizes)))


def test_what_comes_for_a_peer_takes_no_place_and_is_waited_for_all_the_same() -> None:
    window = Window(range(6), lambda _: MIB, most_segments=2)
    assert window.take({0, 2, 5}.__contains__) == [0, 1, 2, 3]
    assert sorted(window.under_way) == [0, 1, 2, 3]
    window.done(0)
    assert window.take({5}.__contains__) == []
    window.done(1)
    assert window.take({5}.__contains__) == [4, 5]
    for number in (2, 3, 4):
        window.done(number)
    assert not window.over
    window.failed(5)
    assert window.take() == [5]
    window.done(5)
    assert window.over


def test_a_segment_that_fails_is_tried_again_after_all_others_and_given_up_in_the_end() -> None:
    window = Window(range(3), lambda _: MIB, most_segments=1)
    tried: list[int] = []
    while not window.over:
        (number,) = window.take()
        tried.append(number)
        window.failed(number) if number == 0 else window.done(number)
    assert tried == [0, 1, 2] + [0] * (TRIES - 1)
    assert window.lost == [0]


def test_what_a_reader_is_near_comes_next() -> None:
    window = Window(range(10), lambda _: MIB, most_segments=1)
    assert window.take() == [0]
    window.hasten(7)
    window.hasten(0)
    window.done(0)
    assert window.take() == [7]


def test_a_window_that_is_stopped_begins_nothing_more_and_ends_with_what_is_under_way() -> None:
    window = Window(range(10), lambda _: MIB, most_segments=2)
    assert window.take() == [0, 1]
    window.stop()
    window.done(0)
    window.done(1)
    assert window.over
    assert window.lost == list(range(2, 10))


def test_what_this_node_changed_is_quiet_after_a_while_and_anew_after_each_change() -> None:
    quiet = Quiet()
    quiet.begin("set", "a", 10.0)
    assert quiet.look("set", "a", 10.5) == QUIET_SECONDS - 0.5
    assert quiet.look("set", "a, b", 11.0) == QUIET_SECONDS
    assert quiet.look("set", "a, b", 11.0 + QUIET_SECONDS) == 0.0
    assert quiet.look("set", "a", 100.0) == QUIET_SECONDS


def test_what_was_never_looked_at_is_quiet() -> None:
    assert Quiet().look("set", "a", 5.0) == 0.0


def test_what_never_rests_counts_as_quiet_after_a_while() -> None:
    quiet = Quiet()
    quiet.begin("set", 0, 0.0)
    left = [quiet.look("set", number, float(number)) for number in range(1, 20)]
    assert left[0] > 0.0
    assert left[int(LONGEST)] == 0.0
