"""Publishing against `cp -r` and b3sum of the same tree (`make bench-publish`).

Publishing reads, cuts, hashes, stores and syncs, so the baseline copies, hashes and syncs. The source's pages are
dropped before each, so that both pay the same disk reads. The baseline without its sync is printed too. Each run starts
a fresh node and a fresh copy.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from blake3 import blake3

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
    seconds_of,
    spread,
)
from hoard_p2p.cli.localcluster import LocalCluster, LocalNode

_LARGE = 8 << 20


def _hash(path: Path) -> bytes:
    threads = blake3.AUTO if path.stat().st_size > _LARGE else 1
    return blake3(max_threads=threads).update_mmap(path).digest()


def hash_tree(root: Path) -> None:
    """What b3sum does: every file, with all cores."""
    files = [Path(directory, name) for directory, _, names in os.walk(root) for name in names]
    tool = shutil.which("b3sum")
    if tool is not None:
        lines = b"\0".join(map(os.fsencode, files))
        subprocess.run(["xargs", "-0", tool], input=lines, stdout=subprocess.DEVNULL, check=True)
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(_hash, files):
            pass


def _publish(cluster: LocalCluster, node: LocalNode, source: Path) -> float:
    return seconds_of(lambda: cluster.hoard(node, "publish", "--replicas", "1", str(source)))


def compare(cluster: LocalCluster, name: str, runs: int, make: Callable[[Path], None]) -> None:
    """Make the data and print ours beside the baseline."""
    source, copy = cluster.root / name, cluster.root / "copy"
    make(source)
    warm = read_files(source)
    headline(name, warm.bytes, warm.files)
    ours, baseline, synced = [], [], []
    for run in range(runs):
        drop_pages(source)
        copied = seconds_of(lambda: subprocess.run(["cp", "-r", source, copy], check=True))
        hashed = seconds_of(lambda: hash_tree(source))
        flushed = seconds_of(lambda: subprocess.run(["sync", "-f", copy], check=True))
        baseline.append(copied + hashed)
        synced.append(copied + hashed + flushed)
        shutil.rmtree(copy)
        node = cluster.start(f"node-{name}-{run}".replace(" ", "-"))
        drop_pages(source)
        ours.append(_publish(cluster, node, source))
        if run == runs - 1:
            again = _publish(cluster, node, source)
        cluster.discard(node)
    line("cp + b3sum, not synced", spread(baseline), rates(warm.bytes, warm.files, baseline))
    line("cp + b3sum + sync", spread(synced), rates(warm.bytes, warm.files, synced))
    line("hoard publish", spread(ours), rates(warm.bytes, warm.files, ours))
    line("ratio to cp + b3sum, not synced", ratio(ours, baseline))
    line("ratio to cp + b3sum + sync", ratio(ours, synced))
    line("hoard publish again, nothing new", spread([again]), rates(warm.bytes, warm.files, [again]))
    shutil.rmtree(source)


def main() -> None:
    options = arguments(__doc__).parse_args()
    print(f"blake3 by {shutil.which('b3sum') or 'the blake3 package, all cores (no b3sum on PATH)'}")
    with LocalCluster("hoard-bench", discovery=["none"]) as cluster:
        if options.shards:
            compare(cluster, "shards", options.runs, lambda root: make_shards(root, options.shards))
        if options.small:
            compare(cluster, "small files", options.runs, lambda root: make_small(root, options.small))


if __name__ == "__main__":
    main()
