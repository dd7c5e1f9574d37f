"""A passthrough mount of a real node: whole files are read by the kernel alone, and nobody sees how they are opened."""

import contextlib
import mmap
import os
import random
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hoard_p2p.mount.backing import obstacle
from hoard_p2p.mount.mountinfo import MountInfo, locate, mount_at
from hoard_p2p.mount.shared import SharedState
from hoard_p2p.mount.users import shared_name
from tests.mappings import Mapping
from tests.system import Machine, machines, wait_until

pytestmark = [pytest.mark.root, pytest.mark.fuse, pytest.mark.timeout(180)]

MIB = 1 << 20
NewDirectory = Callable[[str], Path]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of over 8 MiB: `big`, `other`, `holes`, `tool` (which can be run); `again`, a hard link; small ones."""
    source = tmp_path_factory.mktemp("source")
    draw = random.Random(4)
    (source / "big").write_bytes(draw.randbytes(20 * MIB))
    (source / "other").write_bytes(draw.randbytes(9 * MIB + 12345))
    (source / "again").hardlink_to(source / "big")
    with (source / "holes").open("wb") as file:
        file.truncate(40 * MIB)
        for at in (0, 30 * MIB):
            file.seek(at)
            file.write(draw.randbytes(5 * MIB))
    tool = shutil.which("true")
    assert tool is not None
    (source / "tool").write_bytes(Path(tool).read_bytes() + draw.randbytes(9 * MIB))
    (source / "tool").chmod(0o755)
    (source / "small").write_bytes(draw.randbytes(100_000))
    return source


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    data_dir = tmp_path_factory.mktemp("n")
    if reason := obstacle(data_dir):
        pytest.skip(f"no passthrough here: {reason}")
    with machines([_machine(data_dir, "one", "none")]) as made:
        yield made[0]


def _machine(data_dir: Path, name: str, discovery: str) -> Machine:
    return Machine(data_dir, f"test-{secrets.token_hex(4)}", name, listen="127.0.0.1:0", discovery=discovery)


@pytest.fixture(scope="module")
def snapshot(node: Machine, source: Path) -> str:
    return node.publish(source)


@dataclass
class Peek:
    """A mount, and its shared memory as its processes see it."""

    path: Path
    shared: SharedState
    slabs: Path

    @property
    def worker(self) -> int:
        return self.shared.slot(0).pid

    def served(self) -> int:
        """Requests answered so far, once all that were asked are counted."""
        os.statvfs(self.path)  # one more: when it is answered, the worker still has it in its slot
        wait_until(lambda: self.shared.slot(0).working_on == 0, "the worker has counted")
        threading.Event().wait(0.01)
        return self.shared.slot(0).served

    def check(self, name: str, checked: bool = True) -> None:
        """Say that a file was verified, or take it back."""
        self.shared.checked[(self.path / name).stat().st_ino - 1] = self.slab_of(name) if checked else 0

    def slab_of(self, name: str) -> int:
        """The number of a file's slab, told by its size."""
        size = (self.path / name).stat().st_size
        (slab,) = (path for path in self.slabs.glob("F-*.slab") if path.stat().st_size == size)
        return int(slab.stem.rpartition("-")[2])

    def passes(self, name: str) -> bool:
        """Whether an open of the file now gets a backing file."""
        with _opened(self.path / name):
            served = self.served()
            inode = (self.path / name).stat().st_ino - 1
            table = self.shared.opens[: 2 * self.shared.opens_used].tolist()
            found = [where for handle, where in zip(table[::2], table[1::2]) if handle and where >> 32 == inode]
            assert self.served() == served + 1, "nothing but the count asks"
        return bool(found) and all(where & 0xFFFF_FFFF for where in found)


@contextlib.contextmanager
def _opened(path: Path, flags: int = 0) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _peek(node: Machine, mountpoint: Path) -> Iterator[Peek]:
    mount = mount_at(locate(mountpoint))
    assert mount is not None
    shared = SharedState(os.open(_memory(mount), os.O_RDWR))
    try:
        yield Peek(mountpoint, shared, node.data_dir / "slabs")
    finally:
        shared.close()


