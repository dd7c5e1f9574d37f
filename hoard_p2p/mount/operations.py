"""What a request that needs no chunk is answered, from the catalog alone.

An operation takes the inode's index and the bytes behind the request's header, and gives the bytes of the reply or a
positive errno. It knows no descriptor and no other request. A catalog that breaks its format raises CatalogCorrupt.
"""

import errno
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from hoard_p2p.catalog.entries import NotPlain
from hoard_p2p.catalog.reader import ABSENT, Catalog
from hoard_p2p.errors import CatalogCorrupt
from hoard_p2p.mount.kernel import (
    ATTR_OUT,
    DIRENT_HEAD,
    ENTRY_OUT,
    FOREVER,
    GETXATTR_IN,
    LSEEK_IN,
    LSEEK_OUT,
    OPEN_OUT,
    READ_IN,
    STATFS_OUT,
    Op,
)
from hoard_p2p.mount.listing import BARE, BLOCK, Form, Habits, Listings, block_size

Answer: TypeAlias = bytes | int
"""The body of a reply, or a positive errno."""
Operation: TypeAlias = Callable[[int, memoryview], Answer]

NAME_MAX = 255
_SECOND = 1_000_000_000
_NO_ATTRIBUTES = (0,) * 16
_ABSENT_ENTRY = ENTRY_OUT.pack(0, 0, FOREVER, FOREVER, 0, 0, *_NO_ATTRIBUTES)
"""A negative entry. It may be remembered for ever, as no name can appear."""
_UNCACHED = OPEN_OUT.pack(0, 0, 0)
_STATS = 16
"""Files looked up by name until they are told with the listings that they are in."""

_READ_ONLY = (
    Op.SETATTR, Op.SYMLINK, Op.MKNOD, Op.MKDIR, Op.UNLINK, Op.RMDIR, Op.RENAME, Op.RENAME2, Op.LINK, Op.WRITE,
    Op.SETXATTR, Op.REMOVEXATTR, Op.CREATE, Op.FALLOCATE, Op.COPY_FILE_RANGE, Op.TMPFILE,
)  # fmt: skip
_NOTHING_TO_DO = (Op.RELEASE, Op.RELEASEDIR, Op.DESTROY)
_LEFT_TO_KERNEL = (Op.OPEN, Op.ACCESS, Op.FLUSH, Op.FSYNC, Op.FSYNCDIR)
"""ENOSYS to these is heard once per mount: from then on the kernel opens, caches and closes by itself, and successfully
(a FLUSH answered with success would cost a round trip at every close)."""


