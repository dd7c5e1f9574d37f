"""One worker of a mount: an epoll loop between the kernel and its readers.

Hits are answered as they come; a miss is parked and the loop goes on. What is remembered for the kernel's sake (the
open files of a passthrough mount) is in the shared memory, so a new worker can take over in the middle of a read.
"""

import errno
import logging
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import HoardError
from hoard_p2p.interfaces import FileSlabs, LocalChunks, MissChannel, MountOptions
from hoard_p2p.mount.backing import Backings
from hoard_p2p.mount.brake import Brake
from hoard_p2p.mount.endpoint import Endpoint, MountGone, Request
from hoard_p2p.mount.kernel import INTERRUPT_IN, MAX_READ, READ_IN, Op
from hoard_p2p.mount.opening import Opening
from hoard_p2p.mount.operations import Operations
from hoard_p2p.mount.progress import Progress
from hoard_p2p.mount.reads import Read, Reads
from hoard_p2p.mount.shared import SharedState, WorkerSlot
from hoard_p2p.mount.succession import Succession
from hoard_p2p.mount.verified import Expect, VerifiedChunks

log = logging.getLogger(__name__)

TICK = 1.0
TICK_PARKED = 0.1
"""Seconds between looks at deadlines and at interrupts that other workers received, while a request is parked."""
BURST = 32
"""Requests served before the loop looks at answers again."""
_READ = int(Op.READ)  # plain numbers: an enum member hashes ten times slower
_INTERRUPT = int(Op.INTERRUPT)
_RELEASE = int(Op.RELEASE)
_OPENING = (int(Op.OPEN), _RELEASE)
_UNANSWERED = (int(Op.FORGET), int(Op.BATCH_FORGET))


