"""Slabs from the writing side: making them, giving out room, reserving space, syncing, closing.

A slab has one writer, which holds a lock on its data file for as long as it may write (a fence: whoever finds the lock
taken keeps away). Chunk bytes lie raw, so that the kernel can send and map them by itself.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from hoard_p2p.errors import Corrupt, StoreFull
from hoard_p2p.ids import Bytes
from hoard_p2p.interfaces import Extent, SlabHandle, SlabKind
from hoard_p2p.storage import sidecar
from hoard_p2p.storage.allowance import Allowance
from hoard_p2p.storage.failures import store_failure
from hoard_p2p.storage.layout import DataDir, sidecar_path, sync_path

SHARED_SIZE = 1 << 30
BLOCK = 4096
SMALL_RUN = 256 << 10
"""Chunks under a block are packed into runs of this size, so that they do not push others off the boundaries."""
RESERVE = 4 << 20
"""A shared slab reserves space this far ahead: few calls for a busy writer, little waste for an idle one."""
FIRST_RESERVE = 1 << 20
"""What it begins with, doubled from step to step: where little room is left, no writer takes it from the others."""
PUNCH_HOLE = 0x02 | 0x01
"""FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE (linux/falloc.h)."""
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FLAGS = os.O_RDWR | os.O_CLOEXEC
_MODE = 0o640


class Cursor:
    """Where the next chunk goes in a shared slab of `size` bytes: at block boundaries, small chunks packed in runs."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._end = 0
        self._small = 0
        self._small_end = 0

    def take(self, length: int) -> int | None:
        """The offset for a chunk of `length` bytes, None if the slab has no room for it."""
        if length >= BLOCK:
            return self._take_blocks(length)
        if self._small + length > self._small_end:
            start = self._take_blocks(SMALL_RUN)
            if start is None:
                return None
            self._small, self._small_end = start, start + SMALL_RUN
        self._small += length
        return self._small - length

    def _take_blocks(self, length: int) -> int | None:
        start = self._end
        if start + length > self._size:
            return None
        self._end = align(start + length)
        return start


def align(offset: int) -> int:
    return (offset + BLOCK - 1) // BLOCK * BLOCK