def _memory(mount: MountInfo) -> Path:
    """A way to the shared memory of a mount: a process of it, told by its arguments (a node may still hold the memory
    of an earlier mount, whose number the kernel has given away again)."""
    name, arguments = f"/memfd:{shared_name(mount.device)} (deleted)", os.fsencode(mount.mountpoint)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if arguments in (process / "cmdline").read_bytes():
                for entry in (process / "fd").iterdir():
                    if os.readlink(entry) == name:
                        return entry
    raise AssertionError(f"no process of {mount.mountpoint} has {name}")


@pytest.fixture
def mounted(node: Machine, snapshot: str, new_directory: NewDirectory) -> Iterator[Callable[..., Peek]]:
    """Mounts the snapshot with more options; unmounted afterwards."""
    with contextlib.ExitStack() as stack:

        def mount(*options: str) -> Peek:
            path = node.mount(snapshot, new_directory("m"), *options)
            stack.callback(node.umount, path)
            return stack.enter_context(_peek(node, path))

        yield mount


@pytest.fixture
def trusting(mounted: Callable[..., Peek]) -> Peek:
    """A mount whose whole files all have a backing file."""
    return mounted("--verify", "arrival")


# --- reading


@pytest.mark.parametrize("name", ["big", "again", "holes", "other"])
def test_reads_of_a_whole_file_never_reach_the_mount(trusting: Peek, source: Path, name: str) -> None:
    content = (source / name).read_bytes()
    with _opened(trusting.path / name) as fd:
        served = trusting.served()
        assert b"".join(iter(lambda: os.read(fd, MIB), b"")) == content
        for at in (0, 4095, 7 * MIB + 1, len(content) - 10, len(content)):
            assert os.pread(fd, 5000, at) == content[at : at + 5000]
        with mmap.mmap(fd, len(content), prot=mmap.PROT_READ) as mapped:
            assert mapped[:] == content
        assert _sent(fd, len(content)) == content
        assert trusting.served() == served + 1, "the count itself asks once"


def _sent(fd: int, size: int) -> bytes:
    target = os.memfd_create("target")
    try:
        done = 0
        while done < size:
            done += os.sendfile(target, fd, done, size - done)
        return os.pread(target, size + 1, 0)
    finally:
        os.close(target)


def test_direct_reads_and_a_run_binary_do_not_reach_the_mount(trusting: Peek, source: Path) -> None:
    with _opened(trusting.path / "big", os.O_DIRECT) as fd, mmap.mmap(-1, MIB) as room:
        served = trusting.served()
        assert os.preadv(fd, [room], 3 * MIB) == MIB
        assert room[:] == (source / "big").read_bytes()[3 * MIB : 4 * MIB]
        assert trusting.served() == served + 1
    subprocess.run([trusting.path / "tool"], check=True)
    served = trusting.served()
    subprocess.run([trusting.path / "tool"], check=True)
    assert trusting.served() - served <= 3, "an open, a release, and the count"


def test_small_files_are_opened_through_the_page_cache_and_stay_in_it(trusting: Peek, source: Path) -> None:
    assert (trusting.path / "small").read_bytes() == (source / "small").read_bytes()
    with _opened(trusting.path / "small") as fd:
        served = trusting.served()
        assert os.read(fd, MIB) == (source / "small").read_bytes()
        assert trusting.served() == served + 1
    assert not trusting.passes("small")


def test_a_closed_file_gives_its_backing_file_back(trusting: Peek) -> None:
    for _ in range(20):
        with _opened(trusting.path / "big"), _opened(trusting.path / "again"), _opened(trusting.path / "other"):
            pass
    trusting.served()
    assert trusting.shared.opens_used <= 6
    assert not any(trusting.shared.opens[::2])
    assert trusting.shared.backing_refused == 0


# --- modes


def test_a_file_is_verified_under_this_mount_before_it_gets_a_backing_file(
    mounted: Callable[..., Peek], source: Path
) -> None:
    mount = mounted("--verify", "first", "--io", "passthrough")
    for name in ("big", "other", "holes"):
        assert (mount.path / name).read_bytes() == (source / name).read_bytes()
        wait_until(lambda name=name: mount.passes(name), f"{name} is verified")  # type: ignore[misc]  # bound now
        assert mount.shared.checked[(mount.path / name).stat().st_ino - 1] == mount.slab_of(name)


