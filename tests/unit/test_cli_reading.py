"""`ls`, `cat`, `diff`, and how SNAPSHOT:PATH is understood."""

import json
from datetime import datetime

import pytest

from hoard_p2p.cli.main import run
from hoard_p2p.cli.paths import Target, resolve, targets
from hoard_p2p.errors import PathNotFound
from tests.unit.cli_fakes import MTIME, Dir, FakeNode, File, Hard, Link, TreeSnapshot

ID = "ab" * 32
TREE = Dir(
    {
        b"a.txt": File([b"hello"]),
        b"d": Dir({b"deep": Dir({b"x": File([b"deep x"])}), b"same": Hard(b"a.txt"), b"up": Link(b"../a.txt")}),
        b"line\nbreak": File(),
        b"link": Link(b"d/deep"),
        b"loop": Link(b"loop"),
        b"out": Link(b"/etc/passwd"),
        b"over": Link(b"../../etc/passwd"),
        b"sparse": File([b"head", 1 << 20, b"tail"]),
    }
)


@pytest.fixture
def node() -> FakeNode:
    fake = FakeNode()
    fake.snapshots = {
        ID: TreeSnapshot(TREE),
        "set:1": TreeSnapshot(TREE),
        "set": TreeSnapshot(Dir({b"1": File([b"one"])})),
    }
    return fake


def test_a_full_id_takes_everything_behind_the_colon_as_path() -> None:
    assert targets(f"{ID}:a:b") == [Target(ID, b"a:b")]


def test_a_tag_comes_before_a_path() -> None:
    assert targets("set:1") == [Target("set:1", None), Target("set", b"1")]
    assert targets("set:1:x:y") == [Target("set:1", b"x:y"), Target("set", b"1:x:y")]


def test_a_slash_makes_a_path() -> None:
    assert targets("set:/1") == [Target("set", b"/1")]
    assert targets("set:a/b") == [Target("set", b"a/b")]


def test_names_are_listed_one_a_line(node: FakeNode, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["ls", f"{ID}:d"], node.doors()) == 0
    assert capfdbinary.readouterr().out == b"deep\nsame\nup\n"


def test_a_file_is_listed_itself(node: FakeNode, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["ls", "set:1:d/deep/x"], node.doors()) == 0
    assert capfdbinary.readouterr().out == b"x\n"


def test_recursive_lists_paths_that_end_with_nul(node: FakeNode, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["ls", "-R0", ID], node.doors()) == 0
    listed = capfdbinary.readouterr().out.split(b"\0")
    assert listed[:6] == [b"a.txt", b"d", b"d/deep", b"d/deep/x", b"d/same", b"d/up"]
    assert b"line\nbreak" in listed


def test_long_shows_modes_links_sizes_and_targets(node: FakeNode, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["ls", "-l", f"{ID}:d"], node.doors()) == 0
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert lines[0].startswith("drwxr-xr-x   1 ")
    assert lines[1].startswith("-rw-r--r--   2              5 2017-07-1")
    assert lines[2].endswith("up -> ../a.txt")


def test_json_has_everything(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "--json", f"{ID}:d"], node.doors()) == 0
    listing = json.loads(capsys.readouterr().out)
    assert listing["snapshot"] == ID and listing["path"] == "d"
    assert [e["type"] for e in listing["entries"]] == ["directory", "file", "symlink"]
    assert listing["entries"][1] == {
        "name": "same",
        "type": "file",
        "mode": "0644",
        "size": 5,
        "mtime_ns": MTIME,
        "nlink": 2,
        "inode": 2,
    }
    assert listing["entries"][2]["target"] == "../a.txt"


def test_snapshots_are_listed_without_argument(capsys: pytest.CaptureFixture[str]) -> None:
    created = int(datetime(2026, 3, 4, 5, 6, 7).astimezone().timestamp()) * 10**9
    snapshot = {"id": ID, "names": ["set:1"], "files": 3, "bytes": 2048, "created": created, "source": "/data/\x1bset"}
    body = {"snapshots": [snapshot]}
    assert run(["ls"], FakeNode(snapshots=body).doors()) == 0  # type: ignore[arg-type]  # a literal of the right shape
    assert capsys.readouterr().out.splitlines()[1].split() == [
        *(ID, "3", "2.0", "KiB", "2026-03-04", "05:06:07", "named", "set:1", "/data/\\x1bset")
    ]


