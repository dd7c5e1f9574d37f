"""Processes of a mount that are killed, and catalogs that are damaged: readers do not notice, or get EIO."""

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from hoard_p2p.mount.kernel import NO_OPEN, Can
from hoard_p2p.mount.mountinfo import mounts
from hoard_p2p.mount.unmount import unmount
from hoard_p2p.testing.hammer import Hammer
from hoard_p2p.testing.missfakes import DEADLINE, FakeNode
from hoard_p2p.testing.mountfakes import SNAPSHOT, FakeMount, Shop, has_ended, mounted, publish_folder, running

pytestmark = [pytest.mark.root, pytest.mark.fuse]

MIB = 1 << 20


@pytest.fixture
def source(new_directory: Callable[[str], Path]) -> Path:
    source = new_directory("s")
    rng = random.Random(9)
    for number in range(8):
        (source / str(number)).write_bytes(rng.randbytes(rng.randrange(1, 3 * MIB)))
    (source / "folder").mkdir()
    (source / "folder" / "link").symlink_to("../0")
    (source / "folder" / "hard").hardlink_to(source / "1")
    os.setxattr(source / "2", "user.k", b"v")
    return source


@pytest.fixture
def shop(source: Path, new_directory: Callable[[str], Path]) -> Shop:
    shop = Shop(new_directory("shop"))
    publish_folder(source, shop)
    return shop


@pytest.fixture
def mountpoint(new_directory: Callable[[str], Path]) -> Path:
    return new_directory("m")


def _kill_a_worker(mount: FakeMount, rng: random.Random) -> None:
    deadline = time.monotonic() + DEADLINE
    while not (pids := mount.workers()):
        if time.monotonic() > deadline:
            raise TimeoutError("no worker was started again")
        threading.Event().wait(0.01)
    os.kill(rng.choice(pids), signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_workers_are_not_noticed_by_readers(source: Path, shop: Shop, mountpoint: Path, workers: int) -> None:
    rng = random.Random(1)
    with mounted(shop, mountpoint, workers=workers) as mount:
        hammers = [Hammer(source, mountpoint, seed) for seed in range(2)]
        for _ in range(8):
            hammers[0].more(rng.randrange(5, 60))
            _kill_a_worker(mount, rng)
        hammers[0].more(20)
        for hammer in hammers:
            hammer.end()
        assert [(hammer.wrong, hammer.errors) for hammer in hammers] == [(0, []), (0, [])]
        assert mount.log.count("died") == 8


def test_a_parked_read_outlives_its_worker(source: Path, shop: Shop, mountpoint: Path) -> None:
    with FakeNode(shop.socket_path) as node, mounted(shop, mountpoint, workers=1) as mount:
        identifier = shop.ids("0")[0]
        data = shop.chunks.drop(identifier)
        with running(["cat", mountpoint / "0"]) as reader:
            node.wait_for(1)
            os.kill(mount.workers()[0], signal.SIGKILL)
            question = node.wait_for(2)[1]
            node.found(question, shop.chunks.put(identifier, data))
            content, _ = reader.communicate(timeout=DEADLINE)
            assert content == (source / "0").read_bytes()


def test_a_request_that_kills_two_workers_is_an_error(source: Path, shop: Shop, mountpoint: Path) -> None:
    shop.chunks.poison(shop.ids("0")[0])
    with mounted(shop, mountpoint) as mount:
        with pytest.raises(OSError) as caught:
            (mountpoint / "0").read_bytes()
        assert caught.value.errno == errno.EIO
        assert "it is answered EIO" in mount.log
        assert (mountpoint / "1").read_bytes() == (source / "1").read_bytes()


def test_without_resend_a_dead_worker_costs_errors_but_no_hang(source: Path, shop: Shop, mountpoint: Path) -> None:
    with FakeNode(shop.socket_path) as node, mounted(shop, mountpoint, wanted=NO_OPEN & ~Can.HAS_RESEND) as mount:
        shop.chunks.drop(shop.ids("0")[0])
        with running(["cat", mountpoint / "0"]):
            node.wait_for(1)
            for pid in mount.workers():
                os.kill(pid, signal.SIGKILL)
            node.wait_for(2)  # the page that the kernel asks for again
        assert (mountpoint / "1").read_bytes() == (source / "1").read_bytes()


def test_workers_go_on_without_their_supervisor(source: Path, shop: Shop, mountpoint: Path) -> None:
    with mounted(shop, mountpoint) as mount:
        pids = mount.workers()
        mount.supervisor.kill()
        mount.supervisor.wait()
        assert (mountpoint / "1").read_bytes() == (source / "1").read_bytes()
        unmount(mountpoint)
        assert all(map(has_ended, pids))


def test_workers_that_never_serve_end_the_mount(mountpoint: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from hoard_p2p.interfaces import MountOptions
from hoard_p2p.mount.supervisor import Supervisor
options = MountOptions(Path({str(mountpoint)!r}), 2, 5.0)
sys.exit(Supervisor({SNAPSHOT!r}, options, serve=lambda _: 1).run(catalog_fd=0, runs=1, inodes=1))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=DEADLINE, check=False)
    assert ended.returncode == 1
    assert mountpoint not in [each.mountpoint for each in mounts()]
    assert b"cannot be kept alive" in ended.stderr


def _walk(root: Path) -> set[int]:
    """Look at everything, in every way, to a depth; the errnos met."""
    met: set[int] = set()

    def attempt(call: Callable[[], object]) -> object:
        try:
            return call()
        except OSError as error:
            met.add(error.errno or 0)
            return None

    def visit(path: Path, depth: int) -> None:
        names = attempt(lambda: os.listdir(path))
        for name in names[:20] if isinstance(names, list) else []:
            entry = path / name
            attempt(entry.lstat)
            attempt(entry.readlink)
            attempt(partial(os.listxattr, entry, follow_symlinks=False))
            attempt(partial(os.getxattr, entry, "user.k", follow_symlinks=False))
            if attempt(entry.is_file) and not entry.is_symlink():
                attempt(entry.read_bytes)
            elif depth < 4 and not entry.is_symlink():
                visit(entry, depth + 1)

    visit(root, 0)
    return met


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_catalog_is_an_error_and_no_worker_dies(shop: Shop, mountpoint: Path, seed: int) -> None:
    rng = random.Random(seed)
    content = bytearray(shop.catalog_path.read_bytes())
    header = len(content) // 4
    for _ in range(60):
        content[rng.randrange(header, len(content))] = rng.randrange(256)
    shop.catalog_path.write_bytes(content)
    with FakeNode(shop.socket_path), mounted(shop, mountpoint, timeout=0.3) as mount:
        pids = mount.workers()
        met = _walk(mountpoint)
        allowed = {errno.EIO, errno.EINVAL, errno.ENODATA, errno.ENOENT, errno.EOPNOTSUPP, errno.ENOTDIR, errno.ELOOP}
        assert met <= allowed, mount.log
        assert mount.workers() == pids
        assert "Traceback" not in mount.log
