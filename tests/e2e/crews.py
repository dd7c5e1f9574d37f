"""The processes of a mount: who they are, and their deaths."""

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hoard_p2p.mount.mountinfo import MountInfo, mount_at, mounts
from hoard_p2p.mount.shared import SharedState
from hoard_p2p.mount.users import servers, shared_name
from tests.system import wait_until


class Crew:
    """Those behind one mount, as the memory that they share shows them."""

    def __init__(self, info: MountInfo, shared: SharedState) -> None:
        self.info = info
        self.memory = os.fstat(shared.fd).st_ino
        """Tells it from the memory of a later mount, which may get the same device number."""
        self._shared = shared

    @property
    def supervisor(self) -> int:
        return self._shared.supervisor

    def workers(self) -> list[int]:
        """Pids of those that serve at this moment."""
        slots = [self._shared.slot(number).pid for number in range(self._shared.workers)]
        return [pid for pid in slots if pid and is_alive(pid)]

    @property
    def ending(self) -> bool:
        return self._shared.ending

    def verifier(self) -> int:
        """Its pid, 0 if there is none."""
        return self._shared.slot(self._shared.verifier).pid

    def backed(self) -> int:
        """Open files that the kernel reads by itself."""
        opens = self._shared.opens[: 2 * self._shared.opens_used]
        return sum(1 for handle, where in zip(opens[::2], opens[1::2], strict=True) if handle and where & 0xFFFF_FFFF)

    def is_whole(self) -> bool:
        return bool(self.supervisor) and is_alive(self.supervisor) and len(self.workers()) == self._shared.workers

    def kill_a_worker(self, rng: random.Random) -> int:
        """kill -9 of one worker, or now and then of the verifier; how many died, 0 while none serves."""
        verifier = self.verifier()
        victims = [verifier] if verifier and rng.random() < 0.1 else self.workers()
        return int(bool(victims) and kill(rng.choice(victims)))

    def kill_supervisor(self) -> int:
        """kill -9 of it; its pid."""
        pid = self.supervisor
        assert kill(pid), "there is no supervisor"
        return pid

    def kill_everyone(self, *others: int) -> list[int]:
        """kill -9 of all at once, and `others`: nobody has time to replace anybody. Their pids."""
        stopped = list(others)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        while fresh := [pid for pid in servers(self.info) if pid not in stopped]:
            for pid in fresh:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            stopped += fresh
        for pid in stopped:
            kill(pid)
        wait_until(lambda: not any(map(is_alive, stopped)), "the killed processes end")
        return stopped


@contextmanager
def crew_of(mountpoint: Path) -> Iterator[Crew]:
    """Those behind the mount on `mountpoint`. This process holds their shared memory meanwhile."""
    info = mount_at(mountpoint.resolve())
    assert info is not None, f"nothing is mounted on {mountpoint}"
    shared = SharedState(_shared(info))
    try:
        yield Crew(info, shared)
    finally:
        shared.close()


def _shared(info: MountInfo) -> int:
    link = f"/memfd:{shared_name(info.device)} (deleted)"
    for pid in servers(info):
        with suppress(OSError):
            for entry in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{entry}"
                if os.readlink(path) == link:
                    return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    raise AssertionError(f"nobody is behind {info.mountpoint}")


def kill(pid: int) -> bool:
    """kill -9; False if it has ended before."""
    if not is_alive(pid):
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def is_alive(pid: int) -> bool:
    """Whether it runs; a zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (OSError, IndexError):
        return False


def holders(memory: int) -> dict[int, str]:
    """Processes but this one, the node among them, that (still) have that `Crew.memory`: their commands."""
    found = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()):
        with suppress(OSError):  # it ended
            if any(_is_memory(f"/proc/{pid}/fd/{entry}", memory) for entry in os.listdir(f"/proc/{pid}/fd")):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                found[pid] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def _is_memory(entry: str, inode: int) -> bool:
    with suppress(OSError):
        return os.readlink(entry).startswith(f"/memfd:{shared_name('')}") and os.stat(entry).st_ino == inode
    return False


def mounted_at(mountpoint: Path) -> int:
    """How many mounts of ours are stacked there."""
    return sum(each.mountpoint == mountpoint.resolve() for each in mounts())