class Worker:
    """Serves one mount until it is gone. Single-threaded; call in a process of its own."""

    def __init__(
        self,
        slot: WorkerSlot,
        *,
        catalog: Catalog,
        chunks: LocalChunks,
        misses: MissChannel,
        options: MountOptions,
        size: int = 0,
        slabs: FileSlabs | None = None,
        expect: Expect | None = None,
        adopt: Callable[[], None] = lambda: None,
    ) -> None:
        """`slot`: from the supervisor. `size`: bytes of all files, for `df`. `slabs`: what a passthrough mount backs
        its files with (without, it is a no-open mount too). `expect`: see VerifiedChunks. `adopt`: starts another
        supervisor, which takes this mount over, and returns at once.

        Misses are asked by canonical run, so that a chunk that occurs twice is asked for once.
        """
        self._slot = slot
        self._shared = SharedState(os.dup(slot.fds.shared))
        self._endpoint = Endpoint(slot.device_fd)
        self._misses = misses
        self._inodes = catalog.inodes
        operations = Operations(catalog, uid=os.getuid(), gid=os.getgid(), size=size, habits=self._shared)
        self._operations = {int(op): operation for op, operation in operations.table().items()}
        self._reads = Reads(
            catalog,
            VerifiedChunks(catalog, chunks, self._shared.verified, options.verify, expect),
            misses,
            self._endpoint,
            self._shared,
            timeout=options.timeout,
            failed=lambda: self._shared.count_failure(slot.number),
            progress=Progress(
                catalog, chunks, misses, self._shared, hint_bell=slot.fds.hint_bell, verify=options.verify
            ).at,
        )
        self._bell_fd = slot.fds.checked_bell
        self._opening = self._make_opening(catalog, slabs, options.verify)
        self._brake = Brake(log)
        self._epoll = select.epoll()
        self._succession = Succession(self._shared, slot.number, adopt, self._epoll)
        self._watched = -1
        self._next_tick = self._next_tend = 0.0

    def _make_opening(self, catalog: Catalog, slabs: FileSlabs | None, verify: str) -> Opening | None:
        """None for a no-open mount, whose opens are the kernel's."""
        if slabs is None or not self._shared.passthrough:
            return None
        fds = self._slot.fds
        return Opening(
            catalog,
            slabs,
            self._endpoint,
            self._shared,
            Backings(self._endpoint.fileno),
            verify=verify,
            ring=lambda: os.eventfd_write(fds.hint_bell, 1),
        )

    def run(self) -> None:
        """Answer requests until the mount is gone (then returns), parking none longer than `options.timeout`.

        Never touches the mount itself: a process that waits for itself cannot be killed.
        """
        # One request wakes one idle worker: the descriptors of a mount share the kernel's queue.
        self._epoll.register(self._endpoint.fileno, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        if self._opening is not None:
            self._epoll.register(self._bell_fd, select.EPOLLIN)
        self._shared.attach(self._slot.number, os.getpid())
        os.eventfd_write(self._slot.ready_fd, 1)
        try:
            while True:
                self._turn()
        except MountGone:
            log.debug("worker %d ends: the mount is gone", self._slot.number)
        finally:
            self._succession.close()
            self._epoll.close()
            self._shared.close()

    def _turn(self) -> None:
        """Wait for something to do, and do a bounded amount of it."""
        patience = 0.0 if self._reads.ready else max(0.0, self._next_tick - time.monotonic())
        events = self._epoll.poll(patience)
        now = time.monotonic()
        due = now >= self._next_tick
        if due or any(fileno != self._endpoint.fileno for fileno, _ in events):
            self._hear(now, due)
        read = self._reads.take_ready()
        if read is not None:
            self._shared.begin(self._slot.number, read.unique)
            self._guarded_read(read)
        served = self._serve() if events or due else 0
        parked = self._parked
        self._shared.beat(self._slot.number, served, parked)
        if parked:
            self._next_tick = min(self._next_tick, now + TICK_PARKED)

    @property
    def _parked(self) -> int:
        return self._reads.parked + (self._opening.parked if self._opening is not None else 0)

    def _hear(self, now: float, due: bool) -> None:
        """What the node has sent, and what time has brought."""
        if due:
            self._next_tick = now + TICK
        self._next_tick = min(self._next_tick, now + self._succession.tend(now))
        if now >= self._next_tend or not due:
            self._next_tend = now + TICK
            self._misses.tend()
            self._watch_misses()
        for answer in self._misses.answers():
            self._reads.answered(answer, now)
        if self._reads.parked:
            self._reads.hear_interrupts()
            self._reads.expire(now)
        if self._opening is not None:
            self._hear_verifier(self._opening, now)

    def _hear_verifier(self, opening: Opening, now: float) -> None:
        """Files that opens wait for were verified, or take too long."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell_fd)
            opening.heard()
        opening.expire(now)

    def _watch_misses(self) -> None:
        """Poll the channel's present descriptor: it may be another one, or another socket under the same number."""
        fileno = self._misses.fileno()
        if self._watched not in (-1, fileno):
            try:
                self._epoll.unregister(self._watched)
            except OSError:  # closed, and so no longer watched
                log.debug("the channel's descriptor %d was closed", self._watched)
        if fileno >= 0:
            with suppress(FileExistsError):  # still the same
                self._epoll.register(fileno, select.EPOLLIN)
        self._watched = fileno

    def _serve(self) -> int:
        """Answer what the kernel has waiting, at most BURST requests; how many."""
        endpoint, shared, number = self._endpoint, self._shared, self._slot.number
        for served in range(BURST):
            request = endpoint.receive()
            if request is None:
                return served
            shared.begin(number, request.unique)
            self._answer(request)
        return BURST

    def _answer(self, request: Request) -> None:
        opcode, unique, node, body = request
        if opcode == _READ:
            _, offset, size = READ_IN.unpack_from(body)
            self._guarded_read(Read(unique, node - 1, offset, min(size, MAX_READ)))
        elif self._opening is not None and opcode in _OPENING:
            self._guarded_open(self._opening, request)
        elif opcode == _INTERRUPT:
            self._interrupt(*INTERRUPT_IN.unpack_from(body))
        elif opcode not in _UNANSWERED:
            self._guarded_operation(request)

    def _interrupt(self, unique: int) -> None:
        if self._reads.interrupt(unique) or (self._opening is not None and self._opening.interrupt(unique)):
            return
        self._shared.interrupt(unique)

    def _guarded_open(self, opening: Opening, request: Request) -> None:
        """The door for OPEN and RELEASE of a passthrough mount."""
        opcode, unique, node, body = request
        try:
            if opcode == _RELEASE:
                opening.release(unique, body)
            elif 0 < node <= self._inodes:
                opening.open(unique, node - 1, time.monotonic())
            else:
                self._endpoint.fail(unique, errno.ESTALE)
        except MountGone:
            raise
        except Exception as error:  # noqa: BLE001 - the reply door
            opening.forget(unique)
            self._endpoint.fail(unique, self._mishap(error))

    def _guarded_operation(self, request: Request) -> None:
        """The door for everything but READ: whatever goes wrong, the request is answered."""
        opcode, unique, node, body = request
        operation = self._operations.get(opcode)
        if operation is None:
            self._endpoint.fail(unique, errno.ENOSYS)
            return
        if not 0 < node <= self._inodes:  # a handle of another snapshot
            self._endpoint.fail(unique, errno.ESTALE)
            return
        try:
            answer = operation(node - 1, body)
        except Exception as error:  # noqa: BLE001 - the reply door
            answer = self._mishap(error)
        if isinstance(answer, int):
            self._endpoint.fail(unique, answer)
        else:
            self._endpoint.send(unique, answer)

    def _guarded_read(self, read: Read) -> None:
        """The door for READ."""
        if not 0 <= read.index < self._inodes:
            self._endpoint.fail(read.unique, errno.ESTALE)
            return
        try:
            self._reads.start(read, time.monotonic())
        except MountGone:
            raise
        except Exception as error:  # noqa: BLE001 - the reply door
            self._reads.forget(read.unique)
            self._endpoint.fail(read.unique, self._mishap(error))

    def _mishap(self, error: Exception) -> int:
        """Log what went wrong; the errno for it. A damaged catalog and a failing disk are both EIO to a reader."""
        self._shared.count_failure(self._slot.number)
        said = str(error) if isinstance(error, HoardError) else repr(error)
        self._brake.line(logging.ERROR, "a request failed: %s", said)
        return errno.EIO
