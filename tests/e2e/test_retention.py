"""The life of a snapshot, with real commands, mounts and a node that is killed."""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system import Machine, machines, make_tree, space_of, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(180)]
NewDirectory = Callable[[str], Path]


@pytest.fixture
def node(new_directory: NewDirectory) -> Iterator[Machine]:
    machine = Machine(new_directory("n"), f"test-{secrets.token_hex(4)}", "one", discovery="none", listen="127.0.0.1:0")
    with machines([machine]):
        yield machine


def slabs_size(node: Machine) -> int:
    return space_of(node.data_dir / "slabs")


def users(node: Machine, snapshot: str) -> list[str]:
    (found,) = [one for one in node.json("status")["snapshots"] if one["id"] == snapshot]
    return [str(user) for user in found["users"]]


def test_a_mounted_snapshot_stays_also_over_a_crash_of_the_node_and_goes_from_the_disk_once_removed(
    node: Machine, new_directory: NewDirectory
) -> None:
    source = make_tree(new_directory("s"), files=5, large=12 << 20)
    snapshot = node.publish(source, "--name", "set:1", "--keep", "12h")
    point = node.mount("set:1", new_directory("m"))
    wait_until(lambda: users(node, snapshot) == [f"mounted on {point}"], "the lease of the mount")
    refused = node.hoard("evict", snapshot, check=False)
    assert (refused.returncode, str(point) in refused.stderr) == (1, True)

    node.kill()
    node.up()
    assert users(node, snapshot) == [f"mounted on {point}"], "before its mount has attached, too"
    refused = node.hoard("rm", snapshot, check=False)
    assert (refused.returncode, "is named set:1" in refused.stderr) == (1, True)
    would = node.json("rm", "--dry-run", snapshot)
    assert ("is named set:1" in would["refusal"], would["bytes"] >= 12 << 20) == (True, True)
    node.hoard("untag", "set:1")
    refused = node.hoard("rm", snapshot, check=False)
    assert (refused.returncode, str(point) in refused.stderr) == (1, True)

    node.umount(point)
    wait_until(lambda: users(node, snapshot) == [], "the end of the lease")
    node.hoard("pin", snapshot)
    assert node.hoard("rm", snapshot, check=False).returncode == 1
    node.hoard("unpin", snapshot)
    kept = node.json("evict", snapshot)
    assert (kept["chunks"], "only node" in kept["kept"][0]) == (0, True)
    would = node.json("rm", "--dry-run", snapshot)
    assert (would["refusal"], would["bytes"] >= 12 << 20) == ("", True)
    before = slabs_size(node)
    node.hoard("rm", snapshot)
    wait_until(lambda: slabs_size(node) < before - (11 << 20), "the disk space comes back by itself")
    assert node.json("gc", "--dry-run")["chunks"] == 0
