"""Reading the files of a directory that several nodes see: NFS, Lustre, GPFS, or any other.

The root is opened once; files are opened beneath it and nowhere else. A file's version is compared before and after its
bytes are read. Must not know of snapshots' names, peers or stores.
"""

import os
import pwd
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from errno import EACCES, EISDIR, ELOOP, ENOENT, ENOTDIR, ENXIO, EPERM, ESTALE, EXDEV
from pathlib import Path
from typing import NamedTuple

from hoard_p2p.errors import ObjectChanged, OriginFailed, OriginRefused, Unavailable
from hoard_p2p.objects import Listed, ObjectRange
from hoard_p2p.origin.beneath import open_beneath
from hoard_p2p.origin.settling import Settling
from hoard_p2p.origin.tree import listed_tree, version_of, version_text
from hoard_p2p.origin.urls import directory_url
from hoard_p2p.printing import printable

AGAIN = "publish again"

READ_AT_ONCE = 8 << 20

FORGET_FROM = 1 << 20
"""Shorter reads leave the page cache alone: forgetting costs more than they are worth."""

_GONE = frozenset({ENOENT, ENOTDIR, ELOOP, EXDEV, ENXIO, EISDIR, ESTALE})
_FILE_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY  # no FIFO or terminal may stop the thread
_ROOT_FLAGS = os.O_RDONLY | os.O_DIRECTORY


class Rights(NamedTuple):
    """Whose files a node that may read everything reads: those that this user could."""

    uid: int
    gids: frozenset[int]

    def may_read(self, status: os.stat_result) -> bool:
        """By owner, group and mode, as the kernel decides (path_resolution(7)); the superuser may."""
        if self.uid == 0:
            return True
        if status.st_uid == self.uid:
            return bool(status.st_mode & stat.S_IRUSR)
        if status.st_gid in self.gids:
            return bool(status.st_mode & stat.S_IRGRP)
        return bool(status.st_mode & stat.S_IROTH)


