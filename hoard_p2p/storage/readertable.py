"""LMDB's lock file, whose table tells the writer what is still read: whether it may be used, and who fills it."""

import errno
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

_TABLE_AT = 128
"""Where the entries begin in LMDB's lock file (mdb.c: MDB_txninfo, two cache lines of header; entries of one line each
with the transaction, then the pid). Read for messages alone."""


def require_lock(path: Path) -> None:
    """Raises OSError if `lock.mdb` may not be written to. On a read-only file system LMDB would go on without it, and
    nobody would know of this reader."""
    lock = path / "lock.mdb"
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(lock))
    if not os.access(lock, os.R_OK | os.W_OK):
        raise OSError(errno.EACCES, "its lock file may not be written to", os.fspath(lock))


def no_space(size: int, least: int) -> str:
    """What a map of the index takes."""
    return (
        f"address space is limited: its map takes {size >> 20:,} MiB, in a node at least {least >> 20:,} MiB, "
        "beside about 1,000 MiB for Python; raise ulimit -v (ulimit -v unlimited, LimitAS=infinity of systemd)"
    )


def table_full(path: Path) -> str:
    """What a full reader table means, and whose the entries are. As `entries`."""
    with suppress(OSError):
        return holders(entries(path))
    return holders([])


def entries(path: Path) -> list[int]:
    """For each entry of the reader table of the index in directory `path` its process, as that one's namespace has it.
    Only for a process that has not opened the index: to close the lock file here would give its entries up. Raises
    OSError."""
    table = (path / "lock.mdb").read_bytes()[_TABLE_AT:]
    pids = (int.from_bytes(table[at + 8 : at + 12], "little") for at in range(0, len(table) - 63, 64))
    return [pid for pid in pids if pid]


def holders(pids: list[int]) -> str:
    """What to say of a full reader table whose entries are of these processes."""
    shown = ", ".join(f"pid {pid} ({count:,}{_command(pid)})" for pid, count in Counter(pids).most_common(3))
    return f"its reader table is full, {len(pids):,} entries; most are held by: {shown or 'unknown'}; end some of them"


def _command(pid: int) -> str:
    with suppress(OSError):
        return ", " + Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
