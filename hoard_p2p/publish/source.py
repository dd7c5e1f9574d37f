"""Opening one file of a tree that others may be writing to, and knowing whether what was read is one state of it."""

import os
import time
from collections.abc import Callable, Generator

from hoard_p2p.errors import SourceChanging
from hoard_p2p.publish.walk import Directory, path_text

ATTEMPTS = 5

PAUSES = (0.05, 0.2, 0.5, 1.0)
"""Seconds between the attempts."""

TICK_NS = 20_000_000
"""Longer than a tick of any kernel's coarse clock (10 ms at 100 Hz). A file changed within the last tick can change
again without a new time stamp, before Linux 6.13; then reading waits for the next tick."""

OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class Attempt:
    """One reading of a file: its descriptor, open until the next attempt, and its state when it was opened."""

    __slots__ = ("_asked_ns", "fd", "status")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._look()

    def settled(self) -> bool:
        """Whether the file is as it was when this attempt began, so that what was read in between is one state."""
        now = os.fstat(self.fd)
        return not self._young() and stamps(now) == stamps(self.status)

    def _look(self) -> None:
        self._asked_ns = time.time_ns()
        self.status = os.fstat(self.fd)

    def _young(self) -> bool:
        return is_young(self.status, self._asked_ns)

    def wait_for_tick(self, pause: Callable[[float], None]) -> None:
        """Let a change that just happened become distinguishable from the next one."""
        if self._young():
            pause(TICK_NS / 1e9)
            self._look()


def attempts(directory: Directory, name: bytes, pause: Callable[[float], None]) -> Generator[Attempt, None, None]:
    """The file opened anew for each attempt to read it; the caller leaves the loop when one `settled`.

    What is opened may be no regular file: the caller looks at `status` before it reads. Special files are opened in a
    way that waits for nobody. Raises OSError if it cannot be opened (ELOOP: it is a symbolic link), SourceChanging
    after the last attempt.
    """
    for pause_after in (*PAUSES, None):
        fd = os.open(name, OPEN_FILE, dir_fd=directory.fd)
        try:
            attempt = Attempt(fd)
            attempt.wait_for_tick(pause)
            yield attempt
        finally:
            os.close(fd)
        if pause_after is not None:
            pause(pause_after)
    raise SourceChanging(
        f"{path_text(directory.join(name))} changed during each of {ATTEMPTS} readings; publish when it is at rest, "
        "or leave it out with --exclude"
    )


def is_young(status: os.stat_result, asked_ns: int) -> bool:
    """Whether the file's stamps may be those of a change after `asked_ns`, too. One from the future is another
    machine's clock and says nothing."""
    return 0 <= asked_ns - status.st_ctime_ns < TICK_NS


def stamps(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
