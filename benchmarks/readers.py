"""Reader processes with little overhead of their own: what they read is prepared before the clock starts.

Each reader is a fork. They all start at one moment, and the time is that from it to the end of the last.
"""

import gc
import json
import mmap
import os
import random
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

BUFFER = 1 << 20
"""Bytes asked for by one read of a file that is read whole."""
PAGE = 4096
PATIENCE = 120.0
"""Seconds beyond its cap after which a reader is taken to hang."""
_STRIDE = 1024
"""Random reads between two looks at the clock."""

_File = TypeVar("_File")
Run = Callable[[float], "Done"]
"""Reads until it is through or `time.perf_counter()` has reached the argument."""
Prepare = Callable[[], Run]
"""What a reader does before the clock starts."""


class ReaderFailed(Exception):
    """A reader got an error, or hung."""


@dataclass(frozen=True, slots=True)
class Done:
    """What one reader did: bytes, and whole files or single reads."""

    size: int
    count: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What readers did together. `counts`: of each of them; the files read whole are the first ones of its list."""

    size: int
    counts: tuple[int, ...]
    seconds: float

    @property
    def count(self) -> int:
        return sum(self.counts)


def whole_files(paths: Sequence[Path]) -> Prepare:
    """Open, read and close one file after the other."""

    def prepare() -> Run:
        names, buffers = [os.fspath(path) for path in paths], [bytearray(BUFFER)]

        def run(end: float) -> Done:
            size = count = 0
            for name in names:
                fd = os.open(name, os.O_RDONLY)
                while got := os.readv(fd, buffers):
                    size += got
                    if time.perf_counter() > end:
                        break
                os.close(fd)
                if got:
                    break
                count += 1
            return Done(size, count)

        return run

    return prepare


def random_reads(paths: Sequence[Path], number: int) -> Prepare:
    """`number` preads of 4 KiB at seeded page offsets of open files."""

    def prepare() -> Run:
        fds = [os.open(path, os.O_RDONLY) for path in paths]
        places = _places(fds, [os.fstat(fd).st_size for fd in fds], number)
        buffers = [bytearray(PAGE)]

        def run(end: float) -> Done:
            size = count = 0
            for start in range(0, len(places), _STRIDE):
                for fd, offset in places[start : start + _STRIDE]:
                    size += os.preadv(fd, buffers, offset)
                    count += 1
                if time.perf_counter() > end:
                    break
            return Done(size, count)

        return run

    return prepare


def random_touches(paths: Sequence[Path], number: int) -> Prepare:
    """One byte of each of `number` seeded pages of freshly mapped files."""

    def prepare() -> Run:
        maps = []
        for path in paths:
            fd = os.open(path, os.O_RDONLY)
            maps.append(mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ))
            os.close(fd)
        places = _places(maps, [len(mapped) for mapped in maps], number)

        def run(end: float) -> Done:
            total = count = 0
            for start in range(0, len(places), _STRIDE):
                for mapped, offset in places[start : start + _STRIDE]:
                    total += mapped[offset]
                    count += 1
                if time.perf_counter() > end:
                    break
            return Done(count * PAGE, count)

        return run

    return prepare


def _places(files: Sequence[_File], sizes: Sequence[int], number: int) -> list[tuple[_File, int]]:
    choose = random.Random(4096)
    pages = [max(1, size // PAGE) for size in sizes]
    chosen = [choose.randrange(len(files)) for _ in range(number)]
    return [(files[which], choose.randrange(pages[which]) * PAGE) for which in chosen]


def at_once(tasks: Sequence[Prepare], cap: float = 3600.0) -> Reading:
    """A process for each task, all started at one moment; a reader stops after `cap` seconds. Raises ReaderFailed."""
    go, starter = os.pipe()
    readers = [_Reader(task, go, starter, cap) for task in tasks]
    os.close(go)
    try:
        for reader in readers:
            reader.line(PATIENCE)
        began = time.perf_counter()
        os.close(starter)
        starter = -1
        told = [json.loads(reader.line(cap + PATIENCE)) for reader in readers]
    finally:
        if starter >= 0:
            os.close(starter)
        for reader in readers:
            reader.end()
    ended = max(float(one["end"]) for one in told)
    return Reading(sum(one["size"] for one in told), tuple(one["count"] for one in told), ended - began)


class _Reader:
    """One fork: it says `ready`, waits until `go` is at its end, works, and tells what it did in a line of JSON."""

    def __init__(self, task: Prepare, go: int, starter: int, cap: float) -> None:
        self._out, out = os.pipe()
        self._text = b""
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(starter)
                os.write(out, json.dumps(_work(task, go, out, cap)).encode() + b"\n")
            finally:
                os._exit(0)
        os.close(out)

    def line(self, patience: float) -> bytes:
        """The next line it says. Raises ReaderFailed."""
        deadline = time.monotonic() + patience
        while b"\n" not in self._text:
            ready, _, _ = select.select([self._out], [], [], max(0.0, deadline - time.monotonic()))
            got = os.read(self._out, 4096) if ready else b""
            if not got:
                raise ReaderFailed("a reader ended early" if ready else f"a reader hangs for {patience:.0f} s")
            self._text += got
        line, _, self._text = self._text.partition(b"\n")
        if line.startswith(b"{") and b'"error"' in line:
            raise ReaderFailed(str(json.loads(line)["error"]))
        return line

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._out)


def _work(task: Prepare, go: int, out: int, cap: float) -> dict[str, object]:
    try:
        gc.disable()
        run = task()
        os.write(out, b"ready\n")
        os.read(go, 1)
        done = run(time.perf_counter() + cap)
        return {"size": done.size, "count": done.count, "end": time.perf_counter()}
    except Exception as error:  # noqa: BLE001 -- the door of this process: it is told to the parent
        return {"error": f"{type(error).__name__}: {error}"}
