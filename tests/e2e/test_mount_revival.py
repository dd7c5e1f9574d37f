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
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hoard_p2p import __version__
from hoard_p2p.mount.mountinfo import locate, mount_at
from hoard_p2p.mount.shared import SharedState
from hoard_p2p.mount.users import servers, shared_name
from hoard_p2p.node.client import NodeClient
from hoard_p2p.testing.mountfakes import has_ended
from tests.system import HOARD, Machine, machines, make_tree, wait_until

pytestmark = [pytest.mark.root, pytest.mark.fuse, pytest.mark.timeout(120)]
NewDirectory = Callable[[str], Path]

ABSENT = 5
CONTENT = b"content" * 10_000
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
    """A node that holds everything, and one whose mounts are looked at. `source`: a tree, and its snapshot; `absent`:
    snapshots of one file each, of which the reader has nothing yet. A test takes those it needs."""

    holder: Machine
    reader: Machine
    source: Path
    snapshot: str
    absent: list[str]

    @contextmanager
    def parked(self, mountpoint: Path, *options: str) -> Iterator["Future[bytes]"]:
        """A read that waits for a chunk, in a mount of its own on `mountpoint`, until this ends; then it is freed. The
        only node that has the chunk is stopped meanwhile."""
        snapshot, pid = self.absent.pop(), node_of(self.holder)
        self.reader.hoard("ls", snapshot)  # whoever has the catalog needs nobody to mount it
        with ThreadPoolExecutor(1) as threads:
            read: Future[bytes] | None = None
            os.kill(pid, signal.SIGSTOP)
            try:
                self.reader.mount(snapshot, mountpoint, *options)
                read = threads.submit((mountpoint / "file").read_bytes)
                yield read
            finally:
                os.kill(pid, signal.SIGCONT)
                if read is not None and not wait([read], 30).done:  # the mount does not work: the test must end
                    self.reader.hoard("umount", "--force", os.fspath(mountpoint), check=False)


def one_file(folder: Path) -> Path:
    folder.mkdir()
    (folder / "file").write_bytes(CONTENT + os.fsencode(folder))
    return folder


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    top = Path(tempfile.mkdtemp(prefix="p-"))
    cluster = f"test-{secrets.token_hex(4)}"
    holder = Machine(top / "h", cluster, "holder", discovery="none", listen="127.0.0.1:0")
    try:
        with machines([holder]):
            # All before another node is there, which could be a home of them.
            source = make_tree(top / "s", files=10, large=1 << 20)
            snapshot = holder.publish(source, "--replicas", "1")
            absent = [holder.publish(one_file(top / f"a{number}")) for number in range(ABSENT)]
            address = str(holder.json("status")["node"]["url"]).removeprefix("http://")
            reader = Machine(top / "r", cluster, "reader", discovery=f"static:{address}", listen="127.0.0.1:0")
            with machines([reader], others=1):
                yield Pair(holder, reader, source, snapshot, absent)
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
    with NodeClient.connect(machine.data_dir) as client:
        body: dict[str, Any] = client.call("status", {}).body
    return list(body["mounts"])


def leads_to(entry: Path) -> str:
    """Where a descriptor leads, nowhere if it was closed just now."""
    with suppress(FileNotFoundError):
        return os.readlink(entry)
    return ""


@contextmanager
def memory_of(mountpoint: Path) -> Iterator[SharedState]:
    """The shared memory of a mount that is served. (A node that is asked for it would ask its peers for more.)"""
    mount = mount_at(locate(mountpoint))
    assert mount is not None
    link = f"/memfd:{shared_name(mount.device)} (deleted)"
    entries = Path(f"/proc/{servers(mount)[0]}/fd").iterdir()
    shared = SharedState(os.open(next(entry for entry in entries if leads_to(entry) == link), os.O_RDWR))
    try:
        yield shared
    finally:
        shared.close()


def supervisor(mountpoint: Path) -> int:
    with memory_of(mountpoint) as shared:
        return shared.supervisor


def waits(mountpoint: Path) -> None:
    with memory_of(mountpoint) as shared:
        wait_until(lambda: any(shared.slot(number).parked for number in range(shared.workers)), "a read waits")


