"""The rack that a command prints."""

from pathlib import Path

import pytest

from hoard_p2p.config import NodeSettings
from hoard_p2p.errors import BadRequest
from hoard_p2p.node.rack import with_rack


def settings(command: str, rack: str = "") -> NodeSettings:
    return NodeSettings(Path("/nowhere"), "127.0.0.1", 0, "c", "n", rack, None, ("none",), rack_command=command)


def test_the_rack_is_what_the_command_prints_and_a_rack_that_is_given_wins() -> None:
    assert with_rack(settings("echo '  r 12 '")).rack == "r 12"
    assert with_rack(settings("exit 1", rack="r1")).rack == "r1"
    assert with_rack(settings("")).rack == ""


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("exit 3", "exit status 3"),
        ("no-such-command-here", "exit status 127"),
        ("true", "printed ''"),
        ("printf 'a\\nb'", "one line"),
        ("head -c 300 /dev/zero | tr '\\0' a", "one line"),
    ],
)
def test_a_command_that_does_not_print_one_rack_is_an_error_that_names_it(command: str, said: str) -> None:
    with pytest.raises(BadRequest) as failure:
        with_rack(settings(command))
    assert said in str(failure.value)
    assert repr(command) in str(failure.value)


def test_a_command_that_does_not_end_is_stopped_with_all_that_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(BadRequest, match="--rack NAME"):
        with_rack(settings(f"(sleep 2; touch {mark}) & sleep 60"), seconds=0.2)
    assert not mark.exists()
