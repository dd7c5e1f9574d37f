"""The rate that all bulk answers of a node share."""

from hypothesis import given
from hypothesis import strategies as st

from hoard_p2p.transfer.pace import BURST_TIME, LEAST_TURN, LONGEST_TURN, Pace

MIB = 1 << 20


def test_without_a_rate_nobody_waits() -> None:
    pace = Pace(0)
    assert [pace.reserve(5.0) for _ in range(100)] == [5.0] * 100
    assert pace.turn == LONGEST_TURN


def test_turns_follow_each_other_at_the_rate() -> None:
    pace = Pace(10 * MIB)
    first = pace.reserve(100.0)
    starts = [pace.reserve(100.0) for _ in range(100)]
    assert first == 100.0
    assert abs(starts[-1] + BURST_TIME - 100.0 - 100 * pace.turn / (10 * MIB)) < 1e-6


def test_what_a_turn_left_over_is_for_the_next() -> None:
    pace = Pace(LEAST_TURN)  # a turn a second
    pace.reserve(0.0)
    pace.used(LEAST_TURN // 4)
    assert pace.reserve(0.0) == 0.25


def test_a_long_rest_is_not_made_up_for() -> None:
    pace = Pace(LEAST_TURN)
    pace.reserve(0.0)
    assert pace.reserve(1000.0) == 1000.0
    assert pace.reserve(1000.0) == 1001.0 - BURST_TIME


@given(
    rate=st.integers(1, 10**10),
    asks=st.lists(st.tuples(st.floats(0, 0.5), st.floats(0, 1)), min_size=1, max_size=60),
)
def test_no_more_goes_out_than_the_rate_and_a_burst_allow(rate: int, asks: list[tuple[float, float]]) -> None:
    pace, now, total = Pace(rate), 0.0, 0
    for rest, share in asks:
        now = pace.reserve(now + rest)
        sent = int(pace.turn * share)
        pace.used(sent)
        total += sent
    assert total <= rate * (now + BURST_TIME) + pace.turn + 1
