"""Supervisors that die, are replaced, and processes that hang: readers notice nothing, and one supervisor is there."""

import errno
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hoard_p2p.errors import MountFailed
from hoard_p2p.mount.kernel import NO_OPEN, Can
from hoard_p2p.mount.mountinfo import mounts
from hoard_p2p.mount.mountpoint import prepare
from hoard_p2p.mount.unmount import unmount
from hoard_p2p.testing.hammer import Hammer
from hoard_p2p.testing.missfakes import DEADLINE, FakeNode
from hoard_p2p.testing.mountfakes import FakeMount, Shop, has_ended, mounted, publish_folder, running
from tests.system import wait_until

pytestmark = [pytest.mark.root, pytest.mark.fuse]

MIB = 1 << 20


@pytest.fixture
def source(new_directory: Callable[[str], Path]) -> Path:
    source = new_directory("s")
    rng = random.Random(9)
    for number in range(8):
        (source / str(number)).write_bytes(rng.randbytes(rng.randrange(1, 2 * MIB)))
    return source


@pytest.fixture
def shop(source: Path, new_directory: Callable[[str], Path]) -> Shop:
    shop = Shop(new_directory("shop"))
    publish_folder(source, shop)
    return shop


@pytest.fixture
def mountpoint(new_directory: Callable[[str], Path]) -> Path:
    return new_directory("m")


def _kill_chief(mount: FakeMount) -> int:
    """Kill the supervisor; its pid."""
    chief = mount.chief()
    assert chief > 0
    os.kill(chief, signal.SIGKILL)
    return chief


def _wait_for_another(mount: FakeMount, than: int) -> int:
    wait_until(lambda: mount.chief() not in (0, than), "another supervisor")
    return mount.chief()


def _wait_for_crew(mount: FakeMount, without: set[int], count: int = 2) -> None:
    wait_until(
        lambda: len(mount.workers()) == count and not without & set(mount.workers()),
        f"{count} workers besides {without}",
    )


def _parking(mount: FakeMount) -> list[int]:
    """The pids of the workers that have a read parked."""
    with mount.memory() as shared:
        slots = [shared.slot(number) for number in range(shared.workers)]
    return [slot.process for slot in slots if slot.parked]


