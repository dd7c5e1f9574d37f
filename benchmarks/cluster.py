"""Nodes and the links between them (`make bench-cluster`).

`wire`: what one node gives to one client over loopback, beside nginx's sendfile to `curl | b3sum` right before it.
`first`: a second node that has nothing mounts a set that a peer has, and reads it whole; the links are shaped, and
beside it is what one TCP stream carries over them. `start`: how long a reader waits for its first byte then.

`cold`, `killed`, `doubled`: see `coldstart`; `fill`: see `fillrow`. See docs/benchmarks.md.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import coldstart, fillrow, machine
from benchmarks.asking import Asking
from benchmarks.figures import SMALL_FILE, make_shards, make_small, read_files
from benchmarks.links import GBIT, Machine, links
from benchmarks.sheet import OURS, Line, Sheet, Target, markdown, plain
from hoard_p2p.cli.localcluster import LocalCluster, LocalNode, Where

MIB = 1 << 20
PORT = 7440
KINDS = ("shards", "small")
LIMIT_BYTES = 256 << 20

LINES = (
    Line("wire-shards", "one node, one client, loopback: shards, hashed", "GB/s", Target(least_ratio=0.8)),
    Line("wire-small", "the same, files of 110 KB", "GB/s", Target(least_ratio=0.6)),
    Line("wire-p99", "p99 of GET /v1/status meanwhile", "ms", Target(most=100)),
    Line("first-shards-1", "first read on a second node, 1 Gbit/s, shards", "GB/s", Target(least_ratio=0.95)),
    Line("first-small-1", "the same, files of 110 KB", "GB/s", Target(least_ratio=0.95)),
    Line("first-shards-10", "first read on a second node, 10 Gbit/s, shards", "GB/s", Target(least_ratio=0.80)),
    Line("first-small-10", "the same, files of 110 KB", "files/s"),
    Line("first-shards-0", "first read on a second node, loopback, shards", "GB/s"),
    Line("first-small-0", "the same, files of 110 KB", "files/s"),
    Line("start", "mount command to first byte, only a peer has the files", "ms", Target(most=250)),
    *coldstart.LINES,
    *fillrow.LINES,
)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=4, help="large files of 256 MiB [4]")
    parser.add_argument("--small", type=int, default=10_000, help="files of 110 KB [10000]")
    parser.add_argument("--runs", type=int, default=2, help="samples of each line [2]")
    parser.add_argument("--rates", default="1,10", metavar="GBIT,...", help="of the links; 0: loopback [1,10]")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PART,...", help="which parts [%(default)s]")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples")
    return parser.parse_args(arguments)


def tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Data:
    """A set of each kind, as files."""

    root: Path

    def source(self, kind: str) -> Path:
        return self.root / kind

    def first(self, kind: str) -> str:
        """The first file in name order, relative to the set."""
        return str(min(path for path in self.source(kind).rglob("*") if path.is_file()).relative_to(self.source(kind)))


class Bench:
    def __init__(self, options: argparse.Namespace, cluster: LocalCluster, data: Data, sheet: Sheet) -> None:
        self.options = options
        self.cluster = cluster
        self.data = data
        self.sheet = sheet
        self._started = 0

    def node(
        self, at: Machine | None = None, *seeds: Machine, options: Sequence[str] = (), inside: Sequence[str] = ()
    ) -> LocalNode:
        """A fresh node, on loopback or on a machine, that knows `seeds`; `options` of `hoard up`. `inside`: a command
        that it is started through there."""
        self._started += 1
        name = f"node-{self._started}"
        if at is None:
            return self.cluster.start(name, where=Where(options=("--discovery", "mdns", *options)))
        how = "static:" + ",".join(f"{seed.address}:{PORT}" for seed in seeds) if seeds else "none"
        where = Where(f"{at.address}:{PORT}", ("--discovery", how, *options), (*at.inside, *inside))
        return self.cluster.start(name, rack=at.rack, where=where)

    def publish(self, node: LocalNode, kind: str) -> str:
        return self.cluster.hoard(node, "publish", "--replicas", "1", str(self.data.source(kind))).split()[-1]

    # --- parts

    def wire(self) -> None:
        node = self.node()
        url = json.loads(self.cluster.hoard(node, "status", "--json"))["node"]["url"]
        with nginx(self.data.root, self.cluster.root / "nginx") as web:
            pieces = {"shards": pieces_of(self.data.source("shards"), MIB), "small": self.data.source("small")}
            for kind in KINDS:
                snapshot = self.publish(node, kind)
                draw(url, snapshot)  # fills the page cache, and is not measured
                curl(web, self.data.root, pieces[kind])
                for _ in range(self.options.runs):
                    native = curl(web, self.data.root, pieces[kind])
                    self.sheet.add(OURS, f"wire-{kind}", draw(url, snapshot), native)
        snapshot = self.publish(node, "shards")
        with Asking(url) as asking:
            for _ in range(4):
                draw(url, snapshot, threads=4)
        self.sheet.add(OURS, "wire-p99", asking.p99)
        self.cluster.discard(node)

    def first(self) -> None:
        for rate in (int(one) for one in self.options.rates.split(",")):
            with links([2], rate=(rate or 1) * GBIT) as net:
                here, there = (None, None) if rate == 0 else net.machines
                self._first(rate, here, there)

    def _first(self, rate: int, here: Machine | None, there: Machine | None) -> None:
        holder = self.node(here)
        for kind in KINDS:
            snapshot = self.publish(holder, kind)
            for _ in range(self.options.runs):
                tell(f"first read, {rate} Gbit/s, {kind}")
                native = None if here is None or there is None else stream(here, there)
                seconds, size, files = self._read(kind, snapshot, here, there)
                key = f"first-{kind}-{rate}"
                if rate == 1 or kind == "shards":
                    self.sheet.add(OURS, key, size / seconds / 1e9, native)
                else:
                    self.sheet.add(OURS, key, files / seconds, None if native is None else native * 1e9 / SMALL_FILE)
        self.cluster.discard(holder)

    def _read(self, kind: str, snapshot: str, here: Machine | None, there: Machine | None) -> tuple[float, int, int]:
        node = self.node(there, *([] if here is None else [here]))
        self.cluster.wait_met()
        before = 0 if there is None else there.received()
        began = time.perf_counter()
        point, _ = self.cluster.mount(node, snapshot)
        with (point / self.data.first(kind)).open("rb") as file:
            file.read(1)
        if kind == "small":
            self.sheet.add(OURS, "start", (time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        found = read_files(point)
        if there is not None:
            tell(f"{(there.received() - before) / found.bytes:.3f} of the bytes of the set came over the link")
        self.cluster.hoard(node, "umount", str(point))
        self.cluster.discard(node)
        return found.seconds, found.bytes, found.files


PARTS: dict[str, Callable[[Bench], None]] = {
    "wire": Bench.wire,
    "first": Bench.first,
    "cold": coldstart.cold,
    "killed": coldstart.killed,
    "doubled": coldstart.doubled,
    "fill": fillrow.filled,
}
"""Parts with functions in modules of their own are added here, and their lines above."""


def draw(url: str, snapshot: str, threads: int = 1) -> float:
    """GB/s of a client that draws the whole snapshot from a node."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    command = [sys.executable, "-m", "benchmarks.drawing", host, port, snapshot, "--threads", str(threads)]
    told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return float(told["bytes"]) / float(told["seconds"]) / 1e9


