"""What a full disk makes of the log."""

import logging

import pytest

from hoard_p2p.errors import StoreFull
from hoard_p2p.fetch.unstored import Unstored
from hoard_p2p.ids import ChunkId


@pytest.mark.expect_warnings
def test_the_first_is_told_and_the_others_are_counted_for_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    unstored = Unstored(lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            unstored.note(ChunkId(bytes(32)), StoreFull("the store is full"))
        now[0] = 61.0
        unstored.note(ChunkId(bytes(32)), StoreFull("the store is full"))
    assert unstored.count == 1001
    assert len(caplog.messages) == 2 and "nor were 999 others" in caplog.messages[1]
