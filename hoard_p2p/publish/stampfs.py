"""How much a file system's time stamps and inode numbers say about its files (docs/formats.md, "Stamp files")."""

import ctypes
import os
from enum import Enum


class Trust(Enum):
    """`LOCAL`: equal stamps mean an equal file. `REMOTE`: after an open, which asks the server, and the server's clock
    may be another. `NONE`: they say too little (FAT, FUSE, unknown ones); every file is read."""

    LOCAL = "local"
    REMOTE = "remote"
    NONE = "none"


WINDOWS = {Trust.LOCAL: 2_000_000_000, Trust.REMOTE: 600_000_000_000}
"""Nanoseconds: a file whose stamps are younger than this when it is read may change again without another stamp.
2 s: ticks of the kernel's clock, and file systems that keep whole seconds. 10 min: what two machines' clocks differ."""

_KINDS = {
    0xEF53: Trust.LOCAL,  # ext2, ext3, ext4
    0x58465342: Trust.LOCAL,  # xfs
    0x9123683E: Trust.LOCAL,  # btrfs
    0x01021994: Trust.LOCAL,  # tmpfs
    0xF2F52010: Trust.LOCAL,  # f2fs
    0x2FC12FC1: Trust.LOCAL,  # zfs
    0xCA451A4E: Trust.LOCAL,  # bcachefs
    0x794C7630: Trust.LOCAL,  # overlayfs
    0x6969: Trust.REMOTE,  # nfs
    0x0BD00BD0: Trust.REMOTE,  # lustre
    0x00C36400: Trust.REMOTE,  # ceph
    0x47504653: Trust.REMOTE,  # gpfs
}
"""From linux/magic.h and the file systems' own sources."""

_STATFS_BYTES = 256
"""struct statfs takes 120 bytes on 64-bit machines; its first field is `f_type`, a long."""


class FileSystems:
    """Which devices a walk came across. For one thread."""

    def __init__(self) -> None:
        self._statfs = ctypes.CDLL(None, use_errno=True).fstatfs
        self._known: dict[int, Trust] = {}

    def look_at(self, fd: int) -> None:
        """An open directory on the way; asks once per device."""
        device = os.fstat(fd).st_dev
        if device not in self._known:
            self._known[device] = self._ask(fd)

    def trust(self, device: int) -> Trust:
        """How far the stamps of a file on this device go; not at all if no directory was on it."""
        return self._known.get(device, Trust.NONE)

    def _ask(self, fd: int) -> Trust:
        buffer = ctypes.create_string_buffer(_STATFS_BYTES)
        if self._statfs(fd, buffer):
            return Trust.NONE
        kind = ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF
        return _KINDS.get(kind, Trust.NONE)


def is_remote(fd: int) -> bool:
    """Whether an open directory is on a file system that other machines see, too."""
    systems = FileSystems()
    systems.look_at(fd)
    return systems.trust(os.fstat(fd).st_dev) is Trust.REMOTE
