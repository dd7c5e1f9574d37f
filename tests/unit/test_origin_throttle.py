"""How much an origin is asked at a time, how fast it is read, and what is asked for in one go."""

from hoard_p2p.objects import ObjectRange
from hoard_p2p.origin.limit import Limit, part
from hoard_p2p.origin.spans import grouped, joined
from hoard_p2p.origin.throttle import Throttle, backoff, for_fill, share


def test_the_streams_of_a_cluster_are_divided_over_its_readers() -> None:
    assert [share(64, members) for members in (0, 1, 4, 64, 100)] == [64, 64, 16, 1, 1]


def test_a_busy_origin_is_asked_half_as_much_and_one_more_each_second() -> None:
    throttle = Throttle(16)
    assert throttle.allowed(0.0) == 16
    throttle.busy(1.0)
    assert throttle.allowed(1.0) == 8
    throttle.busy(1.5)
    assert throttle.allowed(1.5) == 8, "asked before the halving could help"
    throttle.busy(2.5)
    assert [throttle.allowed(at) for at in (2.5, 3.5, 5.6, 14.5, 100.0)] == [4, 5, 7, 16, 16]
    assert throttle.times == 2


def test_an_origin_is_always_asked_something() -> None:
    throttle = Throttle(2)
    for at in range(0, 20, 2):
        throttle.busy(float(at))
        assert throttle.allowed(float(at)) >= 1


def test_some_streams_are_kept_free_while_readers_come_and_go() -> None:
    assert [for_fill(allowed, True) for allowed in (1, 2, 8, 64)] == [1, 1, 6, 48]
    assert for_fill(8, False) == 8


def test_who_failed_together_does_not_come_back_together_nor_ever_later() -> None:
    assert backoff(1, False, 0.0) != backoff(1, False, 0.9)
    assert all(backoff(tries, busy, 0.99) < 12 for tries in range(1, 100) for busy in (True, False))


def test_a_limit_is_kept_over_time_and_readers_run_ahead_of_the_fill_a_little() -> None:
    limit = Limit(1000.0)
    assert limit.take(50, 10.0, urgent=False) == 0.0, "saved up"
    assert abs(limit.take(1000, 10.0, urgent=False) - 0.95) < 0.001
    assert abs(limit.take(100, 10.0, urgent=True) - 0.55) < 0.001
    assert limit.take(0, 20.0, urgent=False) == 0.0
    assert Limit().take(1 << 40, 0.0, urgent=False) == 0.0
    assert part(1000, 4) == 250.0
    assert part(0, 4) == 0.0


def test_neighbours_of_one_object_are_read_in_one_go() -> None:
    def of(path: bytes, start: int, stop: int) -> ObjectRange:
        return ObjectRange(path, 100, b"v", start, stop)

    ranges = [of(b"a", 0, 4), of(b"a", 4, 8), of(b"a", 8, 12), of(b"a", 14, 16), of(b"b", 16, 40)]
    assert grouped(ranges, 8) == [range(2), range(2, 3), range(3, 4), range(4, 5)]
    assert joined(ranges, 8)[0] == of(b"a", 0, 8)
    assert joined([], 8) == []
