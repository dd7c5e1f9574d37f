"""A disk that answers with errors: `powerfs`, of which single operations on single files can be made to fail.

For real stores and real nodes, which are processes of their own: what LMDB and the kernel make of an error is real.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct

from hoard_p2p.mount.kernel import Op
from tests.fault.powerdisk import Change
from tests.fault.powerfs import CREATE_IN, FALLOCATE_IN, PUNCH_HOLE, WRITE_IN, PowerFs, served

WRITE, SYNC, RESERVE, CREATE = Op.WRITE, Op.FSYNC, Op.FALLOCATE, Op.CREATE
ANY = (WRITE, SYNC, RESERVE, CREATE)
DATA, SIDECARS, JOURNAL, INDEX, PROBE = b".slab", b".side", b"journal", b"data.mdb", b"probe"
MKNOD_IN = Struct("<IIII")  # mode, rdev, umask, padding
MODE_FIELD = 9
ROOTS_END = 2 * os.sysconf("SC_PAGE_SIZE")
"""Where LMDB's two meta pages end."""

Handler = Callable[[int, memoryview], bytes]


class FailingDisk(PowerFs):
    """What was told to fail does so until `mend`. `hits` counts what failed."""

    def __init__(self, device_fd: int) -> None:
        super().__init__(device_fd)
        self._faults: dict[tuple[int, bytes], int] = {}
        self._root_fault = 0
        self.hits = 0
        self._sockets: set[int] = set()
        self._handlers[Op.MKNOD] = self._make_socket
        self._handlers |= {operation: self._guarded(operation, self._handlers[operation]) for operation in ANY}

    def fail(self, number: int, name: bytes, *operations: int) -> None:
        """Writes, fdatasync, fallocate (never a punch) or the making of files whose names end in `name`."""
        self._faults |= {(operation, name): number for operation in operations}

    def fail_roots(self, number: int) -> None:
        """Writes of LMDB's meta pages, and nothing else."""
        self._root_fault = number

    def mend(self) -> None:
        self._faults, self._root_fault = {}, 0

    def _guarded(self, operation: int, handler: Handler) -> Handler:
        def guarded(node: int, body: memoryview) -> bytes:
            if number := self._fault(operation, node, body):
                self.hits += 1
                raise OSError(number, os.strerror(number))
            return handler(node, body)

        return guarded

    def _fault(self, operation: int, node: int, body: memoryview) -> int:
        if not self._faults and not self._root_fault:
            return 0
        if operation == RESERVE and FALLOCATE_IN.unpack_from(body)[3] & PUNCH_HOLE:
            return 0
        name = bytes(body[CREATE_IN.size :]).split(b"\0", 1)[0] if operation == CREATE else self._name_of(node)
        if operation == WRITE and name == INDEX and WRITE_IN.unpack_from(body)[1] < ROOTS_END and self._root_fault:
            return self._root_fault
        return next((n for (which, end), n in self._faults.items() if which == operation and name.endswith(end)), 0)

    def _name_of(self, node: int) -> bytes:
        folders = (known.names for known in self._disk.nodes.values())
        return next((name for names in folders for name, number in names.items() if number == node), b"")

    def _make_socket(self, folder: int, body: memoryview) -> bytes:
        mode, *_ = MKNOD_IN.unpack_from(body)
        if not stat.S_ISSOCK(mode):
            raise OSError(errno.EPERM, "no such file here")
        node = self._new(folder, bytes(body[MKNOD_IN.size :]).split(b"\0", 1)[0], mode, False)
        self._sockets.add(node)
        return self._entry(node)

    def _attributes(self, node: int) -> tuple[int, ...]:
        fields = list(super()._attributes(node))
        if node in self._sockets:
            fields[MODE_FIELD] = stat.S_IFSOCK | stat.S_IMODE(fields[MODE_FIELD])
        return tuple(fields)

    def _change(self, change: Change) -> None:
        self._disk.apply(change)  # and no log of it


@contextmanager
def failing_disk(mountpoint: Path) -> Iterator[FailingDisk]:
    """Mounted on an empty directory until the block ends. Needs root."""
    with served(mountpoint, FailingDisk) as disk:
        yield disk
    if disk.failed is not None:
        raise disk.failed
