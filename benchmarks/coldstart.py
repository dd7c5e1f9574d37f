"""The rows of `make bench-cluster` about cold starts: how often the origin is read, and how often racks are crossed.

All nodes mount one set of a shared directory within a second, none has any of it, and each reads it whole. The origin
is a directory on the disk that all namespaces see, so what a node reads of it crosses no link: it is counted by the
node, and added to what came into the node's rack over the uplink.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.figures import make_shards, make_small
from benchmarks.links import GBIT, Links, Machine, links
from benchmarks.sheet import OURS, Line, Sheet, Target
from hoard_p2p.cli.localcluster import LocalCluster, LocalNode

LINES = (
    Line("cold-4-origin", "4 nodes, 2 racks, cold: bytes of the origin / set", "x", Target(most=1.01)),
    Line("cold-4-rack", "the same: bytes into each rack, origin included / set, the most", "x", Target(most=1.05)),
    Line("cold-8-origin", "8 nodes, 2 racks, cold: bytes of the origin / set", "x", Target(most=1.01)),
    Line("cold-8-rack", "the same: bytes into each rack, origin included / set, the most", "x", Target(most=1.05)),
    Line("killed-origin", "4 nodes, one killed half way: bytes of the origin / set", "x", Target(most=1.10)),
    Line("killed-errors", "the same: errors of the other nodes' readers", "errors", Target(most=0)),
    Line("doubled-origin", "2 nodes have it, 2 more come: bytes of the origin / set", "x", Target(most=0)),
)
SHARDS, SMALL = 1, 2000
READ_TIMEOUT = 300.0
READ = """
import sys
from pathlib import Path
from benchmarks.figures import read_files
print(read_files(Path(sys.argv[1])).bytes)
"""


class Host(Protocol):
    """What a part needs of the benchmark."""

    cluster: LocalCluster
    sheet: Sheet

    def node(
        self, at: Machine | None = None, *seeds: Machine, options: Sequence[str] = (), inside: Sequence[str] = ()
    ) -> LocalNode: ...


@dataclass(slots=True)
class Reader:
    """One node and a reader on it."""

    node: LocalNode
    machine: Machine
    status: int | None = None
    read: int = 0
    error: str = ""

    def run(self, cluster: LocalCluster, snapshot: str) -> None:
        """Mount and read everything; for a thread. `status` is 0 if that went well."""
        point, _ = cluster.mount(self.node, snapshot)
        done = subprocess.run(
            [sys.executable, "-c", READ, str(point)], check=False, capture_output=True, text=True, timeout=READ_TIMEOUT
        )
        self.status = done.returncode
        self.read, self.error = int(done.stdout or 0), done.stderr.strip().rpartition("\n")[2]


class Start:
    """One cold cluster in two racks, with one set that is named and nowhere stored."""

    def __init__(self, host: Host, net: Links, source: Path) -> None:
        self._host = host
        self._cluster = host.cluster
        self._net = net
        self._source = source
        self.size = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
        self.readers: list[Reader] = []
        self.snapshot = ""

    def begin(self, machines: Sequence[Machine]) -> None:
        """Start nodes there; the first of all publishes, and drops what it kept of that."""
        others = self._net.machines
        for machine in machines:
            node = self._host.node(machine, *others, options=("--allow-origin", str(self._source)))
            self.readers.append(Reader(node, machine))
        self._cluster.wait_met()
        if not self.snapshot:
            first = self.readers[0].node
            told = self._cluster.hoard(first, "publish", "--shared-origin", str(self._source))
            self.snapshot = told.split()[-1]
            self._cluster.hoard(first, "evict", self.snapshot)

    def origin(self) -> dict[str, int]:
        """Bytes that each living node has read of the origin."""
        return {reader.machine.address: self.origin_of(reader.node) for reader in self.readers if _lives(reader.node)}

    def origin_of(self, node: LocalNode) -> int:
        status = json.loads(self._cluster.hoard(node, "status", "--json"))
        return sum(int(origin["read"]) for origin in status["origins"])

    def read(self, readers: Sequence[Reader]) -> list[threading.Thread]:
        """Let them begin at the same time."""
        threads = [threading.Thread(target=one.run, args=(self._cluster, self.snapshot)) for one in readers]
        for thread in threads:
            thread.start()
        return threads

    def into_racks(self) -> dict[str, int]:
        return {rack.name: rack.received() for rack in self._net.racks}

    def tallies(self) -> None:
        for reader in self.readers:
            if _lives(reader.node):
                told = json.loads(self._cluster.hoard(reader.node, "status", "--json"))["store"]["received_from"]
                print(
                    reader.node.name,
                    reader.machine.rack,
                    {k: round(v / self.size, 3) for k, v in told.items()},
                    file=sys.stderr,
                )

    def end(self) -> None:
        for reader in self.readers:
            if _lives(reader.node):
                point = self._cluster.root / f"mnt-{reader.node.name}"
                self._cluster.hoard(reader.node, "umount", str(point))
            self._cluster.discard(reader.node)


def _lives(node: LocalNode) -> bool:
    return node.process.poll() is None


def source_of(cluster: LocalCluster) -> Path:
    source = cluster.root / "cold"
    if not source.exists():
        make_shards(source / "shards", SHARDS)
        make_small(source / "small", SMALL)
    return source


def cold(host: Host) -> None:
    for count in (4, 8):
        with links([count // 2] * 2, rate=GBIT) as net:
            start = Start(host, net, source_of(host.cluster))
            start.begin(net.machines)
            origin, racks = start.origin(), start.into_racks()
            for thread in start.read(start.readers):
                thread.join()
            complain(start.readers, start.size)
            read = {at: size - origin[at] for at, size in start.origin().items()}
            came = {name: size - racks[name] for name, size in start.into_racks().items()}
            for reader in start.readers:
                came[reader.machine.rack] += read[reader.machine.address]
            host.sheet.add(OURS, f"cold-{count}-origin", sum(read.values()) / start.size)
            host.sheet.add(OURS, f"cold-{count}-rack", max(came.values()) / start.size)
            start.tallies()
            start.end()


def killed(host: Host) -> None:
    with links([2, 2], rate=GBIT) as net:
        start = Start(host, net, source_of(host.cluster))
        start.begin(net.machines)
        origin, victim = start.origin(), start.readers[-1]
        threads = start.read(start.readers)
        before = 0
        while before < start.size / 2 and any(thread.is_alive() for thread in threads):
            time.sleep(0.05)
            before = start.origin()[victim.machine.address] - origin[victim.machine.address]
            if sum(start.origin().values()) - sum(origin.values()) >= start.size / 2:
                break
        before = start.origin_of(victim.node) - origin[victim.machine.address]
        host.cluster.kill(victim.node)
        living = start.readers[:-1]
        for thread, _ in zip(threads, living, strict=False):
            thread.join()
        read = sum(size - origin[at] for at, size in start.origin().items()) + before
        host.sheet.add(OURS, "killed-origin", read / start.size)
        host.sheet.add(OURS, "killed-errors", sum(one.status != 0 or one.read != start.size for one in living))
        start.end()


def doubled(host: Host) -> None:
    with links([2, 2], rate=GBIT) as net:
        start = Start(host, net, source_of(host.cluster))
        start.begin(net.machines[::2])
        for thread in start.read(start.readers):
            thread.join()
        start.begin(net.machines[1::2])
        origin = start.origin()
        for thread in start.read(start.readers[2:]):
            thread.join()
        complain(start.readers, start.size)
        read = sum(start.origin().values()) - sum(origin.values())
        host.sheet.add(OURS, "doubled-origin", read / start.size)
        start.end()


def complain(readers: Sequence[Reader], size: int) -> None:
    """Raises RuntimeError if a reader did not read everything."""
    for one in readers:
        if one.status != 0 or one.read != size:
            log = one.node.last_lines
            raise RuntimeError(f"{one.node.name} read {one.read} of {size} bytes: {one.error}; its log ends:\n{log}")
