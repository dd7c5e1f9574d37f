"""`hoard export`: writes a snapshot's tree into a directory.

Nothing outside that directory is ever touched: entries are made relative to descriptors of directories that this
command opened without following links, and only where nothing was before.
"""

import contextlib
import os
import shlex
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hoard_p2p.cli.doors import Doors, Snapshot
from hoard_p2p.cli.options import PATH, SNAPSHOT, data_dir_option
from hoard_p2p.cli.output import complain
from hoard_p2p.cli.progress import Display, Repeating, Step, display
from hoard_p2p.errors import HoardError, PathNotFound, Refused
from hoard_p2p.printing import printable, size_text

if TYPE_CHECKING:
    from hoard_p2p.catalog.reader import Catalog

READ_SIZE = 4 << 20
OPEN_DIRECTORIES = 64
"""Directory descriptors kept open: trees may be deeper than a process may have files open."""

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Directories:
    """Descriptors of the directories below the exported root, by inode; the least recently used are closed."""

    def __init__(self, catalog: "Catalog", root: int) -> None:
        self._catalog = catalog
        self._root = root
        self._open: OrderedDict[int, int] = OrderedDict()

    def fd(self, inode: int) -> int:
        """Good until `OPEN_DIRECTORIES` others were asked for."""
        missing = []
        while inode not in self._open and inode != 0:
            missing.append(inode)
            inode = self._catalog.parent(inode)
        fd = self._root if inode == 0 else self._open[inode]
        if inode:
            self._open.move_to_end(inode)
        for child in reversed(missing):
            fd = self._open[child] = os.open(self._catalog.name(child), _OPEN_DIRECTORY, dir_fd=fd)
            if len(self._open) > OPEN_DIRECTORIES:
                os.close(self._open.popitem(last=False)[1])
        return fd

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


class TreeWriter:
    """Writes one snapshot below an empty directory, in inode order: parents come before children, and the file before
    its further hard links. Modes and times of directories come last, from the leaves up."""

    def __init__(self, snapshot: Snapshot, root: int, shown: Display) -> None:
        self._snapshot = snapshot
        self._catalog = snapshot.catalog
        self._directories = Directories(snapshot.catalog, root)
        self._shown = shown
        self._keeps_owner = self._catalog.has_owner and os.geteuid() == 0
        self.made = 0
        self.files = 0
        self.bytes = 0

    def write(self) -> None:
        """Make every entry. On failure `made` entries are there, one more may be incomplete. Raises HoardError."""
        try:
            self._show()
            for inode in range(1, self._catalog.inodes):
                self._entry(inode)
                self.made = inode
            for inode in reversed(range(self._catalog.inodes)):
                if self._catalog.is_dir(inode):
                    self._finish(self._directories.fd(inode), inode)
        except BrokenPipeError:  # whoever read our progress left
            raise
        except OSError as error:
            raise HoardError(f"cannot write the tree: {error.strerror}") from error
        finally:
            self._directories.close()

    def _entry(self, inode: int) -> None:
        catalog = self._catalog
        name, directory = catalog.name(inode), self._directories.fd(catalog.parent(inode))
        if catalog.is_dir(inode):
            os.mkdir(name, 0o700, dir_fd=directory)
        elif catalog.is_symlink(inode):
            self._symlink(inode, name, directory)
        elif (target := catalog.resolve(inode)) != inode:
            self._hard_link(inode, target)
        else:
            self._file(inode, name, directory)

    def _symlink(self, inode: int, name: bytes, directory: int) -> None:
        os.symlink(self._catalog.target(inode), name, dir_fd=directory)
        if self._keeps_owner and (owner := self._catalog.uid_gid(inode)):
            os.chown(name, *owner, dir_fd=directory, follow_symlinks=False)
        mtime = self._catalog.mtime(inode)
        os.utime(name, ns=(mtime, mtime), dir_fd=directory, follow_symlinks=False)

    def _hard_link(self, inode: int, target: int) -> None:
        catalog, directories = self._catalog, self._directories
        source = os.dup(directories.fd(catalog.parent(target)))  # the next `fd` may close what this one gave
        try:
            directory = directories.fd(catalog.parent(inode))
            os.link(catalog.name(target), catalog.name(inode), src_dir_fd=source, dst_dir_fd=directory)
        finally:
            os.close(source)
        self.files += 1

    def _file(self, inode: int, name: bytes, directory: int) -> None:
        fd = os.open(name, _NEW_FILE, 0o600, dir_fd=directory)
        try:
            for offset, part in self._parts(inode):
                self._write(fd, part, offset)
            os.ftruncate(fd, self._catalog.size(inode))  # the hole at the end, if there is one
            self._finish(fd, inode)
        finally:
            os.close(fd)
        self.files += 1

    def _write(self, fd: int, part: memoryview, offset: int) -> None:
        size = len(part)
        while part:
            written = os.pwrite(fd, part, offset)
            part, offset = part[written:], offset + written
        self.bytes += size
        self._show()

    def _show(self) -> None:
        self._shown.show(Step("exporting", self.bytes, None, files=self.files))

    def _parts(self, inode: int) -> Iterator[tuple[int, memoryview]]:
        """The file's data with its offsets; holes are left out."""
        catalog, offset = self._catalog, 0
        size = catalog.size(inode)
        if catalog.data_size(inode) == size:
            for part in self._snapshot.stream(inode):
                yield offset, part
                offset += len(part)
            return
        while (offset := catalog.next_data(inode, offset)) >= 0:
            end = catalog.next_hole(inode, offset)
            while offset < end:
                part = memoryview(self._snapshot.read(inode, offset, min(READ_SIZE, end - offset)))
                yield offset, part
                offset += len(part)

    def _finish(self, fd: int, inode: int) -> None:
        """Attributes, in the order in which a later one does not undo an earlier one."""
        catalog = self._catalog
        for name, value in catalog.xattrs(inode).items() if catalog.has_xattrs else ():
            os.setxattr(fd, name, value)
        if self._keeps_owner and (owner := catalog.uid_gid(inode)):
            os.fchown(fd, *owner)
        # With the owner gone, set-user-id would be to whoever exports: a program of the publisher's in their name.
        os.fchmod(fd, catalog.mode(inode) & (0o7777 if self._keeps_owner else 0o1777))
        mtime = catalog.mtime(inode)
        os.utime(fd, ns=(mtime, mtime))