class OpenSlab:
    """A slab that this process writes. Counts its users, and closes itself when it is retired and the last one leaves.

    Users are writes under way and extents not yet committed: until those are settled the lock must stay."""

    def __init__(self, handle: SlabHandle, allowance: Allowance) -> None:
        self.slab = handle.slab
        self.kind = handle.kind
        self.broken = False
        self._data = handle.data_fd
        self._sidecar = handle.sidecar_fd
        self._lock = threading.Lock()
        self._users = 0
        self._retired = False
        self._reserved = 0
        self._kept = 0
        """Where the bytes end that the index lists, or may list."""
        self._lost: list[Extent] = []
        self._allowance = allowance
        self._space = threading.Lock()
        self._blocks = blocks_of(self._data, self._sidecar)

    def enter(self, times: int = 1) -> bool:
        """Become a user, `times` over; False if the slab is retired, or was deleted under us (then ask for another)."""
        with self._lock:
            if self._retired or not os.fstat(self._data).st_nlink:
                return False
            self._users += times
            return True

    def revive(self) -> bool:
        """Take back `retire`, if the slab still has users and did not fail: else it is closed by now, or soon."""
        with self._lock:
            if self._retired and self._users and not self.broken:
                self._retired = False
            return not self._retired

    @property
    def closed(self) -> bool:
        with self._lock:
            return self._retired and not self._users

    def leave(self, times: int = 1) -> None:
        with self._lock:
            self._users -= times
            if self._retired and self._users == 0:
                self._close()

    def retire(self) -> None:
        """No more users. Does nothing the second time."""
        with self._lock:
            if not self._retired:
                self._retired = True
                if self._users == 0:
                    self._close()

    def reserve(self, offset: int, length: int) -> None:
        """See to it that a later write there cannot fail for lack of space. Raises OSError, and StoreFull before
        anything is written."""
        end = offset + length
        if self.kind is SlabKind.FILE:
            self._allocate(offset, length)
            return
        with self._lock:
            if end > self._reserved:
                self._reserve_to(end)

    def _reserve_to(self, end: int) -> None:
        start = self._reserved
        step = min(RESERVE, max(FIRST_RESERVE, start))
        ahead = min(SHARED_SIZE, start + max(1, -(-(end - start) // step)) * step)
        try:
            self._allocate(start, ahead - start)
        except StoreFull:
            ahead = align(end)  # nearly full: what is needed may still fit
            self._allocate(start, ahead - start)
        self._reserved = ahead

    def _allocate(self, offset: int, length: int) -> None:
        self._allowance.take(length)
        try:
            os.posix_fallocate(self._data, offset, length)
        except OSError as error:
            if error.errno in NO_SPACE:
                full = StoreFull(str(store_failure(f"no {length} bytes for slab {self.slab}", error)))
                self._allowance.refuse(length, full)
                raise full from error
            raise
        finally:
            self._allowance.done(length)
            self.note_space()

    def note_space(self) -> None:
        """Tell by how much the slab grew on the disk since it was last noted."""
        with self._space:
            if self._data < 0:  # closed; then it was told
                return
            now = blocks_of(self._data, self._sidecar)
            self._allowance.changed(now - self._blocks)
            self._blocks = now

    def write(self, data: Bytes, offset: int) -> None:
        """Raises OSError."""
        view = memoryview(data)
        while view:
            done = os.pwrite(self._data, view, offset)
            view, offset = view[done:], offset + done

    def read(self, offset: int, into: memoryview) -> None:
        """Raises OSError, also where the file ends early."""
        done = 0
        while done < len(into):
            more = os.preadv(self._data, [into[done:]], offset + done)
            if not more:
                raise OSError(errno.EIO, f"slab {self.slab} ends before {offset + len(into)}")
            done += more

    def write_all(self, buffers: Sequence[Bytes], offset: int) -> None:
        """Write `buffers` one after the other. Raises OSError."""
        if os.pwritev(self._data, buffers, offset) == sum(map(len, buffers)):
            return
        for buffer in buffers:
            self.write(buffer, offset)
            offset += len(buffer)

    def append_sidecar(self, extents: Sequence[Extent]) -> None:
        """Raises OSError; half a record may be there then, so nothing may be appended after it."""
        raw = sidecar.encode_records(extents)
        while raw:
            raw = raw[os.write(self._sidecar, raw) :]

    def keep(self, extents: Sequence[Extent]) -> None:
        """The index lists these, or may list them: their bytes stay."""
        with self._lock:
            self._kept = max(self._kept, *(extent.offset + extent.length for extent in extents))
            if self._lost and self.kind is SlabKind.FILE:  # there, what was lost may have been written again
                kept = {extent.offset for extent in extents}
                self._lost = [extent for extent in self._lost if extent.offset not in kept]

    def lose(self, extents: Sequence[Extent]) -> None:
        """The index does not list these and never will: their space is given back when the slab is closed."""
        with self._lock:
            self._lost += extents

    def listed(self) -> list[Extent]:
        """What the sidecar lists. Reads all of it."""
        return list(sidecar.scan(self._sidecar))

    def sync(self) -> None:
        """Data and sidecar are on disk when this returns. Raises OSError."""
        os.fdatasync(self._data)
        os.fdatasync(self._sidecar)
        self.note_space()

    def _close(self) -> None:
        with contextlib.suppress(OSError):  # the reserved space is given back at the next start (trim)
            if self.kind is SlabKind.SHARED and self._reserved:
                os.ftruncate(self._data, self._kept)
            elif self.kind is SlabKind.FILE:
                for start, end in whole_blocks(self._lost):
                    punch(self._data, start, end - start)
        self.note_space()
        with self._space:
            os.close(self._data)
            os.close(self._sidecar)
            self._data = -1


def whole_blocks(extents: Sequence[Extent]) -> list[tuple[int, int]]:
    """The blocks (start, end) that nothing but these extents lies in; neighbours are taken together."""
    runs: list[tuple[int, int]] = []
    for _, offset, length, _ in sorted(extents):
        if runs and runs[-1][1] >= offset:
            runs[-1] = (runs[-1][0], max(runs[-1][1], offset + length))
        else:
            runs.append((offset, offset + length))
    blocks = [(align(start), end // BLOCK * BLOCK) for start, end in runs]
    return [(start, end) for start, end in blocks if start < end]


def punch(fd: int, offset: int, length: int) -> None:
    """Give whole blocks back to the file system; they read as zeros. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, PUNCH_HOLE, ctypes.c_int64(offset), ctypes.c_int64(length)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def make_slab(path: Path, header: sidecar.SidecarHeader) -> SlabHandle:
    """Make an empty slab and its sidecar, locked; both names are on disk when this returns. Raises OSError, and leaves
    nothing then."""
    fds: list[int] = []
    try:
        for name in (path, sidecar_path(path)):
            append = os.O_APPEND if name != path else 0
            fds.append(os.open(name, _FLAGS | os.O_CREAT | os.O_EXCL | append, _MODE))
        data, side = fds
        fcntl.flock(data, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(data, header.size)
        os.write(side, sidecar.encode_header(header))
        sync_path(path.parent)
    except OSError:
        for fd, name in zip(fds, (path, sidecar_path(path))):
            os.close(fd)
            name.unlink()
        raise
    return SlabHandle(header.slab, header.kind, header.size, data, side)


def reopen_slab(path: Path, slab: int, kind: SlabKind, size: int) -> SlabHandle | None:
    """An existing file slab to go on writing; None if somebody writes it now, it is not there, its length is not the
    file's any more, or its sidecar is damaged."""
    fds: list[int] = []
    try:
        fds.append(os.open(path, _FLAGS))
        fcntl.flock(fds[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        fds.append(os.open(sidecar_path(path), _FLAGS | os.O_APPEND))
        length = os.fstat(fds[1]).st_size  # a writer that was killed may have left half a record
        if not os.fstat(fds[0]).st_nlink:  # removed before the lock was ours
            raise Corrupt(f"{path} was removed")
        if os.fstat(fds[0]).st_size != size or sidecar.read_header(fds[1]).slab != slab:
            raise Corrupt(f"{path} is not the slab that it should be")
        os.ftruncate(fds[1], length - (length - sidecar.HEADER_SIZE) % sidecar.RECORD_SIZE)
    except (OSError, Corrupt):
        for fd in fds:
            os.close(fd)
        return None
    return SlabHandle(slab, kind, size, *fds)


def trim(data_dir: DataDir) -> None:
    """Give back the space that shared slabs of a killed writer still reserve. Bytes that a sidecar lists stay.

    Only a slab whose length is a multiple of the least step can have any; one with a living writer is locked."""
    for path in data_dir.slabs.glob("S-*.slab"):
        size = path.stat().st_size
        if size and size % FIRST_RESERVE == 0:
            with contextlib.suppress(OSError, Corrupt):
                _trim_one(path, size)


def _trim_one(path: Path, size: int) -> None:
    with path.open("r+b") as data, sidecar_path(path).open("rb") as side:
        fcntl.flock(data, fcntl.LOCK_EX | fcntl.LOCK_NB)
        extents = list(sidecar.scan(side.fileno()))
        if len(extents) < (os.fstat(side.fileno()).st_size - sidecar.HEADER_SIZE) // sidecar.RECORD_SIZE:
            return  # a record is damaged: what it listed may lie at the end, and in the index
        used = max((extent.offset + extent.length for extent in extents), default=0)
        if used < size:
            os.ftruncate(data.fileno(), used)


def blocks_of(*fds: int) -> int:
    """Disk space of open files, as `du` counts it."""
    return sum(os.fstat(fd).st_blocks for fd in fds) * 512
