"""Backing files of a passthrough mount: registered with the kernel, which then reads them by itself.

Facts of Linux 6.18 (fs/fuse/backing.c): ids are given out in ascending order, and start again after 2^31; an id keeps
its file, and the file's blocks on the disk, until it is closed or the mount ends, whoever registered it.
"""

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path

from hoard_p2p.mount.kernel import BACKING_CLOSE, BACKING_MAP, BACKING_OPEN
from hoard_p2p.mount.mountinfo import lines

_CAP_SYS_ADMIN = 1 << 21
_INITIAL_NAMESPACE = 0xEFFF_FFFD
"""Inode number of the first user namespace (PROC_USER_INIT_INO): rights in another one do not count here."""
_STACKED = ("overlay", "ecryptfs", "fuse.hoard")
_EFFECTIVE = re.compile(r"^CapEff:\s*([0-9a-f]+)$", re.MULTILINE)


class Backings:
    """Registers and closes backing files of one connection. Any of its descriptors does."""

    def __init__(self, device_fd: int) -> None:
        self._device_fd = device_fd

    def register(self, fd: int) -> int:
        """The backing id of the regular file behind `fd`, which may be closed afterwards. Raises OSError: EPERM without
        CAP_SYS_ADMIN, ELOOP on a stacked file system, EMFILE and others when there are too many."""
        request = bytearray(BACKING_MAP.pack(fd, 0, 0))  # bytes would be copied, and the kernel's answer be an error
        return int(fcntl.ioctl(self._device_fd, BACKING_OPEN, request, True))

    def close(self, backing_id: int) -> None:
        """Give an id back. Open files go on reading what it named; an id that is not there is no error."""
        with suppress(OSError):
            fcntl.ioctl(self._device_fd, BACKING_CLOSE, backing_id.to_bytes(4, "little"))


def obstacle(slabs: Path) -> str:
    """Empty if files in folder `slabs` can probably back a mount of this process; else why not and what to do."""
    if not _is_admin():
        return "it needs CAP_SYS_ADMIN outside of any user namespace: mount as root"
    kind = file_system(slabs)
    if kind in _STACKED:
        return f"the store lies on a stacked file system ({kind}): choose a --data-dir on a local disk or volume"
    return ""


def file_system(folder: Path) -> str:
    """The type of the file system that a folder lies on, empty if it is not known."""
    number = os.stat(folder).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    return next((line.file_system for line in reversed(lines()) if line.device == device), "")


def _is_admin() -> bool:
    try:
        found = _EFFECTIVE.search(Path("/proc/self/status").read_text())
        namespace = os.stat("/proc/self/ns/user").st_ino
    except OSError:
        return os.geteuid() == 0
    return found is not None and bool(int(found[1], 16) & _CAP_SYS_ADMIN) and namespace == _INITIAL_NAMESPACE
