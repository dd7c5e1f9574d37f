"""`key new`, `key show`."""

from pathlib import Path

import pytest

from hoard_p2p.cli.main import run
from hoard_p2p.node.checkup import Verdict
from hoard_p2p.node.environment import judge_access
from hoard_p2p.transfer.keys import read_key_file
from tests.unit.cli_fakes import FakeNode

DOORS = FakeNode().doors()


def test_a_new_key_goes_to_a_file_that_show_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.key"
    assert run(["key", "new", str(path)], DOORS) == 0
    (key,) = read_key_file(path)
    told = capsys.readouterr().out
    assert key.fingerprint.hex() in told
    assert key.secret.hex() not in told
    assert run(["key", "show", str(path)], DOORS) == 0
    assert f"{key.fingerprint.hex()}  signs, accepts" in capsys.readouterr().out


def test_a_second_key_is_added_as_a_line_for_rotation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.key"
    assert run(["key", "new", str(path)], DOORS) == 0
    capsys.readouterr()
    assert run(["key", "new"], DOORS) == 0
    with path.open("a") as file:
        file.write(capsys.readouterr().out)
    assert len(read_key_file(path)) == 2
    assert run(["key", "show", str(path)], DOORS) == 0
    assert [line.split("  ")[-1] for line in capsys.readouterr().out.splitlines()[1:]] == ["signs, accepts", "accepts"]


def test_a_key_file_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.key"
    path.write_text("mine")
    assert run(["key", "new", str(path)], DOORS) == 1
    assert "is there already" in capsys.readouterr().err
    assert path.read_text() == "mine"


def test_doctor_says_who_could_do_what() -> None:
    for url, key, encrypted, says in (
        ("http://10.0.0.5:7440", "", False, "whoever reaches port 7440 from a private address can read"),
        ("http://127.0.0.1:7440", "", False, "programs of this machine"),
        ("http://10.0.0.5:7440", "aa55", False, "can read along"),
        ("http://10.0.0.5:7440", "aa55", True, "encrypted"),
    ):
        found = judge_access(url, key, encrypted)
        assert found.verdict is Verdict.OK
        assert says in found.says
