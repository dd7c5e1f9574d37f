"""Which chunks are named: in parts that fit into memory, and by the filter."""

from collections.abc import Iterator
from random import Random

from hoard_p2p.node.marking import LiveIds, SharedIds


def ids(count: int, seed: int) -> list[bytes]:
    random = Random(seed)
    return [random.randbytes(32) for _ in range(count)]


def test_what_is_named_is_found_and_nothing_else_in_few_passes() -> None:
    named, others = ids(3000, 1), ids(1000, 2)
    halves = [named[:1500], named[1500:]]

    def source(rows: list[bytes]) -> Iterator[bytes]:
        yield b"".join(rows[:100])
        yield b"".join(rows[100:])

    live = LiveIds([lambda half=half: source(half) for half in halves], 3000, most=200)  # type: ignore[misc]
    asked = sorted(named + others)
    assert [one for one in asked if live(one)] == sorted(named)
    assert live.loads == 16, "each part is read once when they are asked for in order"
    assert all(live(one) for one in named), "and right in any order"


def test_one_pass_is_enough_where_all_fits() -> None:
    named = ids(100, 3)
    live = LiveIds([lambda: iter([b"".join(named)])], 100)
    assert all(live(one) for one in named)
    assert live.loads == 1


def test_the_filter_never_misses_what_was_added() -> None:
    shared, named = SharedIds(), ids(2000, 4)
    shared.add(b"".join(named))
    assert all(one in shared for one in named)
    assert sum(one in shared for one in ids(20_000, 5)) <= 5
