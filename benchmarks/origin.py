"""Data sets that come from an S3 store (`make bench-origin`; needs root, tc, and SeaweedFS's `weed` on PATH).

Machines are namespaces on one kernel, the store is in one of its own. `read`: what one node takes of it and keeps, beside
boto3. `list`: keys a second beside boto3's paginator, and the memory of a lazy publish of a million keys. `lazy`: the
first epoch of one node through a lazy mount, beside the same readers on the store itself. `epochs`: four nodes read
everything, each in an order of its own, three times. `publish`: how much of the store's link four nodes use.

C, what the store's link carries, and D, what the disk gives four readers of local copies, are measured in the same run.
See docs/benchmarks.md.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import machine
from benchmarks.cluster import stream, tell
from benchmarks.figures import make_shards, make_small
from benchmarks.links import GBIT, Links, Machine, links
from benchmarks.s3origin import BUCKET, ENVIRONMENT, inside, seaweed
from benchmarks.sheet import OURS, Line, Sheet, Target, markdown, plain
from hoard_p2p.cli.localcluster import LocalCluster, LocalNode, Where

PORT = 7440
NODES = 4
EPOCHS = 3
FREE = 100 * GBIT
"""No limit."""

SHARD = 64 << 20
KINDS = ("shards", "small")
NAMES = {"shards": "shards of 64 MiB", "small": "files of 110 KB"}
ORDERS = {"shards": "records", "small": "files"}
"""How one node reads each kind through a lazy mount."""

LINES = (
    Line("read-shards", "one node keeps large objects, no limit / boto3 downloads", "GB/s", Target(least_ratio=0.9)),
    Line("read-small", "the same, 110 KB objects / 8 boto3 threads", "objects/s", Target(least_ratio=2)),
    Line("list", "listing / boto3's paginator", "keys/s", Target(least_ratio=0.8)),
    Line("list-memory", "lazy publish of a million keys: memory (peak RSS)", "MB", Target(most=300)),
    *(
        Line(f"lazy-{kind}-{rate}", f"one node, first epoch, lazy mount, {what}, {how} / the store itself", "s",
             Target(most_ratio=1.03))
        for rate, how in ((0, "no limit"), (1, "1 Gbit/s"))
        for kind, what in (("shards", "110 KB records in shards"), ("small", "whole files"))
    ),
    *(
        line
        for kind in KINDS
        for line in (
            Line(f"three-{kind}", f"4 nodes, 3 epochs, {NAMES[kind]}: the store / Hoard", "x",
                 Target(least_ratio=7.0) if kind == "shards" else None),
            Line(f"formula-{kind}", "the same / the formula 12 / (1 + 8 C/D)", "x",
                 Target(least_ratio=0.92 if kind == "shards" else 0.85)),
            Line(f"first-{kind}", "the first epoch alone: the store itself / Hoard", "x",
                 Target(least_ratio=3.8 if kind == "shards" else 3.4)),
            Line(f"bytes-{kind}", "the same: bytes read of the store / set", "x", Target(most=1.01)),
            Line(f"second-{kind}", "second epoch / local copies on the disk", "s", Target(most_ratio=1.1)),
        )
    ),
    *(
        Line(f"publish-{kind}", f"publish by 4 nodes, {NAMES[kind]} / the store's link", "GB/s", Target(least_ratio=0.9))
        for kind in KINDS
    ),
)  # fmt: skip

DOWNLOAD = """
import sys, time
from pathlib import Path
from benchmarks.originreaders import client, object_sizes
s3, folder = client(sys.argv[1]), Path(sys.argv[4])
sizes = object_sizes(s3, sys.argv[2], sys.argv[3])
began = time.perf_counter()
for number, key in enumerate(sizes):
    s3.download_file(sys.argv[2], key, str(folder / str(number)))
print(sum(sizes.values()) / (time.perf_counter() - began) / 1e9)
"""
LISTING = """
import sys, time
from benchmarks.originreaders import client, object_sizes
from hoard_p2p.origin.opening import open_origin
def pace(work):
    began = time.perf_counter()
    return sum(1 for _ in work()) / (time.perf_counter() - began)
