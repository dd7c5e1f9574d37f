"""What goes first, how much is kept free, and how long a snapshot lives: pure decisions."""

from hypothesis import given
from hypothesis import strategies as st

from hoard_p2p.ids import SnapshotId
from hoard_p2p.storage.eviction import CachedSet, Part, headroom, lives_until, order, to_free

GIB = 1 << 30


def a_set(name: bytes, last_used: int, *, needed: bool = False, expired: bool = False) -> CachedSet:
    return CachedSet(SnapshotId(name), last_used, needed, expired)


def test_cold_sets_go_whole_the_one_used_longest_ago_first_and_homes_copies_last() -> None:
    sets = [a_set(b"new", 9), a_set(b"old", 1), a_set(b"leased", 0, needed=True), a_set(b"over", 5, expired=True)]
    steps = [(step.snapshot, step.part) for step in order(sets)]
    ordinary, home = Part.ORDINARY, Part.HOME
    assert steps == [
        *((b"over", ordinary), (b"old", ordinary), (b"new", ordinary)),
        *((b"over", home), (b"old", home), (b"new", home)),
    ]


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=3), st.integers(0, 5), st.booleans(), st.booleans())))
def test_nothing_that_is_needed_is_ever_in_the_order(rows: list[tuple[bytes, int, bool, bool]]) -> None:
    sets = [a_set(name, used, needed=needed, expired=expired) for name, used, needed, expired in rows]
    needed = {one.snapshot for one in sets if one.needed} - {one.snapshot for one in sets if not one.needed}
    assert not needed & {step.snapshot for step in order(sets)}
    assert order(sets) == order(reversed(sets)), "the same whatever order they come in"


def test_the_headroom_is_made_twice_as_large_once_it_is_used_up() -> None:
    assert headroom(100 * GIB) == GIB
    assert headroom(GIB) == 64 << 20
    assert headroom(100 << 20) == 25 << 20
    assert to_free(100 * GIB, GIB) == 0
    assert to_free(100 * GIB, GIB - 1) == GIB + 1
    assert to_free(100 * GIB, 0) == 2 * GIB


def test_a_name_and_a_pin_keep_a_snapshot_without_end() -> None:
    assert lives_until(last_used=5, keep=2, pinned=False, named=False) == 2_000_000_005
    assert lives_until(last_used=5, keep=2, pinned=True, named=False) is None
    assert lives_until(last_used=5, keep=2, pinned=False, named=True) is None
