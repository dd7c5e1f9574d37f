"""The processes of a mount as its supervisor sees them: started, found, watched, killed, buried. Nothing here decides.

A process may have been started by an earlier supervisor, which died: it is no child of ours then, and is watched
through its pidfd alone.
"""

import logging
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from hoard_p2p.mount.shared import SharedState
from hoard_p2p.mount.users import holds

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Those that ask a supervisor to end; a process that it starts leaves them at their defaults."""


class Member(NamedTuple):
    """A process of the mount. `number`: its slot. `child`: whether it is ours to reap."""

    number: int
    pid: int
    pidfd: int
    child: bool


class Lost(NamedTuple):
    """A process that had a slot to the end. `by_itself`: it crashed or hung; else it was killed, or nobody knows."""

    member: Member
    by_itself: bool


class Crew:
    """The living processes in the slots of one mount, one at most in each."""

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared
        self._members: dict[int, Member] = {}  # by pidfd
        self._dying: dict[int, Member] = {}

    @property
    def members(self) -> list[Member]:
        return list(self._members.values())

    @property
    def pidfds(self) -> list[int]:
        """What becomes readable when a process ends; `bury` those."""
        return [*self._members, *self._dying]

    def spawn(self, number: int, serve: Callable[[], int], kept: Collection[int]) -> Member:
        """Fork a process for a slot; it runs `serve`, and of the descriptors it keeps `kept`. Raises OSError."""
        self._shared.vacate(number)
        supervisor = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._be(number, serve, kept, supervisor)
        return self._enlist(Member(number, pid, os.pidfd_open(pid), child=True))

    def find(self, number: int) -> Member | None:
        """The living process that another supervisor has put into a slot. (One that has not entered its slot yet finds
        us in charge, and ends.)"""
        pid = self._shared.slot(number).process
        if pid == 0:
            return None
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return None
        if not holds(pid, self._shared.fd) or _ended([pidfd], 0):  # another process under that number, or a zombie
            os.close(pidfd)
            return None
        return self._enlist(Member(number, pid, pidfd, child=False))

    def _enlist(self, member: Member) -> Member:
        self._members[member.pidfd] = member
        return member

    def bury(self, pidfds: Iterable[int]) -> list[Lost]:
        """Forget processes that ended; those of them that had a slot to the end."""
        dead = []
        for pidfd in pidfds:
            if pidfd in self._members:
                member = self._members.pop(pidfd)
                dead.append(Lost(member, by_itself=_reap(member)))
            elif pidfd in self._dying:
                _reap(self._dying.pop(pidfd))
        return dead

    def kill(self, member: Member) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(member.pidfd, signal.SIGKILL)

    def dismiss(self, member: Member) -> None:
        """Kill a process that has its slot no longer: it will run no more, even if its end has to wait for a disk."""
        self.kill(member)
        self._dying[member.pidfd] = self._members.pop(member.pidfd)

    def end(self, grace: float) -> None:
        """Give the processes `grace` seconds to end by themselves, then kill them; `reap` waits for their end."""
        self.bury(_ended(self.pidfds, grace, everyone=True))
        for member in self.members:
            self.dismiss(member)

    def reap(self) -> None:
        while left := self.pidfds:
            self.bury(_ended(left, None))

    def _be(self, number: int, serve: Callable[[], int], kept: Collection[int], supervisor: int) -> NoReturn:
        """In the fork: leave what is the supervisor's behind, and serve, unless another supervisor came meanwhile."""
        status = 1
        try:
            os.setsid()  # a Ctrl-C in the terminal is for the supervisor, its end no concern of ours
            signal.set_wakeup_fd(-1)
            for signum in SIGNALS:
                signal.signal(signum, signal.SIG_DFL)
            _close_all_but(kept)
            self._shared.enter(number, os.getpid())
            # Who took the lock before this line does not see us in the slot, and starts another process for it.
            unwanted = self._shared.ending or self._shared.holder() not in (0, supervisor)
            status = 0 if unwanted else serve()
        except BaseException:  # the top of this process
            log.exception("process %d of the mount failed", number)
        finally:
            os._exit(status)


def state(pid: int) -> str:
    """The letter of proc_pid_stat(5) for a process: `T` stopped by a signal, `D` waits for a disk; empty if gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _reap(member: Member) -> bool:
    """Whether the process ended by itself, by an error of ours or a fault; False if it is not ours to ask."""
    code = os.waitstatus_to_exitcode(os.waitpid(member.pid, 0)[1]) if member.child else 0
    os.close(member.pidfd)
    return code not in (0, -signal.SIGKILL, *(-number for number in SIGNALS))


def _ended(pidfds: Collection[int], patience: float | None, *, everyone: bool = False) -> set[int]:
    """Wait until a process ended, or (`everyone`) all, at most `patience` seconds; those that ended."""
    deadline = None if patience is None else time.monotonic() + patience
    ended: set[int] = set()
    while left := set(pidfds) - ended:
        poll = select.poll()
        for pidfd in left:
            poll.register(pidfd, select.POLLIN)
        remaining = None if deadline is None else max(0, int((deadline - time.monotonic()) * 1000))
        now = {pidfd for pidfd, _ in poll.poll(remaining)}
        ended |= now
        if not now or not everyone:
            break
    return ended


def _close_all_but(kept: Collection[int]) -> None:
    """What the supervisor's starter waits for would not end while a fork holds it; so only what a worker needs stays.
    (Requests of another worker's descriptor must end with that worker where they cannot be sent again.)"""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in kept:
            with suppress(OSError):
                os.close(fd)
