"""The passes of the mount benchmark: each reads the native files first and the mounted ones right after.

Disk cold means that the pages of the files (natively: of the source; of a mount: of its own copy) were taken out of the
page cache. Warm means that a read has filled it, on both sides: the cache that a write leaves is faster than that.
"""

import os
import random
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import processes
from benchmarks.figures import evict, seconds_of
from benchmarks.readers import Prepare, Reading, at_once, random_reads, random_touches, whole_files
from benchmarks.sheet import BY_KEY, Sheet
from benchmarks.subjects import Mounted, Subject

LARGE, SMALL, MILLION = "shards", "small", "million"
STARTS = {LARGE: "start-large", SMALL: "start-small", MILLION: "million-start"}
RANDOM_READS = 200_000
EIGHT = 8

Tasks = Callable[[Path], list[Prepare]]
"""The readers of a pass, given the directory that holds the files."""


def names_of(root: Path, limit: int | None = None) -> list[str]:
    """Files below `root` in name order, relative to it."""
    found = sorted(
        os.path.relpath(os.path.join(directory, name), root) for directory, _, files in os.walk(root) for name in files
    )
    return found[:limit]


def shuffled(names: Sequence[str]) -> list[str]:
    """The order in which a training loader reads: seeded, the same each time."""
    mixed = list(names)
    random.Random(110).shuffle(mixed)
    return mixed


def parts(names: Sequence[str], number: int) -> list[list[str]]:
    return [list(names[start::number]) for start in range(number)]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done. `cap`: seconds of one pass; `passes`: warm passes of which the median is one sample; `runs`:
    samples; `walks`: mounts for the walks and first bytes; `wanted`: whether a line was asked for."""

    cap: float
    passes: int
    runs: int
    walks: int
    wanted: Callable[[str], bool]


@dataclass(slots=True)
class Comparison:
    """One subject against the native files of one kind. The mount is fresh at each `with mounted()`, and each is a
    sample of the time to the first byte."""

    subject: Subject
    native: Path
    kind: str
    names: list[str]
    effort: Effort
    sheet: Sheet
    root: Path = field(default_factory=Path)
    read: int = 0
    """Bytes read from the mount since it was last set to 0."""

    @contextmanager
    def mounted(self, *, hot: bool = False) -> Iterator[Mounted]:
        """`hot`: the mount's own copy of the data is in the page cache, else no page of it."""
        mounted = self.subject.start(self.kind, self.names[0], hot=hot)
        self.root = mounted.root
        key = STARTS.get(self.kind)
        if key is not None and not hot and self.wants(key):
            self.sheet.add(self.subject.name, key, mounted.seconds * 1e3)
        try:
            yield mounted
        finally:
            self.subject.stop()

    @contextmanager
    def first(self, passes: Mapping[str, Tasks], *, hot: bool = False) -> Iterator[list[Reading]]:
        """Passes by line under a fresh mount, which stays for the block; the readings of the mount.

        The native ones are taken before it is mounted: what a mount does in the background gets no start on them.
        """
        if hot:
            at_once(whole(self.names)(self.native), self.effort.cap)
        else:
            evict(self.native)
        natives = [at_once(tasks(self.native), self.effort.cap) for tasks in passes.values()]
        with self.mounted(hot=hot):
            readings = [at_once(tasks(self.root), self.effort.cap) for tasks in passes.values()]
            for key, native, mounted in zip(passes, natives, readings):
                self.sheet.add(self.subject.name, key, rate(mounted, key), rate(native, key))
            yield readings

    def wants(self, *keys: str) -> bool:
        return any(self.effort.wanted(key) for key in keys)

    def both(self, tasks: Tasks) -> tuple[Reading, Reading]:
        """Natively, then from the mount."""
        native = at_once(tasks(self.native), self.effort.cap)
        mounted = at_once(tasks(self.root), self.effort.cap)
        self.read += mounted.size
        return native, mounted

    def often(self, key: str, tasks: Tasks) -> None:
        """The medians of some passes, taken in turn, are one sample."""
        if self.wants(key):
            pairs = [self.both(tasks) for _ in range(self.effort.passes)]
            mounted = statistics.median(rate(pair[1], key) for pair in pairs)
            self.sheet.add(self.subject.name, key, mounted, statistics.median(rate(pair[0], key) for pair in pairs))


def rate(reading: Reading, key: str) -> float:
    """In the unit of the line."""
    amount = reading.size / 1e9 if BY_KEY[key].unit == "GB/s" else reading.count
    return amount / reading.seconds


def whole(names: Sequence[str]) -> Tasks:
    return lambda root: [whole_files([root / name for name in names])]


def together(names: Sequence[Sequence[str]]) -> Tasks:
    return lambda root: [whole_files([root / name for name in part]) for part in names]


def large(work: Comparison) -> None:
    """Large files: first passes, then all that is warm."""
    warm = ("large-sequential", "large-random", "large-mmap", "large-eight", "large-same", "large-cpu", "large-memory")
    if work.wants("large-cold", *warm):
        with work.first({"large-cold": whole(work.names)}) as (done,):
            if work.wants(*warm):
                _large_warm(work, work.names[: max(1, done.count)])
    if work.wants("large-hot") and work.subject.can_be_hot:
        with work.first({"large-hot": whole(work.names)}, hot=True):
            pass


