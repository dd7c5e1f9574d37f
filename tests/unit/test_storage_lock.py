"""The lock of a data directory where its file cannot be written any more."""

import fcntl
import os
from pathlib import Path

from hoard_p2p.storage.lock import NodeLock


def test_a_lock_is_released_although_its_file_cannot_be_emptied() -> None:
    """As on a disk that turned read-only under the node: a sealed memfd refuses the same call."""
    fd = os.memfd_create("lock", os.MFD_ALLOW_SEALING)
    try:
        path = Path(f"/proc/self/fd/{fd}")
        lock = NodeLock(path)
        assert os.pread(fd, 32, 0).strip() == b"%d" % os.getpid()
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        lock.release()
        other = os.open(path, os.O_RDWR)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
    finally:
        os.close(fd)