s3 = client(sys.argv[1])
print(pace(lambda: object_sizes(s3, sys.argv[2], sys.argv[3])))
print(pace(lambda: open_origin(sys.argv[4]).listing()))
"""
MILLION = """
import resource, sys, tempfile
from collections.abc import Iterator
from pathlib import Path
from hoard_p2p.interfaces import Kind, Listed
from hoard_p2p.publish.lazy import LazyOptions, build_lazy
from hoard_p2p.testing.memory import MemorySink
class Keys:
    url = "s3://bench/keys"
    def identity(self, path): return b"s3:bench/keys/" + path
    def listing(self):
        for number in range(int(sys.argv[1])):
            path = b"%04d/%07d.jpg" % (number % 1000, number)
            yield Listed(path, Kind.FILE, 110_000, 0, 0o644, b'"%032x"' % number)
with tempfile.TemporaryDirectory() as scratch:
    class Nothing(MemorySink):
        def put(self, chunk_id, data): pass
        def put_many(self, chunks): return [True] * len(chunks)
    build_lazy(Keys(), LazyOptions(Path(scratch)), Nothing(), report=lambda _: None, stop=lambda: False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6)
"""


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=8, help="objects of 64 MiB [8]")
    parser.add_argument("--small", type=int, default=4000, help="objects of 110 KB [4000]")
    parser.add_argument("--runs", type=int, default=2, help="samples of each line but those of epochs [2]")
    parser.add_argument("--keys", type=int, default=1_000_000, help="of the line about memory [1000000]")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PART,...", help="which parts [%(default)s]")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="KIND,...", help="which data [%(default)s]")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples")
    return parser.parse_args(arguments)


@dataclass
class Town:
    """Machines, a store that is filled, and nodes."""

    cluster: LocalCluster
    net: Links
    endpoint: str
    nodes: list[LocalNode] = field(default_factory=list)

    def url(self, kind: str) -> str:
        return f"s3://{BUCKET}/{kind}?endpoint={self.endpoint}"

    def start(self, count: int) -> None:
        """Fresh nodes, which know each other and may read the store."""
        seeds = ",".join(f"{at.address}:{PORT}" for at in self.net.machines[:count])
        allowed = f"s3://{BUCKET}?endpoint={self.endpoint}"
        for number, at in enumerate(self.net.machines[:count]):
            options = ("--discovery", f"static:{seeds}", "--allow-origin", allowed)
            where = Where(f"{at.address}:{PORT}", options, at.inside)
            self.nodes.append(self.cluster.start(f"n{time.monotonic_ns()}-{number}", rack=at.rack, where=where))
        if count > 1:
            self.cluster.wait_met()

    def publish(self, kind: str, *options: str) -> str:
        return self.cluster.hoard(self.nodes[0], "publish", *options, self.url(kind)).split()[-1]

    def mount(self, snapshot: str) -> list[Path]:
        return [self.cluster.mount(node, snapshot)[0] for node in self.nodes]

    def read_of_store(self) -> int:
        """Bytes that the nodes' origin meters counted."""
        told = [json.loads(self.cluster.hoard(node, "status", "--json"))["origins"] for node in self.nodes]
        return sum(int(origin["read"]) for origins in told for origin in origins)

    def end(self) -> None:
        for node in self.nodes:
            point = self.cluster.root / f"mnt-{node.name}"
            if point.exists():
                subprocess.run(["umount", "-l", str(point)], check=False, capture_output=True)
            self.cluster.discard(node)
        self.nodes.clear()


