"""Leases of mounts: what is seen of a mount decides whether its snapshot stays, also over a restart of the node."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from hoard_p2p.ids import SnapshotId
from hoard_p2p.node.leases import Leases
from hoard_p2p.node.mountleases import Facts, Fate, MountLeases, Seen, lease_fate
from hoard_p2p.node.names import Names
from hoard_p2p.node.parts import MountRecord
from hoard_p2p.peer import NodeId
from hoard_p2p.storage.lifetables import boot_id
from hoard_p2p.storage.records import LeaseRecord
from hoard_p2p.storage.store import Store

SNAPSHOT = SnapshotId(b"s" * 32)
DEVICE = "0:4093"
"""Of no mount: minor numbers of file systems without a device begin at 1 and are given out in order."""


def facts(**seen: bool | None) -> Facts:
    usual = Facts(kept=True, alive=True, listed=True, attached=True, supervised=True, young=False)
    return usual._replace(**seen)  # type: ignore[arg-type]  # `alive` may be None


@pytest.mark.parametrize(
    ("seen", "fate"),
    [
        ({}, Fate(False, False)),
        ({"alive": None}, Fate(False, False)),
        ({"alive": False}, Fate(False, True)),  # aborted
        ({"listed": False}, Fate(False, True)),  # detached lazily, and still in use
        ({"listed": False, "alive": False}, Fate(False, False)),  # unmounted as usual, its processes are about to end
        ({"kept": False}, Fate(False, True)),  # dead, and not unmounted yet
        ({"kept": False, "listed": False}, Fate(True, False)),
        ({"kept": False, "attached": False}, Fate(False, False)),  # the node has just started
        ({"kept": False, "attached": False, "listed": False, "supervised": False, "young": True}, Fate(False, False)),
        ({"kept": False, "attached": False, "listed": False, "supervised": True}, Fate(False, False)),
        ({"kept": False, "attached": False, "listed": False, "supervised": False}, Fate(True, True)),
    ],
)
def test_what_is_seen_of_a_mount_decides(seen: dict[str, bool | None], fate: Fate) -> None:
    assert lease_fate(facts(**seen)) == fate


def test_no_mount_ends_that_is_kept_or_listed() -> None:
    for kept, alive, listed, *rest in product((True, False), (True, False, None), *[(True, False)] * 4):
        if kept or listed:
            assert not lease_fate(Facts(bool(kept), alive, bool(listed), *map(bool, rest))).ended


@dataclass
class Node:
    store: Store
    leases: Leases
    mounts: MountLeases


@contextmanager
def a_node(path: Path) -> Iterator[Node]:
    with Store.open(path) as store:
        leases = Leases()
        mounts = MountLeases(store, Names(store, NodeId(b"m" * 16), lambda: 1), leases)
        mounts.restore()
        yield Node(store, leases, mounts)
        mounts.close()


def a_mount(pid: int = 1 << 22) -> MountRecord:
    """Its supervisor's pid is one that no process has."""
    return MountRecord("/mnt/x", SNAPSHOT, pid, "1", DEVICE)


def test_a_mount_leases_its_snapshot_until_it_is_gone(tmp_path: Path) -> None:
    with a_node(tmp_path / "n") as node:
        node.mounts.attached(a_mount())
        kept = {(SNAPSHOT, DEVICE): Seen(True)}
        assert node.mounts.tend(kept) == []
        assert node.leases.users(SNAPSHOT) == ["mounted on /mnt/x"]
        node.mounts.attached(a_mount(pid=1 << 21))  # another supervisor took over
        assert node.leases.users(SNAPSHOT) == ["mounted on /mnt/x"]
        assert node.mounts.tend({}) == [SNAPSHOT]
        assert node.leases.leased() == set()
        assert node.store.life.leases() == []


def test_a_node_that_starts_again_knows_the_mounts_that_have_not_attached_yet(tmp_path: Path) -> None:
    with a_node(tmp_path / "n") as node:
        node.mounts.attached(a_mount())
    with a_node(tmp_path / "n") as node:
        assert node.leases.users(SNAPSHOT) == ["mounted on /mnt/x"]
        assert node.mounts.tend({}) == [], "it has just started"
        node.mounts.attached(a_mount())
        assert node.mounts.tend({}) == [SNAPSHOT]


def test_a_lease_of_before_the_machine_started_is_void(tmp_path: Path) -> None:
    with Store.open(tmp_path / "n") as store:
        store.life.put_lease(LeaseRecord(SNAPSHOT, DEVICE, "/mnt/x", 1, 1, bytes(16), 1, 1))
        store.life.put_lease(LeaseRecord(SNAPSHOT, "0:4094", "/mnt/y", 1, 1, boot_id(), 1, 1))
    with a_node(tmp_path / "n") as node:
        assert node.leases.users(SNAPSHOT) == ["mounted on /mnt/y"]
        assert [lease.mountpoint for lease in node.store.life.leases()] == ["/mnt/y"]
