"""A writable FUSE file system that remembers every change, to stand under a real store (`powerdisk` has the model).

It lives in memory and is served by one thread of the tests' process, so nothing in this process may touch the mount;
whoever uses it is a process of its own. Descriptors are not direct-io, so that LMDB can map its files; there is no
write-back cache, so each `write` is in the log when it returns. `user.mark` set on the root is a `Mark`.
"""

import ctypes
import errno
import os
import select
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import TypeVar

from hoard_p2p.errors import HoardError
from hoard_p2p.mount import kernel
from hoard_p2p.mount.attach import detach_aborting, open_device
from hoard_p2p.mount.connection import shake_hands
from hoard_p2p.mount.kernel import Can, Op
from tests.fault.powerdisk import (
    BLOCK,
    ROOT,
    Allocate,
    Change,
    Create,
    Disk,
    Entry,
    Log,
    Mark,
    Node,
    Punch,
    Rename,
    Sync,
    Truncate,
    Unlink,
    Write,
)

MARK = b"user.mark"
FILE_SYSTEM = b"fuse.hoard-power"
BIG_WRITES = Can(1 << 5)
WANTED = Can.ASYNC_READ | Can.MAX_PAGES | Can.INIT_EXT | Can.NO_OPENDIR_SUPPORT | BIG_WRITES
SIZE_ATTRIBUTE = 1 << 3
MODE_ATTRIBUTE = 1 << 0
KEEP_SIZE, PUNCH_HOLE = 1, 2
RENAME_NOREPLACE = 1
BLOCKS = 60 << 18
"""Of the disk, in all: 60 GiB; it is never full."""

# Source: include/uapi/linux/fuse.h, as in mount.kernel.
WRITE_IN = Struct("<QQIIQII")  # fh, offset, size, write_flags, lock_owner, flags, padding
WRITE_OUT = Struct("<II")
SETATTR_IN = Struct("<IIQQQQQQIIIIIIII")  # valid, padding, fh, size, lock_owner, three times, their ns, mode ...
FALLOCATE_IN = Struct("<QQQII")  # fh, offset, length, mode, padding
RENAME2_IN = Struct("<QII")
CREATE_IN = Struct("<IIII")  # flags, mode, umask, open_flags
MKDIR_IN = Struct("<II")
SETXATTR_IN = Struct("<II")  # size, flags
LINK_TIME = 3600


