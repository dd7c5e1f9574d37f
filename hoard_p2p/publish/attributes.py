"""Extended attributes of an open file or directory: which are kept, which only counted."""

import os
from errno import ENODATA, ENOTSUP, EPERM
from typing import NamedTuple

KEPT = "user."

_EVERYWHERE = frozenset({"security.selinux", "security.SMACK64", "security.ima", "security.evm"})
"""Set by the machine on every file: no loss worth a word."""

_FOREIGN = (
    "system.nfs4_",
    "system.cifs_",
    "system.smb3_",
    "system.ntfs_",
    "lustre.",
    "trusted.lov",
    "trusted.lma",
    "trusted.lmv",
    "trusted.link",
    "trusted.som",
    "trusted.hsm",
    "trusted.overlay.",
    "ceph.",
    "gluster",
    "trusted.gfid",
    "trusted.glusterfs.",
    "btrfs.",
)
"""How file systems show their own state; likewise."""


class Attributes(NamedTuple):
    """`kept`: (name, value) sorted by name. `others`: names of attributes that a snapshot does not keep."""

    kept: tuple[tuple[bytes, bytes], ...] = ()
    others: tuple[str, ...] = ()


NONE = Attributes()


def read_attributes(fd: int) -> Attributes:
    """The attributes of the file behind `fd`. A file system without attributes has none. Raises OSError."""
    try:
        names = os.listxattr(fd)
    except OSError as error:
        if error.errno in (ENOTSUP, EPERM):
            return NONE
        raise
    return _read_named(fd, names) if names else NONE


def _read_named(fd: int, names: list[str]) -> Attributes:
    kept = []
    for name in names:
        if name.startswith(KEPT):
            try:
                kept.append((os.fsencode(name), os.getxattr(fd, name)))
            except OSError as error:
                if error.errno != ENODATA:  # removed meanwhile: the change of ctime has the file read again
                    raise
    others = (name for name in names if not name.startswith(KEPT) and name not in _EVERYWHERE)
    return Attributes(tuple(sorted(kept)), tuple(name for name in others if not name.startswith(_FOREIGN)))
