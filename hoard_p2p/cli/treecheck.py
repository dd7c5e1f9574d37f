"""Reading a whole tree and comparing it with another: every byte, name, mode, time, link and attribute."""

import errno
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from blake3 import blake3

_BUFFER = 1 << 20
SHOWN = 10


@dataclass(frozen=True, slots=True)
class Entry:
    """All that must be equal. `content`: a file's blake3, a symbolic link's target."""

    mode: int
    size: int
    mtime_ns: int
    content: bytes
    attributes: tuple[tuple[str, bytes], ...]


@dataclass(slots=True)
class Tree:
    """What one pass over a directory found, and how long the reading took (walking and hashing included)."""

    entries: dict[bytes, Entry] = field(default_factory=dict)
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds if self.seconds else 0.0

    @property
    def file_rate(self) -> float:
        return self.files / self.seconds if self.seconds else 0.0


def read_tree(root: Path) -> Tree:
    """Read everything below `root` with one reader, in name order. What is neither directory, file nor symbolic link
    is left out, as publishing leaves it out."""
    tree = Tree()
    buffer = memoryview(bytearray(_BUFFER))
    began = time.perf_counter()
    for path, relative in _walk(os.fsencode(root)):
        entry = _entry(path, buffer)
        if entry is None:
            continue
        tree.entries[relative] = entry
        if stat.S_ISREG(entry.mode):
            tree.files += 1
            tree.bytes += entry.size
    tree.seconds = time.perf_counter() - began
    return tree


def _walk(root: bytes) -> Iterator[tuple[bytes, bytes]]:
    yield root, b""
    stack = [(root, b"")]
    while stack:
        directory, prefix = stack.pop()
        with os.scandir(directory) as listing:
            found = sorted(listing, key=lambda e: e.name)
        for item in found:
            relative = prefix + item.name
            yield item.path, relative
            if item.is_dir(follow_symlinks=False):
                stack.append((item.path, relative + b"/"))


def _entry(path: bytes, buffer: memoryview) -> Entry | None:
    status = os.lstat(path)
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFLNK:
        return Entry(kind, status.st_size, status.st_mtime_ns, os.readlink(path), ())
    attributes = _attributes(path) if kind in (stat.S_IFDIR, stat.S_IFREG) else ()
    if kind == stat.S_IFDIR:
        return Entry(status.st_mode, 0, status.st_mtime_ns, b"", attributes)
    if kind == stat.S_IFREG:
        return Entry(status.st_mode, status.st_size, status.st_mtime_ns, _digest(path, buffer), attributes)
    return None


def _attributes(path: bytes) -> tuple[tuple[str, bytes], ...]:
    try:
        names = [name for name in os.listxattr(path, follow_symlinks=False) if name.startswith("user.")]
    except OSError as error:
        if error.errno != errno.ENOTSUP:  # a mount of a snapshot without attributes says so once and for all
            raise
        return ()
    return tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in sorted(names))


def _digest(path: bytes, buffer: memoryview) -> bytes:
    digest = blake3()
    with open(path, "rb", buffering=0) as source:
        while size := source.readinto(buffer):
            digest.update(buffer[:size])
    return digest.digest()


def without_owners(tree: Tree) -> Tree:
    """The tree as an export makes it that restores no owners: nothing in it is set-user-id or set-group-id."""
    entries = {
        path: replace(entry, mode=entry.mode & ~(stat.S_ISUID | stat.S_ISGID)) for path, entry in tree.entries.items()
    }
    return replace(tree, entries=entries)


def differences(expected: Tree, found: Tree) -> list[str]:
    """A line for each path that is not equal, the first `SHOWN`, then how many more. Empty: the trees are equal."""
    paths = sorted(expected.entries.keys() | found.entries.keys())
    lines = [line for path in paths if (line := _difference(path, expected, found))]
    return lines[:SHOWN] + ([f"and {len(lines) - SHOWN:,} more"] if len(lines) > SHOWN else [])


def _difference(path: bytes, expected: Tree, found: Tree) -> str:
    shown = ascii(os.fsdecode(path))
    left, right = expected.entries.get(path), found.entries.get(path)
    if left is None or right is None:
        return f"{shown} is {'missing' if right is None else 'not in the source'}"
    names = [name for name in Entry.__slots__ if getattr(left, name) != getattr(right, name)]
    return f"{shown} differs in {', '.join(names)}" if names else ""
