"""A mount against the native file system on the same data (`make bench-mount`).

The data is in this machine's store. The native pass is measured right before each of ours, page cache warm for both:
ours reads the store through the mount the first time and the kernel's cache from then on.
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.figures import headline, line, make_shards, make_small, rates, ratio, read_files, spread
from hoard_p2p.cli.localcluster import LocalCluster, LocalNode

TINY_FILE = 200


def _publish(cluster: LocalCluster, node: LocalNode, source: Path) -> str:
    return cluster.hoard(node, "publish", "--replicas", "1", str(source)).split()[-1]


def compare(cluster: LocalCluster, name: str, runs: int, make: Callable[[Path], None]) -> None:
    """First and further passes over the same files, one reader."""
    source = cluster.root / name
    make(source)
    read_files(source)
    node = cluster.start(f"node-{name}".replace(" ", "-"))
    snapshot = _publish(cluster, node, source)
    first, again, native = [], [], []
    for _ in range(runs):
        native.append(read_files(source))
        point, _seconds = cluster.mount(node, snapshot)
        first.append(read_files(point))
        again.append(read_files(point))
        cluster.hoard(node, "umount", str(point))
    size, files = native[0].bytes, native[0].files
    headline(name, size, files)
    base = [found.seconds for found in native]
    line("native", spread(base), rates(size, files, base))
    for what, passes in (("first pass", first), ("second pass", again)):
        seconds = [found.seconds for found in passes]
        line(what, spread(seconds), f"{rates(size, files, seconds)}, {ratio(seconds, base)} native")
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=4, help="files of 256 MiB")
    parser.add_argument("--small", type=int, default=4000, help="files of 110 KB")
    parser.add_argument("--tiny", type=int, default=100_000, help="files of the snapshot for the first byte")
    parser.add_argument("--runs", type=int, default=3)
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