def is_right(data: bytes) -> bool:
    return data.startswith(CONTENT)


def node_of(machine: Machine) -> int:
    with NodeClient.connect(machine.data_dir) as client:
        return int(str(client.call("ping", {}).body["pid"]))


def let_go(machine: Machine) -> None:
    pid = node_of(machine)
    wait_until(lambda: devices_of(pid) == 0, "the node lets go of the mount's descriptors")
    wait_until(lambda: listed(machine) == [], "the mount is listed no longer")


@dataclass
class Hammer:
    """Reads files past the page cache until it is closed; `errors` and wrong bytes are what nobody may see."""

    files: dict[Path, bytes]
    reads: int = 0
    wrong: int = 0
    errors: list[OSError] = field(default_factory=list)
    _ending: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Hammer":
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(30)

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
            self._ending.wait(0.01)

    def goes_on(self) -> None:
        before = self.reads
        wait_until(lambda: self.reads > before + 30, "readers go on")
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


def test_mounts_whose_processes_were_all_killed_are_served_on(
    pair: Pair, reader: Machine, new_directory: NewDirectory
) -> None:
    mounted, other = reader.mount(pair.snapshot, new_directory("m")), new_directory("m")
    files = small_files(pair.source, mounted)
    with Hammer(files) as hammer, mapped_reader(mounted / "shard") as mapping:
        hammer.goes_on()
        with pair.parked(other) as waiting:
            waits(other)
            pids = processes(mounted) + processes(other)
            assert {supervisor(mounted), supervisor(other)} < {*pids}
            kill_all(pids)
            out, _ = mapping.communicate("\n", timeout=30)
            hammer.goes_on()
            wait_until(lambda: bool(processes(other)), "the other mount is revived too")
            waits(other)
            assert not waiting.done()
        assert is_right(waiting.result(60))
    assert out == "True\n"
    assert not {*processes(mounted), *processes(other)} & {*pids}
    assert [mount["pid"] for mount in listed(reader)] == [supervisor(point) for point in sorted((mounted, other))]
    for point in (mounted, other):
        reader.umount(point)
    let_go(reader)


def test_a_mount_is_revived_again_and_again(pair: Pair, reader: Machine, new_directory: NewDirectory) -> None:
    mounted = reader.mount(pair.snapshot, new_directory("m"))
    with Hammer(small_files(pair.source, mounted)) as hammer:
        for _ in range(3):
            hammer.goes_on()
            kill_all(processes(mounted))
        hammer.goes_on()
    reader.umount(mounted)
    let_go(reader)


def test_a_mount_that_lost_its_node_too_is_replaced_by_the_next_mount(
    pair: Pair, reader: Machine, new_directory: NewDirectory
) -> None:
    mounted = reader.mount(pair.snapshot, new_directory("m"))
    kill_all([node_of(reader), *processes(mounted)])
    with pytest.raises(OSError, match=r"not connected|abort"):
        os.listdir(mounted)
    reader.up()
    reader.hoard("mount", pair.snapshot, os.fspath(mounted))
    for path, right in small_files(pair.source, mounted).items():
        assert path.read_bytes() == right
    reader.umount(mounted)
    let_go(reader)


def test_hits_go_on_and_reads_wait_while_the_node_is_killed_and_started(
    pair: Pair, reader: Machine, new_directory: NewDirectory
) -> None:
    mounted, other = reader.mount(pair.snapshot, new_directory("m")), new_directory("m")
    files = small_files(pair.source, mounted)
    with Hammer(files) as hammer:
        hammer.goes_on()
        with pair.parked(other) as waiting:
            waits(other)
            os.kill(node_of(reader), signal.SIGKILL)
            hammer.goes_on()
            reader.up()
            hammer.goes_on()
            assert not waiting.done()
        assert is_right(waiting.result(60))
        reader.hoard("down")
        hammer.goes_on()
        reader.up()
        wait_until(lambda: len(listed(reader)) == 2, "the mounts are attached again")
    for point in (mounted, other):
        reader.umount(point)
    let_go(reader)


