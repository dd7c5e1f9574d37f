"""What the benchmarks share: seeded data, timed passes, and how a figure is printed beside its baseline.

A ratio is made from medians. If the baseline's slowest run took more than twice its fastest, the machine was busy with
something else and the ratio is void.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from hoard_p2p.cli.demodata import write_shard
from hoard_p2p.printing import size_text

SMALL_FILE = 110_000
"""Bytes of a small file: a typical photo of an image data set."""

SHARD = 256 << 20
VOID = 2.0
_BUFFER = 1 << 20


def arguments(description: str | None) -> argparse.ArgumentParser:
    """What every benchmark can be told: how much data, how many runs."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--shards", type=int, default=4, help="files of 256 MiB")
    parser.add_argument("--small", type=int, default=4000, help="files of 110 KB")
    parser.add_argument("--runs", type=int, default=3)
    return parser


def make_small(root: Path, count: int, size: int = SMALL_FILE) -> None:
    """`count` files of `size` seeded bytes, a thousand to a directory."""
    stream = blake3(b"small files")
    for number in range(count):
        directory = root / f"{number // 1000:04d}"
        if number % 1000 == 0:
            directory.mkdir(parents=True)
        (directory / f"{number:07d}.jpg").write_bytes(stream.digest(length=size, seek=number * size))


def make_shards(root: Path, count: int, size: int = SHARD) -> None:
    """`count` large files of seeded bytes."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        write_shard(root / f"shard-{number:03d}.bin", size, seed=b"shard %d" % number)


@dataclass(frozen=True, slots=True)
class Pass:
    """One reading of a tree by one reader."""

    files: int
    bytes: int
    seconds: float


def read_files(root: Path) -> Pass:
    """Open, read and close every file below `root` in name order."""
    buffer = bytearray(_BUFFER)
    files = size = 0
    began = time.perf_counter()
    for directory, names, found in os.walk(root):
        names.sort()
        for name in sorted(found):
            fd = os.open(os.path.join(directory, name), os.O_RDONLY)
            while got := os.readv(fd, [buffer]):
                size += got
            os.close(fd)
            files += 1
    return Pass(files, size, time.perf_counter() - began)


def drop_pages(root: Path) -> None:
    """Put what was written below `root` on the disk, and take its pages out of the cache (nobody else's)."""
    os.sync()
    evict(root)


def evict(root: Path) -> None:
    """Take the pages of what is below `root` out of the cache; what was never synced stays there."""
    for directory, _names, found in os.walk(root):
        for name in found:
            fd = os.open(os.path.join(directory, name), os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def spread(seconds: Sequence[float]) -> str:
    """Median, and the range where there were several runs."""
    median = statistics.median(seconds)
    return f"{median:.3f} s" + (f" ({min(seconds):.3f} - {max(seconds):.3f})" if len(seconds) > 1 else "")


def moved(baseline: Sequence[float]) -> bool:
    """Whether the machine was too busy with something else for a ratio to this baseline."""
    return max(baseline) > VOID * min(baseline)


def ratio(ours: Sequence[float], baseline: Sequence[float]) -> str:
    """How many times as fast as the baseline, or that nobody can tell."""
    if moved(baseline):
        return "void: the baseline moved more than 2 x"
    return f"{statistics.median(baseline) / statistics.median(ours):.2f} x"


def rates(size: int, files: int, seconds: Sequence[float]) -> str:
    """Bytes and files a second at the median."""
    median = statistics.median(seconds)
    return f"{size / median / 1e9:.2f} GB/s, {files / median:,.0f} files/s"


def headline(text: str, size: int, files: int) -> None:
    print(f"\n{text}: {files:,} files, {size_text(size)}", flush=True)


def line(what: str, figure: str, beside: str = "") -> None:
    print(f"  {what:<44} {figure}" + (f"   {beside}" if beside else ""), flush=True)
