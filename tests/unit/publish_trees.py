"""Publishing into memory, and trees as values: on disk and in a catalog, to compare."""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.catalog.root import decode
from hoard_p2p.chunking import FASTCDC
from hoard_p2p.interfaces import ChunkSink
from hoard_p2p.publish import Progress, PublishOptions, PublishResult, publish_directory
from hoard_p2p.testing.memory import MemorySink, bytes_of, catalog_of


class Node(NamedTuple):
    """One entry of a tree. `content`: a file's bytes or a link's target. `same`: the first path of the same file."""

    mode: int
    mtime: int
    content: bytes
    same: bytes
    xattrs: dict[bytes, bytes]


@dataclass
class Published:
    """A publish into memory and what it told meanwhile."""

    result: PublishResult
    sink: MemorySink
    told: list[Progress] = field(default_factory=list)

    @property
    def catalog(self) -> Catalog:
        return catalog_of(self.result.root, self.sink.chunks)

    @property
    def id(self) -> str:
        return self.result.snapshot.hex()

    def paths(self) -> list[bytes]:
        """Every path in the order of the catalog."""
        catalog = self.catalog
        return [catalog.path_of(inode) for inode in range(1, catalog.inodes)]

    def content(self, path: bytes) -> bytes:
        return bytes_of(self.catalog, self.catalog.find(path), self.sink.chunks)


def options(temp_dir: Path) -> PublishOptions:
    """The defaults, with two threads."""
    return PublishOptions(chunker=FASTCDC, temp_dir=temp_dir, threads=2)


def run(source: Path, chosen: PublishOptions, sink: ChunkSink, told: list[Progress] | None = None) -> PublishResult:
    """Publish and let nobody stop it."""
    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    try:
        report = told.append if told is not None else lambda _: None
        return publish_directory(fd, sink, chosen, report=report, stop=lambda: False)
    finally:
        os.close(fd)


def publish(source: Path, chosen: PublishOptions | None = None, sink: MemorySink | None = None) -> Published:
    """Publish into memory; temporary files go beside `source`."""
    into = sink or MemorySink()
    told: list[Progress] = []
    result = run(source, chosen or options(source.parent), into, told)
    assert into.flushed
    published = Published(result, into, told)
    published.catalog.validate()
    assert decode(result.root).totals == result.totals
    return published


def tree_in(published: Published) -> dict[bytes, Node]:
    """The published tree; its root has the empty path."""
    catalog = published.catalog
    tree = {}
    for inode in range(catalog.inodes):
        real = catalog.resolve(inode)
        if catalog.is_dir(real):
            content = b""
        elif catalog.is_symlink(real):
            content = catalog.target(real)
        else:
            content = bytes_of(catalog, real, published.sink.chunks)
            assert len(content) == catalog.size(real)
        mode, mtime = catalog.mode(real), catalog.mtime(real)
        tree[catalog.path_of(inode)] = Node(mode, mtime, content, catalog.path_of(real), catalog.xattrs(real))
    return tree


def tree_on(directory: Path) -> dict[bytes, Node]:
    """The tree on disk, without special files; of hard links the first in breadth-first order is the one."""
    tree: dict[bytes, Node] = {}
    first: dict[tuple[int, int], bytes] = {}
    queue = [b""]
    tree[b""] = _node(os.fsencode(directory), b"", first)
    while queue:
        parent = queue.pop(0)
        for name in sorted(os.listdir(os.path.join(os.fsencode(directory), parent))):
            path = parent + b"/" + name if parent else name
            node = _node(os.path.join(os.fsencode(directory), path), path, first)
            if stat.S_ISDIR(node.mode):
                queue.append(path)
            if stat.S_IFMT(node.mode) in (stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK):
                tree[path] = node
    return tree


def _node(where: bytes, path: bytes, first: dict[tuple[int, int], bytes]) -> Node:
    status = os.lstat(where)
    content, same, xattrs = b"", path, {}
    if stat.S_ISREG(status.st_mode):
        content = Path(os.fsdecode(where)).read_bytes()
        same = first.setdefault((status.st_dev, status.st_ino), path)
    elif stat.S_ISLNK(status.st_mode):
        content = os.readlink(where)
    if not stat.S_ISLNK(status.st_mode):
        names = [name for name in os.listxattr(where) if name.startswith("user.")]
        xattrs = {os.fsencode(name): os.getxattr(where, name) for name in names}
    return Node(status.st_mode, status.st_mtime_ns, content, same, xattrs)


def can_have_xattrs(directory: Path) -> bool:
    """Whether the file system of `directory` keeps `user.*` attributes."""
    try:
        os.setxattr(directory, "user.probe", b"")
        os.removexattr(directory, "user.probe")
    except OSError:
        return False
    return True
