"""Reading and hashing pieces of slabs, two at a time, off the verifier's loop."""

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
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
DEPTH = 4
"""Pieces at work or waiting for a thread: enough that none waits for the loop, few enough for what is urgent."""
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


class Checkers:
    """Threads that check pieces. `submit` and `outcomes` are for one thread, which polls `fileno`."""

    def __init__(self, remember: Callable[[int, int], None]) -> None:
        """`remember(run, generation)` is called for each check that passed, from any thread."""
        self._remember = remember
        self._rooms = threading.local()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._done: SimpleQueue[Outcome] = SimpleQueue()
        self._busy = ThreadPoolExecutor(THREADS, "verify")
        self._calm = ThreadPoolExecutor(1, "verify-idle", _calm_down)
        self._outstanding = 0

    @property
    def outstanding(self) -> int:
        return self._outstanding

    def fileno(self) -> int:
        """Readable when there are outcomes."""
        return self._bell

    def submit(self, task: Task, slab: SlabData, *, calm: bool = False) -> None:
        """Check a piece. `calm`: when nothing else wants the processor, and without a trace in the page cache."""
        self._outstanding += 1
        pool = self._calm if calm else self._busy
        pool.submit(self._check, task, slab, calm).add_done_callback(self._deliver)

    def outcomes(self) -> list[Outcome]:
        """What was finished since the last call."""
        found: list[Outcome] = []
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        while not self._done.empty():
            found.append(self._done.get())
        self._outstanding -= len(found)
        return found

    def close(self) -> None:
        """Wait for what is at work, drop what is not."""
        for pool in (self._busy, self._calm):
            pool.shutdown(cancel_futures=True)
        os.close(self._bell)

    def _deliver(self, future: "Future[Outcome]") -> None:
        if not future.cancelled():
            self._done.put(future.result())
            os.eventfd_write(self._bell, 1)

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
