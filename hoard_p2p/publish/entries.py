"""From names to contents: what the worker threads do with the files and symbolic links that the walk found."""

import os
import stat
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from errno import EINVAL, ELOOP
from mmap import mmap
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol, TypeAlias

from hoard_p2p.chunking import MIB, SMALL_FILE, Chunker, runs_of
from hoard_p2p.errors import SourceChanging
from hoard_p2p.ids import HOLE, ChunkId, chunk_id
from hoard_p2p.publish.attributes import Attributes, read_attributes
from hoard_p2p.publish.deposit import Deposit, Piece
from hoard_p2p.publish.pages import fill
from hoard_p2p.publish.source import OPEN_FILE, Attempt, attempts, is_young, stamps
from hoard_p2p.publish.walk import LOOKS, SPECIAL, Begin, Found, FoundDirectory, LeftOut, Reason, left_out, path_text

BATCH_BYTES = 2 * MIB
"""Bytes of small files that one task reads before their chunks are put."""

AHEAD = 8
"""Small files that are open at once."""

ARENA = BATCH_BYTES + SMALL_FILE


class FileRead(NamedTuple):
    """A regular file, in one state."""

    name: bytes
    status: os.stat_result
    attributes: Attributes
    runs: Sequence[tuple[ChunkId, int]]


class LinkRead(NamedTuple):
    """A symbolic link."""

    name: bytes
    status: os.stat_result
    target: bytes


class HardLink(NamedTuple):
    """A further name of a file that is being read under another."""

    found: Found


Step: TypeAlias = Begin | Found | FoundDirectory | HardLink | LeftOut | FileRead
Content: TypeAlias = FileRead | LinkRead | LeftOut
Outcome: TypeAlias = Begin | FoundDirectory | HardLink | Content | Future[Content]
"""A `Step` that was carried out; a `Future` for a file that takes longer."""


class Intake(Protocol):
    """A way to take in a file's bytes, one file at a time."""

    def takes(self, size: int) -> bool:
        """Whether a file of this size can be read this way."""
        ...

    def read(self, fd: int, size: int) -> Sequence[tuple[ChunkId, int]] | None:
        """The file's runs; None if it ended early. Afterwards, also after an exception, `accept` or `reject` is due."""
        ...

    def accept(self, runs: Sequence[tuple[ChunkId, int]]) -> None:
        """What was read is the file."""
        ...

    def reject(self) -> None:
        """What was read is not the file, or it could not be read."""
        ...


class SmallFiles:
    """Takes in small files, one after the other into one buffer; their chunks are put together by `keep`."""

    def __init__(self, arena: memoryview, chunker: Chunker, deposit: Deposit, moved: Callable[[int], None]) -> None:
        self._arena = arena
        self._chunker = chunker
        self._deposit = deposit
        self._moved = moved
        self._pieces: list[Piece] = []
        self._accepted = 0  # of the pieces
        self._used = 0  # bytes of the arena
        self._done = 0  # bytes of files accepted, holes included

    def takes(self, size: int) -> bool:
        return size <= SMALL_FILE

    def read(self, fd: int, size: int) -> Sequence[tuple[ChunkId, int]] | None:
        if self._used + size > len(self._arena):  # files have grown since they were listed
            self.keep()
        data = self._arena[self._used : self._used + size]
        if not fill(fd, data, 0):
            return None
        runs = []
        at = 0
        for run in runs_of(self._chunker, data):
            if run.hole:
                runs.append((HOLE, run.length))
            else:
                piece = Piece(*_named(data[at : at + run.length]), at)
                self._pieces.append(piece)
                runs.append((piece.chunk_id, run.length))
            at += run.length
        return runs

    def accept(self, runs: Sequence[tuple[ChunkId, int]]) -> None:
        size = sum(length for _, length in runs)
        self._used += size
        self._done += size
        self._accepted = len(self._pieces)

    def reject(self) -> None:
        del self._pieces[self._accepted :]

    def keep(self) -> None:
        """Put what was accepted; the buffer is free again. Raises StoreFailed."""
        self._deposit.keep(self._pieces)
        self._moved(self._done)
        self._pieces = []
        self._accepted = self._used = self._done = 0


