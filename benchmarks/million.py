"""A million files, for the mount benchmark: the walk of a tree of a thousand directories, and one flat directory."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import phases, processes
from benchmarks.figures import make_small, seconds_of
from benchmarks.sheet import Sheet
from benchmarks.subjects import Hoard
from hoard_p2p.cli.localcluster import LocalCluster

TINY = 16
RUNS = 3
TREE, FLAT = phases.MILLION, "flat"


def measure(cluster: LocalCluster, files: int, wanted: Callable[[str], bool], sheet: Sheet) -> None:
    """The native side was written a moment before, so what it knows of its folders is in memory each time; the mount
    is fresh for the first find and the first ls."""
    keys = ("million-start", "million-find", "million-ls", "million-memory", "million-flat", "million-pause")
    if not any(wanted(key) for key in keys):
        return
    source = cluster.root / "source"
    make_small(source / TREE, files, TINY)
    _make_flat(source / FLAT, files)
    node = cluster.start("node-million")
    hoard = Hoard(cluster, node)
    for kind in (TREE, FLAT):
        hoard.publish(kind, source / kind)
    effort = phases.Effort(600.0, 1, RUNS, RUNS, wanted)
    for _ in range(RUNS):
        _tree(phases.Comparison(hoard, source / TREE, TREE, [_name(files - 1)], effort, sheet))
        _flat(phases.Comparison(hoard, source / FLAT, FLAT, [f"{files - 1:07d}"], effort, sheet))
    cluster.discard(node)


def _name(number: int) -> str:
    return f"{number // 1000:04d}/{number:07d}.jpg"


def _make_flat(root: Path, files: int) -> None:
    root.mkdir(parents=True)
    for number in range(files):
        os.close(os.open(root / f"{number:07d}", os.O_CREAT | os.O_WRONLY))


def _tree(work: phases.Comparison) -> None:
    for what, command in (("find", phases.find), ("ls", phases.list_all)):
        with work.mounted():
            phases.timed(work, f"million-{what}", command)
            phases.timed(work, f"million-{what}-again", command)
            memory = processes.memory(work.subject.pids()) / 1e6
    work.sheet.add(work.subject.name, "million-memory", memory)


def _flat(work: phases.Comparison) -> None:
    with work.mounted():
        native, mounted = Pauses(work.native), Pauses(work.root)
        work.sheet.add(work.subject.name, "million-flat", mounted.seconds * 1e3, native.seconds * 1e3)
        work.sheet.add(work.subject.name, "million-pause", mounted.longest * 1e3, native.longest * 1e3)


class Pauses:
    """One listing of a directory: how long it took, and the longest wait for an entry."""

    def __init__(self, root: Path) -> None:
        self.longest = 0.0
        self.seconds = seconds_of(lambda: self._list(root))

    def _list(self, root: Path) -> None:
        last = time.perf_counter()
        with os.scandir(root) as entries:
            for _ in entries:
                now = time.perf_counter()
                self.longest = max(self.longest, now - last)
                last = now