def test_how_a_file_is_opened_changes_with_its_last_close_and_never_before(trusting: Peek, source: Path) -> None:
    content = (source / "big").read_bytes()
    with _opened(trusting.path / "big") as fd:
        assert trusting.passes("big")
        with _demoted(trusting):
            assert trusting.passes("big"), "as long as it is open"
            mapping = Mapping(fd, len(content))
    with _demoted(trusting):
        assert not trusting.passes("big")
        with _opened(trusting.path / "again") as fd:
            assert mapping.read(1000, 5 * MIB) == os.pread(fd, 1000, 5 * MIB) == content[5 * MIB :][:1000]
            kept = Mapping(fd, len(content))
    assert not trusting.passes("big"), "a mapping keeps the cached file open"
    assert kept.read(1000, 9 * MIB) == content[9 * MIB :][:1000]
    mapping.close()
    kept.close()
    assert trusting.passes("big")


@contextlib.contextmanager
def _demoted(mount: Peek) -> Iterator[None]:
    """The slab of `big` has another length meanwhile, so that it cannot be a backing file for a new open."""
    slab = next(path for path in mount.slabs.glob("F-*.slab") if path.stat().st_size == 20 * MIB)
    os.truncate(slab, 20 * MIB + 1)
    try:
        yield
    finally:
        os.truncate(slab, 20 * MIB)


# --- many at once, and workers that are killed


class _Opener(threading.Thread):
    """Opens, reads and closes at random until it is told to end; counts what went wrong."""

    def __init__(self, mount: Peek, contents: dict[str, bytes], seed: int) -> None:
        super().__init__(daemon=True)
        self._mount, self._contents = mount, contents
        self._draw = random.Random(seed)
        self.ending = threading.Event()
        self.opens = 0
        self.failures: list[str] = []
        self.start()

    def run(self) -> None:
        while not self.ending.is_set():
            name = self._draw.choice(("big", "big", "again", *self._contents))
            try:
                self._read(name, self._contents[name])
                self.opens += 1
            except OSError as error:
                self.failures.append(f"{name}: {error}")

    def _read(self, name: str, content: bytes) -> None:
        at = self._draw.randrange(len(content))
        with _opened(self._mount.path / name) as fd:
            got = os.pread(fd, 4096, at)
            if self._draw.random() < 0.1:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # what is cached has to be asked for again
            if got != content[at : at + 4096]:
                self.failures.append(f"{name}: wrong bytes at {at}")


def test_openers_do_not_notice_that_modes_change_and_workers_are_killed(
    node: Machine, mounted: Callable[..., Peek], source: Path
) -> None:
    mount = mounted("--verify", "first")
    contents = {path.name: path.read_bytes() for path in source.iterdir()}
    draw = random.Random(7)
    openers = [_Opener(mount, contents, seed) for seed in range(64)]
    ended = time.monotonic() + 5.0
    killed: set[int] = set()
    while time.monotonic() < ended:
        for name in ("big", "other", "holes"):
            mount.check(name, draw.random() < 0.7)
        threading.Event().wait(draw.random() * 0.15)
        if (worker := mount.worker) not in (0, *killed):
            killed.add(worker)
            os.kill(worker, signal.SIGKILL)
    for opener in openers:
        opener.ending.set()
    for opener in openers:
        opener.join(20)
    assert [failure for opener in openers for failure in opener.failures] == []
    assert not any(opener.is_alive() for opener in openers)
    assert "Traceback" not in (node.data_dir / "log" / "mount.log").read_text()
    assert len(killed) > 5
    assert sum(opener.opens for opener in openers) > 500
    mount.served()
    assert not any(mount.shared.opens[::2]), "nothing is open any more"
    mount.check("big")
    assert mount.passes("big")


