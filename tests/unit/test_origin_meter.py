"""The meter of an origin."""

from hoard_p2p.origin.meter import TOLD_AGAIN, Meter


def test_failures_all_count_and_are_news_for_a_log_now_and_then() -> None:
    now = 100.0
    meter = Meter(lambda: now)
    assert [meter.failed(2, "a"), meter.failed(1, "b")] == [True, False]
    now += TOLD_AGAIN
    assert meter.failed(1, "c")
    assert (meter.reading.errors, meter.reading.last_error) == (4, "c")
