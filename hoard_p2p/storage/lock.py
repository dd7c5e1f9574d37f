"""The lock of a data directory: one node at a time, and the others learn whose it is."""

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from hoard_p2p.errors import NodeRunning

_PID_WAIT = 1.0


class NodeLock:
    """Held from construction to `release`, or to the death of the process."""

    def __init__(self, path: Path) -> None:
        """Raises NodeRunning with the holder's pid, OSError if the file cannot be made."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)
        except BlockingIOError:
            pid = _read_pid(self._fd)
            os.close(self._fd)
            raise NodeRunning(path.parent, pid) from None
        except OSError:
            os.close(self._fd)
            raise

    def release(self) -> None:
        with suppress(OSError):  # a disk that turned read-only: the number stays, the lock goes all the same
            os.ftruncate(self._fd, 0)
        os.close(self._fd)


def _read_pid(fd: int) -> int:
    """The pid in the file; a holder that just took the lock is given a moment to write it. 0 if it does not."""
    until = time.monotonic() + _PID_WAIT
    while time.monotonic() < until:
        text = os.pread(fd, 32, 0).strip()
        if text.isdigit():
            return int(text)
        time.sleep(0.01)
    return 0
