"""Several real nodes on this machine, each with its own data directory: what the demo and the benchmarks run on.

Everything lies beneath one directory, and every process carries that directory in its environment, so that `close`
finds what is left of it, whoever started it (I10). Uses nothing but the `hoard` command.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from hoard_p2p.cli.answers import Fields
from hoard_p2p.errors import DeadlineExceeded, HoardError
from hoard_p2p.mount import mountinfo

MARK = "HOARD_LOCAL_CLUSTER"
START_TIMEOUT = 30.0
STOP_TIMEOUT = 15.0
COMMAND_TIMEOUT = 600.0


def mounts_below(directory: Path) -> list[Path]:
    """Mount points beneath a directory, the deepest first; touches none of them."""
    points = [line.mountpoint for line in mountinfo.lines()]
    return sorted((point for point in points if point.is_relative_to(directory)), reverse=True)


def wait_for(what: str, ready: Callable[[], bool], timeout: float) -> None:
    """Poll until `ready`. Raises DeadlineExceeded."""
    deadline = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"waited {timeout:.0f} s for {what}")
        time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Where:
    """Where a node runs: its address, further options of `hoard up`, and the command that it is started inside of
    (which must not change its pid)."""

    listen: str = "127.0.0.1:0"
    options: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()


HERE = Where()


@dataclass(slots=True)
class LocalNode:
    """A node process of a LocalCluster."""

    name: str
    data_dir: Path
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def last_lines(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-10:])


class LocalCluster:
    """Owns a temporary directory and the nodes and mounts in it; `close` (or leaving `with`) removes all of them."""

    def __init__(self, name: str, *, discovery: Sequence[str] = ("mdns",)) -> None:
        # On the disk, not in memory as /tmp may be: figures are compared with a native file system.
        place = os.environ.get("TMPDIR", "/var/tmp")
        try:
            self.root = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place)).resolve()
        except OSError as error:
            raise HoardError(f"no directory in {place}: {error.strerror}; choose another place with TMPDIR") from error
        self.name = self.root.name
        self.nodes: list[LocalNode] = []
        self._discovery = discovery
        self._environment = {**os.environ, MARK: str(self.root)}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- nodes

    def start(self, name: str, *, rack: str = "", where: Where = HERE, options: Sequence[str] = ()) -> LocalNode:
        """Start a node, on loopback if not said otherwise, and wait until it answers. `options`: further ones of
        `hoard up`."""
        data_dir, log = self.root / name, self.root / f"{name}.log"
        command = ["up", "--data-dir", str(data_dir), "--listen", where.listen, "--name", name, "--rack", rack]
        command += ["--cluster", self.name, *(part for url in self._discovery for part in ("--discovery", url))]
        command += options
        with log.open("wb") as out:
            process = self._spawn([*command, *where.options], stdout=out, stderr=out, inside=where.inside)
        node = LocalNode(name, data_dir, process, log)
        self.nodes.append(node)
        wait_for(f"node {name}; its log ends:\n{node.last_lines}", lambda: self._answers(node), START_TIMEOUT)
        return node

    def _answers(self, node: LocalNode) -> bool:
        if node.process.poll() is not None:
            raise HoardError(f"node {node.name} ended with status {node.process.returncode}:\n{node.last_lines}")
        if not (node.data_dir / "hoard.sock").exists():
            return False
        quiet = subprocess.DEVNULL
        probe = self._spawn(["peers", "--data-dir", str(node.data_dir)], stdout=quiet, stderr=quiet)
        return probe.wait(START_TIMEOUT) == 0

    def wait_met(self, timeout: float = START_TIMEOUT) -> None:
        """Return once every living node sees every other. Raises DeadlineExceeded."""
        living = [node for node in self.nodes if node.process.poll() is None]
        for node in living:
            wait_for(
                f"{node.name} to see the other nodes",
                lambda node=node: self.peers_seen(node) >= len(living) - 1,  # type: ignore[misc]  # bound per node
                timeout,
            )

    def peers_seen(self, node: LocalNode) -> int:
        """Peers that the node takes for alive."""
        answer = Fields(json.loads(self.hoard(node, "peers", "--json")))
        return sum(peer.text("state") == "alive" for peer in answer.rows("peers"))

    def kill(self, node: LocalNode) -> None:
        """kill -9, as a power cut would."""
        node.process.kill()
        node.process.wait()

    def discard(self, node: LocalNode) -> None:
        """Stop a node and remove its data."""
        node.process.terminate()
        self._reap(node)
        self.nodes.remove(node)
        remove_tree(node.data_dir)

    # --- commands

    def hoard(self, node: LocalNode, command: str, *arguments: str, show: bool = False) -> str:
        """Run a command on a node and return its standard output; `show` lets its progress through to the terminal.

        Raises HoardError with what the command wrote to standard error. An interrupt ends the command first.
        """
        with (self.root / "stderr").open("w+b") as errors:
            process = self._spawn(
                [command, "--data-dir", str(node.data_dir), *arguments],
                stdout=subprocess.PIPE,
                stderr=None if show else errors,
            )
            try:
                out, _ = process.communicate(timeout=COMMAND_TIMEOUT)
            except BaseException:
                process.terminate()
                process.communicate(timeout=STOP_TIMEOUT)
                raise
            if process.returncode != 0:
                errors.seek(0)
                told = errors.read().decode(errors="replace").strip()
                raise HoardError(f"hoard {command} failed with status {process.returncode} on {node.name}: {told}")
        return out.decode(errors="surrogateescape")

    def mount(self, node: LocalNode, snapshot: str) -> tuple[Path, float]:
        """Mount a snapshot; the mount point, and the seconds until its root could be listed."""
        point = self.root / f"mnt-{node.name}"
        point.mkdir(exist_ok=True)
        began = time.perf_counter()
        self.hoard(node, "mount", snapshot, str(point))
        os.listdir(point)
        return point, time.perf_counter() - began

    def _spawn(
        self,
        arguments: Sequence[str],
        *,
        stdout: int | IO[bytes],
        stderr: int | IO[bytes] | None,
        inside: Sequence[str] = (),
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*inside, sys.executable, "-m", "hoard_p2p.cli.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=self._environment,
            start_new_session=True,  # Ctrl-C reaches only us, and we end the rest in order
        )

    # --- the end

    def close(self) -> None:
        """Unmount, stop and remove everything, whatever state it is in. Ctrl-C does not interrupt it."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for point in mounts_below(self.root):
                self._unmount(point)
            for node in self.nodes:
                node.process.terminate()
            for node in self.nodes:
                self._reap(node)
            self._sweep()
            if not mounts_below(self.root):
                remove_tree(self.root)
        finally:
            signal.signal(signal.SIGINT, before)

    def _unmount(self, point: Path) -> None:
        ours = self._spawn(["umount", "--force", str(point)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with suppress(subprocess.TimeoutExpired):
            ours.wait(STOP_TIMEOUT)
        if point in mounts_below(self.root):
            lazily = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-uz"]
            subprocess.run([*lazily, str(point)], check=False, capture_output=True, timeout=STOP_TIMEOUT)

    @staticmethod
    def _reap(node: LocalNode) -> None:
        try:
            node.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            node.process.kill()
            node.process.wait()

    def _sweep(self) -> None:
        """End what is still running with our mark in its environment; first what has had time to end by itself."""
        with suppress(DeadlineExceeded):
            wait_for("processes to end", lambda: not self.processes(), 3.0)
        for pid in self.processes():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[int]:
        """Processes started by this cluster, at whatever remove."""
        mark = f"{MARK}={self.root}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found


def remove_tree(root: Path) -> None:
    """Remove a directory, also what is below read-only directories in it."""
    for directory, names, _ in os.walk(root):
        for name in names:
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(root, ignore_errors=True)
