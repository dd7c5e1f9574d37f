"""`hoard warm`."""

import json

import pytest

from hoard_p2p.cli.doors import Body
from hoard_p2p.cli.main import run
from hoard_p2p.errors import StoreFull, Unavailable
from tests.unit.cli_fakes import FakeNode

ID = "ab" * 32
WARM: Body = {"snapshot": ID, "segments": 7, "bytes": 3 << 20, "received": 2 << 20, "seconds": 1.5}


def test_a_warm_says_what_is_here_and_what_came_and_prints_the_id(capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode(warm=WARM)
    assert run(["warm", "ababab"], node.doors()) == 0
    assert node.asked == [("warm", {"snapshot": "ababab"})]
    told = capsys.readouterr()
    assert told.out == ID + "\n"
    assert "3.0 MiB are on this disk; 2.0 MiB came in 1.50 s" in told.err


def test_a_warm_in_json_is_the_node_s_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["warm", "--json", "ababab"], FakeNode(warm=WARM).doors()) == 0
    assert json.loads(capsys.readouterr().out) == WARM


def test_a_warm_that_cannot_have_everything_ends_with_status_5_and_one_without_room_with_status_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["warm", "ababab"], FakeNode(warm=Unavailable("2 of 7 segments could not be had")).doors()) == 5
    assert run(["warm", "ababab"], FakeNode(warm=StoreFull("there is no room")).doors()) == 1
    assert "2 of 7 segments" in capsys.readouterr().err