def open_target(path: Path) -> int:
    """A descriptor of the empty directory to write to, made if it is not there. Raises Refused if it holds anything,
    PathNotFound if its parent is not there, HoardError."""
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        parent = path.parent
        raise PathNotFound(f"there is no directory {parent}; mkdir -p {shlex.quote(str(parent))}") from error
    except NotADirectoryError as error:
        raise Refused(f"{path} is no directory; export to a new or an empty directory") from error
    except OSError as error:
        raise HoardError(f"cannot write to {path}: {error.strerror}; choose a directory of your own") from error
    try:
        with os.scandir(fd) as listing:
            if next(listing, None) is not None:
                raise Refused(f"{path} is not empty; export to a new or an empty directory")
    except BaseException:
        os.close(fd)
        raise
    return fd


def write_tree(snapshot: Snapshot, path: Path, shown: Display) -> TreeWriter:
    """Export to `path`. An error carries a note that says what is there."""
    root = open_target(path)
    writer = TreeWriter(snapshot, root, shown)
    try:
        writer.write()
    except BaseException as error:
        stopped = printable(snapshot.catalog.path_of(min(writer.made + 1, snapshot.catalog.inodes - 1)))
        error.add_note(
            f"stopped at {stopped}: {path} is incomplete, it holds {writer.made:,} of "
            f"{snapshot.catalog.inodes - 1:,} entries; remove it before you try again"
        )
        raise
    finally:
        os.close(root)
    return writer


@click.command()
@click.argument("snapshot", type=SNAPSHOT)
@click.argument("directory", type=PATH)
@data_dir_option
@click.pass_obj
def export(doors: Doors, snapshot: str, directory: Path, data_dir: Path) -> None:
    """Write the tree of SNAPSHOT into DIRECTORY, which must be new or empty.

    Bytes, names, modes, modification times, symbolic and hard links, user.* attributes and holes are as published.
    Owners, and set-user-id and set-group-id bits with them, only if the snapshot keeps owners and you are root.

    \b
    Example:
      hoard export imagenet:2012 /scratch/imagenet
    """
    shown = Repeating(display())
    try:
        with doors.reading(data_dir, snapshot) as opened:
            writer = write_tree(opened, directory.absolute(), shown)
    finally:
        shown.close()
    complain(f"exported {writer.made:,} entries, {size_text(writer.bytes)} to {directory}")
