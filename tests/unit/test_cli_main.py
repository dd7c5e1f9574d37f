"""The door: errors become messages and exit statuses."""

import os
import subprocess
import sys

import pytest

from hoard_p2p import __version__, errors
from hoard_p2p.cli.commands import MODULES
from hoard_p2p.cli.main import run
from tests.unit.cli_fakes import FakeNode

COMMANDS = [
    *(
        "capacity",
        "cat",
        "demo",
        "diff",
        "doctor",
        "down",
        "evict",
        "export",
        "gc",
        "key",
        "ls",
        "mount",
        "origin",
        "peers",
        "pin",
        "publish",
        "refs",
        "replicas",
        "rm",
        "scrub",
        "seal",
        "status",
        "tag",
    ),
    *("umount", "unpin", "untag", "up", "warm", "where"),
]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.HoardError("x"), 1),
        (errors.Refused("x"), 1),
        (errors.MountBusy("x"), 1),
        (errors.StoreFailed("x"), 1),
        (errors.BadRequest("x"), 2),
        (errors.SnapshotUnknown("x"), 3),
        (errors.SnapshotAmbiguous("x"), 3),
        (errors.PathNotFound("x"), 3),
        (errors.NoNode("x"), 4),
        (errors.PeerUnavailable("x"), 5),
        (errors.DeadlineExceeded("x"), 5),
        (errors.ChunkCorrupt("x"), 6),
        (errors.CatalogCorrupt("x"), 6),
    ],
)
def test_each_kind_of_error_has_its_status(
    error: errors.HoardError, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["status"], FakeNode(status=error).doors()) == status
    assert capsys.readouterr().err == "hoard: x\n"


def test_a_wrong_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "--nonsense"], FakeNode().doors()) == 2
    assert "--nonsense" in capsys.readouterr().err


def test_a_size_that_is_none_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "--capacity", "much"], FakeNode().doors()) == 2
    assert "'much' is no size" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["up", "--capacity", "0"],
        ["up", "--capacity", "9999999PiB"],
        ["up", "--floor", "5"],
        ["up", "--scrub-days", "nan"],
        ["up", "--scrub-days", "-1"],
        ["capacity", "1KiB"],
        ["capacity", "9999999PiB"],
        ["capacity", "--floor", "5"],
    ],
)
def test_a_setting_that_no_node_can_have_is_a_usage_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments, FakeNode().doors()) == 2
    assert "write for instance" in (told := capsys.readouterr().err) or "bytes is too" in told


def test_a_bug_ends_in_a_message_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status"], FakeNode().doors()) == 1  # the fake has no answer: KeyError
    assert "this is a bug" in capsys.readouterr().err


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"], FakeNode().doors()) == 0
    assert __version__ in capsys.readouterr().out


def test_every_command_has_help_with_an_example_and_takes_a_data_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(MODULES) == COMMANDS
    for name in COMMANDS:
        assert run([name, "--help"], FakeNode().doors()) == 0
        shown = capsys.readouterr().out
        assert "Example" in shown and f"hoard {name}" in shown.split("Example")[1], name
        assert "--data-dir" in shown or name in ("demo", "key", "origin")


def test_a_reader_that_left_ends_the_command_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "hoard_p2p.cli.main", "--help"]
    try:
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_interrupt_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: object) -> dict[str, object]:
        raise KeyboardInterrupt

    assert run(["status"], FakeNode(status=interrupted).doors()) == 130  # type: ignore[arg-type]  # it never answers
    assert capsys.readouterr().err.strip() == "hoard: interrupted"
