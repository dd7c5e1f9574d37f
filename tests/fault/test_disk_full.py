"""Nodes on disks that are full, too small, read-only or ill: real nodes, real file systems."""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.smalldisks import fill, hurt, loop_disk, memory_disk
from tests.system import Machine, machines, wait_until

pytestmark = pytest.mark.root
MIB = 1 << 20
NO_FLOOR = ("--floor", "0")


def machine(data_dir: Path, *options: str, cluster: str = "", discovery: str = "none") -> Machine:
    return Machine(
        data_dir, cluster or f"test-{secrets.token_hex(4)}", data_dir.parent.name,
        discovery=discovery, listen="127.0.0.1:0", options=options,
    )  # fmt: skip


@contextmanager
def on_disk(disk: Path, *options: str) -> Iterator[Machine]:
    with machines([machine(disk / "data", *options)]) as (node,):
        yield node


def source(path: Path, size: int, files: int = 4) -> Path:
    """Random bytes in files of equal size."""
    path.mkdir()
    for number in range(files):
        (path / f"{number}.bin").write_bytes(os.urandom(size // files))
    return path


def same(left: Path, right: Path) -> bool:
    names = sorted(os.listdir(left))
    return names == sorted(os.listdir(right)) and all(
        (left / name).read_bytes() == (right / name).read_bytes() for name in names
    )


def store(node: Machine) -> dict[str, int]:
    found: dict[str, int] = node.json("status")["store"]
    return found


def du(path: Path) -> int:
    files = [path, *path.rglob("*")]
    return sum(file.lstat().st_blocks * 512 for file in files)


def test_a_publish_that_cannot_fit_is_refused_and_says_how_much_is_missing(
    new_directory: Callable[[str], Path],
) -> None:
    top = new_directory("room")
    large, small = source(top / "large", 64 * MIB, 64), source(top / "small", 4 * MIB)
    with on_disk(top, "--capacity", "40MiB", *NO_FLOOR) as node:
        kept = node.publish(small)
        refused = node.hoard("publish", os.fspath(large), check=False)
        assert refused.returncode == 1
        assert "the store is full: " in refused.stderr and "MiB are missing" in refused.stderr
        assert "capacity of 40.0 MiB" in refused.stderr
        tried = node.hoard("publish", "--try", os.fspath(large), check=False)
        assert tried.returncode == 1 and "the store is full: " in tried.stderr
        assert [each["id"] for each in node.json("status")["snapshots"]] == [kept], "nothing half is shown"
        assert du(node.data_dir) <= 40 * MIB and store(node)["promised"] == 0
        (large / "extra").write_bytes(b"more")
        node.hoard("capacity", "200MiB")
        shown = node.json("capacity")
        assert shown["capacity"] == 200 * MIB and abs(shown["used"] - du(node.data_dir)) <= shown["used"] // 100
        published = node.publish(large)
        node.hoard("capacity", "80MiB")
        assert node.publish(large, "--name", "again:1") == published, "what is stored already takes no room"


def test_what_a_failed_publish_stored_makes_room_at_once_and_goes_by_itself(
    new_directory: Callable[[str], Path],
) -> None:
    top = new_directory("failed")
    large, fits = source(top / "large", 150 * MIB, 80), source(top / "fits", 40 * MIB, 20)
    with on_disk(top, "--capacity", "80MiB", *NO_FLOOR) as node:
        assert node.hoard("publish", "--try", os.fspath(large), check=False).returncode == 1
        node.publish(fits)
        assert node.hoard("publish", "--try", os.fspath(large), check=False).returncode == 1
        wait_until(lambda: du(node.data_dir) < 50 * MIB, "nobody wants it")


def test_the_floor_leaves_others_their_part_of_the_disk(new_directory: Callable[[str], Path]) -> None:
    top = new_directory("floor")
    data = source(top / "set", 40 * MIB)
    with memory_disk(top / "disk", 100 * MIB) as disk, on_disk(disk, "--capacity", "1GiB", "--floor", "70%") as node:
        refused = node.hoard("publish", "--try", os.fspath(data), check=False)
        assert refused.returncode == 1 and "kept for others (the floor)" in refused.stderr
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        assert free >= 69 * MIB
        node.hoard("capacity", "--floor", "20MiB")
        node.publish(data)
        assert node.json("capacity")["floor_setting"] == str(20 * MIB)


def test_a_disk_that_others_filled_fails_a_publish_and_the_node_goes_on_when_there_is_room(
    new_directory: Callable[[str], Path],
) -> None:
    top = new_directory("full")
    first, second = source(top / "first", 8 * MIB, 2), source(top / "second", 40 * MIB, 10)
    with memory_disk(top / "disk", 120 * MIB) as disk, on_disk(disk, "--capacity", "1GiB", *NO_FLOOR) as node:
        kept = node.publish(first)
        (disk / "others").write_bytes(bytes(90 * MIB))
        failed = node.hoard("publish", "--try", os.fspath(second), check=False)
        assert failed.returncode == 1 and "full" in failed.stderr, failed.stderr
        fill(disk / "more")  # not one block: nothing can be noted either
        assert node.hoard("publish", os.fspath(second), check=False).returncode == 1
        node.hoard("export", kept, os.fspath(top / "out"))
        assert same(first, top / "out"), "reads go on"
        assert [each["id"] for each in node.json("status")["snapshots"]] == [kept]
        pid = node.pid
        for name in ("others", "more"):
            (disk / name).unlink()
        again = node.publish(second)
        node.hoard("export", again, os.fspath(top / "out2"))
        assert same(second, top / "out2") and node.pid == pid
        wait_until(lambda: abs(store(node)["used"] - du(node.data_dir)) <= MIB, "the count is right again")
        assert "Traceback" not in node.log(), node.log()


@pytest.mark.fuse
def test_what_a_mount_reads_is_passed_through_where_it_cannot_be_stored(new_directory: Callable[[str], Path]) -> None:
    top = new_directory("pass")
    data = source(top / "set", 24 * MIB, 6)
    cluster = f"test-{secrets.token_hex(4)}"
    with ExitStack() as stack:
        (rich,) = stack.enter_context(machines([machine(top / "rich", cluster=cluster)]))
        snapshot = rich.publish(data, "--replicas", "1")
        url = rich.json("status")["node"]["url"].removeprefix("http://")
        disk = stack.enter_context(memory_disk(top / "disk", 160 * MIB))
        options = ("--capacity", "16MiB", *NO_FLOOR)
        poor = machine(disk / "data", *options, cluster=cluster, discovery=f"static:{url}")
        stack.enter_context(machines([poor], others=1))
        mount = poor.mount(snapshot, top / "mnt", "--io", "no-open")
        assert same(data, mount)
        there = store(poor)
        assert there["unstored"] > 0 and du(poor.data_dir) <= 16 * MIB
        assert poor.log().count("was not stored") == 1, "a full disk does not fill up with a log of it"
        poor.hoard("capacity", "120MiB")
        poor.umount(mount)
        poor.mount(snapshot, mount, "--io", "no-open")
        wait_until(
            lambda: same(data, mount) and store(poor)["used"] > 24 * MIB, "what is read again is stored", seconds=30
        )


def test_a_read_only_disk_fails_a_publish_and_reads_go_on(new_directory: Callable[[str], Path]) -> None:
    top = new_directory("ro")
    data, other = source(top / "set", 12 * MIB, 3), source(top / "other", 12 * MIB, 3)
    with loop_disk(top / "disk", 120 * MIB) as disk:
        with on_disk(disk, "--capacity", "80MiB", *NO_FLOOR) as node:
            kept = node.publish(data, "--name", "set:1")
            hurt(disk)
            for arguments in (("publish", os.fspath(other)), ("tag", kept, "more:1"), ("rm", kept, "--force")):
                failed = node.hoard(*arguments, check=False)
                assert failed.returncode == 1 and "the disk is read-only" in failed.stderr, failed.stderr + node.log()
            node.hoard("export", "set:1", os.fspath(top / "out"))
            assert same(data, top / "out")
            assert [each["names"] for each in node.json("status")["snapshots"]] == [["set:1"]]
            assert store(node)["promised"] == 0
        refused = machine(disk / "data").hoard("up", "--detach", "--discovery", "none", check=False)
        assert refused.returncode == 1 and "the disk is read-only" in refused.stderr, refused.stderr


def test_a_node_does_not_start_on_a_full_disk_and_says_what_to_do(new_directory: Callable[[str], Path]) -> None:
    top = new_directory("start")
    with memory_disk(top / "disk", 4 * MIB) as disk:
        fill(disk / "others")
        refused = machine(disk / "data").hoard("up", "--detach", "--discovery", "none", check=False)
        assert refused.returncode == 1 and "the disk is full; make room" in refused.stderr, refused.stderr


@pytest.mark.fuse
def test_nothing_is_written_outside_the_data_directory(new_directory: Callable[[str], Path]) -> None:
    top = new_directory("outside")
    data = source(top / "set", 6 * MIB, 3)
    elsewhere = {name: top / name for name in ("home", "tmp", "cwd", "run")}
    for path in elsewhere.values():
        path.mkdir()
    node = machine(top / "data")
    node.environment = {
        "HOME": os.fspath(elsewhere["home"]), "TMPDIR": os.fspath(elsewhere["tmp"]),
        "XDG_RUNTIME_DIR": os.fspath(elsewhere["run"]), "XDG_CACHE_HOME": os.fspath(elsewhere["home"]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    with machines([node]):
        snapshot = node.publish(data)
        mount = node.mount(snapshot, top / "mnt", "--io", "no-open")
        assert same(data, mount)
        node.umount(mount)
        node.hoard("export", snapshot, os.fspath(top / "out"))
    assert {name: os.listdir(path) for name, path in elsewhere.items()} == {name: [] for name in elsewhere}
    assert sorted(os.listdir(top)) == ["cwd", "data", "home", "mnt", "out", "run", "set", "tmp"]
