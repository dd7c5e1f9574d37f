"""Two nodes whose stores are smaller than the data, used and killed at random for ten minutes (`make soak`).

Trees are published (some of them killed in the middle), mounted, read with checks, evicted, removed, collected and
scrubbed; nodes, workers, supervisors and ingest processes are killed -9; bits rot on the disks of nodes that are read
from (`--verify always`: who asks for less has checked those bytes before they rotted). In the end no byte was wrong,
what rotted was healed or reported, and nothing is left but what the living data needs: space (as the file system itself
counts it, so that blocks of deleted slabs that a kernel pins for a mount count too), descriptors, memory, mounts, and
processes.

`HOARD_SOAK_SECONDS` says how long (600), `HOARD_SOAK_SEED` what happens; the seed is printed.
"""

import json
import os
import random
import secrets
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from hoard_p2p.config import Json
from hoard_p2p.errors import HoardError, NoNode
from hoard_p2p.mount.mountinfo import mounts
from hoard_p2p.node.client import NodeClient
from tests.e2e.checked_reader import ReaderProcess, Report, content, lay_out
from tests.e2e.crews import crew_of, is_alive
from tests.system import HOARD, IO_KINDS, Machine, machines, wait_until

SECONDS = float(os.environ.get("HOARD_SOAK_SECONDS", "600"))
SEED = int(os.environ.get("HOARD_SOAK_SEED", "0")) or secrets.randbelow(10**6)

MIB = 1 << 20
DISK = 1024 * MIB
CAPACITY = 120 * MIB
LARGE, SMALL = 3, 60
"""Files of a tree; a tree shares two thirds of them with the one before."""
TREES = 8
MOST_MOUNTS = 3
READERS = ("sequential", "random", "mapped", "small_files", "listing")
MOST_MEMORY = 400 * MIB
MOST_DESCRIPTORS = 400
SPARE_DESCRIPTORS = 32
"""Slabs that stay open for the next read, and connections."""
SLACK = 6 * MIB
"""What index, journal, logs and sidecars take, and blocks that small chunks of living trees share with dead ones."""

RESERVED = 16 * MIB
"""What a shared slab that is being written reserves ahead."""

pytestmark = [pytest.mark.soak, pytest.mark.root, pytest.mark.fuse, pytest.mark.timeout(SECONDS + 900)]


def files_of(number: int) -> dict[str, int]:
    """The tree with that number: names, from which bytes follow, and sizes."""
    large = {f"large/{n}": 9 * MIB + (n * 123_457) % MIB for n in range(number, number + LARGE)}
    small = {f"small/{n}": 1 + (n * 7919) % 60_000 for n in range(20 * number, 20 * number + SMALL)}
    return large | small


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """An ext4 file system of its own, so that its free blocks can be counted."""
    image = place / "image"
    with image.open("wb") as file:
        file.truncate(DISK)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    disk = place / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-o", "loop", image, disk], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no loop devices: {made.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@dataclass
class Mounted:
    machine: Machine
    snapshot: str
    path: Path
    reader: ReaderProcess
    hardy: bool
    """Bits may rot beneath it: each read is checked, and its reader takes an error."""