@pytest.mark.parametrize(
    ("path", "content"), [("a.txt", b"hello"), ("d/up", b"hello"), ("link/x", b"deep x"), ("d/same", b"hello")]
)
def test_cat_writes_the_bytes(
    node: FakeNode, path: str, content: bytes, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(["cat", f"{ID}:{path}"], node.doors()) == 0
    assert capfdbinary.readouterr().out == content


def test_cat_writes_holes_as_zeros(node: FakeNode, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["cat", f"{ID}:sparse"], node.doors()) == 0
    assert capfdbinary.readouterr().out == b"head" + bytes(1 << 20) + b"tail"


def test_cat_of_a_name_without_tag_takes_the_tag_for_a_path(
    node: FakeNode, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(["cat", "set:1"], node.doors()) == 0
    assert capfdbinary.readouterr().out == b"one"


@pytest.mark.parametrize("path", ["none", "a.txt/x", "loop", "out", "over", "..", "link/none"])
def test_a_path_that_is_not_there_is_status_3(node: FakeNode, path: str) -> None:
    assert run(["cat", f"{ID}:{path}"], node.doors()) == 3


def test_an_unknown_snapshot_is_status_3(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "nothing:here"], node.doors()) == 3
    assert "no snapshot nothing:here" in capsys.readouterr().err


def test_cat_without_path_and_of_a_directory_is_status_2(node: FakeNode) -> None:
    assert run(["cat", ID], node.doors()) == 2
    assert run(["cat", f"{ID}:d"], node.doors()) == 2


def test_a_link_is_itself_only_where_it_is_not_followed() -> None:
    catalog = TreeSnapshot(TREE).catalog
    assert catalog.is_symlink(resolve(catalog, b"link", follow=False))
    assert catalog.is_dir(resolve(catalog, b"link"))
    with pytest.raises(PathNotFound, match="too many"):
        resolve(catalog, b"loop")


def test_diff_tells_what_was_added_deleted_and_modified(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    fake = FakeNode()
    old = Dir({b"gone": File([b"1"]), b"kept": File([b"2"]), b"new mode": File([b"3"]), b"text": File([b"4"])})
    new = Dir(
        {
            b"added": Dir({b"x": File()}),
            b"kept": File([b"2"]),
            b"new mode": File([b"3"], mode=0o600),
            b"text": File([b"5"]),
        }
    )
    fake.snapshots = {"old": TreeSnapshot(old), "new": TreeSnapshot(new)}
    assert run(["diff", "old", "new"], fake.doors()) == 0
    assert capfdbinary.readouterr().out == b"A added\nA added/x\nD gone\nT new mode\nM text\n"
    assert run(["diff", "--exit-code", "old", "new"], fake.doors()) == 1
    assert run(["diff", "--exit-code", "old", "old"], fake.doors()) == 0


def test_diff_compares_bytes_where_the_cuts_differ(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    fake = FakeNode()
    fake.snapshots = {
        "one": TreeSnapshot(Dir({b"f": File([b"hello", b"world"])})),
        "other": TreeSnapshot(Dir({b"f": File([b"hellowor", b"ld"])})),
        "third": TreeSnapshot(Dir({b"f": File([b"hellowor", b"lx"])})),
    }
    assert run(["diff", "one", "other"], fake.doors()) == 0
    assert capfdbinary.readouterr().out == b""
    assert run(["diff", "one", "third"], fake.doors()) == 0
    assert capfdbinary.readouterr().out == b"M f\n"


def test_diff_follows_a_file_that_became_a_directory(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    fake = FakeNode()
    fake.snapshots = {
        "old": TreeSnapshot(Dir({b"x": File([b"1"])})),
        "new": TreeSnapshot(Dir({b"x": Dir({b"y": File()})})),
    }
    assert run(["diff", "old", "new"], fake.doors()) == 0
    assert capfdbinary.readouterr().out == b"M x\nA x/y\n"
