"""The order in which a tree is published: breadth first, names sorted by bytes, symbolic links never followed.

Uses constant memory whatever the tree: long listings are sorted on disk, waiting directories wait there. Every entry is
reached from the descriptor of its directory, so a path may be longer than PATH_MAX, and a directory that is swapped
for a symbolic link leads nowhere. Mount points are crossed. What changes during the walk shows in its state at one
moment or another.
"""

import os
import stat
from collections.abc import Generator, Iterator
from contextlib import closing
from enum import Enum
from errno import ELOOP, ENOENT, ENOTDIR, ESTALE
from typing import NamedTuple, TypeAlias

from hoard_p2p.catalog.layout import MAX_NAME
from hoard_p2p.errors import SourceChanging, SourceUnreadable
from hoard_p2p.printing import printable
from hoard_p2p.publish.attributes import Attributes, read_attributes
from hoard_p2p.publish.exclude import Rules
from hoard_p2p.publish.spill import PathQueue, SortedRecords, Spill

_GONE = frozenset({ENOENT, ESTALE, ENOTDIR, ELOOP})
"""Errors that mean that what was listed is not there any more."""

LOOKS = 5
"""How often an entry that changes its type is looked at again."""

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


class Reason(Enum):
    SPECIAL = "special"
    OWN_DATA = "own data"
    VANISHED = "vanished"
    UNREADABLE = "unreadable"


class LeftOut(NamedTuple):
    """Something that will not be in the snapshot. `why` may be empty."""

    reason: Reason
    path: bytes
    why: str


class Directory:
    """A directory that is being walked. Its descriptor is closed when the last user released it; one thread counts."""

    __slots__ = ("_users", "fd", "path")

    def __init__(self, path: bytes, fd: int) -> None:
        self.path = path
        self.fd = fd
        self._users = 1

    def hold(self) -> None:
        self._users += 1

    def release(self) -> None:
        self._users -= 1
        if self._users == 0:
            os.close(self.fd)
            self.fd = -1

    def join(self, name: bytes) -> bytes:
        """The path of an entry, relative to the published directory."""
        return self.path + b"/" + name if self.path else name


class Begin(NamedTuple):
    """The entries that follow lie in the next directory of the breadth-first order. `directory` None: there are none,
    since it cannot be opened any more; a `LeftOut` tells why."""

    directory: Directory | None


class Found(NamedTuple):
    """A file or symbolic link, as `lstat` saw it. `directory` is open until the next event: `hold` it to keep it."""

    name: bytes
    status: os.stat_result
    directory: Directory


class FoundDirectory(NamedTuple):
    """A directory that could be opened."""

    name: bytes
    status: os.stat_result
    attributes: Attributes


Event: TypeAlias = Begin | Found | FoundDirectory | LeftOut


