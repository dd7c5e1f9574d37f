"""When a source that gets chunks while it is asked is silent for too long."""

import pytest

from hoard_p2p.fetch.silence import (
    AGAIN_SECONDS,
    BUSY_SECONDS,
    CHAIN_BUSY,
    CHAIN_LONGEST,
    CHAIN_SECONDS,
    CHAIN_STEP,
    GATE_BUSY,
    GATE_SECONDS,
    KEPT,
    READER_BUSY,
    READER_SECONDS,
    Silence,
)
from hoard_p2p.interfaces import AskMode
from hoard_p2p.peer import NodeId
from hoard_p2p.testing.network import a_peer

PEER = a_peer(1).node_id
MODES = [
    (AskMode.GATE, GATE_SECONDS, GATE_BUSY),
    (AskMode.FETCH, READER_SECONDS, READER_BUSY),
    (AskMode.CHAIN, CHAIN_SECONDS, CHAIN_BUSY),
]


@pytest.mark.parametrize(("mode", "silent", "busy"), MODES)
def test_a_source_that_gives_of_other_segments_is_busy_and_waited_for_longer(
    mode: AskMode, silent: float, busy: float
) -> None:
    silence = Silence()
    assert silence.allowed(PEER, mode, 0, 10.0) == silent
    silence.gave(PEER, 10.0)
    assert silence.allowed(PEER, mode, 0, 10.0 + BUSY_SECONDS - 0.1) == busy > silent
    assert silence.allowed(PEER, mode, 0, 10.0 + BUSY_SECONDS) == silent


def test_a_predecessor_far_down_the_chain_is_waited_for_longer() -> None:
    at = [Silence().allowed(PEER, AskMode.CHAIN, place, 0.0) for place in (0, 8)]
    assert at[1] - at[0] == 8 * CHAIN_STEP


@pytest.mark.parametrize(
    ("mode", "place", "seconds"),
    [
        (AskMode.GATE, 7, GATE_SECONDS),
        (AskMode.CHAIN, 900, CHAIN_LONGEST),
        (AskMode.FETCH, 1, 2 * READER_SECONDS),
        (AskMode.FETCH, 3, 3 * READER_SECONDS),
    ],
)
def test_silence_is_allowed_for_as_long_as_others_may_have_to_wait_themselves(
    mode: AskMode, place: int, seconds: float
) -> None:
    assert Silence().allowed(PEER, mode, place, 0.0) == seconds


def test_a_predecessor_that_was_passed_by_is_hardly_waited_for_until_it_gives_something() -> None:
    silence = Silence()
    silence.gave(PEER, 10.0)
    silence.passed_by(PEER)
    assert silence.allowed(PEER, AskMode.CHAIN, 3, 10.0) == AGAIN_SECONDS
    silence.gave(PEER, 20.0)
    assert silence.allowed(PEER, AskMode.CHAIN, 3, 20.0) > AGAIN_SECONDS


def test_no_more_than_so_many_sources_are_remembered() -> None:
    silence = Silence()
    for number in range(2 * KEPT):
        silence.passed_by(NodeId(number.to_bytes(16, "big")))
        silence.gave(NodeId((number + (1 << 20)).to_bytes(16, "big")), 0.0)
    assert silence.allowed(PEER, AskMode.CHAIN, 0, 0.0) == CHAIN_SECONDS
