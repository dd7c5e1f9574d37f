"""Verification ahead of readers, on real mounts of real nodes: what it marks, what damage it finds, and its deaths."""

import os
import random
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from hoard_p2p.mount.mountinfo import locate, mount_at
from hoard_p2p.mount.shared import SharedState
from hoard_p2p.mount.users import servers, shared_name
from hoard_p2p.testing.mountfakes import has_ended
from tests.system import Machine, machines, wait_until

pytestmark = [pytest.mark.root, pytest.mark.fuse, pytest.mark.timeout(120)]
NewDirectory = Callable[[str], Path]

SMALL, SMALL_SIZE = 150, 60_000
LARGE, LARGE_SIZE = 3, 10 << 20


@dataclass
class Pair:
    """Two nodes that both hold everything: small files and large ones. The first one's disk is damaged by tests."""

    first: Machine
    second: Machine
    top: Path

    def publish(self, name: str, files: int, size: int) -> tuple[Path, str]:
        source = self.top / name
        source.mkdir()
        draw = random.Random(name)
        for number in range(files):
            (source / f"{number:04d}").write_bytes(draw.randbytes(size))
        return source, self.first.publish(source, "--replicas", "2")


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    top = Path(tempfile.mkdtemp(prefix="v-"))
    cluster = f"test-{secrets.token_hex(4)}"
    first = Machine(top / "a", cluster, "first", discovery="none", listen="127.0.0.1:0")
    try:
        with machines([first]):
            address = str(first.json("status")["node"]["url"]).removeprefix("http://")
            second = Machine(top / "b", cluster, "second", discovery=f"static:{address}", listen="127.0.0.1:0")
            with machines([second], others=1):
                wait_until(lambda: first.sees(1), "the nodes see each other")
                yield Pair(first, second, top)
    finally:
        shutil.rmtree(top, ignore_errors=True)


@contextmanager
def mounted(machine: Machine, snapshot: str, point: Path, *options: str) -> Iterator[SharedState]:
    """The shared memory of a mount, mapped here."""
    machine.mount(snapshot, point, *options)
    shared = _shared(point)
    try:
        yield shared
    finally:
        shared.close()
        machine.umount(point)


def _shared(point: Path) -> SharedState:
    mount = mount_at(locate(point))
    assert mount is not None
    for link in Path(f"/proc/{servers(mount)[0]}/fd").iterdir():
        if f"memfd:{shared_name(mount.device)}" in os.readlink(link):
            return SharedState(os.open(link, os.O_RDWR | os.O_CLOEXEC))
    raise AssertionError(f"no process of {point} has its memory open")


def _marked(shared: SharedState) -> int:
    return len(shared.verified) - bytes(shared.verified).count(0)


def _damage(machine: Machine, data: bytes) -> None:
    """Flip bits where `data` begins in a slab, and have the disk asked for it again."""
    for path in (machine.data_dir / "slabs").glob("*.slab"):
        place = path.read_bytes().find(data[:4096])
        if place >= 0:
            with path.open("r+b") as slab:
                slab.seek(place + 100)
                slab.write(bytes(byte ^ 0xFF for byte in data[100:110]))
            return
    raise AssertionError("no slab has these bytes")


def _verifier(shared: SharedState) -> int:
    return shared.slot(shared.verifier).process


def test_what_lies_ahead_of_a_reader_is_verified(pair: Pair, new_directory: NewDirectory) -> None:
    source, snapshot = pair.publish("ahead", SMALL, SMALL_SIZE)
    with mounted(pair.first, snapshot, new_directory("m"), "--io", "no-open") as shared:
        point = pair.first.mounts[-1]
        for number in range(3):
            assert (point / f"{number:04d}").read_bytes() == (source / f"{number:04d}").read_bytes()
        wait_until(lambda: _marked(shared) == SMALL, "everything ahead is verified")