class Bench:
    def __init__(self, options: argparse.Namespace, cluster: LocalCluster, data: Path, sheet: Sheet) -> None:
        self.options = options
        self.cluster = cluster
        self.data = data
        self.sheet = sheet
        self.kinds = [kind for kind in KINDS if kind in options.kinds.split(",")]

    def size(self, kind: str) -> int:
        return sum(path.stat().st_size for path in (self.data / kind).rglob("*") if path.is_file())

    @contextmanager
    def town(self, count: int, *, rate: int) -> Iterator[Town]:
        """`rate` of the store's link; the nodes' own carry ten times as much."""
        with links([count], rate=min(10 * rate, FREE), origin=rate) as net:
            weed = self.cluster.root / "weed"
            with seaweed(net.core, weed, self.data) as endpoint:
                yield Town(self.cluster, net, endpoint)

    # --- parts

    def read(self) -> None:
        with self.town(1, rate=FREE) as town:
            for kind in self.kinds:
                for _ in range(self.options.runs):
                    tell(f"read {kind}")
                    native = self._boto3(town, kind)
                    town.start(1)
                    snapshot = town.publish(kind, "--lazy")
                    began = time.perf_counter()
                    self.cluster.hoard(town.nodes[0], "warm", snapshot)
                    seconds = time.perf_counter() - began
                    units = self.options.small if kind == "small" else self.size(kind) / 1e9
                    self.sheet.add(OURS, f"read-{kind}", units / seconds, native)
                    town.end()

    def _boto3(self, town: Town, kind: str) -> float:
        at = town.net.machines[0]
        if kind == "small":
            told = direct(at, town.endpoint, kind, "files")
            return float(told["reads"]) / float(told["seconds"])
        folder = self.cluster.root / "download"
        folder.mkdir()
        argv = [sys.executable, "-c", DOWNLOAD, town.endpoint, BUCKET, f"{kind}/", str(folder)]
        try:
            return float(inside(at, argv).stdout)
        finally:
            shutil.rmtree(folder)

    def list(self) -> None:
        with self.town(1, rate=FREE) as town:
            for _ in range(self.options.runs):
                argv = [sys.executable, "-c", LISTING, town.endpoint, BUCKET, "small/", town.url("small")]
                native, ours = (float(word) for word in inside(town.net.machines[0], argv).stdout.split())
                self.sheet.add(OURS, "list", ours, native)
        done = subprocess.run(
            [sys.executable, "-c", MILLION, str(self.options.keys)], check=True, capture_output=True, text=True
        )
        self.sheet.add(OURS, "list-memory", float(done.stdout))

    def lazy(self) -> None:
        for rate in (0, 1):
            with self.town(1, rate=rate * GBIT or FREE) as town:
                for kind in self.kinds:
                    for run in range(self.options.runs):
                        tell(f"lazy {kind}, {rate or 'no limit'}")
                        order = ORDERS[kind]
                        native = direct(town.net.machines[0], town.endpoint, kind, order, seed=run)["seconds"]
                        town.start(1)
                        (point,) = town.mount(town.publish(kind, "--lazy"))
                        ours = read_together([(town.net.machines[0], point)], order, seed=run)
                        tell(
                            f"  {ours:.1f} s, direct {native:.1f} s, read {town.read_of_store() / self.size(kind):.3f} x"
                        )
                        self.sheet.add(OURS, f"lazy-{kind}-{rate}", ours, native)
                        town.end()

    def epochs(self) -> None:
        for kind in self.kinds:
            with self.town(NODES, rate=GBIT) as town:
                self._epochs(town, kind)

    def _epochs(self, town: Town, kind: str) -> None:
        size, net = self.size(kind), town.net
        rate = stream(net.core, net.machines[0])
        began = time.time() + 2
        with started(
            [reader(at, "s3", f"{BUCKET}/{kind}/", town.endpoint, "files", number, began)
             for number, at in enumerate(net.machines)]
        ) as readers:  # fmt: skip
            sent = net.core.sent()
            store = max(float(told(process)["seconds"]) for process in readers)
        tell(f"  directly: the store's link carried {(net.core.sent() - sent) / size / NODES:.3f} x the set each")
        local = self._local(kind, net.machines)
        disk = NODES * size / local / 1e9
        town.start(NODES)
        points = town.mount(town.publish(kind, "--lazy"))
        places = list(zip(net.machines, points, strict=True))
        before, sent = town.read_of_store(), net.core.sent()
        times = []
        for epoch in range(EPOCHS):
            times.append(read_together(places, "files", seed=10 * epoch))
            if epoch == 0:
                read = town.read_of_store() - before
                tell(f"  the store's link carried {(net.core.sent() - sent) / size:.3f} x the set")
            drop_caches()
        tell(
            f"  {kind}: C {rate:.3f} D {disk:.3f} GB/s, store {store:.1f} s an epoch, Hoard {times}, "
            f"local {local:.1f} s"
        )
        self._table(kind, store, times)
        speed = EPOCHS * store / sum(times)
        self.sheet.add(OURS, f"three-{kind}", speed, 1.0)
        self.sheet.add(OURS, f"formula-{kind}", speed, 12 / (1 + 8 * rate / disk))
        self.sheet.add(OURS, f"first-{kind}", store / times[0], 1.0)
        self.sheet.add(OURS, f"bytes-{kind}", read / size)
        self.sheet.add(OURS, f"second-{kind}", times[1], local)
        town.end()

    def _table(self, kind: str, store: float, times: Sequence[float]) -> None:
        later = sum(times[1:]) / (EPOCHS - 1)
        for epochs in (1, 2, 5, 10):
            ours = times[0] + (epochs - 1) * later
            tell(
                f"  {kind}, {epochs} epochs: the store {epochs * store:.1f} s, Hoard {ours:.1f} s, "
                f"{epochs * store / ours:.2f} x"
            )

    def _local(self, kind: str, machines: Sequence[Machine]) -> float:
        """Seconds that four readers take for four copies on this disk, which is cold."""
        copies = [self.cluster.root / f"copy-{number}" for number in range(NODES)]
        try:
            for copy in copies:
                shutil.copytree(self.data / kind, copy)
            drop_caches()
            return read_together(list(zip(machines, copies, strict=True)), "files", seed=0)
        finally:
            for copy in copies:
                shutil.rmtree(copy)

    def publish(self) -> None:
        with self.town(NODES, rate=GBIT) as town:
            rate = stream(town.net.core, town.net.machines[0])
            for kind in self.kinds:
                for _ in range(self.options.runs):
                    tell(f"publish {kind}")
                    town.start(NODES)
                    began = time.perf_counter()
                    town.publish(kind)
                    seconds = time.perf_counter() - began
                    tell(f"  {seconds:.1f} s, read {town.read_of_store() / self.size(kind):.3f} x")
                    self.sheet.add(OURS, f"publish-{kind}", self.size(kind) / seconds / 1e9, rate)
                    town.end()


