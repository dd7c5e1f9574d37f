"""What the rows of `make bench-origin` share: the data, the readers of mounts, and what they need of the benchmark."""

import argparse
import filecmp
import os
import random
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.figures import SMALL_FILE
from benchmarks.links import Links, Machine
from benchmarks.readers import BUFFER, Done, Prepare, Run, at_once, whole_files
from benchmarks.s3server import S3Server
from benchmarks.sheet import Sheet
from hoard_p2p.cli.localcluster import LocalCluster, LocalNode

PORT = 7440
READERS = 8
Times = dict[tuple[str, str], list[float]]
"""Seconds of each epoch that was read, by data set and by who read."""

Part = tuple[str, int, int]
"""A name in the set, and a range of it; stop 0: all of it."""


@dataclass(frozen=True, slots=True)
class Data:
    """One set: files below `root`, and objects below the prefix `kind`."""

    kind: str
    root: Path
    sizes: dict[str, int]

    @classmethod
    def of(cls, kind: str, root: Path) -> "Data":
        paths = (path for path in sorted(root.rglob("*")) if path.is_file())
        return cls(kind, root, {str(path.relative_to(root)): path.stat().st_size for path in paths})

    @property
    def size(self) -> int:
        return sum(self.sizes.values())

    def whole(self, seed: int) -> list[Part]:
        """All files, in an order of that reader's own."""
        parts = [(name, 0, 0) for name in self.sizes]
        random.Random(seed).shuffle(parts)
        return parts

    def records(self, seed: int) -> list[Part]:
        """All bytes, as records of the size of a small file, shuffled over the whole set."""
        parts = [
            (name, start, min(size, start + SMALL_FILE))
            for name, size in self.sizes.items()
            for start in range(0, size, SMALL_FILE)
        ]
        random.Random(seed).shuffle(parts)
        return parts

    def keys(self, parts: Sequence[Part]) -> list[Part]:
        """The same as parts of objects."""
        return [(f"{self.kind}/{name}", start, stop) for name, start, stop in parts]


class Host(Protocol):
    """What a row needs of the benchmark."""

    options: argparse.Namespace
    cluster: LocalCluster
    net: Links
    store: S3Server
    sheet: Sheet
    kinds: list[str]
    times: Times

    @property
    def runs(self) -> range: ...

    def tell(self, text: str) -> None: ...

    def data(self, kind: str) -> Data: ...

    def node(self, at: Machine, *, allowed: Sequence[str] = ()) -> LocalNode: ...

    def nodes(self) -> list[LocalNode]: ...

    def discard(self, nodes: Sequence[LocalNode]) -> None: ...

    def unmount(self, node: LocalNode) -> None: ...

    def compared(self, node: LocalNode, snapshot: str, data: Data) -> None: ...


def reading(root: Path, parts: Sequence[Part]) -> Prepare:
    """One reader of these parts of files below `root`, by open, pread and close as a loader does."""
    if all(stop == 0 for _, _, stop in parts):
        return whole_files([root / name for name, _, _ in parts])

    def prepare() -> Run:
        wanted = [(os.fspath(root / name), start, stop) for name, start, stop in parts]
        buffer = memoryview(bytearray(max([BUFFER, *(stop - start for _, start, stop in parts)])))

        def run(end: float) -> Done:
            size = count = 0
            for name, start, stop in wanted:
                fd, at = os.open(name, os.O_RDONLY), start
                while at < stop and (got := os.preadv(fd, [buffer[: stop - at]], at)):
                    at += got
                os.close(fd)
                size, count = size + at - start, count + 1
                if time.perf_counter() > end:
                    break
            return Done(size, count)

        return run

    return prepare


def read_by(roots: Sequence[Path], plans: Sequence[Sequence[Part]], readers: int, size: int) -> float:
    """Seconds until `readers` processes at each root have read its plan. Raises RuntimeError if they came by fewer
    bytes than `size` at each root."""
    tasks = [
        reading(root, plan[number::readers])
        for root, plan in zip(roots, plans, strict=True)
        for number in range(readers)
    ]
    done = at_once(tasks)
    if done.size != size * len(roots):
        raise RuntimeError(f"readers got {done.size} bytes of {size * len(roots)}")
    return done.seconds


def compared(data: Data, point: Path) -> None:
    """Raises RuntimeError if a file below `point` is not what was put into the store."""
    for name in data.sizes:
        if not filecmp.cmp(data.root / name, point / name, shallow=False):
            raise RuntimeError(f"{point / name} differs from its object")
    found = sum(len(files) for _, _, files in os.walk(point))
    if found != len(data.sizes):
        raise RuntimeError(f"{point} has {found} files instead of {len(data.sizes)}")


def forget(*roots: Path) -> None:
    """Put on the disk and out of the page cache what lies below, files of stores and of mounts alike."""
    os.sync()
    for path in (path for root in roots for path in root.rglob("*")):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) if _is_file(path) else -1
        except FileNotFoundError:  # a node at work makes and removes files of its own
            continue
        if fd >= 0:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def _is_file(path: Path) -> bool:
    """Nodes have sockets beside their files, and names without one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False