class Operations:
    """The answers of one mount. Nodes are numbered index + 1; a hard link is its target.

    Listings: to list a file with its attributes costs the kernel and us six times as much as without, to look it up
    afterwards thirty times. So a mount begins with bare listings that the kernel does not keep; once files are looked
    up, it has attributes in them, and the kernel keeps them for ever (`habits.stats`, which never goes back).
    """

    def __init__(self, catalog: Catalog, *, uid: int, gid: int, size: int, habits: Habits) -> None:
        """`uid`, `gid`: whose the files are, unless the catalog kept owners. `size`: bytes of all files, for statfs.
        `habits`: common to all workers of the mount."""
        self._catalog = catalog
        self._owner = (uid, gid)
        self._size = size
        self._habits = habits
        self._looked_up = 0
        self._listings = Listings(catalog, self._owner, self._entry)

    def table(self) -> dict[int, Operation]:
        """The operation for each opcode; what is not there is answered ENOSYS."""
        return {
            Op.LOOKUP: self.lookup,
            Op.GETATTR: self.getattr,
            Op.READLINK: self.readlink,
            Op.OPENDIR: self.opendir,
            Op.READDIR: self.readdir,
            Op.READDIRPLUS: self.readdirplus,
            Op.STATFS: self.statfs,
            Op.GETXATTR: self.getxattr,
            Op.LISTXATTR: self.listxattr,
            Op.LSEEK: self.lseek,
            Op.IOCTL: _always(errno.ENOTTY),
            **dict.fromkeys(_READ_ONLY, _always(errno.EROFS)),
            **dict.fromkeys(_NOTHING_TO_DO, _always(b"")),
            **dict.fromkeys(_LEFT_TO_KERNEL, _always(errno.ENOSYS)),
        }

    def lookup(self, index: int, body: memoryview) -> Answer:
        """An entry by name. `.` and `..` come from handles that outlived the kernel's cache (NFS export)."""
        name = bytes(body[:-1])
        found = self._catalog.lookup(index, name)
        if found == ABSENT:
            if name == b".":
                return self._entry(index)
            if not self._catalog.is_dir(index):
                return errno.ENOTDIR
            if name != b"..":
                return _ABSENT_ENTRY if len(name) <= NAME_MAX else errno.ENAMETOOLONG
            found = self._catalog.parent(index)
        elif not self._habits.stats and not self._catalog.is_dir(found):
            self._looked_up += 1
            if self._looked_up >= _STATS:
                self._habits.stats = True
        return self._entry(found)

    def getattr(self, index: int, _: memoryview) -> Answer:
        return ATTR_OUT.pack(FOREVER, 0, 0, *self._attributes(self._catalog.resolve(index)))

    def readlink(self, index: int, _: memoryview) -> Answer:
        return self._catalog.target(index) if self._catalog.is_symlink(index) else errno.EINVAL

    def opendir(self, _index: int, _: memoryview) -> Answer:
        """ENOSYS is heard once per mount: from then on the kernel opens folders by itself and caches their listings."""
        return errno.ENOSYS if self._habits.stats else _UNCACHED

    def readdir(self, index: int, body: memoryview) -> Answer:
        return self._listing(index, body, Form.NAMES)

    def readdirplus(self, index: int, body: memoryview) -> Answer:
        return self._listing(index, body, Form.ATTRIBUTES if self._habits.stats else Form.FOLDERS)

    def statfs(self, _index: int, _: memoryview) -> Answer:
        return STATFS_OUT.pack(-(-self._size // BLOCK), 0, 0, self._catalog.inodes, 0, BLOCK, NAME_MAX, BLOCK)

    def getxattr(self, index: int, body: memoryview) -> Answer:
        if not self._catalog.has_xattrs:
            return errno.ENOSYS
        size, _ = GETXATTR_IN.unpack_from(body)
        value = self._catalog.xattrs(index).get(bytes(body[GETXATTR_IN.size : -1]))
        return errno.ENODATA if value is None else _sized(value, size)

    def listxattr(self, index: int, body: memoryview) -> Answer:
        if not self._catalog.has_xattrs:
            return errno.ENOSYS
        size, _ = GETXATTR_IN.unpack_from(body)
        return _sized(b"".join(name + b"\0" for name in self._catalog.xattrs(index)), size)

    def lseek(self, index: int, body: memoryview) -> Answer:
        """SEEK_DATA and SEEK_HOLE. Without holes the kernel's own answer to ENOSYS is right: all data."""
        if not self._catalog.has_holes:
            return errno.ENOSYS
        _, offset, whence, _ = LSEEK_IN.unpack_from(body)
        data = {3: True, 4: False}.get(whence)  # SEEK_DATA, SEEK_HOLE (lseek(2))
        if data is None:
            return errno.EINVAL
        found = self._catalog.next_data(index, offset) if data else self._catalog.next_hole(index, offset)
        return errno.ENXIO if found == ABSENT else LSEEK_OUT.pack(found)

    def _entry(self, index: int) -> bytes:
        index = self._catalog.resolve(index)
        return ENTRY_OUT.pack(index + 1, 0, FOREVER, FOREVER, 0, 0, *self._attributes(index))

    def _attributes(self, index: int) -> tuple[int, ...]:
        """The fields of `fuse_attr`. Seconds are floored, so that a time before 1970 has positive nanoseconds."""
        catalog = self._catalog
        mode, size, mtime, nlink = catalog.entries.status(index)
        seconds, nanoseconds = divmod(mtime, _SECOND)
        data = catalog.data_size(index) if catalog.has_holes else size
        uid, gid = (catalog.uid_gid(index) if catalog.has_owner else None) or self._owner
        return (
            index + 1, size, (data + 511) >> 9,
            seconds, seconds, seconds, nanoseconds, nanoseconds, nanoseconds,
            mode, nlink, uid, gid, 0, block_size(mode >> 12), 0,
        )  # fmt: skip

    def _listing(self, index: int, body: memoryview, form: Form) -> Answer:
        """Entries from an ordinal on, as many as fit: 1 is `.`, 2 is `..`, k + 3 the k-th child.

        An entry's `off` is where the listing goes on behind it, so that readdir, readdirplus and seekdir mix.
        """
        if not self._catalog.is_dir(index):
            return errno.ENOTDIR
        _, offset, room = READ_IN.unpack_from(body)
        dots = b"" if offset > 1 else b"".join(self._dots(index, form)[offset:])
        if len(dots) > room:
            return b"".join(_fitting(self._dots(index, form)[offset:], room))
        children = self._catalog.children(index)
        entries = children[max(offset - 2, 0) :]
        try:
            return dots + self._listings.answer(index, children.start, entries, room - len(dots), form)
        except NotPlain:  # one by one, which takes longer: tells what is damaged, and finds the targets of hard links
            return dots + b"".join(_fitting(self._entries(index, children.start, entries, form), room - len(dots)))

    def _dots(self, index: int, form: Form) -> list[bytes]:
        dots = ((1, b".", index), (2, b"..", self._catalog.parent(index)))
        bare = b"" if form is Form.NAMES else BARE  # the kernel wants no attributes for these
        return [bare + _dirent(folder + 1, ordinal, stat.S_IFDIR, name) for ordinal, name, folder in dots]

    def _entries(self, index: int, first: int, entries: range, form: Form) -> Iterator[bytes]:
        catalog = self._catalog
        for child in entries:
            if catalog.parent(child) != index:  # two parents would move a folder about in the kernel's tree
                raise CatalogCorrupt(f"inode {child} is listed in {index}, its parent is {catalog.parent(child)}")
            target = catalog.resolve(child)
            entry = _dirent(target + 1, child - first + 3, catalog.mode(target), catalog.name(child))
            if form is Form.ATTRIBUTES or (form is Form.FOLDERS and catalog.is_dir(target)):
                entry = self._entry(target) + entry
            elif form is Form.FOLDERS:
                entry = BARE + entry
            yield entry


def _fitting(entries: Iterable[bytes], room: int) -> Iterator[bytes]:
    """The first of `entries` that go into `room` bytes together."""
    for entry in entries:
        room -= len(entry)
        if room < 0:
            return
        yield entry


def _dirent(ino: int, off: int, mode: int, name: bytes) -> bytes:
    return DIRENT_HEAD.pack(ino, off, len(name), mode >> 12) + name + bytes(-len(name) % 8)


def _sized(value: bytes, room: int) -> Answer:
    """An attribute value; its length alone where the caller offered no room."""
    if room == 0:
        return GETXATTR_IN.pack(len(value), 0)
    return value if len(value) <= room else errno.ERANGE


def _always(answer: Answer) -> Operation:
    return lambda _index, _body: answer
