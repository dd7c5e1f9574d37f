"""The entries of a directory tree, as an origin lists them: each once, in no order, symbolic links never followed.

Every directory is opened from its parent's descriptor, so nothing leads out of the root, whoever renames things
meanwhile, and paths may be longer than PATH_MAX. Memory is constant but for very deep trees.
"""

import os
import stat
import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from errno import EACCES, ELOOP, ENODATA, ENOENT, ENOTDIR, ENOTSUP, EPERM, ESTALE
from typing import NamedTuple

from hoard_p2p.objects import Kind, Listed

_VERSION = struct.Struct("<QqqQ")
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_GONE = frozenset({ENOENT, ESTALE, ENOTDIR, ELOOP})
"""What was listed is not there any more, or something else: what it is then is found by who lists again."""

OPEN_LEVELS = 64
"""So many directories are open at once, with two descriptors each; deeper ones wait, by their paths."""

SPECIAL = {
    stat.S_IFIFO: b"a named pipe",
    stat.S_IFSOCK: b"a socket",
    stat.S_IFCHR: b"a character device",
    stat.S_IFBLK: b"a block device",
}

MayRead = Callable[[os.stat_result], bool]


def version_of(status: os.stat_result) -> bytes:
    """What a file's version is: size, mtime, ctime and inode. All change ctime, also a new name or another mode."""
    return _VERSION.pack(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def version_text(version: bytes) -> str:
    """For people."""
    if len(version) != _VERSION.size:
        return version.hex()
    size, mtime, ctime, inode = _VERSION.unpack(version)
    return f"{size} bytes, mtime {mtime / 1e9:.6f}, ctime {ctime / 1e9:.6f}, inode {inode}"


def changed_at(version: bytes) -> float:
    """When the file changed last, by the clock of its file system, in seconds since the epoch: ctime, which no change
    leaves alone and nobody sets; 0 for what is no such version."""
    return float(_VERSION.unpack(version)[2] / 1e9) if len(version) == _VERSION.size else 0.0


def listed_tree(root: int, may_read: MayRead | None) -> Iterator[Listed]:
    """Everything beneath the open directory `root`, and the directory itself, with an empty path. `may_read`: None,
    the kernel's decision is enough. Raises OSError for the root alone."""
    fd = os.open(".", _OPEN_DIRECTORY, dir_fd=root)
    try:
        top = _entry(b"", Kind.DIRECTORY, os.fstat(fd), xattrs=_attributes(fd))
    finally:
        os.close(fd)
    yield top
    with closing(_Tree(root, may_read)) as tree:
        yield from tree.entries()


class _Level(NamedTuple):
    """A directory that is being read."""

    fd: int
    path: bytes
    names: Iterator[bytes]


class _Tree:
    def __init__(self, root: int, may_read: MayRead | None) -> None:
        self._root = root
        self._may_read = may_read
        self._levels: list[_Level] = []
        self._waiting = deque([b""])
        """Directories to begin at: the root, and what lies too deep to be read while all around it is open."""

    def close(self) -> None:
        while self._levels:
            os.close(self._levels.pop().fd)

    def entries(self) -> Iterator[Listed]:
        while self._waiting:
            path = self._waiting.popleft()
            try:
                self._enter(path, self._reopened(path))
            except OSError as error:
                if not path:
                    raise
                yield from _failed(path, error)
            while self._levels:
                yield from self._step(self._levels[-1])

    def _step(self, level: _Level) -> Iterator[Listed]:
        try:
            name = next(level.names, None)
        except OSError as error:  # of reading the directory
            yield from _failed(level.path, error)
            name = None
        if name is None:
            os.close(self._levels.pop().fd)
            return
        path = level.path + b"/" + name if level.path else name
        try:
            yield self._one(level.fd, path, name)
        except OSError as error:
            yield from _failed(path, error)

    def _enter(self, path: bytes, fd: int) -> None:
        self._levels.append(_Level(fd, path, _names(fd)))

    def _reopened(self, path: bytes) -> int:
        fd = os.dup(self._root)
        for name in path.split(b"/") if path else ():
            inner = -1
            try:
                inner = os.open(name, _OPEN_DIRECTORY, dir_fd=fd)
            finally:
                os.close(fd)
            fd = inner
        return fd

    def _one(self, parent: int, path: bytes, name: bytes) -> Listed:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            return self._directory(parent, path, name)
        if kind == stat.S_IFREG:
            return self._file(parent, path, name, status)
        if kind == stat.S_IFLNK:
            return _entry(path, Kind.SYMLINK, status, target=os.readlink(name, dir_fd=parent))
        return _entry(path, Kind.SPECIAL, status, target=SPECIAL.get(kind, b"of an unknown type"))

    def _directory(self, parent: int, path: bytes, name: bytes) -> Listed:
        fd = os.open(name, _OPEN_DIRECTORY, dir_fd=parent)
        kept = False
        try:
            status = os.fstat(fd)
            self._check(status)
            entry = _entry(path, Kind.DIRECTORY, status, xattrs=_attributes(fd))
            if len(self._levels) < OPEN_LEVELS:
                self._enter(path, fd)
                kept = True
            else:
                self._waiting.append(path)
        finally:
            if not kept:
                os.close(fd)
        return entry

    def _check(self, status: os.stat_result) -> None:
        if self._may_read is not None and not self._may_read(status):
            raise PermissionError(EACCES, os.strerror(EACCES))

    def _file(self, parent: int, path: bytes, name: bytes, status: os.stat_result) -> Listed:
        """Opened, so that one that cannot be read is known now, and what is told of it is of one moment."""
        self._check(status)
        fd = os.open(name, _OPEN_FILE, dir_fd=parent)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise FileNotFoundError(ENOENT, "replaced")
            link = b"%x:%x" % (status.st_dev, status.st_ino) if status.st_nlink > 1 else b""
            return _entry(path, Kind.FILE, status, link=link, xattrs=_attributes(fd))
        finally:
            os.close(fd)


def _names(fd: int) -> Iterator[bytes]:
    with os.scandir(fd) as entries:
        for entry in entries:
            yield os.fsencode(entry.name)


def _failed(path: bytes, error: OSError) -> Iterator[Listed]:
    if error.errno not in _GONE:
        yield unreadable(path, error)


def unreadable(path: bytes, error: OSError) -> Listed:
    """A file or directory that is there, and cannot be read."""
    return Listed(path, Kind.UNREADABLE, 0, 0, 0, b"", target=(error.strerror or str(error)).encode())


def _entry(
    path: bytes,
    kind: Kind,
    status: os.stat_result,
    *,
    target: bytes = b"",
    link: bytes = b"",
    xattrs: tuple[tuple[bytes, bytes], ...] = (),
) -> Listed:
    is_file = kind is Kind.FILE
    return Listed(
        path=path,
        kind=kind,
        size=status.st_size if is_file else 0,
        mtime=status.st_mtime_ns,
        mode=stat.S_IMODE(status.st_mode),
        version=version_of(status) if is_file else b"",
        uid=status.st_uid,
        gid=status.st_gid,
        target=target,
        link=link,
        xattrs=xattrs,
    )


def _attributes(fd: int) -> tuple[tuple[bytes, bytes], ...]:
    """Those of users, sorted by name; others are the machine's own."""
    try:
        names = [name for name in os.listxattr(fd) if name.startswith("user.")]
        return tuple(sorted((os.fsencode(name), os.getxattr(fd, name)) for name in names))
    except OSError as error:
        if error.errno in (ENOTSUP, EPERM, ENODATA):
            return ()
        raise