PARTS = {"read": Bench.read, "list": Bench.list, "lazy": Bench.lazy, "epochs": Bench.epochs, "publish": Bench.publish}


def reader(at: Machine, kind: str, place: str, endpoint: str, order: str, seed: int, begin: float = 0.0) -> list[str]:
    """The command of one reader on a machine."""
    return [*at.inside, sys.executable, "-m", "benchmarks.originreaders", kind, place, "--endpoint", endpoint,
            "--order", order, "--seed", str(seed), "--at", str(begin)]  # fmt: skip


@contextmanager
def started(commands: Sequence[list[str]]) -> Iterator[list["subprocess.Popen[str]"]]:
    """Readers side by side; none is left."""
    environment = {**os.environ, **ENVIRONMENT}
    with ExitStack() as stack:
        processes = []
        for command in commands:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
            )
            stack.callback(process.kill)
            processes.append(process)
        yield processes


def told(process: "subprocess.Popen[str]") -> dict[str, float]:
    """What a reader said. Raises RuntimeError if it did not read everything."""
    out, error = process.communicate(timeout=900)
    if process.returncode != 0:
        raise RuntimeError(f"a reader failed: {error[-1000:]}")
    answer: dict[str, float] = json.loads(out)
    if answer["bytes"] != answer["expected"]:
        raise RuntimeError(f"a reader got {answer['bytes']} of {answer['expected']} bytes")
    return answer


def direct(at: Machine, endpoint: str, kind: str, order: str, *, seed: int = 0) -> dict[str, float]:
    with started([reader(at, "s3", f"{BUCKET}/{kind}/", endpoint, order, seed)]) as (process,):
        return told(process)


def read_together(places: Sequence[tuple[Machine, Path]], order: str, *, seed: int) -> float:
    """Seconds until the slowest reader has everything; each reads in an order of its own."""
    begin = time.time() + 1
    commands = [reader(at, "files", str(path), "", order, seed + n, begin) for n, (at, path) in enumerate(places)]
    with started(commands) as readers:
        return max(float(told(process)["seconds"]) for process in readers)


def drop_caches() -> None:
    """All clean pages of this machine."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1\n")


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[tuple[LocalCluster, Path]]:
    """Where the nodes run, and the data."""
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory(prefix="hoard-bytecode-") as bytecode:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        with LocalCluster("hoard-bench", discovery=[]) as cluster:
            data = cluster.root / "data"
            make_shards(data / "shards", options.shards, SHARD)
            make_small(data / "small", options.small)
            yield cluster, data


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything is cleaned up
    sheet = Sheet(LINES)
    with prepared(options) as (cluster, data):
        bench = Bench(options, cluster, data, sheet)
        for name in options.only.split(","):
            tell(name)
            PARTS[name](bench)
    about = machine.describe()
    table = markdown(sheet.rows()) if options.markdown else plain(sheet.rows())
    print("\n" + "\n".join(f"- {line}" if options.markdown else line for line in about) + f"\n\n{table}")
    if options.json:
        options.json.write_text(json.dumps({"about": about, "lines": sheet.json()}, indent=1))


if __name__ == "__main__":
    main()
