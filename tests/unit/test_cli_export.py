"""`hoard export`: the tree comes out as it went in."""

import os
import stat
from pathlib import Path

import pytest

from hoard_p2p.cli.export import OPEN_DIRECTORIES, open_target, write_tree
from hoard_p2p.cli.main import run
from hoard_p2p.cli.progress import Step
from hoard_p2p.cli.treecheck import differences, read_tree
from hoard_p2p.errors import ChunkUnavailable, Refused
from tests.unit.cli_fakes import MTIME, Dir, FailingSnapshot, FakeNode, File, Hard, Link, TreeSnapshot

ID = "ab" * 32
FAR = 4_000_000_000_000_000_003
"""A time after 2038."""


class Unseen:
    """A display that shows nothing."""

    def show(self, step: Step) -> None:
        return

    def close(self) -> None:
        return


def exported(tree: Dir, target: Path) -> Path:
    write_tree(TreeSnapshot(tree), target, Unseen())
    return target


def test_modes_and_times_are_kept_also_of_directories(tmp_path: Path) -> None:
    out = exported(
        Dir(
            {
                b"d": Dir({b"f": File([b"x"], mode=0o400, mtime=-5_000_000_001)}, mode=0o555, mtime=FAR),
            },
            mode=0o750,
            mtime=MTIME + 7,
        ),
        tmp_path / "out",
    )
    assert stat.S_IMODE(out.stat().st_mode) == 0o750 and out.stat().st_mtime_ns == MTIME + 7
    assert stat.S_IMODE((out / "d").stat().st_mode) == 0o555
    assert (out / "d").stat().st_mtime_ns == FAR
    assert stat.S_IMODE((out / "d/f").stat().st_mode) == 0o400 and (out / "d/f").stat().st_mtime_ns == -5_000_000_001
    (out / "d").chmod(0o700)  # so that an ordinary user can remove it


def test_without_owners_nothing_is_set_to_run_as_whoever_exports(tmp_path: Path) -> None:
    tree = Dir({b"u": File([b"x"], mode=0o4755), b"g": File([b"x"], mode=0o2750), b"d": Dir(mode=0o3777)})
    out = exported(tree, tmp_path / "out")
    modes = {name: stat.S_IMODE((out / name).stat().st_mode) for name in ("u", "g", "d")}
    assert modes == {"u": 0o755, "g": 0o750, "d": 0o1777}


@pytest.mark.root
def test_with_owners_root_restores_them_and_the_bits_that_depend_on_them(tmp_path: Path) -> None:
    tree = Dir({b"u": File([b"x"], mode=0o4755), b"d": Dir(mode=0o2770), b"l": Link(b"u")})
    out = tmp_path / "out"
    write_tree(TreeSnapshot(tree, owner=(4711, 4712)), out, Unseen())
    for name in ("u", "d", "l"):
        status = (out / name).lstat()
        assert (status.st_uid, status.st_gid) == (4711, 4712)
    assert stat.S_IMODE((out / "u").stat().st_mode) == 0o4755
    assert stat.S_IMODE((out / "d").stat().st_mode) == 0o2770


def test_symbolic_links_are_kept_verbatim(tmp_path: Path) -> None:
    out = exported(Dir({b"l": Link(b"../\xff/etc"), b"broken": Link(b"none")}), tmp_path / "out")
    assert os.readlink(os.fsencode(out / "l")) == b"../\xff/etc"
    assert (out / "l").lstat().st_mtime_ns == MTIME


def test_hard_links_share_an_inode(tmp_path: Path) -> None:
    out = exported(Dir({b"a": File([b"x"]), b"d": Dir({b"b": Hard(b"a")})}), tmp_path / "out")
    assert (out / "a").stat().st_ino == (out / "d/b").stat().st_ino


def test_holes_take_no_disk(tmp_path: Path) -> None:
    out = exported(Dir({b"s": File([b"head", 1 << 24, b"tail", 1 << 24])}), tmp_path / "out")
    status = (out / "s").stat()
    assert status.st_size == 2 * (1 << 24) + 8 and status.st_blocks * 512 < 1 << 20
    assert (out / "s").read_bytes() == b"head" + bytes(1 << 24) + b"tail" + bytes(1 << 24)


def test_attributes_are_kept(tmp_path: Path) -> None:
    try:
        os.setxattr(tmp_path, "user.probe", b"1")
    except OSError:
        pytest.skip("the file system of temporary files has no user.* attributes")
    out = exported(
        Dir({b"f": File([b"x"], mode=0o444, xattrs=((b"user.k", b"v\0"),))}, xattrs=((b"user.d", b"w"),)),
        tmp_path / "out",
    )
    assert os.getxattr(out / "f", "user.k") == b"v\0" and os.getxattr(out, "user.d") == b"w"


def test_names_are_bytes(tmp_path: Path) -> None:
    out = exported(Dir({b"\xff\n": File([b"x"]), b"-rf": File()}), tmp_path / "out")
    assert sorted(os.listdir(os.fsencode(out))) == [b"-rf", b"\xff\n"]


def test_a_tree_deeper_than_the_open_directories_comes_out(tmp_path: Path) -> None:
    tree = Dir({b"leaf": File([b"x"]), b"other": Hard(b"first")})
    for _ in range(3 * OPEN_DIRECTORIES):
        tree = Dir({b"d": tree})
    tree = Dir({b"first": File([b"y"]), **tree.entries})
    before = len(os.listdir("/proc/self/fd"))
    out = exported(tree, tmp_path / "out")
    found = read_tree(out)
    assert found.entries[b"d/" * 3 * OPEN_DIRECTORIES + b"leaf"].size == 1
    assert len(os.listdir("/proc/self/fd")) == before


def test_two_exports_are_equal(tmp_path: Path) -> None:
    tree = Dir({b"a": File([b"x" * 5000]), b"d": Dir({b"l": Link(b"../a")})})
    one, other = read_tree(exported(tree, tmp_path / "one")), read_tree(exported(tree, tmp_path / "other"))
    assert differences(one, other) == []


def test_a_directory_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    with pytest.raises(Refused, match="not empty"):
        open_target(tmp_path)


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    node = FakeNode()
    node.snapshots = {ID: TreeSnapshot(Dir({b"a": File([b"x"])}))}
    assert run(["export", ID, str(tmp_path)], node.doors()) == 0
    assert (tmp_path / "a").read_bytes() == b"x"


def test_a_failure_says_where_it_stopped_and_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode()
    tree = Dir({b"a": File([b"x"]), b"b": File([b"y"]), b"c": File([b"z"])})
    node.snapshots = {ID: FailingSnapshot(tree, b"b", ChunkUnavailable("nobody has it"))}
    assert run(["export", ID, str(tmp_path / "out")], node.doors()) == 5
    told = capsys.readouterr().err
    assert "nobody has it" in told and "stopped at b" in told and "1 of 3 entries" in told
    assert (tmp_path / "out" / "a").read_bytes() == b"x"