class Soak:
    """What is there, and the random things that happen to it."""

    def __init__(self, nodes: list[Machine], scratch: Path, draw: random.Random) -> None:
        self.nodes = nodes
        self.draw = draw
        self.counts: Counter[str] = Counter()
        self.seconds: dict[str, float] = defaultdict(float)
        self.trees: dict[str, dict[str, int]] = {}
        self.sources: dict[str, Path] = {}
        self.mounted: list[Mounted] = []
        self._scratch = scratch
        self._next = 0

    def go(self, until: float) -> None:
        actions: list[tuple[int, Callable[[], None]]] = [
            (4, self.publish), (5, self.mount), (3, self.umount), (3, self.evict), (2, self.remove), (2, self.gc),
            (1, self.scrub), (2, self.kill_node), (3, self.kill_mount_process), (2, self.kill_publish), (1, self.rest),
            (3, self.rot),
        ]  # fmt: skip
        while time.monotonic() < until:
            action = self.draw.choices([each for _, each in actions], [weight for weight, _ in actions])[0]
            self.counts[action.__name__] += 1
            started = time.monotonic()
            action()
            self.seconds[action.__name__] += time.monotonic() - started
            self.look()

    # --- what happens

    def publish(self) -> None:
        number = self._next = (self._next + 1) % TREES
        machine = self.draw.choice(self.nodes)
        source = self._source(number)
        done = machine.hoard("publish", os.fspath(source), "--replicas", "1", check=False, seconds=120)
        if done.returncode == 0:
            self._know(done.stdout, source)
        else:
            assert "full" in done.stderr, done.stderr
            self.counts["full"] += 1
            self.remove()

    def _source(self, number: int) -> Path:
        source = self._scratch / f"tree-{number}"
        if not source.exists():
            lay_out(source, files_of(number))
        return source

    def kill_publish(self) -> None:
        """In the middle of a publish its ingest process dies, or the node; nothing half-made is shown."""
        machine = self.draw.choice(self.nodes)
        source = self._source(self.draw.randrange(TREES))
        environment = {**os.environ, "HOARD_DATA_DIR": os.fspath(machine.data_dir)}
        argv = [*HOARD, "publish", os.fspath(source), "--rehash"]
        with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
            time.sleep(self.draw.random() * 2)
            if self.draw.random() < 0.3:
                kill_node(machine)
            for pid in ingests_of(machine):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            out, _ = run.communicate(timeout=120)
        if run.returncode == 0:
            self._know(out, source)
        self.revive(machine)

    def _know(self, printed: str, source: Path) -> None:
        snapshot = printed.splitlines()[-1]
        self.trees[snapshot] = files_of(int(source.name.partition("-")[2]))
        self.sources[snapshot] = source

    def mount(self) -> None:
        if not self.trees or len(self.mounted) >= MOST_MOUNTS:
            return
        machine, snapshot = self.draw.choice(self.nodes), self.draw.choice(sorted(self.trees))
        path = self._scratch / f"mount-{sum(self.counts.values())}"
        hardy = self.draw.random() < 0.5
        options = ("no-open", "--verify", "always") if hardy else (self.draw.choice((*IO_KINDS, "auto")),)
        path.mkdir()
        machine.mount(snapshot, path, "--io", *options)
        listed = path.with_suffix(".json")
        listed.write_text(json.dumps(self.trees[snapshot]))
        kind = self.draw.choice([each for each in READERS if each != "mapped" or not hardy])  # that would be killed
        reader = ReaderProcess(kind, path, listed, self.draw.randrange(1000))
        self.mounted.append(Mounted(machine, snapshot, path, reader, hardy))

    def umount(self) -> None:
        if self.mounted:
            self._umount(self.mounted.pop(self.draw.randrange(len(self.mounted))))

    def _umount(self, mounted: Mounted) -> None:
        self._judge(mounted)
        mounted.reader.close()
        mounted.machine.umount(mounted.path)
        mounted.path.rmdir()

    def _judge(self, mounted: Mounted) -> None:
        mounted.reader.ask()
        report: Report = mounted.reader.told(130)
        assert report.wrong == 0, report.errors
        self.counts["reads"] += report.reads
        self.counts["failed reads"] += report.failed
        assert report.failed == 0 or (mounted.hardy and self.counts["flipped"]), report.errors

    def evict(self) -> None:
        if self.trees:
            self._try(self.draw.choice(self.nodes), "evict", snapshot=self.draw.choice(sorted(self.trees)))

    def remove(self) -> None:
        used = {each.snapshot for each in self.mounted}
        unused = [snapshot for snapshot in self.trees if snapshot not in used]
        if len(self.trees) > 2 and unused:
            victim = self.draw.choice(unused)
            if self._try(self.draw.choice(self.nodes), "rm", snapshot=victim):
                del self.trees[victim]

    def gc(self) -> None:
        self._try(self.draw.choice(self.nodes), "gc")

    def scrub(self) -> None:
        self.heal(self.draw.choice(self.nodes))

    def rot(self) -> None:
        """Bytes of one node's slabs turn over, are read perhaps, and are healed: by a peer, or by the source."""
        if not all(each.hardy for each in self.mounted):
            return
        machine = self.draw.choice(self.nodes)
        for slab in sorted((machine.data_dir / "slabs").glob("*.slab")):
            if self.draw.random() < 0.5:
                self.counts["flipped"] += flip(slab, self.draw)
        time.sleep(self.draw.random() * 3)
        self.heal(machine)

    def heal(self, machine: Machine) -> None:
        """Scrub; what no peer could heal is published again. Nothing that is named may stay damaged."""
        damaged = self._scrub(machine)
        if not damaged:
            return
        self.counts["not healed by a peer"] += 1
        for source in {self.sources[snapshot] for snapshot in damaged}:
            done = machine.hoard("publish", os.fspath(source), "--replicas", "1", "--rehash", check=False, seconds=120)
            if done.returncode:
                assert "full" in done.stderr, done.stderr
                self.counts["full"] += 1
                self._give_up(damaged)
                return
        assert self._scrub(machine) == set()

    def _give_up(self, damaged: set[str]) -> None:
        """There is no room for what is to be healed."""
        for each in [each for each in self.mounted if each.snapshot in damaged]:
            self.mounted.remove(each)
            self._umount(each)
        for snapshot in damaged:
            del self.trees[snapshot]
            self._try(self.nodes[0], "rm", snapshot=snapshot)

    def _scrub(self, machine: Machine) -> set[str]:
        """The known snapshots that want something which could not be healed."""
        done = machine.hoard("scrub", "--json", check=False, seconds=300)
        assert done.returncode == 0 or (done.returncode == 6 and self.counts["flipped"]), done.stderr
        return {row["snapshot"] for row in json.loads(done.stdout).get("files", ())} & self.trees.keys()

    def kill_node(self) -> None:
        machine = self.draw.choice(self.nodes)
        kill_node(machine)
        self.revive(machine)

    def kill_mount_process(self) -> None:
        if self.mounted:
            with crew_of(self.draw.choice(self.mounted).path) as crew:
                if self.draw.random() < 0.3 and crew.is_whole():
                    crew.kill_supervisor()
                else:
                    crew.kill_a_worker(self.draw)

    def rest(self) -> None:
        time.sleep(self.draw.random() * 3)

    def _try(self, machine: Machine, op: str, **arguments: Json) -> bool:
        """An operation that may be refused (somebody uses the snapshot, its last copy is here), and says why."""
        try:
            call(machine, op, **arguments)
        except HoardError as error:
            self.counts[f"{op}: {type(error).__name__}"] += 1
            return False
        return True

    def revive(self, machine: Machine) -> None:
        if not is_up(machine):
            machine.up()
            wait_until(lambda: machine.sees(len(self.nodes) - 1), "the nodes see each other again", 60)

    # --- what is looked at

    def look(self) -> None:
        for machine in self.nodes:
            status = call(machine, "status")
            node, room = status["node"], status["store"]
            assert isinstance(node, dict)
            assert isinstance(room, dict)
            pid = int(str(node["pid"]))
            assert len(os.listdir(f"/proc/{pid}/fd")) <= MOST_DESCRIPTORS
            assert memory_of(pid) <= MOST_MEMORY
            assert int(str(room["used"])) + int(str(room["promised"])) <= CAPACITY + SLACK, room

    def figures(self, size: int, left: int) -> str:
        """What is known of space that does not return."""
        told = [f"{size} bytes are taken for {left} in each node"]
        for machine in self.nodes:
            told.append(
                subprocess.run(["du", "-a", machine.data_dir], capture_output=True, text=True, check=False).stdout
            )
            told.append(machine.hoard("status", "--json", check=False).stdout)
            told.append(machine.log()[-3000:])
        return "\n".join(told)

    def end(self) -> str:
        """Let everything go but one tree; the snapshot that stays."""
        while self.mounted:
            self._umount(self.mounted.pop())
        if not self.trees:
            self.publish()
        stays, *others = sorted(self.trees)
        for machine in self.nodes:
            self.revive(machine)
            self.heal(machine)
        known = {snapshot["id"] for machine in self.nodes for snapshot in machine.json("status")["snapshots"]}
        for snapshot in {*others, *known} - {stays}:
            for machine in self.nodes:
                with suppress(HoardError):
                    call(machine, "rm", snapshot=snapshot)
        return stays

    def is_clean(self, disk: Path, size: int) -> bool:
        """Whether the disk holds no more than that, once every node collected what it knows to be garbage."""
        self.counts["collected at the end"] += 1
        for machine in self.nodes:
            call(machine, "gc")
        return taken(disk) <= size


