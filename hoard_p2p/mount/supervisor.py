"""The process that owns a mount: mounts, spawns workers, replaces the dead, and ends with the mount.

It holds every descriptor of the mount, so that a worker's requests outlive the worker, and it never follows a path into
the mount: a process that waits for itself cannot be killed. One kind of mount so far: no-open, with several stateless
workers on cloned descriptors; what another kind asks the kernel for goes into `Connection.open`.
"""

import errno
import logging
import os
import select
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from hoard_p2p.errors import MountBusy, MountFailed
from hoard_p2p.ids import SnapshotId, short
from hoard_p2p.interfaces import MountOptions
from hoard_p2p.mount.connection import Connection
from hoard_p2p.mount.kernel import NO_OPEN, Can
from hoard_p2p.mount.mountpoint import prepare
from hoard_p2p.mount.shared import SharedState, WorkerSlot
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
    process: "subprocess.Popen[bytes]"


class Supervisor:
    """One mount from `run` to unmount. Single-threaded; call from the main thread (it takes the signals)."""

    def __init__(
        self,
        snapshot: SnapshotId,
        options: MountOptions,
        *,
        runs: int,
        spawn: Callable[[WorkerSlot], Sequence[str]],
        inherit: Sequence[int] = (),
        ready: Callable[[], None] = lambda: None,
        wanted: Can = NO_OPEN,
    ) -> None:
        """`runs`: chunk runs of the catalog (`Catalog.chunks`). `spawn`: the argument vector of a worker process, which
        is to run `Worker(WorkerSlot.parse(...), ...)`; called again for each replacement. `inherit`: further
        descriptors that workers get under the same numbers (the catalog's memfd); they stay the caller's. `ready`:
        called once, when the mount answers. `wanted`: the features to ask the kernel for."""
        self._snapshot = snapshot
        self._options = options
        self._runs = runs
        self._spawn_argv = spawn
        self._inherit = tuple(inherit)
        self._ready = ready
        self._wanted = wanted
        self._running: dict[int, _Running] = {}  # by pidfd
        self._due: list[tuple[float, WorkerSlot]] = []
        self._deaths: Counter[int] = Counter()  # by request number
        self._patience = max(STUCK, options.timeout)
        self._vain = 0
        self._answers = False
        self._served_at = 0.0
        self._poll = select.poll()

    def run(self) -> int:
        """Mount, serve until the mount is gone or SIGTERM, SIGINT or SIGHUP arrives, clean up.

        Returns 0 after an orderly end, 1 if the workers could not be kept alive. Raises MountFailed if the kernel or
        fusermount3 refuses, or the mountpoint is no folder or has a mount of ours; nothing is left behind then.
        """
        with _signal_bell() as bell, ExitStack() as stack:
            path = prepare(self._options.mountpoint)
            self._connection = Connection.open(short(self._snapshot), path, self._wanted)
            stack.callback(self._stop)
            name, workers = shared_name(self._connection.mount.device), max(1, self._options.workers)
            self._shared = SharedState.create(name=name, workers=workers, runs=self._runs)
            stack.callback(self._shared.close)
            self._ready_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            stack.callback(os.close, self._ready_fd)
            for watched in (bell.fileno(), self._ready_fd):
                self._poll.register(watched, select.POLLIN)
            self._spawn_all(workers)
            return self._serve(bell)

    def _spawn_all(self, workers: int) -> None:
        """Every clone first: whoever inherits them all keeps the others' requests alive."""
        devices = [self._connection.clone() for _ in range(workers)]
        for number, device_fd in enumerate(devices):
            self._spawn(WorkerSlot(number, device_fd, self._shared.fd, self._ready_fd))

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
        devices = self._connection.descriptors if self._connection.resends else (slot.device_fd,)
        process = subprocess.Popen(
            self._spawn_argv(slot),
            pass_fds=(*devices, slot.shared_fd, slot.ready_fd, *self._inherit),
            stdin=subprocess.DEVNULL,
            process_group=0,  # a Ctrl-C in the terminal is for the supervisor
        )
        pidfd = os.pidfd_open(process.pid)
        self._running[pidfd] = _Running(slot, process)
        self._poll.register(pidfd, select.POLLIN)

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
        running.process.wait()
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
            slot = WorkerSlot(slot.number, self._connection.clone(), slot.shared_fd, slot.ready_fd)
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
        for running in self._running.values():
            if now - self._shared.slot(running.slot.number).beat > self._patience:
                log.warning("worker %d has not moved for %.0f s; it is killed", running.slot.number, self._patience)
                running.process.kill()

    def _stop(self) -> None:
        """Unmount if it still is mounted, end the workers, close the connection."""
        with suppress(MountFailed):
            self._detach()
        if not self._connection.alive:
            self._reap(GRACE)  # they see it, and end by themselves
        for running in self._running.values():
            running.process.kill()
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
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            with suppress(subprocess.TimeoutExpired):
                running.process.wait(left)
                del self._running[pidfd]
                os.close(pidfd)


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
