"""The descriptors of a mount, taken from one of its workers: what a node would have kept copies of."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hoard_p2p.mount.shared import MountFds

_PIDFD_GETFD = 438
"""The number of pidfd_getfd(2) on every machine."""


@contextmanager
def borrowed(worker: int) -> Iterator[MountFds]:
    """Copies, in this process, of what the worker with that pid holds."""
    pidfd = os.pidfd_open(worker)
    ours: list[int] = []
    try:
        ours += [_copy(pidfd, theirs) for theirs in _descriptors(worker)]
        yield MountFds.of(ours)
    finally:
        for fd in [*ours, pidfd]:
            os.close(fd)


def _copy(pidfd: int, fd: int) -> int:
    got = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, pidfd, fd, 0)
    if got < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return int(got)


def _descriptors(pid: int) -> list[int]:
    """In the order of `MountFds.all`: it is the order in which a supervisor makes them."""
    links = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            links[int(entry.name)] = os.readlink(entry)

    def of(end: str) -> list[int]:
        return sorted(fd for fd, link in links.items() if end in link)

    return [*of("/fuse"), of("/memfd:hoard-mount-")[0], of("/catalog")[0], *of("[eventfd]")[:2]]