class EntryReader:
    """Carries out steps. Safe from several threads."""

    def __init__(
        self,
        small: Callable[[memoryview], SmallFiles],
        read_large: Callable[[Found], Future[Content]],
        pause: Callable[[float], None],
    ) -> None:
        """`small` makes a batch's intake over a buffer; `read_large` has a file read elsewhere by `read_alone`."""
        self._small = small
        self._read_large = read_large
        self._pause = pause
        self._arenas: SimpleQueue[memoryview] = SimpleQueue()
        self.only_open = False
        """Set once the publish is bound to fail: files are only opened, to name those that cannot be."""

    def read_batch(self, steps: Sequence[Step]) -> list[Outcome]:
        """The outcomes of `steps`, in order. Raises SourceChanging, StoreFailed and what `pause` raises."""
        arena = self._free_arena()
        try:
            intake = self._small(arena)
            with closing(_Ahead(self._plain(steps, intake))) as ahead:
                outcomes = [self._read_one(step, intake, ahead) if isinstance(step, Found) else step for step in steps]
            intake.keep()
            return outcomes
        finally:
            self._arenas.put(arena)

    def close(self) -> None:
        """Give the buffers back. No thread may be reading any more."""
        self._arenas = SimpleQueue()

    def _free_arena(self) -> memoryview:
        """One that no thread uses: there are never more than threads."""
        try:
            return self._arenas.get_nowait()
        except Empty:
            return memoryview(mmap(-1, ARENA))

    def read_alone(self, found: Found, intake: Intake) -> Content:
        """The outcome for a file that `intake` takes whatever its size."""
        content = self._read(found, intake)
        assert not isinstance(content, Future)
        return content

    def _plain(self, steps: Sequence[Step], intake: SmallFiles) -> list[Found]:
        """Those that are worth a try with the fewest calls."""
        if self.only_open:
            return []
        founds = [step for step in steps if isinstance(step, Found)]
        return [one for one in founds if stat.S_ISREG(one.status.st_mode) and intake.takes(one.status.st_size)]

    def _read_one(self, found: Found, intake: SmallFiles, ahead: "_Ahead") -> Content | Future[Content]:
        fd = ahead.take(found)
        return (_at_once(found, fd, intake) if fd >= 0 else None) or self._read(found, intake)

    def _read(self, found: Found, intake: Intake) -> Content | Future[Content]:
        is_link = stat.S_ISLNK(found.status.st_mode)
        try:
            for _ in range(LOOKS):
                content = self._symlink(found) if is_link else self._file(found, intake)
                if content is not None:
                    return content
                is_link = not is_link
        except OSError as error:
            return left_out(found.directory.join(found.name), error)
        raise _changes_type(found)

    def _symlink(self, found: Found) -> LinkRead | None:
        """None if it is no symbolic link (any more)."""
        status = found.status
        for _ in range(LOOKS):
            try:
                target = os.readlink(found.name, dir_fd=found.directory.fd)
            except OSError as error:
                if error.errno == EINVAL:
                    return None
                raise
            now = os.stat(found.name, dir_fd=found.directory.fd, follow_symlinks=False)
            if stamps(now) == stamps(status):
                return LinkRead(found.name, status, target)
            status = now
        raise _changes_type(found)

    def _file(self, found: Found, intake: Intake) -> Content | Future[Content] | None:
        """None if it is a symbolic link (now)."""
        try:
            with closing(attempts(found.directory, found.name, self._pause)) as tries:
                return next(content for attempt in tries if (content := self._attempt(found, attempt, intake)))
        except OSError as error:
            if error.errno == ELOOP:
                return None
            raise

    def _attempt(self, found: Found, attempt: Attempt, intake: Intake) -> Content | Future[Content] | None:
        """None if the file has to be read again."""
        status = attempt.status
        if not stat.S_ISREG(status.st_mode):
            return _other(found, status)
        if self.only_open:
            return FileRead(found.name, status, Attributes(), ())
        if not intake.takes(status.st_size):
            return self._read_large(found)
        attributes = read_attributes(attempt.fd)
        runs = None
        accepted = False
        try:
            runs = intake.read(attempt.fd, status.st_size)
            settled = attempt.settled()
            accepted = settled and runs is not None
        finally:
            if not accepted:
                intake.reject()
        if runs is not None and accepted:
            intake.accept(runs)
            return FileRead(found.name, status, attributes, runs)
        if settled:
            path = found.directory.join(found.name)
            return LeftOut(Reason.UNREADABLE, path, f"it ends before its size of {status.st_size} bytes")
        return None


class _Ahead:
    """The files that are read next, open already, and their pages on the way: the disk serves several at once."""

    def __init__(self, founds: Sequence[Found]) -> None:
        self._coming = iter(founds)
        self._open: deque[tuple[Found, int]] = deque()

    def take(self, found: Found) -> int:
        """A descriptor that is the caller's; -1 if it is none of these files, or cannot be opened."""
        while len(self._open) < AHEAD and (coming := next(self._coming, None)) is not None:
            self._open.append((coming, _opened(coming)))
        return self._open.popleft()[1] if self._open and self._open[0][0] is found else -1

    def close(self) -> None:
        for _, fd in self._open:
            if fd >= 0:
                os.close(fd)


def _opened(found: Found) -> int:
    try:
        fd = os.open(found.name, OPEN_FILE, dir_fd=found.directory.fd)
    except OSError:
        return -1
    with suppress(OSError):
        os.posix_fadvise(fd, 0, found.status.st_size, os.POSIX_FADV_WILLNEED)
    return fd


def _at_once(found: Found, fd: int, intake: SmallFiles) -> FileRead | None:
    """A file that nobody changed since it was listed, read with the fewest calls; None: look closer. Closes `fd`."""
    status = found.status
    runs = None
    try:
        young = is_young(status, time.time_ns())
        attributes = read_attributes(fd)
        runs = None if young else intake.read(fd, status.st_size)
        now = os.fstat(fd)
        same = stamps(now) == stamps(status) and now.st_dev == status.st_dev
    except OSError:
        same = False
    finally:
        os.close(fd)
    if not same or runs is None:
        intake.reject()
        return None
    intake.accept(runs)
    return FileRead(found.name, status, attributes, runs)


def _named(data: memoryview) -> tuple[ChunkId, memoryview]:
    return chunk_id(data), data


def _other(found: Found, status: os.stat_result) -> LeftOut:
    """What became of a regular file that is none any more."""
    kind = stat.S_IFMT(status.st_mode)
    if kind not in SPECIAL:
        raise _changes_type(found)
    return LeftOut(Reason.SPECIAL, found.directory.join(found.name), SPECIAL[kind])


def _changes_type(found: Found) -> SourceChanging:
    return SourceChanging(
        f"{path_text(found.directory.join(found.name))} changed into another kind of thing; publish when it is at rest"
    )
