"""The lock of a data directory: one node at a time, and the others learn whose it is."""

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from hoard_p2p.errors import NodeRunning, StoreFailed

_PID_WAIT = 1.0
_DYING_WAIT = 5.0
"""Seconds for which a node that was killed may keep its lock while the kernel takes it apart."""

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class NodeLock:
    """Held from construction to `release`, or to the death of the process.

    The directory is locked as well as the file in it, so that who deletes the file, or puts another in its place, does
    not let a second node in."""

    def __init__(self, path: Path) -> None:
        """Raises NodeRunning with the holder's pid (0 if it cannot be seen from here), StoreFailed where the file
        system has no locks, OSError if the file cannot be made."""
        self._directory = _locked_directory(path)
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            _lock(self._fd, path)
            with suppress(OSError):  # a full disk: the kernel knows the holder all the same
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)
        except BaseException:
            self._close()
            raise

    def release(self) -> None:
        with suppress(OSError):  # a disk that turned read-only: the number stays, the lock goes all the same
            os.ftruncate(self._fd, 0)
        self._close()

    def _close(self) -> None:
        for fd in (self._fd, self._directory):
            if fd >= 0:
                os.close(fd)


def _locked_directory(path: Path) -> int:
    """-1 where directories cannot be locked (NFS): then the file has to do."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(fd, path)
    except NodeRunning:
        os.close(fd)
        raise
    except (StoreFailed, OSError):
        os.close(fd)
        return -1
    return fd


def _lock(fd: int, path: Path) -> None:
    until = time.monotonic() + _DYING_WAIT
    try:
        while not _try_lock(fd):
            pid = holder(fd, path)
            if pid == 0 and _try_lock(fd):  # let go between the two looks
                return
            if not _is_dying(pid) or time.monotonic() > until:
                raise NodeRunning(path.parent, pid)
            time.sleep(0.01)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise StoreFailed(
            f"{path.parent} is on a file system without locks ({error.strerror}): two nodes could use it at a time; "
            "choose a --data-dir on a local disk"
        ) from error


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_dying(pid: int) -> bool:
    """Killed, and not done with closing what it had open: a process without a command line, or that is gone by now."""
    if not pid:
        return False
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False


def holder(fd: int, path: Path) -> int:
    """The pid of the process that has the lock of the file open as `fd`, as it is seen from here; 0 if it is in another
    container, or on another machine. `path`: where it wrote its own idea of its pid."""
    listed = _listed(fd)
    if listed is not None:
        return listed
    until = time.monotonic() + _PID_WAIT  # it may just have taken the lock
    while time.monotonic() < until:
        with suppress(OSError):
            text = path.read_bytes().strip()
            if text.isdigit():
                return int(text)
        time.sleep(0.01)
    return 0


def held_by(path: Path) -> int:
    """The pid of the node whose lock `path` is, without touching the lock; 0 if there is none that can be seen from
    here. Raises OSError."""
    for place in (path.parent, path):
        with suppress(FileNotFoundError):
            fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
            try:
                pid = _listed(fd)
            finally:
                os.close(fd)
            if pid:
                return pid
    return 0


def _listed(fd: int) -> int | None:
    """From /proc/locks (proc_locks(5)), which leaves out holders that cannot be seen; None if it cannot be read."""
    status = os.fstat(fd)
    name = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return None
    return next((int(words[4]) for words in lines if len(words) > 5 and words[1] == "FLOCK" and words[5] == name), 0)