def test_force_frees_a_reader_that_waits_at_once(pair: Pair, reader: Machine, new_directory: NewDirectory) -> None:
    mounted = new_directory("m")
    with pair.parked(mounted) as waiting:
        waits(mounted)
        pids = processes(mounted)
        reader.hoard("umount", "--force", os.fspath(mounted))
        reader.mounts.remove(mounted)
        with pytest.raises(OSError):  # which one depends on the kernel
            waiting.result(5)
    let_go(reader)
    assert all(map(has_ended, pids))


@pytest.mark.parametrize("how", [("umount",), ("fusermount3", "-u"), ("umount", "-l")], ids=" ".join)
def test_a_mount_that_is_unmounted_by_other_means_is_let_go(
    pair: Pair, reader: Machine, new_directory: NewDirectory, how: tuple[str, ...]
) -> None:
    mounted = reader.mount(pair.snapshot, new_directory("m"))
    path, right = next(iter(small_files(pair.source, mounted).items()))
    assert path.read_bytes() == right
    pids = processes(mounted)
    subprocess.run([*how, mounted], check=True)
    reader.mounts.remove(mounted)
    let_go(reader)
    wait_until(lambda: all(map(has_ended, pids)), "its processes end")


def test_a_mount_that_is_detached_in_use_is_served_until_its_last_user_leaves(
    pair: Pair, reader: Machine, new_directory: NewDirectory
) -> None:
    mounted = reader.mount(pair.snapshot, new_directory("m"))
    with (mounted / "shard").open("rb", buffering=0) as file:
        subprocess.run(["umount", "-l", mounted], check=True)
        reader.mounts.remove(mounted)
        assert file.read() == (pair.source / "shard").read_bytes()
        assert len(listed(reader)) == 1
    let_go(reader)


def test_a_mount_whose_namespace_went_away_with_its_processes_is_let_go(
    pair: Pair, reader: Machine, new_directory: NewDirectory
) -> None:
    """As when a container ends."""
    mount = ("mount", pair.snapshot, os.fspath(new_directory("m")), "--data-dir", os.fspath(reader.data_dir))
    subprocess.run(["unshare", "--mount", *HOARD, *mount], check=True)
    (told,) = listed(reader)
    inside = namespace(told["pid"])
    kill_all([pid for pid in all_processes() if namespace(pid) == inside])
    let_go(reader)
    assert not [pid for pid in all_processes() if namespace(pid) == inside]


def all_processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def test_a_status_tells_how_a_mount_is_served(pair: Pair, reader: Machine, new_directory: NewDirectory) -> None:
    mounted = reader.mount(pair.snapshot, new_directory("m"), "--workers", "3")
    for path, right in small_files(pair.source, mounted).items():
        assert path.read_bytes() == right
    (told,) = listed(reader)
    assert (told["mountpoint"], told["snapshot"], told["version"]) == (os.fspath(mounted), pair.snapshot, __version__)
    assert told["io"] in ("no-open", "passthrough")
    assert told["workers"] == (1 if told["io"] == "passthrough" else 3)
    assert (told["parked"], told["failed"]) == (0, 0)
    assert (told["verify"], told["timeout"], told["fill"]) == ("first", 60.0, True)
    wait_until(lambda: bool(listed(reader)[0]["served"] > 10), "requests are counted")
    assert told["io"] in reader.hoard("status").stdout


def test_the_log_line_of_a_read_that_failed_names_the_peers_that_were_tried(
    pair: Pair, reader: Machine, new_directory: NewDirectory
) -> None:
    log = reader.data_dir / "log" / "mount.log"
    before = len(log.read_text()) if log.exists() else 0
    begin = time.monotonic()
    with pair.parked(new_directory("m"), "--timeout", "3") as waiting:
        with pytest.raises(OSError) as caught:
            waiting.result(3 + 10)
        assert time.monotonic() - begin < 3 + 10
    assert caught.value.errno == errno.EIO
    (line,) = [line for line in log.read_text()[before:].splitlines() if "read of" in line]
    assert "read of file at 0+" in line and "asked: holder (127.0.0.1:" in line
