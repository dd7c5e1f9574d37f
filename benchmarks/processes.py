"""What processes cost: CPU seconds and memory, from /proc. A process that ended meanwhile counts nothing."""

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_TICK = 1 / os.sysconf("SC_CLK_TCK")


def running() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def marked(mark: str) -> list[int]:
    """Processes with `mark` (NAME=VALUE) in their environment: whoever was given it, and all they started."""
    found = []
    for pid in running():
        with suppress(OSError):
            if mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def tree(root: int) -> set[int]:
    """A process and its descendants."""
    parents = {}
    for pid in running():
        with suppress(OSError):
            parents[pid] = int(_stat(pid)[1])
    found, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found, grown = found | more, bool(more)
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of all their threads, in steps of 10 ms a process."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            fields = _stat(pid)
            ticks += int(fields[11]) + int(fields[12])
    return ticks * _TICK


def spent(pid: int) -> float:
    """CPU seconds of a process and of those it started that have ended."""
    return sum(map(int, _stat(pid)[11:15])) * _TICK


def memory(pids: Iterable[int]) -> int:
    """Proportional set size in bytes: what is shared by several processes counts once."""
    size = 0
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    size += int(line.split()[1]) << 10
    return size


class Watch:
    """Looks at the memory of a process three times a second while it is entered: `most` of its own, and
    `most_together` with those that it started, in bytes."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.most = self.most_together = 0

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        over = False
        while not over:
            own = memory([self._pid])
            self.most = max(self.most, own)
            self.most_together = max(self.most_together, own + memory(tree(self._pid) - {self._pid}))
            over = self._over.wait(0.3)


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on (proc_pid_stat(5))."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