@pytest.mark.parametrize("supervisor_too", [False, True])
def test_a_successor_knows_what_is_open_and_how(trusting: Peek, source: Path, supervisor_too: bool) -> None:
    content = (source / "big").read_bytes()
    with _demoted(trusting):
        cached = os.open(trusting.path / "big", os.O_RDONLY)
    passing = os.open(trusting.path / "other", os.O_RDONLY)
    before, supervisor = trusting.worker, trusting.shared.supervisor
    assert before
    assert supervisor
    if supervisor_too:
        os.kill(supervisor, signal.SIGKILL)
        wait_until(lambda: trusting.shared.supervisor != supervisor, "another supervisor takes its place")
    os.kill(before, signal.SIGKILL)
    with _opened(trusting.path / "again") as fd:
        assert os.pread(fd, MIB, 19 * MIB) == content[19 * MIB :]
    assert trusting.worker != before
    assert not trusting.passes("big")
    assert trusting.passes("other")
    for fd in (cached, passing):
        os.close(fd)
    assert trusting.passes("big")


# --- how it becomes one, and where it cannot be


def test_a_file_that_came_piece_by_piece_from_a_peer_gets_a_backing_file(
    node: Machine, snapshot: str, source: Path, new_directory: NewDirectory
) -> None:
    address = node.json("status")["node"]["url"].removeprefix("http://")
    other = Machine(new_directory("n"), node.cluster, "two", listen="127.0.0.1:0", discovery=f"static:{address}")
    with machines([other], others=1):
        path = other.mount(snapshot, new_directory("m"), "--verify", "arrival", "--io", "passthrough", "--no-fill")
        content = (source / "big").read_bytes()
        with _peek(other, path) as mount:
            assert not mount.passes("big")
            with _opened(path / "big") as fd:
                for at in random.Random(5).sample(range(0, len(content), MIB), len(content) // MIB):
                    assert os.pread(fd, MIB, at) == content[at : at + MIB]
            wait_until(lambda: mount.passes("big"), "the file is whole in its own slab")
            assert (path / "big").read_bytes() == content


def test_status_tells_why_a_mount_is_what_it_is(node: Machine, mounted: Callable[..., Peek]) -> None:
    mount = mounted()
    assert mount.shared.passthrough
    assert mount.shared.workers == 1
    assert not mounted("--io", "no-open").shared.passthrough
    log = (node.data_dir / "log" / "mount.log").read_text()
    assert f"{mount.path} is a passthrough mount: 99 % of its bytes are in files of over 8 MiB" in log


def test_a_number_of_workers_is_not_used_and_said_so(node: Machine, snapshot: str, new_directory: NewDirectory) -> None:
    path = new_directory("m")
    done = node.hoard("mount", snapshot, str(path), "--workers", "3")
    node.hoard("umount", str(path))
    assert "a passthrough mount has one worker, --workers 3 is not used" in done.stderr


def test_passthrough_and_a_check_at_each_read_exclude_each_other(node: Machine, new_directory: NewDirectory) -> None:
    done = node.hoard(
        "mount", "x" * 8, str(new_directory("m")), "--io", "passthrough", "--verify", "always", check=False
    )
    assert done.returncode == 2
    assert "--verify always" in done.stderr


def test_a_store_on_overlayfs_gets_a_no_open_mount(new_directory: NewDirectory, source: Path) -> None:
    root = new_directory("o")
    for name in ("upper", "lower", "work", "top"):
        (root / name).mkdir()
    options = ",".join(f"{name}dir={root / name}" for name in ("lower", "upper", "work"))
    command = ["mount", "-t", "overlay", "overlay", "-o", options, str(root / "top")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no overlayfs here: {done.stderr.strip()}")
    try:
        with machines([_machine(root / "top" / "n", "three", "none")]) as (machine,):
            snapshot = machine.publish(source)
            path = machine.mount(snapshot, new_directory("m"))
            assert (path / "big").read_bytes() == (source / "big").read_bytes()
            with _peek(machine, path) as mount:
                assert not mount.shared.passthrough
            assert "stacked file system (overlay)" in (machine.data_dir / "log" / "mount.log").read_text()
            refused = machine.hoard("mount", snapshot, str(new_directory("m")), "--io", "passthrough", check=False)
            assert refused.returncode == 1
            assert "stacked file system (overlay)" in refused.stderr
    finally:
        subprocess.run(["umount", "-l", str(root / "top")], check=True)
