"""What the demo and the benchmarks stand on: the data set, the comparison, the clean-up."""

import os
import stat
from pathlib import Path

from hoard_p2p.cli import demodata
from hoard_p2p.cli.localcluster import LocalCluster, mounts_below, remove_tree
from hoard_p2p.cli.treecheck import differences, read_tree, without_owners


def test_the_data_set_has_the_files_asked_for_and_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        demodata.make(tmp_path / name, files=len(demodata.originals()) * 2 + 1, shard=5 << 20)
    one, other = read_tree(tmp_path / "one"), read_tree(tmp_path / "other")
    assert one.files == len(demodata.originals()) * 2 + 2  # with the shard
    assert one.entries[b"shard-000.bin"].size == 5 << 20
    assert {path: e.content for path, e in one.entries.items()} == {
        path: e.content for path, e in other.entries.items()
    }


def test_equal_trees_have_no_differences(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    assert differences(read_tree(tmp_path), read_tree(tmp_path)) == []


def test_an_export_without_owners_is_no_difference_and_everything_else_is(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    (tmp_path / "l").symlink_to("f")
    (tmp_path / "f").chmod(0o6755)
    expected = read_tree(tmp_path)
    (tmp_path / "f").chmod(0o755)
    assert differences(without_owners(expected), read_tree(tmp_path)) == []
    (tmp_path / "f").chmod(0o644)
    assert differences(without_owners(expected), read_tree(tmp_path)) == ["'f' differs in mode"]


def test_each_difference_is_named(tmp_path: Path) -> None:
    for name in ("same", "bytes", "mode", "gone"):
        (tmp_path / name).write_bytes(b"x")
    expected = read_tree(tmp_path)
    before = (tmp_path / "bytes").stat()
    (tmp_path / "bytes").write_bytes(b"y")
    os.utime(tmp_path / "bytes", ns=(before.st_atime_ns, before.st_mtime_ns))
    (tmp_path / "mode").chmod(0o600)
    (tmp_path / "gone").unlink()
    (tmp_path / "new").touch()
    os.utime(tmp_path, ns=(0, expected.entries[b""].mtime_ns))
    assert differences(expected, read_tree(tmp_path)) == [
        "'bytes' differs in content",
        "'gone' is missing",
        "'mode' differs in mode",
        "'new' is not in the source",
    ]


def test_many_differences_are_counted(tmp_path: Path) -> None:
    expected = read_tree(tmp_path)
    for number in range(30):
        (tmp_path / f"f{number}").touch()
    lines = differences(expected, read_tree(tmp_path))
    assert len(lines) == 11 and lines[-1] == "and 21 more"  # 30 files, and the directory's own time


def test_an_empty_cluster_leaves_nothing() -> None:
    with LocalCluster("hoard-test") as cluster:
        (cluster.root / "x").touch()
        assert cluster.processes() == [] and mounts_below(cluster.root) == []
    assert not cluster.root.exists()


def test_a_tree_with_read_only_directories_is_removed(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "f").touch()
    (deep / "outside").symlink_to(tmp_path.parent)
    before = stat.S_IMODE(tmp_path.parent.stat().st_mode)
    deep.chmod(0o500)
    (tmp_path / "a").chmod(0o500)
    remove_tree(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    assert stat.S_IMODE(tmp_path.parent.stat().st_mode) == before