def call(machine: Machine, op: str, **arguments: Json) -> dict[str, Json]:
    """Ask a node over its socket. Raises HoardError."""
    client = NodeClient.connect(machine.data_dir)
    try:
        return client.call(op, arguments).body
    finally:
        client.close()


def kill_node(machine: Machine) -> None:
    """kill -9, until it has ended."""
    pid = machine.pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), "the node ends")


def is_up(machine: Machine) -> bool:
    """Whether a node answers there. Raises HoardError if one is there and does not."""
    try:
        call(machine, "status")
    except NoNode:
        return False
    return True


def memory_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


def ingests_of(machine: Machine) -> list[int]:
    """Pids of the node's processes that read and write for publishes."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if b"hoard_p2p.node.ingest_main" in words and os.fsencode(machine.data_dir) in words:
                found.append(int(entry.name))
    return found


def taken(disk: Path) -> int:
    """Bytes that the file system has given away, by its own count."""
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def flip(slab: Path, draw: random.Random) -> bool:
    """Turn over a byte that is on the disk; whether there was one."""
    with suppress(OSError), slab.open("r+b", buffering=0) as file:  # it may just go, or have nothing behind that offset
        at = os.lseek(file.fileno(), draw.randrange(max(1, slab.stat().st_size)), os.SEEK_DATA)
        byte = os.pread(file.fileno(), 1, at)
        return bool(byte) and os.pwrite(file.fileno(), bytes([byte[0] ^ 255]), at) == 1
    return False


def descriptors(pid: int) -> list[str]:
    """What a process has open."""
    links = []
    for entry in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            links.append(os.readlink(f"/proc/{pid}/fd/{entry}"))
    return links


def deleted_slabs(pid: int) -> list[str]:
    """Slabs without a name that a process still has open."""
    return [link for link in descriptors(pid) if link.endswith(" (deleted)") and "/slabs/" in link]


def test_a_store_smaller_than_its_data_survives_ten_minutes_of_everything(
    new_directory: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\nHOARD_SOAK_SEED={SEED}, {SECONDS:.0f} s", flush=True)  # noqa: T201
    scratch = new_directory("s")
    with small_disk(new_directory("disk")) as disk:
        before = taken(disk)
        cluster = f"test-{secrets.token_hex(4)}"
        nodes = [Machine(disk / f"n{number}", cluster, f"m{number}", listen="127.0.0.1:0") for number in range(2)]
        soak = Soak(nodes, scratch, random.Random(SEED))
        try:
            with machines(nodes):
                for machine in nodes:
                    call(machine, "capacity", size=CAPACITY)
                fewest = max(len(descriptors(machine.pid)) for machine in nodes)
                soak.go(time.monotonic() + SECONDS)
                stays = soak.end()
                left = sum(soak.trees[stays].values())
                try:
                    size = before + 2 * (left + SLACK + RESERVED)
                    wait_until(lambda: soak.is_clean(disk, size), "space returns", 60)
                except AssertionError as error:
                    raise AssertionError(soak.figures(taken(disk) - before, left)) from error
                for machine in nodes:
                    assert deleted_slabs(machine.pid) == []
                    links = descriptors(machine.pid)
                    assert len(links) <= fewest + SPARE_DESCRIPTORS, links
                    check_export(machine, stays, soak.trees[stays], scratch / f"out-{machine.name}")
        finally:
            for mounted in soak.mounted:
                mounted.reader.close()
            with capsys.disabled():
                print(dict(soak.counts), flush=True)  # noqa: T201
                print({name: round(spent) for name, spent in soak.seconds.items()}, flush=True)  # noqa: T201
        assert not [each for each in mounts() if each.mountpoint.is_relative_to(scratch)]


def check_export(machine: Machine, snapshot: str, files: dict[str, int], target: Path) -> None:
    machine.hoard("export", snapshot, os.fspath(target), seconds=120)
    for name, size in files.items():
        assert (target / name).read_bytes() == content(name, 0, size), name
