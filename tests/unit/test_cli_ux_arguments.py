"""Arguments that cannot mean what they seem to: refused with status 2 and a message that says what would."""

import os
from pathlib import Path

import pytest

from hoard_p2p.cli.main import run
from hoard_p2p.errors import BadRequest
from hoard_p2p.node.mounting import refuse_overlap
from tests.unit.cli_fakes import Dir, FakeNode, File, Link, TreeSnapshot

ID = "ab" * 32


@pytest.mark.parametrize(
    "arguments",
    [
        ("publish", ""),
        ("publish", ".", "--name", ""),
        ("mount", "x", ""),
        ("mount", "", "/mnt"),
        ("umount", ""),
        ("export", "x", ""),
        ("export", "", "/x"),
        ("diff", "x", ""),
        ("tag", "x", ""),
        ("tag", "", "x"),
        ("untag", ""),
        ("rm", ""),
        ("ls", ""),
        ("cat", ""),
        ("demo", ""),
        ("up", "--name", ""),
        ("up", "--cluster", ""),
        ("status", "--data-dir", ""),
        ("down", "--data-dir="),
    ],
)
def test_an_empty_argument_is_a_usage_error(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode()
    assert run(arguments, node.doors()) == 2
    assert "it is empty" in capsys.readouterr().err
    assert node.asked == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("mount", "set:1:train", "/x"),
        ("export", f"{ID}:train", "/x"),
        ("diff", "set:1", "set:2:train"),
        ("tag", "set:1:x", "y"),
        ("rm", "set:/x"),
    ],
)
def test_a_path_in_a_snapshot_is_refused_where_only_whole_ones_are_taken(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    node = FakeNode()
    assert run(arguments, node.doors()) == 2
    assert "whole snapshots only" in capsys.readouterr().err
    assert node.asked == []


def test_cat_of_a_snapshot_says_how_to_name_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode()
    node.snapshots = {"set:1": TreeSnapshot(Dir({b"f": File((b"x",))}))}
    assert run(["cat", "set:1"], node.doors()) == 2
    assert "names a snapshot; write set:1:PATH" in capsys.readouterr().err


def test_a_dangling_link_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode()
    node.snapshots = {"set:1": TreeSnapshot(Dir({b"l": Link(b"nowhere")}))}
    assert run(["cat", "set:1:l"], node.doors()) == 3
    assert "l leads nowhere: a symbolic link points to nowhere" in capsys.readouterr().err
    assert run(["cat", "set:1:other"], node.doors()) == 3
    assert "the snapshot has no path other" in capsys.readouterr().err


def test_a_mount_and_the_data_directory_lie_apart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "link").symlink_to(data)
    for point in (data, tmp_path, data / "m", tmp_path / "link", tmp_path / "link" / "m"):
        with pytest.raises(BadRequest, match="must lie apart"):
            refuse_overlap(data, point)
    with pytest.raises(BadRequest):
        refuse_overlap(tmp_path / "link", data / "m")
    refuse_overlap(data, tmp_path / "data2")
    refuse_overlap(data, tmp_path / "m")


def test_mount_refuses_an_overlap_before_it_asks_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mount", "set:1", str(tmp_path), "--data-dir", str(tmp_path / "data")], FakeNode().doors()) == 2
    assert "must lie apart" in capsys.readouterr().err


def test_a_pattern_with_the_source_in_it_is_refused_with_the_right_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = FakeNode()
    assert run(["publish", str(tmp_path), "--exclude", f"{tmp_path}/a b/"], node.doors()) == 2
    assert "write --exclude '/a b/'" in capsys.readouterr().err
    assert node.asked == []


def test_the_error_of_the_system_names_the_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    node = FakeNode()
    node.snapshots = {"set:1": TreeSnapshot(Dir({b"f": File((b"x",))}))}
    assert run(["export", "set:1", str(tmp_path / "none" / "x")], node.doors()) == 3
    assert f"mkdir -p {tmp_path / 'none'}" in capsys.readouterr().err
    assert run(["export", "set:1", str(tmp_path / "file")], node.doors()) == 1
    assert f"{tmp_path / 'file'} is no directory" in capsys.readouterr().err
    assert run(["export", "set:1", str(tmp_path / ("n" * 300))], node.doors()) == 1
    assert "File name too long" in capsys.readouterr().err
    assert run(["publish", str(tmp_path / ("n" * 300))], node.doors()) == 1
    shown = capsys.readouterr().err
    assert "File name too long" in shown and "Errno" not in shown


def test_the_demo_names_a_place_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "TMPDIR", str(tmp_path / "none"))
    assert run(["demo"], FakeNode().doors()) == 1
    assert f"no directory in {tmp_path / 'none'}" in capsys.readouterr().err
