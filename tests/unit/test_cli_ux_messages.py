"""What commands say at their end: names that were refused, nodes that are not there, output that nobody takes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hoard_p2p.cli.demo import command_name
from hoard_p2p.cli.main import run
from hoard_p2p.cli.nodes import status_text
from hoard_p2p.cli.publishing import warnings
from hoard_p2p.config import Json
from hoard_p2p.errors import NoNode, Refused
from tests.unit.cli_fakes import FakeNode

ID = "ab" * 32


def test_the_id_is_printed_also_if_the_name_was_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = Refused(f"published {ID}, but set:1 names {'cd' * 32} already; use --move to change it")
    assert run(["publish", str(tmp_path), "--name", "set:1"], FakeNode(publish=taken).doors()) == 1
    told = capsys.readouterr()
    assert told.out == ID + "\n" and "already" in told.err
    assert run(["publish", str(tmp_path), "--name", "set:1", "--json"], FakeNode(publish=taken).doors()) == 1
    assert json.loads(capsys.readouterr().out) == {"snapshot": ID, "name": None}


def test_a_note_of_the_node_is_shown_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode(publish={"snapshot": ID})
    node.progress = [{"note": "set:1 names another snapshot already"}, {}, {"phase": "reading", "bytes": 1}]
    assert run(["publish", str(tmp_path)], node.doors()) == 0
    assert capsys.readouterr().err.startswith("hoard: set:1 names another snapshot already\nhoard: 0 files")


def test_any_other_refusal_prints_no_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["publish", str(tmp_path)], FakeNode(publish=Refused(f"no {ID}")).doors()) == 1
    assert capsys.readouterr().out == ""


def test_patterns_that_matched_nothing_are_named() -> None:
    assert warnings({"unmatched_excludes": ["TRAIN/", "a b"]}) == [
        "warning: --exclude TRAIN/ matched nothing",
        "warning: --exclude 'a b' matched nothing",
    ]


def test_the_data_directory_is_no_special_file() -> None:
    assert warnings({"own_data": ["store"], "own_data_count": 1}) == [
        "warning: 1 data directory of this node was left out:",
        "  store",
    ]


def test_down_without_a_node_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["down"], FakeNode(ping=NoNode("no node is running")).doors()) == 0
    assert "no node was running" in capsys.readouterr().err


def test_a_status_without_peers_says_what_to_do() -> None:
    assert "--discovery static:" in status_text({})


def test_refs_name_the_node_where_it_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[Json] = [
        {"name": "set:1", "snapshot": ID, "when": 1_700_000_000_000, "node": "12" * 16, "node_name": "gpu\x1b1"},
        {"name": "set:2", "snapshot": ID, "when": 1_700_000_000_000, "node": "34" * 16, "node_name": ""},
    ]
    assert run(["refs"], FakeNode(refs={"refs": rows}).doors()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("gpu\\x1b1") and lines[2].endswith("343434343434")


def test_help_lists_the_exit_statuses_and_explains_latest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"], FakeNode().doors()) == 0
    assert "4 no node is running" in capsys.readouterr().out
    assert run(["tag", "--help"], FakeNode().doors()) == 0
    assert ":latest" in capsys.readouterr().out
    assert run(["status", "--help"], FakeNode().doors()) == 0
    assert "UNDER-REPLICATED:" in capsys.readouterr().out


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_output_is_no_traceback(closed: str) -> None:
    script = f'"$0" -m hoard_p2p.cli.main --version {closed}'
    done = subprocess.run(["sh", "-c", script, sys.executable], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_demo_ends_with_a_command_that_this_shell_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "hoard"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    python = str(tmp_path / "bin" / "python")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command_name(python) == "bin/hoard"
    monkeypatch.setenv("PATH", str(program.parent))
    assert command_name(python) == "hoard"
