"""The process that owns a mount: mounts (or takes a living mount over from a dead supervisor), keeps its processes
alive, and ends with the mount.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from hoard_p2p.ids import SnapshotId, short
from hoard_p2p.interfaces import MountOptions, NodeLine
from hoard_p2p.mount.connection import Connection
from hoard_p2p.mount.crew import SIGNALS, Crew, Lost, Member, state
from hoard_p2p.mount.kernel import NEEDED, NO_OPEN, Can
from hoard_p2p.mount.mountinfo import MountInfo, mount_of
from hoard_p2p.mount.mountpoint import prepare
from hoard_p2p.mount.restarts import Restarts
from hoard_p2p.mount.shared import OPENS, MountFds, SharedState, WorkerSlot
from hoard_p2p.mount.stillness import STOPPED, Stillness, allowance
from hoard_p2p.mount.succession import seize
from hoard_p2p.mount.users import device_of, shared_name

log = logging.getLogger(__name__)

TICK = 1.0
STUCK = 30.0
"""Seconds (or the mount's timeout, if longer) without any worker that serves, after which the mount is given up."""
ENDING_PATIENCE = 10.0
"""Seconds that whoever said that the mount is being ended has to end it."""
GRACE = 2.0
"""Seconds that workers have to end in by themselves once the mount is gone."""


class Supervisor:
    """One mount from `run` or `adopt` to unmount. Single-threaded; call from the main thread (it takes the signals)."""

    def __init__(
        self,
        snapshot: SnapshotId,
        options: MountOptions,
        *,
        serve: Callable[[WorkerSlot], int],
        verify: Callable[[], Callable[[WorkerSlot], int]] | None = None,
        line: Callable[[str, Sequence[int]], NodeLine] | None = None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        """`serve`: what a worker process does (to run a `Worker`); its value is the exit status. It runs in a fork of
        this process. `verify`: gives the same for the one verifier, whose slot is `SharedState.verifier`; called before
        each of its forks, first when the mount answers, so it may load code then. `line`: makes the line to the
        node, of the mount's device MAJOR:MINOR and the descriptors that the node is to keep copies of.
        `ready`: called once, when the mount answers."""
        self._snapshot = snapshot
        self._options = options
        self._serve_worker = serve
        self._verify = verify
        self._open_line = line
        self._ready = ready
        self._answers = False
        self._abandoned = False
        self._outdated: list[Member] = []
        self._replacing: Member | None = None
        self._patience = max(STUCK, options.timeout)

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
            connection = Connection.open(short(self._snapshot), path, wanted, needed)
            guard = stack.enter_context(ExitStack())
            guard.callback(connection.leave)
            agreed(connection.features)
            passthrough = connection.passthrough
            workers = 1 if passthrough else max(1, self._options.workers)  # open files have one keeper
            shared = SharedState.create(
                name=shared_name(connection.mount.device),
                workers=workers,
                runs=runs,
                inodes=inodes,
                opens=OPENS if passthrough else 0,
            )
            shared.features = int(connection.features)
            shared.lock()
            # Every clone first: whoever inherits them all keeps the others' requests alive.
            devices = tuple(connection.clone() for _ in range(workers))
            fds = MountFds(devices, shared.fd, catalog_fd, _bell(stack), _bell(stack))
            self._take_charge(stack, bell, connection, shared, fds)
            guard.pop_all()
            for number in range(workers):
                self._spawn(number)
            return self._keep()

    def adopt(self, fds: MountFds, *, take_over: bool = False) -> int:
        """Become the supervisor of a mount that lives, go on as `run`; the descriptors become this process's own.

        Returns 0 at once if the mount has a supervisor, or is being ended. `take_over`: kills that one instead, and
        replaces the other processes by forks of this one, one after the other (not where the kernel cannot send
        requests again: there they stay until they end). Raises ValueError if these are not the descriptors of a mount.
        """
        with _signal_bell() as bell, ExitStack() as stack:
            shared = SharedState(fds.shared)
            held = [fd for fd in fds.devices if fd >= 0]
            if not held:
                raise ValueError("a mount needs a descriptor of /dev/fuse")
            if shared.ending or not (seize(shared) if take_over else shared.lock()) or shared.ending:
                log.debug("the mount on %s has a supervisor, or needs none", self._options.mountpoint)
                return 0
            connection = Connection.adopt(self._find_mount(shared), Can(shared.features), held)
            goes_on = connection.alive
            lacking = [-1] * (shared.workers - len(fds.devices)) if goes_on else []
            devices = [fd if fd >= 0 or not goes_on else connection.clone() for fd in (*fds.devices, *lacking)]
            self._take_charge(stack, bell, connection, shared, fds._replace(devices=tuple(devices)))
            missing = self._call_the_roll()
            if not goes_on:
                return 0  # whoever is left ends with us
            log.warning("pid %d takes over the mount on %s", os.getpid(), connection.mount.mountpoint)
            self._answers = True
            if take_over and connection.resends:
                self._outdated = self._crew.members
            return self._keep(missing)

    def _find_mount(self, shared: SharedState) -> MountInfo:
        device = device_of(shared.fd)
        detached = MountInfo(self._options.mountpoint, short(self._snapshot), device, -1, os.getuid())
        return mount_of(device) or detached

    def _take_charge(
        self, stack: ExitStack, bell: socket.socket, connection: Connection, shared: SharedState, fds: MountFds
    ) -> None:
        """What `run` and `adopt` have in common, once this process holds the lock."""
        self._connection, self._shared, self._fds, self._bell = connection, shared, fds, bell
        stack.callback(shared.close)
        self._crew = Crew(shared)
        self._restarts = Restarts(shared.verifier)
        self._stillness = Stillness()
        self._served_at = self._tended_at = time.monotonic()
        self._ready_fd = _bell(stack)
        self._line = None if self._open_line is None else self._open_line(connection.mount.device, self._kept_by_node)
        stack.callback(self._stop)
        gc.freeze()  # what exists by now stays shared with the forks
        gc.enable()

    @property
    def _kept_by_node(self) -> tuple[int, ...]:
        """Nothing where requests cannot be sent again: they have to end with the worker that read them."""
        return self._fds.all if self._connection.resends else ()

    def _call_the_roll(self) -> list[int]:
        """Find the living processes of the supervisor before; the slots that have none."""
        return [number for number in range(self._shared.workers + 1) if self._crew.find(number) is None]

    def _keep(self, missing: Sequence[int] = ()) -> int:
        """Serve; a supervisor that fails leaves a mount that answers to the next one."""
        try:
            if self._line is not None:
                self._line.tend()  # while the workers start: a mount that answers is known to its node
            saved = [self._recover(number) for number in missing]
            return self._serve() if all(saved) else self._give_up()
        except Exception:
            if not self._answers:
                raise
            log.exception("the supervisor of %s fails; another takes its place", self._connection.mount.mountpoint)
            self._abandoned = True
            return 1

    def _serve(self) -> int:
        """Keep the processes alive until something ends the mount; the exit status."""
        while True:
            events = self._wait()
            lost = self._hear(events)
            if self._bell.fileno() in events:
                log.info("a signal ends the mount on %s", self._connection.mount.mountpoint)
                return 0
            if not self._connection.alive:
                return 0
            if self._shared.ending:  # by somebody who will unmount and end us too; but not for ever
                if time.monotonic() - self._tended_at > ENDING_PATIENCE:
                    return 0
            elif not self._tend(lost):
                return self._give_up()

    def _hear(self, events: set[int]) -> list[Lost]:
        """What has happened; the processes that died."""
        if self._ready_fd in events:
            self._hear_ready()
        if self._line is not None:
            self._line.tend()
        return self._crew.bury(events)

    def _tend(self, lost: list[Lost]) -> bool:
        """Replace what died or hangs. False if the workers cannot be kept alive."""
        self._tended_at = time.monotonic()
        lost += self._dismiss_the_stuck()
        saved = [
            self._recover(member.number, by_itself=by_itself, excused=member == self._replacing)
            for member, by_itself in lost
        ]
        for number in self._restarts.due(self._tended_at):
            self._spawn(number)
        if self._outdated and self._serving() == self._shared.workers:
            self._replace_next()
        return all(saved) and not self._is_hopeless()

    def _give_up(self) -> int:
        log.error("the workers of %s cannot be kept alive", self._connection.mount.mountpoint)
        return 1

    def _wait(self) -> set[int]:
        """The descriptors that have something to say, after a tick at the latest."""
        watched = [self._bell.fileno(), self._ready_fd, *self._crew.pidfds]
        if self._line is not None and self._line.fileno() >= 0:
            watched.append(self._line.fileno())
        poll = select.poll()
        for fd in watched:
            poll.register(fd, select.POLLIN)
        return {fd for fd, _ in poll.poll(min(TICK, self._restarts.wait(time.monotonic())) * 1000)}

    def _spawn(self, number: int) -> None:
        if not self._connection.resends:
            own = (fd if number == at else -1 for at, fd in enumerate(self._fds.devices))
            fds = self._fds._replace(devices=tuple(own))
        else:
            fds = self._fds
        slot = WorkerSlot(number, fds, self._ready_fd)
        serve = self._serve_worker
        if number == self._shared.verifier and self._verify is not None:
            serve = self._verify()
        try:
            self._crew.spawn(number, lambda: serve(slot), {*fds.all, self._ready_fd})
        except OSError as error:
            log.warning("no process could be started for %s: %s", self._connection.mount.mountpoint, error.strerror)
            self._restarts.failed(number, time.monotonic())

    def _hear_ready(self) -> None:
        os.eventfd_read(self._ready_fd)
        self._restarts.served()
        self._served_at = time.monotonic()
        if not self._answers:
            self._answers = True
            self._ready()
            if self._verify is not None:  # the first byte does not wait for its start
                self._spawn(self._shared.verifier)

    def _recover(self, number: int, *, by_itself: bool = False, excused: bool = False) -> bool:
        """Save the requests of a dead process and see to its replacement. False if they cannot be saved."""
        now, view = time.monotonic(), self._shared.slot(number)
        if number == self._shared.verifier:
            if self._verify is not None:
                self._restarts.ended(number, served=False, now=now)
            return True
        if not excused:
            log.warning("worker %d (pid %d) of %s died", number, view.process, self._connection.mount.mountpoint)
            self._condemn(number, by_itself)
        if self._connection.resends:
            self._connection.resend()
        elif self._fds.devices[number] == self._connection.device_fd:
            return False  # its requests can neither be sent again nor be ended alone
        else:
            self._connection.drop(self._fds.devices[number])  # its readers get an error now, and do not hang
            devices = list(self._fds.devices)
            devices[number] = self._connection.clone()
            self._fds = self._fds._replace(devices=tuple(devices))
        self._restarts.ended(number, served=view.pid != 0 or excused, now=now, crashed=by_itself)
        return True

    def _condemn(self, number: int, by_itself: bool) -> None:
        """A request that kills worker after worker is answered EIO: it would be sent again for ever."""
        unique = self._shared.blame(number, by_itself=by_itself)
        if unique:
            log.error("request %d kills the workers that get it; it is answered EIO", unique)
            self._connection.answer_error(self._fds.devices[number], unique, errno.EIO)

    def _is_hopeless(self) -> bool:
        """Whether workers cannot be started (any more). Readers must not wait for them beyond the deadline (I9)."""
        now = time.monotonic()
        if self._serving():
            self._served_at = now
        if not self._answers:
            return self._restarts.in_vain
        return now - self._served_at > self._patience

    def _serving(self) -> int:
        """How many workers serve."""
        workers = [member for member in self._crew.members if member.number != self._shared.verifier]
        return sum(self._shared.slot(member.number).pid != 0 for member in workers)

    def _dismiss_the_stuck(self) -> list[Lost]:
        now, stuck = time.monotonic(), []
        for member in self._crew.members:
            idle = self._stillness.idle(member.number, self._shared.slot(member.number), now)
            if idle > STOPPED and idle > allowance(state(member.pid)):
                log.warning(
                    "process %d (pid %d) has not moved for %.0f s; it is killed", member.number, member.pid, idle
                )
                self._crew.dismiss(member)
                stuck.append(Lost(member, by_itself=True))
        return stuck

    def _replace_next(self) -> None:
        """Kill a process of the version before; the verifier first, then one worker after the other."""
        members = self._crew.members
        if self._replacing not in members:
            self._replacing = self._outdated.pop()
            if self._replacing in members:
                self._crew.kill(self._replacing)

    def _stop(self) -> None:
        """Unmount if it still is mounted, end the processes, close the connection."""
        if self._line is not None:
            self._line.close()
        if self._abandoned:
            return
        self._shared.end()
        self._connection.detach_anyhow()
        self._crew.end(0 if self._connection.alive else GRACE)
        self._connection.close()
        self._crew.reap()


def _bell(stack: ExitStack) -> int:
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    stack.callback(os.close, fd)
    return fd


@contextmanager
def _signal_bell() -> Iterator[socket.socket]:
    """A socket that becomes readable when a signal asks us to end. Afterwards such signals are ignored, since the
    process is ending (who ends a mount by force may ask twice); after an error the old handlers come back."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        old_fd = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        old = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
        later: dict[signal.Signals, Any] = dict.fromkeys(SIGNALS, signal.SIG_IGN)
        try:
            yield ours
        except BaseException:
            later = old
            raise
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, handler in later.items():
                signal.signal(number, handler)
