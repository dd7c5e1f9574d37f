"""The process that owns a mount: mounts, spawns workers, replaces the dead, and ends with the mount.

It holds every descriptor of the mount, so that a worker's requests outlive the worker, and it never follows a path into
the mount: a process that waits for itself cannot be killed. Workers are forks of it, so a dead one is replaced within
milliseconds; that is safe because it has one thread and never opens the store's index (LMDB forbids a child to use an
environment of its parent).
"""

import errno
import gc
import logging
import os
import select
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import NoReturn

from hoard_p2p.errors import MountBusy, MountFailed
from hoard_p2p.ids import SnapshotId, short
from hoard_p2p.interfaces import MountOptions, NodeLine
from hoard_p2p.mount.connection import Connection
from hoard_p2p.mount.kernel import NEEDED, NO_OPEN, Can
from hoard_p2p.mount.mountpoint import prepare
from hoard_p2p.mount.shared import OPENS, MountFds, SharedState, WorkerSlot
from hoard_p2p.mount.users import shared_name

log = logging.getLogger(__name__)

TICK = 1.0
STUCK = 30.0
"""Seconds (or the mount's timeout, if longer) after which a worker whose slot does not move is killed."""
VAIN_STARTS = 5
"""Workers that may end before they serve, one after another, until a mount that never answered is given up."""
VAIN_DELAY = 0.05
LONGEST_DELAY = 1.0
"""Seconds before a worker is started again: one more VAIN_DELAY for each that ended before it served."""
GRACE = 2.0
"""Seconds that workers have to end in by themselves once the mount is gone."""
POISON_DEATHS = 2
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(slots=True)
class _Running:
    slot: WorkerSlot
    pid: int


