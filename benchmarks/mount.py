"""A mount against the native file system on the same data (`make bench-mount`).

The data is in this machine's store. In each run the native files are measured right before ours, in the same way: pages
dropped, then a cold pass, then warm ones (the page cache that a *write* leaves is faster than one that reads filled, so
a source that was just made is no baseline for either). Ours verifies every chunk in its first pass.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import (
    Pass,
    arguments,
    drop_pages,
    headline,
    line,
    make_shards,
    make_small,
    rates,
    ratio,
    read_files,
    spread,
)
from hoard_p2p.cli.localcluster import LocalCluster, LocalNode

TINY_FILE = 200
WARM_PASSES = 3


def _publish(cluster: LocalCluster, node: LocalNode, source: Path) -> str:
    return cluster.hoard(node, "publish", "--replicas", "1", str(source)).split()[-1]


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of the passes over one tree: one cold pass a run, `WARM_PASSES` warm ones."""

    cold: list[float]
    warm: list[float]

    def add(self, root: Path) -> Pass:
        first = read_files(root)
        self.cold.append(first.seconds)
        self.warm.extend(read_files(root).seconds for _ in range(WARM_PASSES))
        return first


def compare(cluster: LocalCluster, name: str, runs: int, make: Callable[[Path], None]) -> None:
    """Cold and warm passes over the same files, one reader."""
    source = cluster.root / name
    make(source)
    node = cluster.start(f"node-{name}".replace(" ", "-"))
    snapshot = _publish(cluster, node, source)
    native, ours = Measured([], []), Measured([], [])
    for _ in range(runs):
        drop_pages(source)
        found = native.add(source)
        drop_pages(node.data_dir / "slabs")
        point, _seconds = cluster.mount(node, snapshot)
        ours.add(point)
        cluster.hoard(node, "umount", str(point))
    headline(name, found.bytes, found.files)
    for what, base, seconds in (
        ("cold, first pass (verifies)", native.cold, ours.cold),
        ("warm, further passes", native.warm, ours.warm),
    ):
        line(f"native, {what.split(',')[0]}", spread(base), rates(found.bytes, found.files, base))
        shown = f"{rates(found.bytes, found.files, seconds)}, {ratio(seconds, base)} native"
        line(what, spread(seconds), shown)
    cluster.discard(node)


def first_byte(cluster: LocalCluster, files: int, runs: int) -> None:
    """From the start of the mount command to the first byte of a file."""
    source = cluster.root / "tiny"
    make_small(source, files, TINY_FILE)
    node = cluster.start("node-tiny")
    snapshot = _publish(cluster, node, source)
    name = Path(f"{(files - 1) // 1000:04d}", f"{files - 1:07d}.jpg")
    headline("mount command to first byte", files * TINY_FILE, files)
    took, idle = [], []
    for _ in range(runs):
        began = time.perf_counter()
        cluster.hoard(node, "peers")
        idle.append(time.perf_counter() - began)
        began = time.perf_counter()
        point, _seconds = cluster.mount(node, snapshot)
        fd = os.open(point / name, os.O_RDONLY)
        os.read(fd, 1)
        took.append(time.perf_counter() - began)
        os.close(fd)
        cluster.hoard(node, "umount", str(point))
    line("from the command to the first byte", spread(took))
    line("of it: starting a command at all", spread(idle))
    cluster.discard(node)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tiny", type=int, default=100_000, help="files of the snapshot for the first byte")
    options = parser.parse_args()
    with LocalCluster("hoard-bench", discovery=["none"]) as cluster:
        if options.shards:
            compare(cluster, "shards", options.runs, lambda root: make_shards(root, options.shards))
        if options.small:
            compare(cluster, "small files", options.runs, lambda root: make_small(root, options.small))
        if options.tiny:
            first_byte(cluster, options.tiny, options.runs)


if __name__ == "__main__":
    main()
