"""Nodes on disks that are full, too small, read-only or ill: real nodes, real file systems."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.smalldisks import fill, hurt, loop_disk, memory_disk
from tests.system import Machine, machines, wait_until

pytestmark = pytest.mark.root
MIB = 1 << 20
GIB = 1 << 30
NO_FLOOR = ("--floor", "0")


def machine(data_dir: Path, *options: str, cluster: str = "", discovery: str = "none") -> Machine:
    return Machine(
        data_dir, cluster or f"test-{secrets.token_hex(4)}", data_dir.parent.name,
        discovery=discovery, listen="127.0.0.1:0", options=options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="room-"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def elsewhere(place: Path) -> dict[str, Path]:
    """Where the node of `roomy` must not write."""
    found = {name: place / name for name in ("home", "tmp", "run")}
    for path in found.values():
        path.mkdir()
    return found


@pytest.fixture(scope="module")
def roomy(place: Path, elsewhere: dict[str, Path]) -> Iterator[Machine]:
    """A node on a tmpfs of 160 MiB, for the tests that leave it well."""
    with memory_disk(place / "memory", 160 * MIB) as disk:
        node = machine(disk / "data", *NO_FLOOR, cluster=place.name)
        home, run = os.fspath(elsewhere["home"]), os.fspath(elsewhere["run"])
        node.environment = {
            "HOME": home, "XDG_CACHE_HOME": home, "TMPDIR": os.fspath(elsewhere["tmp"]), "XDG_RUNTIME_DIR": run,
            "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        with machines([node]):
            yield node


@pytest.fixture(scope="module")
def doomed(place: Path) -> Iterator[Machine]:
    """A node on an ext4 that others fill, and that is read-only in the end."""
    with loop_disk(place / "disk", 120 * MIB) as disk, machines([machine(disk / "data", *NO_FLOOR)]) as (node,):
        node.call("capacity", size=GIB)
        yield node


def emptied(node: Machine) -> Machine:
    for each in node.json("status")["snapshots"]:
        node.call("rm", snapshot=each["id"], force=True)
    node.call("gc")
    return node


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


def free(node: Machine) -> int:
    disk = os.statvfs(node.data_dir)
    return disk.f_bavail * disk.f_frsize


def du(path: Path) -> int:
    files = [path, *path.rglob("*")]
    return sum(file.lstat().st_blocks * 512 for file in files)


def test_a_publish_that_cannot_fit_is_refused_and_says_how_much_is_missing(place: Path, roomy: Machine) -> None:
    large, small = source(place / "large", 48 * MIB, 48), source(place / "small", 4 * MIB)
    node = emptied(roomy)
    node.call("capacity", size=30 * MIB)
    kept = node.publish(small)
    for options, missing in (((), "MiB are missing"), (("--try",), "are missing")):  # at once, and after it was full
        refused = node.hoard("publish", os.fspath(large), *options, check=False)
        assert refused.returncode == 1
        assert "the store is full: " in refused.stderr and missing in refused.stderr
        assert "capacity of 30.0 MiB" in refused.stderr
    assert [each["id"] for each in node.json("status")["snapshots"]] == [kept], "nothing half is shown"
    assert du(node.data_dir) <= 30 * MIB and store(node)["promised"] == 0
    (large / "extra").write_bytes(b"more")
    node.hoard("capacity", "120MiB")
    shown = node.json("capacity")
    assert shown["capacity"] == 120 * MIB and abs(shown["used"] - du(node.data_dir)) <= shown["used"] // 100
    published = node.publish(large)
    node.call("capacity", size=60 * MIB)
    assert node.publish(large, "--name", "again:1") == published, "what is stored already takes no room"


def test_the_floor_leaves_others_their_part_of_the_disk(place: Path, roomy: Machine) -> None:
    data = source(place / "floor", 40 * MIB)
    node = emptied(roomy)
    node.call("capacity", size=GIB, floor="90%")
    refused = node.hoard("publish", "--try", os.fspath(data), check=False)
    assert refused.returncode == 1 and "kept for others (the floor)" in refused.stderr
    assert free(node) >= 140 * MIB
    node.hoard("capacity", "--floor", "20MiB")
    node.publish(data)
    assert node.call("capacity", floor="0")["floor_setting"] == "0"


def test_what_a_failed_publish_stored_makes_room_at_once_and_goes_by_itself(place: Path, roomy: Machine) -> None:
    large, fits = source(place / "overflow", 90 * MIB, 45), source(place / "fits", 30 * MIB, 15)
    node = emptied(roomy)
    node.call("capacity", size=60 * MIB)
    assert node.hoard("publish", "--try", os.fspath(large), check=False).returncode == 1
    node.publish(fits)
    assert node.hoard("publish", "--try", os.fspath(large), check=False).returncode == 1
    wait_until(lambda: du(node.data_dir) < 40 * MIB, "nobody wants it")


@pytest.mark.fuse
def test_nothing_is_written_outside_the_data_directory(place: Path, roomy: Machine, elsewhere: dict[str, Path]) -> None:
    data = source(place / "inside", 6 * MIB, 3)
    before = set(os.listdir(place))
    snapshot = roomy.publish(data)
    mount = roomy.mount(snapshot, place / "mnt", "--io", "no-open")
    assert same(data, mount)
    roomy.umount(mount)
    roomy.hoard("export", snapshot, os.fspath(place / "out"))
    assert {name: os.listdir(path) for name, path in elsewhere.items()} == {name: [] for name in elsewhere}
    assert set(os.listdir(place)) - before == {"mnt", "out"}


@pytest.mark.fuse
def test_what_a_mount_reads_is_passed_through_where_it_cannot_be_stored(place: Path, roomy: Machine) -> None:
    data = source(place / "set", 24 * MIB, 6)
    node = emptied(roomy)
    node.call("capacity", size=GIB, floor="0")
    snapshot = node.publish(data, "--replicas", "1")
    url = node.json("status")["node"]["url"].removeprefix("http://")
    options = ("--capacity", "16MiB", *NO_FLOOR)
    poor = machine(place / "poor" / "data", *options, cluster=node.cluster, discovery=f"static:{url}")
    with machines([poor], others=1):
        mount = poor.mount(snapshot, place / "mnt", "--io", "no-open")
        assert same(data, mount)
        there = store(poor)
        assert there["unstored"] > 0 and du(poor.data_dir) <= 16 * MIB
        assert poor.log().count("was not stored") == 1, "a full disk does not fill up with a log of it"
        poor.call("capacity", size=120 * MIB)

        def read_again() -> bool:
            """By a fresh mount each time: what was passed through lies in the page cache, and is asked for no more."""
            poor.umount(mount)
            poor.mount(snapshot, mount, "--io", "no-open")
            return same(data, mount) and store(poor)["used"] > 24 * MIB

        wait_until(read_again, "what is read again is stored", seconds=30)


def test_a_disk_that_others_filled_fails_a_publish_and_what_is_removed_gives_room_again(
    place: Path, doomed: Machine
) -> None:
    first, second = source(place / "first", 12 * MIB, 120), source(place / "second", 40 * MIB, 10)
    node, disk, pid = doomed, doomed.data_dir.parent, doomed.pid
    kept, gone = node.publish(first), node.publish(source(place / "gone", 12 * MIB, 400))
    (disk / "others").write_bytes(bytes(40 * MIB))
    failed = node.hoard("publish", "--try", os.fspath(second), check=False)
    assert failed.returncode == 1 and "full" in failed.stderr, failed.stderr
    fill(disk / "more")  # not one block
    assert free(node) < 64 << 10
    wait_until(lambda: node.json("status")["store"]["state"] == "full", "a look of now")
    assert node.hoard("publish", os.fspath(second), check=False).returncode == 1
    node.hoard("export", kept, os.fspath(place / "kept"))
    assert same(first, place / "kept"), "reads go on"
    assert {each["id"] for each in node.json("status")["snapshots"]} == {kept, gone}
    node.hoard("rm", gone, "--force")
    node.hoard("gc")
    assert free(node) > 11 * MIB, "removing takes no room"
    node.publish(source(place / "third", 4 * MIB))
    for name in ("others", "more"):
        (disk / name).unlink()
    again = node.publish(second)
    node.hoard("export", again, os.fspath(place / "again"))
    assert same(second, place / "again") and node.pid == pid
    wait_until(lambda: abs(store(node)["used"] - du(node.data_dir)) <= MIB, "the count is right again")
    assert "Traceback" not in node.log(), node.log()


def test_a_read_only_disk_fails_a_publish_and_reads_go_on(place: Path, doomed: Machine) -> None:
    data, other = source(place / "ro", 4 * MIB, 3), source(place / "other", 4 * MIB, 3)
    node = doomed
    kept = node.publish(data, "--name", "set:1")
    hurt(node.data_dir.parent)
    for arguments in (("publish", os.fspath(other)), ("tag", kept, "more:1"), ("rm", kept, "--force")):
        failed = node.hoard(*arguments, check=False)
        assert failed.returncode == 1 and "the disk is read-only" in failed.stderr, failed.stderr + node.log()
    node.hoard("export", "set:1", os.fspath(place / "set1"))
    assert same(data, place / "set1")
    assert [each["names"] for each in node.json("status")["snapshots"] if each["id"] == kept] == [["set:1"]]
    wait_until(lambda: store(node)["available"] == 0, "a look of now")
    assert store(node)["promised"] == 0
    assert "state     read-only: " in node.hoard("status").stdout
    assert "its store is read-only: " in node.hoard("doctor", check=False).stdout
    node.hoard("down")
    refused = node.hoard("up", "--detach", "--discovery", "none", check=False)
    assert refused.returncode == 1 and "the disk is read-only" in refused.stderr, refused.stderr


def test_a_node_does_not_start_on_a_full_disk_and_says_what_to_do(place: Path) -> None:
    with memory_disk(place / "tiny", 4 * MIB) as disk:
        fill(disk / "others")
        refused = machine(disk / "data").hoard("up", "--detach", "--discovery", "none", check=False)
        assert refused.returncode == 1 and "the disk is full; make room" in refused.stderr, refused.stderr
