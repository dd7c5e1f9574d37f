"""`pin`, `unpin`, `evict`, `gc`, `rm`, and how the life of snapshots is told."""

import json
from pathlib import Path

import pytest

from hoard_p2p.cli.answers import Fields
from hoard_p2p.cli.doors import Body
from hoard_p2p.cli.life import life_text
from hoard_p2p.cli.main import run
from hoard_p2p.config import Json
from hoard_p2p.errors import Refused
from tests.unit.cli_fakes import FakeNode

ID = "ab" * 32
FREED: Body = {"dry_run": False, "chunks": 1200, "bytes": 3 << 20, "reclaimed": 2 << 20, "removed": [], "kept": []}


@pytest.mark.parametrize("command", ["pin", "unpin"])
def test_pins_are_asked_for_and_the_id_is_printed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer: Body = {"snapshot": ID, "pinned": command == "pin", "changed": False}
    node = FakeNode(**{command: answer})
    assert run([command, "ababab"], node.doors()) == 0
    assert node.asked == [(command, {"snapshot": "ababab"})]
    told = capsys.readouterr()
    assert told.out == ID + "\n"
    assert f"{command}ned already" in told.err


def test_evict_says_what_went_and_why_the_rest_stays(capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode(evict={"snapshot": ID, **FREED, "kept": ["2 segments stay"]})
    assert run(["evict", "ababab"], node.doors()) == 0
    assert node.asked == [("evict", {"snapshot": "ababab", "dry_run": False})]
    told = capsys.readouterr().err
    assert "freed 3.0 MiB in 1,200 chunks on this node, 2.0 MiB of the disk is back" in told
    assert "2 segments stay" in told


def test_a_dry_run_says_what_would_go(capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode(gc={**FREED, "dry_run": True, "removed": [ID]})
    assert run(["gc", "--dry-run"], node.doors()) == 0
    assert node.asked == [("gc", {"dry_run": True})]
    told = capsys.readouterr().err
    assert "would free 3.0 MiB" in told
    assert "abababababab would be removed" in told


def test_all_of_it_is_there_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode(evict={"snapshot": ID, **FREED})
    assert run(["evict", "ababab", "--json"], node.doors()) == 0
    assert json.loads(capsys.readouterr().out) == {"snapshot": ID, **FREED}


def test_what_is_in_use_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode(evict=Refused("it is mounted on /mnt/x here; end that first"))
    assert run(["evict", "ababab"], node.doors()) == 1
    assert "/mnt/x" in capsys.readouterr().err


def test_rm_names_the_refs_that_went_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode(rm={"snapshot": ID, "names": ["set:1"], "dry_run": False})
    assert run(["rm", "--force", "set:1"], node.doors()) == 0
    told = capsys.readouterr()
    assert told.out == ID + "\n" and "set:1 is gone" in told.err


def test_a_dry_run_of_rm_says_what_stands_in_the_way_and_what_would_be_freed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer: Body = {"snapshot": ID, "names": ["set:1"], **FREED, "dry_run": True, "refusal": "it is named set:1"}
    assert run(["rm", "--dry-run", "set:1"], FakeNode(rm=answer).doors()) == 0
    told = capsys.readouterr().err
    assert "would not be removed now: it is named set:1" in told
    assert "would free 3.0 MiB" in told


@pytest.mark.parametrize(("text", "seconds"), [("30d", 2592000), ("12h", 43200), ("0", 0), ("90", 90), ("2w", 1209600)])
def test_times_are_given_in_units(text: str, seconds: int, tmp_path: Path) -> None:
    node = FakeNode(publish={"snapshot": ID})
    assert run(["publish", str(tmp_path), "--keep", text, "--pin"], node.doors()) == 0
    assert (node.asked[0][1]["keep"], node.asked[0][1]["pin"]) == (seconds, True)


@pytest.mark.parametrize("text", ["", "d", "-1d", "1y", "1.5h", "30 d"])
def test_what_is_no_time_is_wrong_usage(text: str, tmp_path: Path) -> None:
    assert run(["publish", str(tmp_path), f"--keep={text}"], FakeNode().doors()) == 2


@pytest.mark.parametrize(
    ("snapshot", "text"),
    [
        ({"pinned": True, "names": ["a:1"]}, "pinned"),
        ({"mounted_on": ["/m"], "users": ["mounted on /m"]}, "mounted"),
        ({"users": ["open in pid 3"]}, "in use"),
        ({"names": ["a:1"], "expires": None}, "named"),
        ({"expires": 1_700_000_000 * 10**9}, "until 2023-11-1"),
        ({"expires": 10**40}, "until ever"),
        ({}, ""),
    ],
)
def test_why_a_snapshot_stays_is_told(snapshot: dict[str, Json], text: str) -> None:
    assert life_text(Fields(snapshot)).startswith(text)
