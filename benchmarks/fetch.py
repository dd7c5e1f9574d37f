"""Whole files read from a peer for the first time, over loopback (`make bench-fetch`).

One node has published the data when another joins, mounts it and reads it: every byte crosses the wire, is checked,
stored and handed to the reader. Each run uses a fresh second node. Beside it: the source directory read from the disk
(its pages dropped), which is what a copy that was there already would take.
"""

from collections.abc import Callable
from pathlib import Path

from benchmarks.figures import (
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
from hoard_p2p.cli.localcluster import LocalCluster


def compare(name: str, runs: int, make: Callable[[Path], None]) -> None:
    with LocalCluster("hoard-bench") as cluster:
        source = cluster.root / name
        make(source)
        read_files(source)
        first = cluster.start("node-1")
        snapshot = cluster.hoard(first, "publish", "--replicas", "1", str(source)).split()[-1]
        fetched, native = [], []
        for run in range(runs):
            drop_pages(source)
            native.append(read_files(source))
            node = cluster.start(f"reader-{run}")
            cluster.wait_met()
            point, _seconds = cluster.mount(node, snapshot)
            fetched.append(read_files(point))
            cluster.hoard(node, "umount", str(point))
            cluster.discard(node)
    size, files = native[0].bytes, native[0].files
    headline(f"{name}, one reader", size, files)
    base = [found.seconds for found in native]
    line("source directory, cold", spread(base), rates(size, files, base))
    seconds = [found.seconds for found in fetched]
    line("first time, from the peer", spread(seconds), f"{rates(size, files, seconds)}, {ratio(seconds, base)} native")


def main() -> None:
    options = arguments(__doc__).parse_args()
    if options.shards:
        compare("shards", options.runs, lambda root: make_shards(root, options.shards))
    if options.small:
        compare("small files", options.runs, lambda root: make_small(root, options.small))


if __name__ == "__main__":
    main()
