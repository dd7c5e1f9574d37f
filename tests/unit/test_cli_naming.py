"""`tag`, `untag`, `refs`."""

import json

import pytest

from hoard_p2p.cli.main import run
from hoard_p2p.config import Json
from hoard_p2p.errors import Refused
from tests.unit.cli_fakes import FakeNode

ID = "ab" * 32


def test_tag_asks_for_the_name_and_prints_the_id(capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode(tag={"name": "set:2", "snapshot": ID})
    assert run(["tag", "--move", "ababab", "set:2"], node.doors()) == 0
    assert node.asked == [("tag", {"snapshot": "ababab", "name": "set:2", "move": True})]
    assert capsys.readouterr().out == ID + "\n"


def test_a_name_that_exists_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode(tag=Refused("set:2 names another snapshot; move it with --move"))
    assert run(["tag", "ababab", "set:2"], node.doors()) == 1
    assert "--move" in capsys.readouterr().err


def test_untag_asks_for_the_name() -> None:
    node = FakeNode(untag={})
    assert run(["untag", "set:2"], node.doors()) == 0
    assert node.asked == [("untag", {"name": "set:2"})]


def test_refs_lists_names_ids_times_and_nodes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"refs": [{"name": "set:1", "snapshot": ID, "when": 1_700_000_000_000, "node": "gpu1"}]}
    node = FakeNode(refs=body)  # type: ignore[arg-type]  # a literal of the right shape
    assert run(["refs"], node.doors()) == 0
    shown = capsys.readouterr().out
    assert "set:1" in shown and "abababababab" in shown and "2023-11-1" in shown and "gpu1" in shown
    assert run(["refs", "--json"], node.doors()) == 0
    assert json.loads(capsys.readouterr().out) == body


def test_refs_of_one_name_shows_what_it_was_before(capsys: pytest.CaptureFixture[str]) -> None:
    past: Json = {"snapshot": "cd" * 32, "when": 1_600_000_000_000, "node": "gpu2"}
    ref: Json = {"name": "set:latest", "snapshot": ID, "when": 1_700_000_000_000, "node": "gpu1", "past": [past]}
    other: Json = {"name": "other:1", "snapshot": ID, "when": 1_700_000_000_000, "node": "gpu1", "past": []}
    node = FakeNode(refs={"refs": [other, ref]})
    assert run(["refs", "set"], node.doors()) == 0
    shown = capsys.readouterr().out
    assert "cdcdcdcdcdcd" in shown and "2020-09-1" in shown and "other" not in shown
    assert run(["refs", "set", "--json"], node.doors()) == 0
    assert json.loads(capsys.readouterr().out) == {"refs": [ref]}
    assert run(["refs", "set:3"], node.doors()) == 3
    assert "set:3" in capsys.readouterr().err
