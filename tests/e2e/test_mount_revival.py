"""What a node does for mounts: it gives them new processes, lists them, and lets go of those that are ended."""

import errno
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hoard_p2p import __version__
from hoard_p2p.mount.mountinfo import locate, mount_at
from hoard_p2p.mount.users import servers
from tests.system import HOARD, Machine, machines, make_tree, wait_until

pytestmark = [pytest.mark.root, pytest.mark.fuse, pytest.mark.timeout(120)]
NewDirectory = Callable[[str], Path]

SETS = 4
MAPPED = """
import mmap, os, sys
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    right = mapped[:]
    print("mapped", flush=True)
    sys.stdin.readline()
    mapped.madvise(mmap.MADV_DONTNEED)
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    print(mapped[:] == right, flush=True)
"""


@dataclass
class Pair:
    """A node that has some sets, and a reader that has none of them. Each test takes sets of its own."""

    holder: Machine
    reader: Machine
    sets: list[tuple[Path, str]]

    @contextmanager
    def holder_stopped(self) -> Iterator[None]:
        pid = self.holder.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    top = Path(tempfile.mkdtemp(prefix="p-"))
    cluster = f"test-{secrets.token_hex(4)}"
    holder = Machine(top / "h", cluster, "holder", discovery="none", listen="127.0.0.1:0")
    try:
        with machines([holder]):
            sets = []
            for number in range(SETS):  # before another node is there to be a home of them
                source = make_tree(top / f"s{number}", files=10, large=3 << 20, seed=number)
                sets.append((source, holder.publish(source, "--replicas", "1")))
            address = str(holder.json("status")["node"]["url"]).removeprefix("http://")
            reader = Machine(top / "r", cluster, "reader", discovery=f"static:{address}", listen="127.0.0.1:0")
            with machines([reader], others=1):
                yield Pair(holder, reader, sets)
    finally:
        shutil.rmtree(top, ignore_errors=True)


@pytest.fixture
def reader(pair: Pair) -> Iterator[Machine]:
    """The reader's node; no mounts are left to the next test."""
    yield pair.reader
    for mountpoint in list(pair.reader.mounts):
        pair.reader.hoard("umount", "--force", os.fspath(mountpoint), check=False)
        pair.reader.mounts.remove(mountpoint)


def processes(mountpoint: Path) -> list[int]:
    mount = mount_at(locate(mountpoint))
    return [] if mount is None else servers(mount)


