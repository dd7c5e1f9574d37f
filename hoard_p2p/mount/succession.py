"""Who supervises a mount next, when its supervisor died or is to be replaced.

The workers go on by themselves; each watches the supervisor, and when it is gone they start another, which takes the
lock (`SharedState.lock`). Several may be started at once: one gets the lock, the others end.
"""

import logging
import math
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from hoard_p2p.mount.shared import SharedState

log = logging.getLogger(__name__)

TURN = 0.2
"""Seconds that each worker leaves to the one before it to start the next supervisor."""
RETRY = 1.0
LONGEST_RETRY = 30.0
"""Seconds until a worker starts yet another one, if the lock stays free; twice as many each time."""
SEIZE_DEADLINE = 10.0


class Succession:
    """A worker's watch over its supervisor."""

    def __init__(self, shared: SharedState, number: int, adopt: Callable[[], None], epoll: select.epoll) -> None:
        """`adopt`: starts another supervisor, and returns at once. `epoll`: of the worker, woken by the end of the
        supervisor; `tend` is to be called then, and no later than it said."""
        self._shared = shared
        self._number = number
        self._adopt = adopt
        self._epoll = epoll
        self._pid = 0
        self._pidfd = -1
        self._retry = RETRY
        self._turn_at = math.inf

    def tend(self, now: float) -> float:
        """Do what is to be done at the monotonic time `now`; seconds until there may be more to do."""
        if self._shared.ending:
            self._unwatch()
            return math.inf
        if self._shared.holder():
            self._watch(self._shared.supervisor)
            self._turn_at, self._retry = math.inf, RETRY
            return math.inf
        self._unwatch()
        if self._turn_at == math.inf:
            self._turn_at = now + self._number * TURN
        if now >= self._turn_at:
            log.warning("the mount's supervisor (pid %d) is gone; another is started", self._shared.supervisor)
            self._adopt()
            self._turn_at, self._retry = now + self._retry, min(LONGEST_RETRY, 2 * self._retry)
        return self._turn_at - now

    def close(self) -> None:
        self._unwatch()

    def _watch(self, pid: int) -> None:
        if pid == self._pid:
            return
        self._unwatch()
        with suppress(OSError):  # it died just now: the next `tend` finds the lock free
            self._pidfd = os.pidfd_open(pid)
            self._epoll.register(self._pidfd, select.EPOLLIN)
            self._pid = pid

    def _unwatch(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)  # which takes it out of the epoll set: nobody shares the descriptor
        self._pid, self._pidfd = 0, -1


def start_detached(argv: Sequence[str], fds: Sequence[int]) -> None:
    """Run a command that nobody waits for: a grandchild in a session of its own and in `/`, with `fds` under the same
    numbers."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        os.chdir("/")
        if os.fork() == 0:
            for fd in fds:
                os.set_inheritable(fd, True)
            os.execv(argv[0], list(argv))
    except BaseException:  # nobody could act on it here
        log.exception("%s cannot be started", argv[0])
    finally:
        os._exit(0)


def seize(shared: SharedState) -> bool:
    """Become the supervisor in place of the living one, which is killed. False if that does not succeed in time."""
    deadline = time.monotonic() + SEIZE_DEADLINE
    while not shared.lock():
        if time.monotonic() > deadline:
            log.error("the supervisor (pid %d) of the mount cannot be replaced", shared.holder())
            return False
        _kill_holder(shared)
    return True


def _kill_holder(shared: SharedState) -> None:
    pid = shared.holder()
    try:
        pidfd = os.pidfd_open(pid) if pid > 0 else -1
    except OSError:
        return
    try:
        if pidfd >= 0 and shared.holder() == pid:  # still: the descriptor is bound to that very process
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.poll(1000)
        else:
            time.sleep(0.01)
    except ProcessLookupError:
        log.debug("the supervisor (pid %d) ended by itself", pid)
    finally:
        if pidfd >= 0:
            os.close(pidfd)
