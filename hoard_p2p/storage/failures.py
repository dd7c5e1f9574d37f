"""What the disk's errors mean to a user, and what to do about them."""

import errno

from hoard_p2p.errors import StoreFailed, StoreFull

_FULL = {
    errno.ENOSPC: "the disk is full; make room on it, or free some with hoard rm",
    errno.EDQUOT: "the disk quota of this user is used up",
    errno.EFBIG: "a file would grow beyond a limit (ulimit -f, or the file system's)",
}
_ILL = {
    errno.EROFS: "the disk is read-only: mounted so, or after an error (dmesg tells); mount it for writing",
    errno.EIO: "the disk reports an I/O error (dmesg tells); the disk, or its file system, needs repair",
    errno.EACCES: "this user may not write there",
    errno.EPERM: "this user may not write there",
}


def store_failure(what: str, error: OSError) -> StoreFailed:
    """`error` as a failure of the store: StoreFull where there is no room. `what` went wrong: "no new slab in /x"."""
    number = error.errno or 0
    if number in _FULL:
        return StoreFull(f"{what}: {_FULL[number]}")
    return StoreFailed(f"{what}: {_ILL.get(number) or error}")