def _large_warm(work: Comparison, names: list[str]) -> None:
    work.both(whole(names))  # fills the caches, and is not measured
    with _costs(work, "large"):
        work.often("large-sequential", whole(names))
        work.often("large-random", lambda root: [random_reads([root / name for name in names], RANDOM_READS)])
        work.often("large-mmap", lambda root: [random_touches([root / name for name in names], RANDOM_READS)])
        work.often("large-eight", together([[names[number % len(names)]] for number in range(EIGHT)]))
        work.often("large-same", together([[names[0]] for _ in range(EIGHT)]))


def small(work: Comparison) -> None:
    """Small files: half of them by one reader and the other half by four in the first passes, then warm."""
    warm = ("small-one", "small-four", "small-eight", "small-cpu", "small-memory")
    one, four = work.names[0::2], parts(work.names[1::2], 4)
    if work.wants("small-cold", "small-cold-four", *warm):
        with work.first({"small-cold": whole(one), "small-cold-four": together(four)}) as (done, shared):
            if work.wants(*warm):
                rest = [name for part, count in zip(four, shared.counts) for name in part[:count]]
                _small_warm(work, [*one[: done.count], *rest] or one[:1])
    if work.wants("small-hot", "small-hot-four") and work.subject.can_be_hot:
        with work.first({"small-hot": whole(one), "small-hot-four": together(four)}, hot=True):
            pass


def _small_warm(work: Comparison, names: list[str]) -> None:
    work.both(whole(names))  # fills the caches, and is not measured
    with _costs(work, "small"):
        work.often("small-one", whole(names))
        work.often("small-four", together(parts(names, 4)))
        work.often("small-eight", together(parts(names, EIGHT)))


@contextmanager
def _costs(work: Comparison, prefix: str) -> Iterator[None]:
    """CPU per gigabyte that is read from the mount in the block, and memory at its end."""
    subject, sheet, node = work.subject, work.sheet, work.subject.node
    work.read, before = 0, processes.cpu_seconds(subject.pids())
    node_before = 0.0 if node is None else processes.cpu_seconds([node])
    yield
    size = work.read / 1e9
    if size:
        sheet.add(subject.name, f"{prefix}-cpu", (processes.cpu_seconds(subject.pids()) - before) / size)
    if size and node is not None:
        sheet.add(subject.name, f"{prefix}-node", (processes.cpu_seconds([node]) - node_before) / size)
    sheet.add(subject.name, f"{prefix}-memory", processes.memory(subject.pids()) / 1e6)


def find(root: Path) -> list[str]:
    return ["find", str(root), "-type", "f"]


def find_stat(root: Path) -> list[str]:
    return ["find", str(root), "-type", "f", "-printf", "%s\n"]


def list_all(root: Path) -> list[str]:
    return ["ls", "-lR", str(root)]


def walk(work: Comparison) -> None:
    """find and ls in processes of their own, each first one under a fresh mount."""
    if work.wants("walk-find", "walk-stat", "walk-again"):
        _command(find_stat(work.native))  # the native side has seen its folders before, the mount has not
        with work.mounted():
            timed(work, "walk-find", find)
            timed(work, "walk-stat", find_stat)
            timed(work, "walk-again", find_stat)
    if work.wants("walk-ls", "walk-ls-again"):
        with work.mounted():
            timed(work, "walk-ls", list_all)
            timed(work, "walk-ls-again", list_all)


def timed(work: Comparison, key: str, command: Callable[[Path], list[str]]) -> None:
    native = seconds_of(lambda: _command(command(work.native)))
    mounted = seconds_of(lambda: _command(command(work.root)))
    work.sheet.add(work.subject.name, key, mounted * 1e3, native * 1e3)


def _command(command: list[str]) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env={**os.environ, "LC_ALL": "C"}, timeout=600)


def compare(subject: Subject, native: Path, effort: Effort, sheet: Sheet, limits: dict[str, int | None]) -> None:
    """Everything that was asked for, of one subject. `limits`: files of each kind that are read. Raises SubjectFailed,
    ReaderFailed."""

    def work(kind: str, names: list[str]) -> Comparison:
        return Comparison(subject, native / kind, kind, names, effort, sheet)

    shards = work(LARGE, names_of(native / LARGE, limits[LARGE]) if limits[LARGE] != 0 else [])
    files = work(SMALL, shuffled(names_of(native / SMALL, limits[SMALL])) if limits[SMALL] != 0 else [])
    for _ in range(effort.runs):
        if shards.names:
            large(shards)
        if files.names:
            small(files)
    for _ in range(effort.walks if files.names else 0):
        walk(files)
    for each in (shards, files):
        missing = effort.walks - len(sheet.samples(subject.name, STARTS[each.kind]))
        for _ in range(missing if each.names and each.wants(STARTS[each.kind]) else 0):
            with each.mounted():
                pass
