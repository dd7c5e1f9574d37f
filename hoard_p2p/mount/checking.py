"""Reading and hashing pieces of slabs, two at a time, off the verifier's loop.

The loop is woken when few pieces wait, not at each of them: it takes the processors from the hashing.
"""

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple

from blake3 import blake3

from hoard_p2p.ids import HOLE
from hoard_p2p.interfaces import FileSlabs
from hoard_p2p.mount.buffers import buffer
from hoard_p2p.mount.pieces import PIECE, Check, Piece, Task

log = logging.getLogger(__name__)

THREADS = 2
"""Through one descriptor, so that the kernel reads ahead of both: as fast from the disk as a plain read. (Asking for
WILLNEED instead was up to twice slower, one thread that reads and hashes in turn three times.)"""
DEPTH = 12
"""Pieces at work or waiting for a thread, at most: few enough for what is urgent (3 ms of hashing)."""
LOW = 6
"""Pieces waiting for a thread from which on the loop is woken for more. (Woken at each piece it took 50 us of a
processor per piece, now 33; hashing one takes 350.)"""
_ZEROS = memoryview(bytes(PIECE))


class SlabData:
    """A slab's data file, open for reading; closed when the last reference goes (a thread may still read it)."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class OpenSlabs:
    """The slabs that were verified last, open. For one thread."""

    def __init__(self, slabs: FileSlabs, limit: int = 32) -> None:
        self._slabs = slabs
        self._limit = limit
        self._open: OrderedDict[int, SlabData] = OrderedDict()

    def get(self, slab: int) -> SlabData:
        """Raises ChunkCorrupt if it is not there, StoreFailed."""
        data = self._open.get(slab)
        if data is None:
            data = self._open[slab] = SlabData(self._slabs.open_slab(slab))
            while len(self._open) > self._limit:
                self._open.popitem(last=False)
        self._open.move_to_end(slab)
        return data

    def forget(self, slab: int) -> None:
        """Open it anew at its next use: it may have been replaced."""
        self._open.pop(slab, None)


class Outcome(NamedTuple):
    """What became of a task: the checks that failed. A slab that is too short, or that the disk cannot read, fails."""

    task: Task
    wrong: tuple[Check, ...]


class _Job(NamedTuple):
    task: Task
    slab: SlabData
    prompt: bool


class _Pool:
    """Threads that take jobs from a queue; they are started with the first one."""

    def __init__(self, name: str, threads: int, work: Callable[[_Job], None]) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._work = work
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{number}") for number in range(threads)]
        self._started = False

    @property
    def waiting(self) -> int:
        """Jobs that no thread has taken yet."""
        return self._jobs.qsize()

    def submit(self, job: _Job) -> None:
        self._jobs.put(job)
        if not self._started:
            self._started = True
            for thread in self._threads:
                thread.start()

    def close(self) -> None:
        """Wait for what is at work, drop what is not."""
        with suppress(Empty):
            while True:
                self._jobs.get_nowait()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads if self._started else ():
            thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._work(job)


class Checkers:
    """Threads that check pieces. `submit` and `outcomes` are for one thread, which polls `fileno`."""

    def __init__(self, remember: Callable[[int, int], None]) -> None:
        """`remember(run, generation)` is called for each check that passed, from any thread."""
        self._remember = remember
        self._rooms = threading.local()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._done: SimpleQueue[Outcome | Exception] = SimpleQueue()
        self._busy = _Pool("verify", THREADS, self._work)
        self._calm = _Pool("verify-idle", 1, self._work_calmly)
        self._outstanding = 0

    @property
    def outstanding(self) -> int:
        return self._outstanding

    def fileno(self) -> int:
        """Readable when there are outcomes to be heard at once, or too few pieces wait."""
        return self._bell

    def submit(self, task: Task, slab: SlabData, *, calm: bool = False, prompt: bool = False) -> None:
        """Check a piece. `calm`: when nothing else wants the processor, and without a trace in the page cache.
        `prompt`: somebody may wait for this very outcome."""
        self._outstanding += 1
        (self._calm if calm else self._busy).submit(_Job(task, slab, prompt))

    def outcomes(self) -> list[Outcome]:
        """What was finished since the last call. Raises what a thread stumbled over."""
        found: list[Outcome] = []
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        while not self._done.empty():
            outcome = self._done.get()
            if isinstance(outcome, Exception):
                raise outcome
            found.append(outcome)
        self._outstanding -= len(found)
        return found

    def close(self) -> None:
        """Wait for what is at work, drop what is not."""
        for pool in (self._busy, self._calm):
            pool.close()
        os.close(self._bell)

    def _work(self, job: _Job) -> None:
        if not self._finish(job, calm=False) or job.prompt or self._busy.waiting <= LOW:
            os.eventfd_write(self._bell, 1)

    def _work_calmly(self, job: _Job) -> None:
        _calm_down()
        self._finish(job, calm=True)
        os.eventfd_write(self._bell, 1)

    def _finish(self, job: _Job, *, calm: bool) -> bool:
        """Whether all is well."""
        try:
            outcome: Outcome | Exception = self._check(job.task, job.slab, calm)
        except Exception as error:  # noqa: BLE001 - the door of the thread
            outcome = error
        self._done.put(outcome)
        return isinstance(outcome, Outcome) and not outcome.wrong

    def _check(self, task: Task, slab: SlabData, calm: bool) -> Outcome:
        room, piece = self._room(), task.piece
        try:
            wrong = self._wrong(piece, slab, room, calm)
        except OSError as error:
            log.info("slab %d cannot be read at %d: %s", piece.slab, piece.offset, error)
            wrong = piece.checks
        return Outcome(task, wrong)

    def _wrong(self, piece: Piece, slab: SlabData, room: memoryview, calm: bool) -> tuple[Check, ...]:
        checks = piece.checks
        if len(checks) == 1:
            wrong = checks[self._matches(piece, slab, room, calm) :]
        else:
            data = room[: piece.length]
            _fill(slab.fd, piece.offset, data, calm)
            wrong = tuple(check for check in checks if not _is_right(check, data))
        for check in checks:
            if check.generation and check not in wrong:
                self._remember(check.run, check.generation)
        return wrong

    def _matches(self, piece: Piece, slab: SlabData, room: memoryview, calm: bool) -> bool:
        """Whether a piece of one run has its bytes, however long it is."""
        (check,) = piece.checks
        if check.chunk_id == HOLE:
            return _is_empty(slab.fd, piece.offset, check.length, room)
        hasher = blake3()
        for at in range(0, check.length, PIECE):
            part = room[: min(PIECE, check.length - at)]
            _fill(slab.fd, piece.offset + at, part, calm)
            hasher.update(part)
        return hasher.digest() == check.chunk_id

    def _room(self) -> memoryview:
        room: memoryview | None = getattr(self._rooms, "room", None)
        if room is None:
            room = self._rooms.room = buffer(PIECE)
        return room


def _is_right(check: Check, data: memoryview) -> bool:
    part = data[check.start : check.start + check.length]
    if check.chunk_id == HOLE:
        return part == _ZEROS[: len(part)]
    return blake3(part).digest() == check.chunk_id


def _fill(fd: int, offset: int, into: memoryview, calm: bool) -> None:
    """Raises OSError, also if the file ends early."""
    if calm and _fill_from_memory(fd, offset, into):
        return
    done = 0
    while done < len(into):
        more = os.preadv(fd, [into[done:]], offset + done)
        if more == 0:
            raise OSError(f"it ends before {offset + len(into)}")
        done += more
    if calm:
        os.posix_fadvise(fd, offset, len(into), os.POSIX_FADV_DONTNEED)


def _fill_from_memory(fd: int, offset: int, into: memoryview) -> bool:
    """Whether all of it was in the page cache, where it is to stay then."""
    try:
        return os.preadv(fd, [into], offset, os.RWF_NOWAIT) == len(into)
    except OSError:  # EAGAIN: not there; EOPNOTSUPP: nobody can tell
        return False


def _is_empty(fd: int, offset: int, length: int, room: memoryview) -> bool:
    """Whether a range holds zeros only; what was never written is not read."""
    end = offset + length
    while offset < end:
        try:
            offset = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError:  # ENXIO: no data up to the end of the file
            return True
        part = room[: max(0, min(PIECE, end - offset))]
        _fill(fd, offset, part, False)
        if part != _ZEROS[: len(part)]:
            return False
        offset += len(part)
    return True


def _calm_down() -> None:
    """Let this thread run only when nobody else wants to."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
