"""openat2(2): opening files that lie beneath a directory for certain, whatever their path says and whoever renames
things meanwhile. Linux 5.6; Python has no call of its own for it.
"""

import ctypes
import errno
import os

from hoard_p2p.errors import Unavailable

_OPENAT2 = 437
"""The same on all machines (linux/include/uapi/asm-generic/unistd.h)."""

_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08  # linux/openat2.h, RESOLVE_*
_TRIES = 16
"""EAGAIN: something was renamed while the kernel walked the path."""


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True)


def open_beneath(directory: int, path: bytes, flags: int) -> int:
    """A descriptor of `path`, relative to the open `directory` and beneath it, no symbolic link on the way.

    Raises OSError: EXDEV for a path that leads out, ELOOP for one over a symbolic link. Raises Unavailable if the
    kernel or a sandbox does not have the call.
    """
    how = _OpenHow(flags | os.O_CLOEXEC, 0, _BENEATH | _NO_MAGICLINKS | _NO_SYMLINKS)
    for _ in range(_TRIES):
        fd: int = _libc.syscall(
            ctypes.c_long(_OPENAT2), ctypes.c_int(directory), ctypes.c_char_p(path), ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )  # fmt: skip
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            break
    if code == errno.ENOSYS:
        raise Unavailable(
            "directories cannot be read as origins here: the kernel has no openat2 (Linux 5.6), or a sandbox forbids it"
        )
    raise OSError(code, os.strerror(code), os.fsdecode(path))