def kill_all(pids: list[int]) -> None:
    """So that none of them has time to do anything about the others' death."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)


def devices_of(pid: int) -> int:
    """How many descriptors of /dev/fuse a process holds."""
    found = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found += os.readlink(entry) == "/dev/fuse"
        except OSError:
            continue
    return found


def listed(machine: Machine) -> list[dict[str, Any]]:
    return list(machine.json("status")["mounts"])


def parked(machine: Machine) -> int:
    return sum(mount["parked"] or 0 for mount in listed(machine))


def let_go(machine: Machine) -> None:
    pid = machine.pid
    wait_until(lambda: devices_of(pid) == 0 and listed(machine) == [], "the node lets go of the mount")


@dataclass
class Hammer:
    """Reads files past the page cache until it is closed; `errors` and wrong bytes are what nobody may see."""

    files: dict[Path, bytes]
    reads: int = 0
    wrong: int = 0
    errors: list[OSError] = field(default_factory=list)
    _ending: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Hammer":
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._ending.is_set():
            for path, right in self.files.items():
                try:
                    with path.open("rb", buffering=0) as file:
                        self.wrong += file.read() != right
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                except OSError as error:
                    self.errors.append(error)
                self.reads += 1

    def goes_on(self) -> None:
        before = self.reads
        wait_until(lambda: self.reads > before + 50, "readers go on")
        assert (self.errors, self.wrong) == ([], 0)


def small_files(source: Path, mounted: Path) -> dict[Path, bytes]:
    return {mounted / "deep" / path.name: path.read_bytes() for path in (source / "deep").glob("*.bin")}


@contextmanager
def mapped_reader(path: Path) -> Iterator["subprocess.Popen[str]"]:
    argv = [sys.executable, "-c", MAPPED, os.fspath(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "mapped\n"
            yield process
        finally:
            process.kill()


def test_a_mount_whose_processes_were_all_killed_is_served_on(
    pair: Pair, reader: Machine, new_directory: NewDirectory
) -> None:
    source, snapshot = pair.sets[0]
    mounted = reader.mount(snapshot, new_directory("m"))
    files = small_files(source, mounted)
    with Hammer(files) as hammer, ThreadPoolExecutor(1) as threads, mapped_reader(next(iter(files))) as mapping:
        hammer.goes_on()
        with pair.holder_stopped():
            waiting = threads.submit((mounted / "shard").read_bytes)
            wait_until(lambda: parked(reader) > 0, "a read is parked")
            (before,) = listed(reader)
            pids = processes(mounted)
            assert before["pid"] in pids and len(pids) > 1
            kill_all(pids)
            out, _ = mapping.communicate("\n", timeout=30)
            hammer.goes_on()
            wait_until(lambda: [mount["pid"] for mount in listed(reader)] != [before["pid"]], "it has a new supervisor")
            assert not waiting.done()
        assert waiting.result(60) == (source / "shard").read_bytes()
    assert out == "True\n"
    assert not set(processes(mounted)) & set(pids)
    reader.umount(mounted)
    let_go(reader)


def test_again_and_again(pair: Pair, reader: Machine, new_directory: NewDirectory) -> None:
    source, snapshot = pair.sets[0]
    mounted = reader.mount(snapshot, new_directory("m"))
    with Hammer(small_files(source, mounted)) as hammer:
        for _ in range(3):
            hammer.goes_on()
            kill_all(processes(mounted))
    assert (hammer.errors, hammer.wrong) == ([], 0)
    reader.umount(mounted)
    let_go(reader)


def test_a_mount_that_lost_its_node_too_is_replaced_by_the_next_mount(
    pair: Pair, reader: Machine, new_directory: NewDirectory
) -> None:
    source, snapshot = pair.sets[0]
    mounted = reader.mount(snapshot, new_directory("m"))
    pids = processes(mounted)
    kill_all([reader.pid, *pids])
    with pytest.raises(OSError, match=r"not connected|abort"):
        os.listdir(mounted)
    reader.up()
    reader.mounts.remove(mounted)
    reader.mount(snapshot, mounted)
    for path, right in small_files(source, mounted).items():
        assert path.read_bytes() == right
    reader.umount(mounted)
    let_go(reader)


def test_hits_go_on_and_parked_reads_wait_while_the_node_is_killed_and_started(
    pair: Pair, reader: Machine, new_directory: NewDirectory
) -> None:
    source, snapshot = pair.sets[1]
    mounted = reader.mount(snapshot, new_directory("m"))
    with Hammer(small_files(source, mounted)) as hammer, ThreadPoolExecutor(1) as threads:
        hammer.goes_on()
        with pair.holder_stopped():
            waiting = threads.submit((mounted / "shard").read_bytes)
            wait_until(lambda: parked(reader) > 0, "a read is parked")
            reader.kill()
            hammer.goes_on()
            reader.up()
            wait_until(lambda: parked(reader) > 0, "the mount is attached again")
            hammer.goes_on()
        assert waiting.result(60) == (source / "shard").read_bytes()
    pid = reader.pid
    assert devices_of(pid) > 0
    reader.hoard("down")
    for path, right in small_files(source, mounted).items():
        assert path.read_bytes() == right, "a node that stops leaves mounts alone"
    reader.up()
    wait_until(lambda: len(listed(reader)) == 1, "the mount is attached again")
    reader.umount(mounted)
    let_go(reader)


def test_force_frees_a_parked_reader_at_once(pair: Pair, reader: Machine, new_directory: NewDirectory) -> None:
    _, snapshot = pair.sets[2]
    mounted = reader.mount(snapshot, new_directory("m"))
    with pair.holder_stopped(), ThreadPoolExecutor(1) as threads:
        waiting = threads.submit((mounted / "shard").read_bytes)
        wait_until(lambda: parked(reader) > 0, "a read is parked")
        pids = processes(mounted)
        reader.hoard("umount", "--force", os.fspath(mounted))
        reader.mounts.remove(mounted)
        with pytest.raises(OSError):
            waiting.result(5)
    let_go(reader)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize("how", [("umount",), ("fusermount3", "-u"), ("umount", "-l")], ids=" ".join)
def test_a_mount_that_is_unmounted_by_other_means_is_let_go(
    pair: Pair, reader: Machine, new_directory: NewDirectory, how: tuple[str, ...]
) -> None:
    source, snapshot = pair.sets[0]
    mounted = reader.mount(snapshot, new_directory("m"))
    files = small_files(source, mounted)
    path, right = next(iter(files.items()))
    assert path.read_bytes() == right
    pids = processes(mounted)
    subprocess.run([*how, mounted], check=True)
    reader.mounts.remove(mounted)
    let_go(reader)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "its processes end")


def test_a_mount_that_is_detached_in_use_is_served_until_its_last_user_leaves(
    pair: Pair, reader: Machine, new_directory: NewDirectory
) -> None:
    source, snapshot = pair.sets[0]
    mounted = reader.mount(snapshot, new_directory("m"))
    path, right = next(iter(small_files(source, mounted).items()))
    with path.open("rb", buffering=0) as file:
        subprocess.run(["umount", "-l", mounted], check=True)
        reader.mounts.remove(mounted)
        assert file.read() == right
        assert len(listed(reader)) == 1
    let_go(reader)


def test_a_mount_whose_namespace_went_away_with_its_processes_is_let_go(
    pair: Pair, reader: Machine, new_directory: NewDirectory
) -> None:
    """As when a container ends."""
    _, snapshot = pair.sets[0]
    mount = ("mount", snapshot, os.fspath(new_directory("m")), "--data-dir", os.fspath(reader.data_dir))
    subprocess.run(["unshare", "--mount", *HOARD, *mount], check=True)
    (told,) = listed(reader)
    inside = os.readlink(f"/proc/{told['pid']}/ns/mnt")
    kill_all([pid for pid in hoard_processes() if namespace(pid) == inside])
    let_go(reader)
    assert not [pid for pid in hoard_processes() if namespace(pid) == inside]


def hoard_processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def test_a_status_tells_how_a_mount_is_served(pair: Pair, reader: Machine, new_directory: NewDirectory) -> None:
    source, snapshot = pair.sets[0]
    mounted = reader.mount(snapshot, new_directory("m"), "--workers", "3")
    for path, right in small_files(source, mounted).items():
        assert path.read_bytes() == right
    (told,) = listed(reader)
    assert (told["mountpoint"], told["snapshot"], told["version"]) == (os.fspath(mounted), snapshot, __version__)
    assert told["io"] in ("no-open", "passthrough")
    assert told["workers"] == (1 if told["io"] == "passthrough" else 3)
    assert (told["parked"], told["failed"]) == (0, 0)
    wait_until(lambda: listed(reader)[0]["served"] > 10, "requests are counted")
    assert told["io"] in reader.hoard("status").stdout


def test_the_log_line_of_a_read_that_failed_names_the_peers_that_were_tried(
    pair: Pair, reader: Machine, new_directory: NewDirectory
) -> None:
    _, snapshot = pair.sets[3]
    mounted = reader.mount(snapshot, new_directory("m"), "--timeout", "3")
    log = reader.data_dir / "log" / "mount.log"
    before = len(log.read_text())
    with pair.holder_stopped():
        begin = time.monotonic()
        with pytest.raises(OSError) as caught:
            (mounted / "shard").read_bytes()
        assert time.monotonic() - begin < 3 + 10
    assert caught.value.errno == errno.EIO
    lines = [line for line in log.read_text()[before:].splitlines() if "read of" in line]
    assert len(lines) == 1
    assert "shard" in lines[0] and "asked: holder (127.0.0.1:" in lines[0]