def pieces_of(source: Path, size: int) -> Path:
    """The files of `source` cut into files of `size` bytes, beside it."""
    root = source.with_name(f"{source.name}-pieces")
    if not root.exists():
        root.mkdir()
        for path in sorted(source.iterdir()):
            with path.open("rb") as file:
                for number, data in enumerate(iter(lambda file=file: file.read(size), b"")):  # type: ignore[misc]
                    (root / f"{path.stem}-{number:05d}").write_bytes(data)
    return root


@contextmanager
def nginx(root: Path, place: Path) -> Iterator[str]:
    """nginx with one worker and sendfile over `root`; its URL."""
    place.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (place / "nginx.conf").write_text(
        f"daemon off; user root; worker_processes 1; pid {place}/pid; error_log {place}/error.log;\n"
        "events { worker_connections 64; }\n"
        "http { access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;\n"
        f" server {{ listen 127.0.0.1:{port}; root {root}; }} }}\n"
    )
    process = subprocess.Popen(["nginx", "-p", str(place), "-c", str(place / "nginx.conf")], stderr=subprocess.DEVNULL)
    try:
        _listening(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _listening(port: int) -> None:
    end = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return


def curl(web: str, root: Path, files: Path) -> float:
    """GB/s of one curl, over one connection, piped into b3sum."""
    names = sorted(path for path in files.rglob("*") if path.is_file())
    with tempfile.NamedTemporaryFile("w", suffix=".curl") as config:
        config.writelines(f'url = "{web}/{path.relative_to(root)}"\n' for path in names)
        config.flush()
        began = time.perf_counter()
        command = f"set -o pipefail; curl -sf -K {config.name} | b3sum --num-threads 1"
        subprocess.run(["bash", "-c", command], check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
    return sum(path.stat().st_size for path in names) / seconds / 1e9


SEND = """
import socket, sys
line = socket.create_connection((sys.argv[1], int(sys.argv[2])))
data, left = bytes(1 << 20), int(sys.argv[3])
while left > 0:
    line.sendall(data)
    left -= len(data)
"""
TAKE = """
import socket, sys, time
door = socket.create_server((sys.argv[1], 0))
print(door.getsockname()[1], flush=True)
line, _ = door.accept()
data, size, began = bytearray(1 << 20), 0, time.perf_counter()
while count := line.recv_into(data):
    size += count
print(size / (time.perf_counter() - began))
"""


def stream(here: Machine, there: Machine) -> float:
    """GB/s of one plain TCP stream from `here` to `there`: what the link carries."""
    taker = subprocess.Popen(
        [*there.inside, sys.executable, "-c", TAKE, there.address], stdout=subprocess.PIPE, text=True
    )
    assert taker.stdout is not None
    port = taker.stdout.readline().strip()
    subprocess.run([*here.inside, sys.executable, "-c", SEND, there.address, port, str(LIMIT_BYTES)], check=True)
    out, _ = taker.communicate(timeout=60)
    return float(out) / 1e9


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[tuple[LocalCluster, Data]]:
    """Where the nodes run, and the data. Processes find compiled modules, as those of an installed package do."""
    with tempfile.TemporaryDirectory(prefix="hoard-bytecode-") as bytecode:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        with LocalCluster("hoard-bench", discovery=[]) as cluster:
            data = Data(cluster.root / "data")
            make_shards(data.source("shards"), options.shards)
            make_small(data.source("small"), options.small)
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