def test_damage_ahead_of_a_reader_is_healed_before_it_gets_there(pair: Pair, new_directory: NewDirectory) -> None:
    source, snapshot = pair.publish("healed", SMALL, SMALL_SIZE)
    hurt = source / f"{SMALL - 7:04d}"
    _damage(pair.first, hurt.read_bytes())
    with mounted(pair.first, snapshot, new_directory("m"), "--io", "no-open") as shared:
        point = pair.first.mounts[-1]
        assert (point / "0000").read_bytes() == (source / "0000").read_bytes()
        wait_until(lambda: _marked(shared) == SMALL, "everything ahead is verified, the healed chunk too")
        assert max(shared.verified) > 1  # the healed one has another generation
        assert (point / hurt.name).read_bytes() == hurt.read_bytes()


def test_large_files_are_checked_before_they_are_opened_and_damaged_ones_are_served_right(
    pair: Pair, new_directory: NewDirectory
) -> None:
    source, snapshot = pair.publish("large", LARGE, LARGE_SIZE)
    files = sorted(source.iterdir())
    _damage(pair.first, files[1].read_bytes()[5 << 20 :])
    with mounted(pair.first, snapshot, new_directory("m"), "--io", "passthrough") as shared:
        point = pair.first.mounts[-1]
        assert (point / files[0].name).read_bytes() == files[0].read_bytes()
        wait_until(lambda: sum(map(bool, shared.checked)) >= LARGE - 1, "the files behind are checked")
        for file in files:
            assert (point / file.name).read_bytes() == file.read_bytes()


def test_a_verifier_that_is_killed_again_and_again_disturbs_no_reader(pair: Pair, new_directory: NewDirectory) -> None:
    source, snapshot = pair.publish("killed", SMALL, SMALL_SIZE)
    with mounted(pair.first, snapshot, new_directory("m"), "--io", "no-open") as shared:
        point, killed = pair.first.mounts[-1], set()
        for number in range(SMALL):
            pid = _verifier(shared)
            if number % 10 == 0 and pid and pid not in killed:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            assert (point / f"{number:04d}").read_bytes() == (source / f"{number:04d}").read_bytes()
        assert killed
        wait_until(lambda: _verifier(shared) not in {0, *killed}, "another verifier is there")


def test_a_verifier_ends_with_its_supervisor_and_with_its_mount(pair: Pair, new_directory: NewDirectory) -> None:
    _, snapshot = pair.publish("ending", 3, 1000)
    with mounted(pair.first, snapshot, new_directory("m"), "--io", "no-open") as shared:
        wait_until(lambda: _verifier(shared) != 0, "a verifier is there")
        first = _verifier(shared)
        os.kill(shared.supervisor, signal.SIGKILL)
        wait_until(lambda: _verifier(shared) not in (0, first), "the next supervisor has started one")
        assert has_ended(first)
        second = _verifier(shared)
    wait_until(lambda: has_ended(second), "the verifier has ended with its mount")


def test_verifying_always_marks_nothing(pair: Pair, new_directory: NewDirectory) -> None:
    source, snapshot = pair.publish("always", 5, SMALL_SIZE)
    with mounted(pair.first, snapshot, new_directory("m"), "--io", "no-open", "--verify", "always") as shared:
        point = pair.first.mounts[-1]
        for file in source.iterdir():
            assert (point / file.name).read_bytes() == file.read_bytes()
        assert (_marked(shared), _verifier(shared)) == (0, 0)


# The last one: a node that sent damaged bytes is shunned for a while.


def test_damage_without_a_good_copy_is_an_error_and_never_wrong_bytes(pair: Pair, new_directory: NewDirectory) -> None:
    source, snapshot = pair.publish("lost", SMALL, SMALL_SIZE)
    hurt = (source / f"{SMALL - 7:04d}").read_bytes()
    _damage(pair.first, hurt)
    _damage(pair.second, hurt)
    with mounted(pair.first, snapshot, new_directory("m"), "--io", "no-open", "--timeout", "5") as shared:
        point = pair.first.mounts[-1]
        (point / "0000").read_bytes()
        wait_until(lambda: _marked(shared) == SMALL - 1, "everything else is verified")
        with pytest.raises(OSError, match="Input/output error"):
            (point / f"{SMALL - 7:04d}").read_bytes()
        assert (point / f"{SMALL - 6:04d}").read_bytes() == (source / f"{SMALL - 6:04d}").read_bytes()
