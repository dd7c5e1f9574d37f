"""Opening LMDB's environment of the index, and keeping room on the disk for its next pages."""

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import lmdb

from hoard_p2p.errors import Refused, StoreFailed
from hoard_p2p.storage.failures import store_failure
from hoard_p2p.storage.punching import reserve
from hoard_p2p.storage.readertable import no_space, require_lock, table_full

MAX_READERS = 4096
LOCK_SIZE = 192 + 64 * (MAX_READERS - 1)
"""Bytes of LMDB's lock file (mdb.c: MDB_txninfo, and one line for each further reader)."""
MOST_TABLES = 32
MIN_MAP = 64 << 30
LEAST_MAP = 1 << 30
"""Where address space is limited the map is halved down to this, and no further."""
_REBUILD = "if it is damaged, hoard doctor --rebuild-index makes it again"
_ERRORS = (errno.EIO, errno.EROFS, errno.EFBIG, errno.EDQUOT, errno.ENOSPC)
"""What a disk answers that LMDB passes on as text alone."""


def map_size(path: Path) -> int:
    """Bytes of address space for the index in directory `path`: 1/16 of its disk, at least 64 GiB. The file is sparse,
    so this costs nothing until it is used."""
    disk = os.statvfs(path)
    return max(MIN_MAP, disk.f_blocks * disk.f_frsize // 16 // MIN_MAP * MIN_MAP)


def open_for_writing(path: Path, size: int) -> Any:
    """An environment with a map of `size` bytes, made if there is none. Raises StoreFailed."""
    wanted = size
    _fill_lock(path)
    while True:
        try:
            env = lmdb.open(os.fspath(path), map_size=size, mode=0o660, **_options())
            env.reader_check()
            return env
        except (lmdb.MemoryError, MemoryError) as error:  # address space is limited (RLIMIT_AS, some sandboxes)
            size //= 2
            if size < LEAST_MAP:
                raise StoreFailed(f"the index {path} cannot be opened: {no_space(wanted, LEAST_MAP)}") from error
        except lmdb.Error as error:
            raise unopened(path, error) from error


def _fill_lock(path: Path) -> None:
    """Have all blocks of the lock file on the disk: LMDB writes to it through a map, and on a full disk whoever meets a
    hole there is killed (SIGBUS). Before the environment is open: to close the file takes this process's locks of it.
    Raises StoreFailed."""
    try:
        fd = os.open(path / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        try:
            os.posix_fallocate(fd, 0, LOCK_SIZE)
        finally:
            os.close(fd)
    except OSError as error:
        raise store_failure(f"the index {path} cannot be opened", error) from error


def unopened(path: Path, error: lmdb.Error) -> StoreFailed:
    """What it means that it could not be."""
    if isinstance(error, lmdb.ReadersFullError):
        return StoreFailed(f"the index {path} cannot be opened: {table_full(path)}")
    number = errno_of(error)
    if number:
        return store_failure(f"the index {path} could not be opened", OSError(number, str(error)))
    return StoreFailed(f"the index {path} could not be opened: {error}; {_REBUILD}")


def open_for_reading(path: Path) -> Any:
    """Raises Refused, with the reason, where this process cannot: readers write to the index's lock file."""
    try:
        require_lock(path)
        return open_unlocked(path)
    except (lmdb.Error, MemoryError, OSError) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> Refused:
    """What it means to a reader that it could not be opened."""
    if isinstance(error, lmdb.ReadersFullError):
        return Refused(f"the index {path} cannot be read: {table_full(path)}")
    if isinstance(error, lmdb.MemoryError | MemoryError):
        return Refused(f"the index {path} cannot be read: {no_space(map_size(path), LEAST_MAP)}")
    return Refused(f"the index {path} cannot be opened by this process ({error})")


def open_unlocked(path: Path) -> Any:
    """As LMDB does by itself: on a disk that is read-only without entering the reader table, which only the process
    that alone may write the index can afford. Raises lmdb.Error."""
    return lmdb.open(os.fspath(path), map_size=0, readonly=True, create=False, **_options())


def errno_of(error: lmdb.Error) -> int:
    """What the disk answered, 0 if LMDB tells something else."""
    return next((number for number in _ERRORS if str(error).endswith(os.strerror(number))), 0)


def keep_ahead(path: Path, end: int, size: int) -> bool:
    """Have the disk set `size` bytes aside behind the first `end` of the index: pages that are written there need no
    more room. Whether there was room."""
    with contextlib.suppress(OSError):
        fd = os.open(path / "data.mdb", os.O_RDWR | os.O_CLOEXEC)
        try:
            reserve(fd, end, size)
            return True
        finally:
            os.close(fd)
    return False


def _options() -> dict[str, Any]:
    return {
        "subdir": True,
        "max_dbs": MOST_TABLES,
        "max_readers": MAX_READERS,
        "readahead": False,
        "meminit": False,
    }
