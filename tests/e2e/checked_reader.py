"""Readers that know what every byte must be, each a process of its own.

A file's bytes follow from its path (`content`), so that a reader needs nothing but the tree's list of files. As a
program: `checked_reader.py KIND ROOT LIST SEED` reads for ever; each line on its standard input is answered with one
line of JSON about what was read so far, and the end of its standard input ends it.
"""

import json
import mmap
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from blake3 import blake3

MIB = 1 << 20
STEP = 256 << 10
PACE = 0.5
"""Seconds between two files of `absent`, which each are read for the first time."""


def content(path: str, start: int, length: int) -> bytes:
    """Bytes of the file at `path`, relative to the tree."""
    return blake3(path.encode()).digest(length=length, seek=start)


def lay_out(root: Path, files: Mapping[str, int]) -> None:
    """Write files of these sizes."""
    for name, size in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        with (root / name).open("wb") as file:
            for start in range(0, size, MIB):
                file.write(content(name, start, min(MIB, size - start)))


@dataclass
class Report:
    """What a reader did so far. `errors` names the first few failed reads of `failed`."""

    reads: int = 0
    size: int = 0
    wrong: int = 0
    failed: int = 0
    slowest: float = 0.0
    errors: list[str] = field(default_factory=list)


class Reader:
    """Reads as one kind of reader does, and checks."""

    def __init__(self, root: str, files: dict[str, int], seed: int) -> None:
        self.report = Report()
        self._root = root
        self._files = files
        self._rng = random.Random(seed)
        self._large = [name for name in files if name.startswith("large/")]
        self._small = [name for name in files if name.startswith("small/")]
        self._absent = sorted(name for name in files if name.startswith("absent/"))
        self._buffer = mmap.mmap(-1, 4 * MIB)

    def step(self, kind: str) -> float:
        """One round of reading; seconds until the next one."""
        begin = time.monotonic()
        try:
            return float(getattr(self, f"_{kind}")() or 0.0)
        except OSError as error:
            self.report.failed += 1
            self.report.errors = [*self.report.errors, f"{time.strftime('%X')} {kind}: {error}"][:5]
            return 0.0
        finally:
            self.report.slowest = max(self.report.slowest, time.monotonic() - begin)

    @contextmanager
    def _open(self, name: str, flags: int = 0) -> Iterator[int]:
        """Open a file; its pages are dropped at the end, so that the next read is a request again."""
        descriptor = os.open(f"{self._root}/{name}", os.O_RDONLY | flags)
        try:
            yield descriptor
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)

    def _check(self, name: str, start: int, got: bytes, wanted: int) -> None:
        expected = content(name, start, max(0, min(wanted, self._files[name] - start)))
        self.report.reads += 1
        self.report.size += len(got)
        if got != expected:
            self.report.wrong += 1
            self.report.errors = [*self.report.errors, f"wrong: {name} at {start}, {len(got)} of {wanted} bytes"][:5]

    def _span(self, name: str, longest: int) -> tuple[int, int]:
        return self._rng.randrange(self._files[name]), self._rng.randrange(1, longest)

    def _sequential(self) -> None:
        name = self._rng.choice(self._large)
        with self._open(name) as file:
            for start in range(0, self._files[name] + 1, STEP):
                self._check(name, start, os.read(file, STEP), STEP)

    def _random(self) -> None:
        name = self._rng.choice(self._large)
        with self._open(name) as file:
            for _ in range(20):
                start, length = self._span(name, 100_000)
                self._check(name, start, os.pread(file, length, start), length)

    def _direct(self) -> None:
        name = self._rng.choice(self._large)
        with self._open(name, os.O_DIRECT) as file:
            for _ in range(10):
                start, length = (number & ~4095 for number in self._span(name, MIB))
                got = os.preadv(file, [memoryview(self._buffer)[: length + 4096]], start)
                self._check(name, start, self._buffer[:got], length + 4096)

    def _mapped(self) -> None:
        name = self._rng.choice(self._large)
        with self._open(name) as file, closing(mmap.mmap(file, 0, prot=mmap.PROT_READ)) as view:
            for _ in range(30):
                start, length = self._span(name, 20_000)
                self._check(name, start, view[start : start + length], length)

    def _small_files(self) -> None:
        for name in self._rng.sample(self._small, 20):
            with self._open(name) as file:
                self._check(name, 0, os.read(file, 2 * MIB), 2 * MIB)

    def _listing(self) -> None:
        for folder, names in (("small", self._small), ("large", self._large)):
            with os.scandir(f"{self._root}/{folder}") as entries:
                seen = {f"{folder}/{entry.name}": entry.stat().st_size for entry in entries}
            self.report.reads += 1
            self.report.wrong += seen != {name: self._files[name] for name in names}

    def _missing(self) -> float:
        """A file that was never read, here and there; once all were, from the start again."""
        name = self._absent.pop(0)
        self._absent.append(name)
        with self._open(name) as file:
            for _ in range(3):
                start, length = self._span(name, 50_000)
                self._check(name, start, os.pread(file, length, start), length)
        return PACE


KINDS = ("sequential", "random", "direct", "mapped", "small_files", "listing", "missing")


class ReaderProcess:
    """One reader, from here."""

    def __init__(self, kind: str, root: Path, listed: Path, seed: int) -> None:
        self.kind = kind
        command = [sys.executable, os.fspath(Path(__file__)), kind, os.fspath(root), os.fspath(listed), str(seed)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self) -> None:
        """Let it say what it did, once its present round is done."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def told(self, seconds: float) -> Report:
        """The answer to `ask`; an AssertionError if the process ended or answers nothing in that time."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        assert ready, f"the reader '{self.kind}' hangs: {self._stack()}"
        line = self._process.stdout.readline()
        assert line, f"the reader '{self.kind}' ended with status {self._process.wait(10)}"
        return Report(**json.loads(line))

    def _stack(self) -> str:
        try:
            return Path(f"/proc/{self._process.pid}/stack").read_text()
        except OSError as error:
            return str(error)

    def close(self) -> None:
        """End it; a reader that hangs is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)
        self._process.stdout.close()


def _serve(kind: str, reader: Reader, say: Callable[[str], object]) -> None:
    due = 0.0
    while True:
        ready, _, _ = select.select([0], [], [], max(0.0, due - time.monotonic()))
        if ready and not os.read(0, 1):
            return
        if ready:
            say(json.dumps(asdict(reader.report)))
        else:
            due = time.monotonic() + reader.step(kind)


if __name__ == "__main__":
    _serve(
        sys.argv[1],
        Reader(sys.argv[2], json.loads(Path(sys.argv[3]).read_text()), int(sys.argv[4])),
        lambda line: print(line, flush=True),  # noqa: T201  # its protocol
    )