class PowerFs:
    """The server. `log` is complete once whoever used the mount has ended."""

    def __init__(self, device_fd: int) -> None:
        self._device_fd = device_fd
        self._disk = Disk()
        self._next = ROOT + 1
        self.entries: list[Entry] = []
        self.failed: BaseException | None = None
        self._handlers: dict[int, Callable[[int, memoryview], bytes]] = {
            Op.LOOKUP: self._lookup, Op.GETATTR: self._getattr, Op.SETATTR: self._setattr, Op.MKDIR: self._mkdir,
            Op.UNLINK: self._unlink, Op.RMDIR: self._unlink, Op.RENAME: self._rename, Op.RENAME2: self._rename2,
            Op.OPEN: self._open, Op.CREATE: self._create, Op.READ: self._read, Op.WRITE: self._write,
            Op.STATFS: self._statfs, Op.RELEASE: self._nothing, Op.FSYNC: self._sync, Op.FSYNCDIR: self._sync,
            Op.READDIR: self._readdir, Op.FALLOCATE: self._fallocate, Op.SETXATTR: self._setxattr,
            Op.DESTROY: self._nothing,
        }  # fmt: skip

    @property
    def log(self) -> Log:
        if self.failed is not None:
            raise self.failed
        return Log(list(self.entries))

    def serve(self) -> None:
        """Until the mount ends."""
        buffer = bytearray(kernel.READ_BUFFER)
        view = memoryview(buffer)
        poll = select.poll()
        poll.register(self._device_fd, select.POLLIN)
        while True:
            try:
                count = os.readv(self._device_fd, [buffer])
            except BlockingIOError:
                poll.poll()
                continue
            except OSError as error:
                if error.errno in (errno.ENODEV, errno.EBADF):
                    return
                if error.errno in (errno.ENOENT, errno.EINTR):
                    continue
                raise
            self._answer(view[:count])

    def _answer(self, request: memoryview) -> None:
        _, opcode, unique, node, *_ = kernel.IN_HEADER.unpack_from(request)
        if opcode in (Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT):
            return
        handler = self._handlers.get(opcode)
        code, reply = 0, b""
        try:
            if handler is None:
                code = -errno.ENOSYS
            else:
                reply = handler(node, request[kernel.IN_HEADER.size :])
        except OSError as error:
            code = -(error.errno or errno.EIO)
        except Exception as error:  # noqa: BLE001  # shown by the test; the one who asked must not hang
            self.failed = self.failed or error
            code = -errno.EIO
        with suppress(FileNotFoundError):  # who asked was killed
            os.writev(
                self._device_fd, [kernel.OUT_HEADER.pack(kernel.OUT_HEADER.size + len(reply), code, unique), reply]
            )

    def _change(self, change: Change) -> None:
        self._disk.apply(change)
        self.entries.append(change)

    # --- names

    def _child(self, folder: int, name: bytes) -> int:
        found = self._disk.nodes[folder].names.get(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such name")
        return found

    def _lookup(self, folder: int, body: memoryview) -> bytes:
        return self._entry(self._child(folder, _name(body)))

    def _new(self, folder: int, name: bytes, mode: int, is_folder: bool) -> int:
        if name in self._disk.nodes[folder].names:
            raise FileExistsError(errno.EEXIST, "there")
        node, self._next = self._next, self._next + 1
        self._change(Create(folder, name, node, stat.S_IMODE(mode), is_folder))
        return node

    def _mkdir(self, folder: int, body: memoryview) -> bytes:
        mode, _ = MKDIR_IN.unpack_from(body)
        return self._entry(self._new(folder, _name(body[MKDIR_IN.size :]), mode, True))

    def _create(self, folder: int, body: memoryview) -> bytes:
        flags, mode, *_ = CREATE_IN.unpack_from(body)
        name = _name(body[CREATE_IN.size :])
        node = self._disk.nodes[folder].names.get(name)
        if node is None:
            node = self._new(folder, name, mode, False)
        elif flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, "there")
        return self._entry(node) + self._open(node, body)

    def _open(self, node: int, body: memoryview) -> bytes:
        return kernel.OPEN_OUT.pack(node, int(kernel.Fopen.KEEP_CACHE), 0)

    def _unlink(self, folder: int, body: memoryview) -> bytes:
        name = _name(body)
        if self._disk.nodes[self._child(folder, name)].names:
            raise OSError(errno.ENOTEMPTY, "not empty")
        self._change(Unlink(folder, name))
        return b""

    def _rename(self, folder: int, body: memoryview) -> bytes:
        (to_folder,) = struct.unpack_from("<Q", body)
        return self._move(folder, to_folder, body[8:])

    def _rename2(self, folder: int, body: memoryview) -> bytes:
        to_folder, flags, _ = RENAME2_IN.unpack_from(body)
        names = body[RENAME2_IN.size :]
        if flags & ~RENAME_NOREPLACE:
            raise OSError(errno.EINVAL, "no such rename here")
        if flags and bytes(names).split(b"\0")[1] in self._disk.nodes[to_folder].names:
            raise FileExistsError(errno.EEXIST, "there")
        return self._move(folder, to_folder, names)

    def _move(self, folder: int, to_folder: int, names: memoryview) -> bytes:
        old, new, *_ = bytes(names).split(b"\0")
        self._child(folder, old)
        self._change(Rename(folder, old, to_folder, new))
        return b""

    def _readdir(self, folder: int, body: memoryview) -> bytes:
        _, offset, size = kernel.READ_IN.unpack_from(body)
        out = bytearray()
        names = [(b".", folder), (b"..", ROOT), *self._disk.nodes[folder].names.items()]
        for ordinal, (name, node) in enumerate(names[offset:], offset + 1):
            kind = 4 if self._disk.nodes[node].is_folder else 8
            raw = kernel.DIRENT_HEAD.pack(node, ordinal, len(name), kind) + name
            raw += bytes(-len(raw) % 8)
            if len(out) + len(raw) > size:
                break
            out += raw
        return bytes(out)

    # --- attributes

    def _attributes(self, node: int) -> tuple[int, ...]:
        known = self._disk.nodes[node]
        kind = stat.S_IFDIR if known.is_folder else stat.S_IFREG
        links = 2 if known.is_folder else known.links
        blocks = len(known.reserved) * (BLOCK // 512)
        return (
            node,
            known.size,
            blocks,
            0,
            0,
            0,
            0,
            0,
            0,
            kind | known.mode,
            links,
            os.getuid(),
            os.getgid(),
            0,
            BLOCK,
            0,
        )

    def _entry(self, node: int) -> bytes:
        return kernel.ENTRY_OUT.pack(node, 0, LINK_TIME, 0, 0, 0, *self._attributes(node))

    def _getattr(self, node: int, body: memoryview) -> bytes:
        return kernel.ATTR_OUT.pack(0, 0, 0, *self._attributes(node))

    def _setattr(self, node: int, body: memoryview) -> bytes:
        fields = SETATTR_IN.unpack_from(body)
        if fields[0] & SIZE_ATTRIBUTE:
            self._change(Truncate(node, fields[3]))
        if fields[0] & MODE_ATTRIBUTE:
            self._disk.nodes[node].mode = stat.S_IMODE(fields[11])
        return self._getattr(node, body)

    def _setxattr(self, node: int, body: memoryview) -> bytes:
        size, _ = SETXATTR_IN.unpack_from(body)
        name = _name(body[SETXATTR_IN.size :])
        if name != MARK:
            raise OSError(errno.ENOTSUP, "no attributes here")
        start = SETXATTR_IN.size + len(name) + 1
        self.entries.append(Mark(bytes(body[start : start + size])))
        return b""

    # --- bytes

    def _file(self, node: int) -> Node:
        return self._disk.nodes[node]

    def _read(self, node: int, body: memoryview) -> bytes:
        _, offset, size = kernel.READ_IN.unpack_from(body)
        return self._file(node).read(offset, size)

    def _write(self, node: int, body: memoryview) -> bytes:
        _, offset, size, *_ = WRITE_IN.unpack_from(body)
        self._change(Write(node, offset, bytes(body[WRITE_IN.size : WRITE_IN.size + size])))
        return WRITE_OUT.pack(size, 0)

    def _fallocate(self, node: int, body: memoryview) -> bytes:
        _, offset, length, mode, _ = FALLOCATE_IN.unpack_from(body)
        if mode & PUNCH_HOLE:
            self._change(Punch(node, offset, length))
        elif mode & ~KEEP_SIZE:
            raise OSError(errno.EOPNOTSUPP, "no such fallocate here")
        else:
            self._change(Allocate(node, offset, length, bool(mode & KEEP_SIZE)))
        return b""

    def _sync(self, node: int, body: memoryview) -> bytes:
        self.entries.append(Sync(node))
        return b""

    def _statfs(self, node: int, body: memoryview) -> bytes:
        used = sum(len(known.reserved) for known in self._disk.nodes.values())
        free = BLOCKS - used
        return kernel.STATFS_OUT.pack(BLOCKS, free, free, 1 << 20, 1 << 20, BLOCK, 255, BLOCK)

    def _nothing(self, node: int, body: memoryview) -> bytes:
        return b""


F = TypeVar("F", bound=PowerFs)


@contextmanager
def powered(mountpoint: Path) -> Iterator[PowerFs]:
    with served(mountpoint, PowerFs) as server:
        yield server


@contextmanager
def served(mountpoint: Path, kind: Callable[[int], F]) -> Iterator[F]:
    """The file system, mounted on an empty directory until the block ends. Needs root."""
    device_fd = open_device()
    os.set_blocking(device_fd, False)
    options = f"fd={device_fd},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"hoard-power", os.fsencode(mountpoint), FILE_SYSTEM, ctypes.c_ulong(6), options.encode()):
        os.close(device_fd)
        raise OSError(ctypes.get_errno(), f"cannot mount: {os.strerror(ctypes.get_errno())}")
    try:
        shake_hands(device_fd, WANTED)
        server = kind(device_fd)
        thread = threading.Thread(target=server.serve, name="power-fs")
        thread.start()
        try:
            yield server
        finally:
            _end(mountpoint, thread)
    finally:
        os.close(device_fd)


def _end(mountpoint: Path, thread: threading.Thread) -> None:
    end = time.monotonic() + 10
    while thread.is_alive() and time.monotonic() < end:
        with suppress(HoardError):
            detach_aborting(mountpoint)
        thread.join(0.2)
    assert not thread.is_alive()


def _name(body: memoryview) -> bytes:
    return bytes(body).split(b"\0", 1)[0]
