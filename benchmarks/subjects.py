"""What the mount benchmark measures: Hoard, and whatever a script of the rivals' convention starts.

A script `DIR/peer_NAME.sh` knows four verbs. `install` and `prep` bring the program and its copy of the data, and do
nothing if that was done. `start` takes the pages of that copy out of the page cache, mounts, and prints the directory
that holds `shards/` and `small/`; `stop` undoes it. `PEERS_DIR` names the folder for all of that, and
`PEERS_DIR/cache/NAME.t0` is the time (seconds since the epoch) right before the mount command.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks import processes
from benchmarks.figures import evict, read_files
from benchmarks.sheet import OURS
from hoard_p2p.cli.localcluster import LocalCluster, LocalNode
from hoard_p2p.errors import HoardError

PEERS_DIR = "/var/tmp/hoard-peers"
INSTALL_SECONDS = 1800.0
START_SECONDS = 120.0
STOP_SECONDS = 30.0
MARK = "HOARD_BENCHMARK_RIVAL"


class SubjectFailed(Exception):
    """It could not be started, and why."""


@dataclass(frozen=True, slots=True)
class Mounted:
    """Freshly mounted data. `seconds`: from the mount command to the first byte of a file."""

    root: Path
    seconds: float


class Subject(Protocol):
    """Something that shows the data in a directory."""

    name: str
    node: int | None
    """Process of the service behind the mounts, if it is told apart from them."""

    def start(self, kind: str, first: str, *, hot: bool = False) -> Mounted:
        """Mount the data of `kind` (`shards` or `small`) anew, nothing of it cached; with `hot` its own copy of the
        data is in the page cache. `first`: the file, relative to the data, whose first byte is waited for.

        Raises SubjectFailed.
        """
        ...

    @property
    def can_be_hot(self) -> bool: ...

    def pids(self) -> list[int]:
        """Processes of the mount. None of a file system in the kernel."""
        ...

    def stop(self) -> None:
        """Unmount. Raises SubjectFailed."""
        ...


def first_byte(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.read(fd, 1)
    os.close(fd)


class Hoard:
    """Snapshots on one node of a cluster of its own."""

    name = OURS
    can_be_hot = True

    def __init__(self, cluster: LocalCluster, node: LocalNode) -> None:
        self._cluster = cluster
        self._local = node
        self.node: int | None = node.process.pid
        self._snapshots: dict[str, str] = {}
        self._point: Path | None = None
        self._kind = ""
        self.kinds: dict[str, str] = {}

    def publish(self, kind: str, source: Path) -> None:
        told = self._cluster.hoard(self._local, "publish", "--replicas", "1", str(source))
        self._snapshots[kind] = told.split()[-1]

    def start(self, kind: str, first: str, *, hot: bool = False) -> Mounted:
        slabs = self._local.data_dir / "slabs"
        if hot:
            read_files(slabs)
        else:
            evict(slabs)
        point = self._cluster.root / f"mnt-{kind}"
        point.mkdir(exist_ok=True)
        began = time.perf_counter()
        self._cluster.hoard(self._local, "mount", self._snapshots[kind], str(point))
        first_byte(point / first)
        seconds = time.perf_counter() - began
        self._point, self._kind = point, kind
        return Mounted(point, seconds)

    def _io(self, point: Path) -> str:
        """The kind of mount that was chosen, and why, as the node tells."""
        told = json.loads(self._cluster.hoard(self._local, "status", "--json"))
        for mount in told["mounts"]:
            if mount["mountpoint"] == str(point):
                return " ".join(
                    filter(None, [mount.get("io", "?"), mount.get("io_reason") and f"({mount['io_reason']})"])
                )
        return "?"

    def pids(self) -> list[int]:
        return sorted(set(self._cluster.processes()) - processes.tree(self._local.process.pid))

    def stop(self) -> None:
        if self._point is None:
            return
        point, self._point = self._point, None
        try:
            self.kinds[self._kind] = self._io(point)
            self._cluster.hoard(self._local, "umount", "--force", str(point))
        except HoardError as error:
            raise SubjectFailed(f"{error}; the mounts' log ends:\n{self._last_lines()}") from error

    def _last_lines(self) -> str:
        text = (self._local.data_dir / "log" / "mount.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-15:])


class Rival:
    """What `peer_NAME.sh` starts. Every process that the script starts is marked, so that none is left behind."""

    node: int | None = None
    can_be_hot = False

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self._script = (directory / f"peer_{name}.sh").absolute()
        self._base = Path(os.environ.get("PEERS_DIR", PEERS_DIR))
        self._mark = f"{os.getpid()}-{name}"

    def prepare(self) -> None:
        """Install it and give it the data. Raises SubjectFailed."""
        for verb in ("install", "prep"):
            self._run(verb, INSTALL_SECONDS)

    def start(self, kind: str, first: str, *, hot: bool = False) -> Mounted:
        with suppress(SubjectFailed):
            self.stop()
        began = time.time()
        root = self.directory() / kind
        try:
            first_byte(root / first)
        except OSError as error:
            raise SubjectFailed(f"{self.name}: {error}") from error
        ended = time.time()
        with suppress(OSError, ValueError):
            began = max(began, float((self._base / "cache" / f"{self.name}.t0").read_text()))
        return Mounted(root, ended - began)

    def directory(self) -> Path:
        """Mount, and the directory that was printed. Raises SubjectFailed."""
        told = self._run("start", START_SECONDS).strip()
        if not told:
            raise SubjectFailed(f"{self.name} start: it printed no directory")
        return Path(told.splitlines()[-1])

    def pids(self) -> list[int]:
        return processes.marked(f"{MARK}={self._mark}-start")

    def stop(self) -> None:
        self._run("stop", STOP_SECONDS)

    def end(self) -> None:
        """End what any verb has left running."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self._left():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            deadline = time.monotonic() + STOP_SECONDS
            while self._left() and time.monotonic() < deadline:
                time.sleep(0.05)

    def _left(self) -> list[int]:
        return [pid for verb in ("start", "prep") for pid in processes.marked(f"{MARK}={self._mark}-{verb}")]

    def _run(self, verb: str, seconds: float) -> str:
        """What the verb prints. To a file, since a pipe would stay open with what runs on. Raises SubjectFailed."""
        environment = {**os.environ, "PEERS_DIR": str(self._base), MARK: f"{self._mark}-{verb}"}
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            try:
                status = subprocess.run(
                    [str(self._script), verb], stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
                    env=environment, timeout=seconds, check=False,
                ).returncode  # fmt: skip
            except (OSError, subprocess.TimeoutExpired) as error:
                raise SubjectFailed(f"{self.name} {verb}: {error}") from error
            out.seek(0)
            errors.seek(0)
            if status != 0:
                told = errors.read().decode(errors="replace").strip().splitlines()[-1:]
                raise SubjectFailed(f"{self.name} {verb}: status {status} {' '.join(told)}")
            return out.read().decode(errors="replace")