def _leaves_nothing(mount: FakeMount) -> None:
    """Whoever holds the mount's memory is one of its processes, or was about to be."""
    with mount.memory() as shared:
        inode = os.fstat(shared.fd).st_ino

    def holders() -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*/fd/*"):
            try:
                if os.readlink(entry).startswith("/memfd:hoard-mount-") and entry.stat().st_ino == inode:
                    found.append(int(entry.parts[2]))
            except OSError:
                continue
        return [pid for pid in found if pid != os.getpid()]

    assert mount.mountpoint not in [each.mountpoint for each in mounts()]
    wait_until(lambda: not holders(), "the end of every process of the mount")


def test_killed_supervisors_are_replaced_and_workers_can_still_die(source: Path, shop: Shop, mountpoint: Path) -> None:
    with mounted(shop, mountpoint, verifies=True) as mount:
        hammers = [Hammer(source, mountpoint, seed) for seed in range(2)]
        for _ in range(3):
            chief = _kill_chief(mount)
            hammers[0].more(20)
            _wait_for_another(mount, chief)
            _wait_for_crew(mount, set())
            before = mount.workers()
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            hammers[0].more(20)
            _wait_for_crew(mount, set(before))
        for hammer in hammers:
            hammer.end()
        assert [(hammer.wrong, hammer.errors) for hammer in hammers] == [(0, []), (0, [])]
        assert mount.log.count("takes over the mount") == 3
        unmount(mountpoint)
        _leaves_nothing(mount)


def test_supervisor_and_worker_killed_at_one_moment(source: Path, shop: Shop, mountpoint: Path) -> None:
    with mounted(shop, mountpoint) as mount:
        hammer = Hammer(source, mountpoint, 1)
        hammer.more(10)
        _wait_for_crew(mount, set())
        victim = mount.workers()[0]
        chief = _kill_chief(mount)
        os.kill(victim, signal.SIGKILL)
        _wait_for_another(mount, chief)
        _wait_for_crew(mount, {victim})
        hammer.more(20)
        hammer.end()
        assert (hammer.wrong, hammer.errors) == (0, [])


def test_a_parked_read_outlives_supervisor_and_worker(source: Path, shop: Shop, mountpoint: Path) -> None:
    """The worker that has it parked dies while nobody is there to send it again; the next supervisor does."""
    with FakeNode(shop.socket_path) as node, mounted(shop, mountpoint) as mount:
        identifier = shop.ids("0")[0]
        data = shop.chunks.drop(identifier)
        with running(["cat", mountpoint / "0"]) as reader:
            wait_until(lambda: _parking(mount) != [], "a parked read")
            chief, victims = mount.chief(), _parking(mount)[:1]
            for pid in [chief, *victims]:
                os.kill(pid, signal.SIGKILL)
            _wait_for_another(mount, chief)
            shop.chunks.put(identifier, data)  # what is sent again is a hit now

            def answered() -> bytes | None:
                """Parts of it may be parked elsewhere, or again just before it was put: whoever asks is answered."""
                for question in node.questions:
                    with suppress(OSError):
                        node.found(question, shop.chunks.place(identifier))
                with suppress(subprocess.TimeoutExpired):
                    return reader.communicate(timeout=0.2)[0]
                return None

            content = None
            until = time.monotonic() + DEADLINE
            while content is None and time.monotonic() < until:
                content = answered()
            assert content == (source / "0").read_bytes()


def test_a_storm_of_kills_is_not_noticed(source: Path, shop: Shop, mountpoint: Path) -> None:
    rng = random.Random(4)
    with mounted(shop, mountpoint, workers=3) as mount:
        hammers = [Hammer(source, mountpoint, seed) for seed in range(2)]
        pause, end = threading.Event(), time.monotonic() + 5
        while time.monotonic() < end:
            pause.wait(0.03)
            pids = mount.workers()
            if len(pids) > 1:
                os.kill(rng.choice(pids), signal.SIGKILL)
            if rng.random() < 0.02 and mount.chief():
                _kill_chief(mount)
        for hammer in hammers:
            hammer.more(10)
            hammer.end()
        assert [(hammer.wrong, hammer.errors) for hammer in hammers] == [(0, []), (0, [])], mount.log


def test_a_stopped_worker_is_replaced(source: Path, shop: Shop, mountpoint: Path) -> None:
    with mounted(shop, mountpoint, workers=1) as mount:
        (pid,) = mount.workers()
        os.kill(pid, signal.SIGSTOP)
        assert (mountpoint / "0").read_bytes() == (source / "0").read_bytes()
        assert has_ended(pid)


def test_a_dead_verifier_is_started_again(source: Path, shop: Shop, mountpoint: Path) -> None:
    with mounted(shop, mountpoint, verifies=True) as mount:
        for _ in range(2):
            wait_until(lambda: mount.verifier() > 0, "a verifier")
            pid = mount.verifier()
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: mount.verifier() not in (0, pid), "another verifier")  # type: ignore[misc]  # bound now
        assert (mountpoint / "0").read_bytes() == (source / "0").read_bytes()
        assert "died" not in mount.log


def test_of_several_adopters_one_wins(source: Path, shop: Shop, mountpoint: Path) -> None:
    with mounted(shop, mountpoint) as mount:
        adopters = [mount.adopt() for _ in range(2)]
        assert [adopter.wait(DEADLINE) for adopter in adopters] == [0, 0]  # it has a supervisor
        _wait_for_crew(mount, set())
        before = mount.workers()
        chief = _kill_chief(mount)
        adopters = [mount.adopt() for _ in range(2)]
        winner = _wait_for_another(mount, chief)
        for adopter in adopters:
            assert adopter.pid == winner or adopter.wait(DEADLINE) == 0
        assert mount.log.count("takes over the mount") == 1
        assert mount.workers() == before
        unmount(mountpoint)
        for adopter in adopters:
            adopter.wait(DEADLINE)


def test_taking_over_replaces_every_process_unnoticed(source: Path, shop: Shop, mountpoint: Path) -> None:
    with mounted(shop, mountpoint, verifies=True) as mount:
        hammers = [Hammer(source, mountpoint, seed) for seed in range(2)]
        hammers[0].more(10)
        wait_until(lambda: mount.verifier() > 0, "a verifier")
        _wait_for_crew(mount, set())
        before = {mount.chief(), mount.verifier(), *mount.workers()}
        successor = mount.take_over()
        wait_until(lambda: mount.chief() == successor.pid, "the successor's lock")
        _wait_for_crew(mount, before)
        wait_until(lambda: mount.verifier() not in {0, *before}, "another verifier")
        hammers[0].more(20)
        for hammer in hammers:
            hammer.end()
        assert all(map(has_ended, before))
        assert [(hammer.wrong, hammer.errors) for hammer in hammers] == [(0, []), (0, [])]
        unmount(mountpoint)
        assert successor.wait(DEADLINE) == 0
        _leaves_nothing(mount)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("delay", [0.0, 0.1, 0.25])
def test_unmounting_right_after_a_supervisors_death_leaves_nothing(
    shop: Shop, mountpoint: Path, force: bool, delay: float
) -> None:
    """At whatever moment of a successor's start: `delay` seconds after the death."""
    with mounted(shop, mountpoint, verifies=True) as mount:
        _kill_chief(mount)
        threading.Event().wait(delay)
        unmount(mountpoint, force=force)
        _leaves_nothing(mount)


def test_a_mount_that_is_being_ended_is_taken_over_by_nobody(shop: Shop, mountpoint: Path) -> None:
    with mounted(shop, mountpoint) as mount:
        with mount.memory() as shared:
            shared.end()
        _kill_chief(mount)
        assert mount.adopt().wait(DEADLINE) == 0
        assert mount.chief() == 0
        unmount(mountpoint, force=True)
        _leaves_nothing(mount)


def test_a_request_that_kills_workers_of_two_supervisors_is_an_error(
    source: Path, shop: Shop, mountpoint: Path
) -> None:
    shop.chunks.poison(shop.ids("0")[0])
    with mounted(shop, mountpoint, workers=3) as mount:
        _kill_chief(mount)
        with pytest.raises(OSError) as caught:
            (mountpoint / "0").read_bytes()
        assert caught.value.errno == errno.EIO
        assert "it is answered EIO" in mount.log
        assert (mountpoint / "1").read_bytes() == (source / "1").read_bytes()


def test_without_resend_a_supervisor_can_die_too(source: Path, shop: Shop, mountpoint: Path) -> None:
    with mounted(shop, mountpoint, wanted=NO_OPEN & ~Can.HAS_RESEND) as mount:
        for _ in range(2):
            _wait_for_crew(mount, set())
            before = mount.workers()
            hammer = Hammer(source, mountpoint, 1)
            chief = _kill_chief(mount)
            _wait_for_another(mount, chief)
            hammer.more(10)
            hammer.end()
            assert (hammer.wrong, hammer.errors) == (0, [])
            assert mount.workers() == before
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            _wait_for_crew(mount, set(before))
            assert (mountpoint / "1").read_bytes() == (source / "1").read_bytes()


def test_without_resend_a_worker_that_dies_after_an_adoption_does_not_hang_its_readers(
    source: Path, shop: Shop, mountpoint: Path
) -> None:
    with FakeNode(shop.socket_path) as node, mounted(shop, mountpoint, wanted=NO_OPEN & ~Can.HAS_RESEND) as mount:
        _wait_for_another(mount, _kill_chief(mount))
        shop.chunks.drop(shop.ids("0")[0])
        with running(["cat", mountpoint / "0"]):
            node.wait_for(1)
            for pid in mount.workers():
                os.kill(pid, signal.SIGKILL)
            node.wait_for(2)  # the page that the kernel asks for again


def test_a_mount_without_a_supervisor_is_not_mounted_over(shop: Shop, mountpoint: Path) -> None:
    with mounted(shop, mountpoint) as mount:
        _kill_chief(mount)
        with pytest.raises(MountFailed, match="hoard umount"):
            prepare(mountpoint)