class Walk:
    """One walk beneath `root_fd`, which stays the caller's."""

    def __init__(self, root_fd: int, rules: Rules, spill: Spill, own_data: tuple[int, int] | None = None) -> None:
        self._rules = rules
        self._spill = spill
        self._own_data = own_data
        self._opener = DirectoryOpener(root_fd)
        self._queue = PathQueue(spill)

    def events(self) -> Generator[Event, None, None]:
        """Everything beneath the root, once. Closing the iterator closes what the walk opened and nobody holds.
        Raises SourceChanging, SourceUnreadable for the root alone, and, for spilling, OSError."""
        with closing(self._opener), closing(self._queue):
            self._queue.put(b"")
            while (path := self._queue.get()) is not None:
                yield from self._directory(path)

    def _directory(self, path: bytes) -> Iterator[Event]:
        try:
            directory = Directory(path, self._opener.open(path))
        except OSError as error:
            if not path:
                raise SourceUnreadable([f"{path_text(path)}: {error.strerror}"]) from error
            yield Begin(None)
            yield left_out(path, error)
            return
        try:
            yield Begin(directory)
            yield from self._entries(directory)
        finally:
            directory.release()

    def _entries(self, directory: Directory) -> Iterator[Event]:
        with closing(SortedRecords(self._spill)) as names:
            try:
                with os.scandir(directory.fd) as listing:
                    for entry in listing:
                        names.add(os.fsencode(entry.name))
            except OSError as error:
                yield left_out(directory.path, error)
                return
            for name in names:
                event = self._entry(directory, name)
                if event is not None:
                    yield event

    def _entry(self, directory: Directory, name: bytes) -> Event | None:
        """The event for one name; None if it is to be left out without a word."""
        if len(name) > MAX_NAME:  # NTFS and vfat count characters
            return LeftOut(Reason.UNREADABLE, directory.join(name), f"its name has more than {MAX_NAME} bytes")
        try:
            for _ in range(LOOKS):
                status = os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
                is_directory = stat.S_ISDIR(status.st_mode)
                if not self._rules.empty and self._leaves_out(directory, name, is_directory):
                    return None
                if not is_directory:
                    return _leaf(directory, name, status)
                found = self._subdirectory(directory, name)
                if found is not None:
                    return found
        except OSError as error:
            return left_out(directory.join(name), error)
        raise SourceChanging(f"{path_text(directory.join(name))} keeps changing its type; publish when it is at rest")

    def _leaves_out(self, directory: Directory, name: bytes, is_directory: bool) -> bool:
        return self._rules.leaves_out(directory.join(name), name, is_directory=is_directory)

    def _subdirectory(self, directory: Directory, name: bytes) -> Event | None:
        """Opened once here, so that one that cannot be read is known before its children are expected. None: it is no
        directory any more."""
        path = directory.join(name)
        try:
            fd = os.open(name, _OPEN_DIRECTORY, dir_fd=directory.fd)
        except OSError as error:
            if error.errno in (ENOTDIR, ELOOP):
                return None
            raise
        try:
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) == self._own_data:
                return LeftOut(Reason.OWN_DATA, path, "")
            attributes = read_attributes(fd)
        finally:
            os.close(fd)
        self._queue.put(path)
        return FoundDirectory(name, status, attributes)


class DirectoryOpener:
    """Opens directories by path beneath a root, component by component, never through a symbolic link.

    Keeps the last parent open: in breadth-first order most directories need one step from there.
    """

    def __init__(self, root_fd: int) -> None:
        self._root = root_fd
        self._path = b""
        self._fd = root_fd

    def open(self, path: bytes) -> int:
        """A descriptor that is the caller's. An empty path is the root itself. Raises OSError."""
        parent, _, name = path.rpartition(b"/")
        self._go_to(parent)
        return os.open(name or b".", _OPEN_DIRECTORY, dir_fd=self._fd)

    def close(self) -> None:
        if self._fd != self._root:
            os.close(self._fd)
        self._path, self._fd = b"", self._root

    def _go_to(self, path: bytes) -> None:
        if self._path and path != self._path and not path.startswith(self._path + b"/"):
            self.close()
        for name in path[len(self._path) :].split(b"/"):
            if name:
                self._step(name)

    def _step(self, name: bytes) -> None:
        fd = os.open(name, _OPEN_DIRECTORY, dir_fd=self._fd)
        if self._fd != self._root:
            os.close(self._fd)
        self._path = self._path + b"/" + name if self._path else name
        self._fd = fd


def _leaf(directory: Directory, name: bytes, status: os.stat_result) -> Event:
    kind = stat.S_IFMT(status.st_mode)
    if kind in (stat.S_IFREG, stat.S_IFLNK):
        return Found(name, status, directory)
    return LeftOut(Reason.SPECIAL, directory.join(name), SPECIAL.get(kind, "of an unknown type"))


def left_out(path: bytes, error: OSError) -> LeftOut:
    """What an error of the operating system about `path` means: gone (or another kind of thing now), or unreadable."""
    if error.errno in _GONE:
        return LeftOut(Reason.VANISHED, path, "")
    return LeftOut(Reason.UNREADABLE, path, error.strerror or str(error))


def path_text(path: bytes) -> str:
    """`path` for a message; the published directory itself is `.`."""
    return printable(path or b".")