class Supervisor:
    """One mount from `run` to unmount. Single-threaded; call from the main thread (it takes the signals)."""

    def __init__(
        self,
        snapshot: SnapshotId,
        options: MountOptions,
        *,
        serve: Callable[[WorkerSlot], int],
        verify: Callable[[WorkerSlot], int] | None = None,
        line: Callable[[str, Sequence[int]], NodeLine] | None = None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        """`serve`: what a worker process does (to run a `Worker`); its value is the exit status. It runs in a fork of
        this process. `verify`: likewise, of the one verifier, whose slot is `SharedState.verifier`. `line`: makes the
        line to the node, of the mount's device MAJOR:MINOR and the descriptors that the node is to keep copies of.
        `ready`: called once, when the mount answers."""
        self._snapshot = snapshot
        self._options = options
        self._serve_worker = serve
        self._verify = verify
        self._line = line
        self._ready = ready
        self._running: dict[int, _Running] = {}  # by pidfd
        self._due: list[tuple[float, WorkerSlot]] = []
        self._deaths: Counter[int] = Counter()  # by request number
        self._patience = max(STUCK, options.timeout)
        self._vain = 0
        self._answers = False
        self._served_at = 0.0
        self._poll = select.poll()

    def run(
        self,
        *,
        catalog_fd: int,
        runs: int,
        inodes: int,
        wanted: Can = NO_OPEN,
        needed: Can = NEEDED,
        agreed: Callable[[Can], None] = lambda features: None,
    ) -> int:
        """Mount, serve until the mount is gone or SIGTERM, SIGINT or SIGHUP arrives, clean up.

        `catalog_fd`: the sealed memfd, stays the caller's; `runs`, `inodes`: of its catalog. `wanted`: the features to
        ask the kernel for; `needed`: those without which to give up; `agreed`: called once with what the kernel agreed
        to, before any process starts.

        Returns 0 after an orderly end, 1 if the workers could not be kept alive. Raises MountFailed if the kernel or
        fusermount3 refuses, or the mountpoint is no folder or has a mount of ours; nothing is left behind then.
        """
        with _signal_bell() as bell, ExitStack() as stack:
            path = prepare(self._options.mountpoint)
            self._connection = Connection.open(short(self._snapshot), path, wanted, needed)
            stack.callback(self._stop)
            agreed(self._connection.features)
            passthrough = self._connection.passthrough
            workers = 1 if passthrough else max(1, self._options.workers)  # open files have one keeper
            self._shared = SharedState.create(
                name=shared_name(self._connection.mount.device),
                workers=workers,
                runs=runs,
                inodes=inodes,
                opens=OPENS if passthrough else 0,
            )
            stack.callback(self._shared.close)
            self._ready_fd, hint_bell, checked_bell = (self._bell_fd(stack) for _ in range(3))
            # Every clone first: whoever inherits them all keeps the others' requests alive.
            devices = tuple(self._connection.clone() for _ in range(workers))
            self._fds = MountFds(devices, self._shared.fd, catalog_fd, hint_bell, checked_bell)
            for watched in (bell.fileno(), self._ready_fd):
                self._poll.register(watched, select.POLLIN)
            gc.freeze()  # what exists by now stays shared with the forks
            for number in range(workers):
                self._spawn(WorkerSlot(number, self._fds, self._ready_fd))
            return self._serve(bell)

    @staticmethod
    def _bell_fd(stack: ExitStack) -> int:
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        stack.callback(os.close, fd)
        return fd

    def _serve(self, bell: socket.socket) -> int:
        """Keep the workers alive until something ends the mount; the exit status."""
        while True:
            patience = VAIN_DELAY if self._due else TICK
            events = {fileno for fileno, _ in self._poll.poll(patience * 1000)}
            if bell.fileno() in events:
                log.info("a signal ends the mount on %s", self._connection.mount.mountpoint)
                return 0
            if self._ready_fd in events:
                self._hear_ready()
            dead = [self._bury(pidfd) for pidfd in events & self._running.keys()]
            if not self._connection.alive:
                return 0
            saved = [self._recover(slot) for slot in dead]
            if not all(saved) or self._is_hopeless():
                log.error("the workers of %s cannot be kept alive", self._connection.mount.mountpoint)
                return 1
            self._tick()

    def _spawn(self, slot: WorkerSlot) -> None:
        self._shared.attach(slot.number, 0)
        pid = os.fork()
        if pid == 0:
            self._be_worker(slot)
        pidfd = os.pidfd_open(pid)
        self._running[pidfd] = _Running(slot, pid)
        self._poll.register(pidfd, select.POLLIN)

    def _be_worker(self, slot: WorkerSlot) -> NoReturn:
        """In the fork: leave the supervisor's signals and descriptors behind, and serve."""
        status = 1
        try:
            os.setpgid(0, 0)  # a Ctrl-C in the terminal is for the supervisor
            signal.set_wakeup_fd(-1)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            devices = slot.fds.devices if self._connection.resends else (slot.device_fd,)
            _close_all_but({*slot.fds.all, slot.ready_fd} - {*slot.fds.devices} | {*devices})
            status = self._serve_worker(slot)
        except BaseException:  # the top of this process
            log.exception("worker %d failed", slot.number)
        finally:
            os._exit(status)

    def _hear_ready(self) -> None:
        os.eventfd_read(self._ready_fd)
        self._vain = 0
        self._served_at = time.monotonic()
        if not self._answers:
            self._answers = True
            self._ready()

    def _bury(self, pidfd: int) -> WorkerSlot:
        """Forget a worker that ended; its slot."""
        running = self._running.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        os.waitpid(running.pid, 0)
        return running.slot

    def _recover(self, slot: WorkerSlot) -> bool:
        """Save the requests of a dead worker and see to its replacement. False if they cannot be saved."""
        view = self._shared.slot(slot.number)
        log.warning("worker %d (pid %d) of %s died", slot.number, view.pid, self._connection.mount.mountpoint)
        self._condemn(slot, view.working_on)
        if self._connection.resends:
            self._connection.resend()
        elif slot.device_fd == self._connection.device_fd:
            return False  # its requests can neither be sent again nor be ended alone
        else:
            self._connection.drop(slot.device_fd)  # its readers get an error now, and do not hang
            devices = list(self._fds.devices)
            devices[slot.number] = self._connection.clone()
            self._fds = replace(self._fds, devices=tuple(devices))
            slot = replace(slot, fds=self._fds)
        self._vain += view.pid == 0
        self._due.append((time.monotonic() + min(LONGEST_DELAY, VAIN_DELAY * self._vain), slot))
        return True

    def _is_hopeless(self) -> bool:
        """Whether workers cannot be started (any more). Readers must not wait for them beyond the deadline (I9)."""
        now = time.monotonic()
        if any(self._shared.slot(running.slot.number).pid for running in self._running.values()):
            self._served_at = now
        if not self._answers:
            return self._vain >= VAIN_STARTS
        return now - self._served_at > self._patience

    def _condemn(self, slot: WorkerSlot, unique: int) -> None:
        """A request that two workers died of is answered EIO: it would be sent again for ever."""
        if unique == 0:
            return
        self._deaths[unique] += 1
        if self._deaths[unique] >= POISON_DEATHS:
            log.error("request %d killed %d workers; it is answered EIO", unique, self._deaths[unique])
            self._connection.answer_error(slot.device_fd, unique, errno.EIO)

    def _tick(self) -> None:
        now = time.monotonic()
        for at, slot in [entry for entry in self._due if entry[0] <= now]:
            self._due.remove((at, slot))
            self._spawn(slot)
        for pidfd, running in self._running.items():
            if now - self._shared.slot(running.slot.number).beat > self._patience:
                log.warning("worker %d has not moved for %.0f s; it is killed", running.slot.number, self._patience)
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def _stop(self) -> None:
        """Unmount if it still is mounted, end the workers, close the connection."""
        with suppress(MountFailed):
            self._detach()
        if not self._connection.alive:
            self._reap(GRACE)  # they see it, and end by themselves
        for pidfd in self._running:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        self._connection.close()
        self._reap(None)

    def _detach(self) -> None:
        try:
            self._connection.detach()
        except MountBusy as error:
            log.warning("%s; detached all the same, its users get errors from now on", error)
            self._connection.detach_lazily()

    def _reap(self, patience: float | None) -> None:
        """Wait for the workers to end, for `patience` seconds altogether; the others stay in the table."""
        deadline = None if patience is None else time.monotonic() + patience
        for pidfd, running in list(self._running.items()):
            left = None if deadline is None else max(0, int((deadline - time.monotonic()) * 1000))
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if poll.poll(left):
                os.waitpid(running.pid, 0)
                del self._running[pidfd]
                os.close(pidfd)


def _close_all_but(kept: set[int]) -> None:
    """What the supervisor's starter waits for would not end while a fork holds it; so only what a worker needs stays.
    (Requests of another worker's descriptor must end with that worker where they cannot be sent again.)"""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in kept:
            with suppress(OSError):
                os.close(fd)


@contextmanager
def _signal_bell() -> Iterator[socket.socket]:
    """A socket that becomes readable when a signal asks us to end; the old handlers come back afterwards."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        old_fd = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        old = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
        try:
            yield ours
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, handler in old.items():
                signal.signal(number, handler)