def rights_of(uid: int) -> Rights:
    """Those of a user by the databases of this machine."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Rights(uid, frozenset())
    with suppress(OSError):
        return Rights(uid, frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid)))
    return Rights(uid, frozenset([entry.pw_gid]))


class DirectoryOrigin:
    """An open directory. For any thread."""

    def __init__(
        self,
        path: Path,
        root: int,
        rights: Rights | None,
        *,
        url: str = "",
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        """`root`: its descriptor, owned from now; `rights`: None, the kernel's decision is enough; `url`: as it was
        named, which may lead here over symbolic links; `rest` waits until a young file has settled."""
        self.path = path
        self._url = url or directory_url(str(path))
        self._root = root
        self._rights = rights
        self._settling = Settling(rest)

    @classmethod
    def open(cls, path: Path, *, as_owner: bool = True, url: str = "") -> "DirectoryOrigin":
        """The directory with this real, absolute path. `as_owner`: a node of the superuser reads what the owner of the
        directory could read, else all. Raises Unavailable."""
        base = os.open("/", _ROOT_FLAGS | os.O_CLOEXEC)
        try:
            root = open_beneath(base, os.fsencode(path).lstrip(b"/") or b".", _ROOT_FLAGS)
        except OSError as error:
            raise Unavailable(f"the origin {printable(str(path))} cannot be opened: {error.strerror}") from error
        finally:
            os.close(base)
        return cls.adopt(path, root, as_owner=as_owner, url=url)

    @classmethod
    def adopt(cls, path: Path, root: int, *, as_owner: bool = True, url: str = "") -> "DirectoryOrigin":
        """The same, of a descriptor, which is owned from now."""
        owner = os.fstat(root).st_uid
        return cls(path, root, rights_of(owner) if as_owner and os.geteuid() == 0 and owner else None, url=url)

    @property
    def place(self) -> tuple[int, int]:
        """Device and inode. Raises OSError if it is away."""
        status = os.fstat(self._root)
        return status.st_dev, status.st_ino

    @property
    def url(self) -> str:
        """See `Origin`."""
        return self._url

    def identity(self, path: bytes) -> bytes:
        """See `Origin`."""
        return os.fsencode(self._url).rstrip(b"/") + b"/" + path

    def close(self) -> None:
        """See `Origin`: there are no connections."""

    def listing(self) -> Iterator[Listed]:
        """See `Origin`; the directory itself is listed, too, with an empty path, and what is no file by its kind."""
        try:
            yield from listed_tree(self._root, None if self._rights is None else self._rights.may_read)
        except OSError as error:
            raise OriginFailed(f"the origin {printable(str(self.path))} cannot be listed: {error.strerror}") from error

    def read(self, wanted: ObjectRange, into: memoryview, moved: Callable[[int], None]) -> None:
        """See `Origin`. A file that was young when it was listed is read once it has settled: its stamps could not
        tell a change within their own tick."""
        try:
            self._settling.wait(wanted.version)
            fd = self._opened_beneath(wanted.path)
            try:
                self._compare(fd, wanted)
                self._fill(fd, wanted, into, moved)
                self._compare(fd, wanted)
            finally:
                os.close(fd)
        except OSError as error:
            raise self._failure(self._name(wanted.path), error) from error

    def _failure(self, name: str, error: OSError) -> OriginFailed:
        """What an error of the operating system says about an object."""
        if error.errno in _GONE:
            try:
                self.check()
            except OriginFailed as away:
                return away
            return ObjectChanged(f"{name} is gone since it was listed ({error.strerror}); {AGAIN}")
        if error.errno in (EACCES, EPERM):
            return OriginRefused(f"{name} may not be read by this node: {error.strerror}; give it the rights there")
        return OriginFailed(f"{name}: {error.strerror or error}")

    def _name(self, path: bytes) -> str:
        """For people."""
        return f"{printable(str(self.path))}/{printable(path)}"

    def _compare(self, fd: int, wanted: ObjectRange) -> None:
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode) and version_of(status) == wanted.version and self._rights is None:
            return
        name = self._name(wanted.path)
        if not stat.S_ISREG(status.st_mode):
            raise ObjectChanged(f"{name}: changed since it was listed: it is no regular file now; {AGAIN}")
        if self._rights is not None and not self._rights.may_read(status):
            raise OriginRefused(f"{name} is not readable by the owner of the origin (uid {self._rights.uid})")
        now = version_of(status)
        if status.st_size != wanted.size:
            told = f"{status.st_size} bytes now, {wanted.size} then"
        elif wanted.version and now != wanted.version:
            told = f"now {version_text(now)}; then {version_text(wanted.version)}"
        else:
            return
        raise ObjectChanged(f"{name}: changed since it was listed: {told}; {AGAIN}")

    def _fill(self, fd: int, wanted: ObjectRange, into: memoryview, moved: Callable[[int], None]) -> None:
        done = 0
        while done < len(into):
            count = os.preadv(fd, [into[done : done + READ_AT_ONCE]], wanted.start + done)
            if not count:
                break  # cut meanwhile: the comparison tells
            done += count
            moved(count)
        if len(into) >= FORGET_FROM:
            with suppress(OSError):  # kept here in a moment: the page cache need not have it twice
                os.posix_fadvise(fd, wanted.start, done, os.POSIX_FADV_DONTNEED)
        if done < len(into):
            raise ObjectChanged(f"{self._name(wanted.path)}: it ended early, at {wanted.start + done:,} bytes; {AGAIN}")

    def check(self) -> None:
        """Raises OriginFailed if the directory that was opened is not there any more, or not at its path."""
        try:
            there = os.stat(self.path)
            gone = (there.st_dev, there.st_ino) != self.place
        except OSError as error:
            raise OriginFailed(f"the origin {printable(str(self.path))} is away: {error.strerror}") from error
        if gone:
            raise OriginFailed(f"the origin {printable(str(self.path))} is another directory than it was")

    def __del__(self) -> None:
        """Threads may read on after the origin was given up: closed when nobody refers to it."""
        os.close(self._root)

    def _opened_beneath(self, path: bytes) -> int:
        try:
            return open_beneath(self._root, path, _FILE_FLAGS | os.O_NOATIME)
        except PermissionError as error:
            if error.errno != EPERM:  # EPERM: neither owner nor superuser, who alone may leave the time of access
                raise
            return open_beneath(self._root, path, _FILE_FLAGS)
