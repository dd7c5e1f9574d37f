"""The entries of a directory, many at once or one by name: columns as they lie, checked as a whole. Pure."""

from collections.abc import Mapping
from itertools import pairwise
from operator import sub
from typing import NamedTuple

from hoard_p2p.catalog.layout import HARD_LINK, MAX_NAME, MAX_SIZE, Column
from hoard_p2p.errors import CatalogCorrupt

_HARD = HARD_LINK.to_bytes(4, "little")
_TYPES = frozenset((0o04, 0o10, 0o12))
"""`mode >> 12` of what a catalog may hold: directories, files, symlinks."""
_DOTS = frozenset((b".", b".."))


class Block(NamedTuple):
    """Consecutive entries of one directory, none of them a hard link: an item an entry in each sequence. `kinds` is
    `mode >> 12`."""

    inodes: range
    modes: list[int]
    kinds: list[int]
    names: list[bytes]


class Attributes(NamedTuple):
    """The same inodes' attributes."""

    sizes: list[int]
    mtimes: list[int]
    nlinks: list[int]


class Status(NamedTuple):
    """One inode's attributes."""

    mode: int
    size: int
    mtime: int
    nlink: int


class NotPlain(CatalogCorrupt):
    """Some entry of a block is damaged, or a hard link: asked one by one, `Catalog` tells which and why."""


class Entries:
    """Reads entries by the block: a fifth of the time that asking for each takes."""

    def __init__(self, columns: Mapping[Column, memoryview]) -> None:
        self._mode = columns[Column.MODE]
        self._size = columns[Column.SIZE]
        self._mtime = columns[Column.MTIME]
        self._nlink = columns[Column.NLINK]
        self._parent = columns[Column.PARENT]
        self._count = columns[Column.COUNT]
        self._name = columns[Column.NAME]
        self._heap = columns[Column.NAME_HEAP]

    def block(self, directory: int, entries: range) -> Block:
        """Entries `entries`, which must be some of `Catalog.children(directory)`. Raises NotPlain."""
        start, stop = entries.start, entries.stop
        if not entries:
            return Block(entries, [], [], [])
        modes = self._mode[start:stop].tolist()
        kinds = [mode >> 12 for mode in modes]
        plain = (
            self._parent[start:stop].tobytes() == directory.to_bytes(4, "little") * len(entries)
            and _HARD not in self._count[start:stop].tobytes()
            and _TYPES.issuperset(kinds)
        )
        if not plain:
            raise NotPlain(f"catalog: entries {start} to {stop} of directory {directory} are not all plain")
        return Block(entries, modes, kinds, self._names(start, stop))

    def attributes(self, entries: range) -> Attributes:
        """Of a block's inodes. Raises NotPlain."""
        start, stop = entries.start, entries.stop
        sizes = self._size[start:stop].tolist()
        nlinks = self._nlink[start:stop].tolist()
        if entries and (max(sizes) >= MAX_SIZE or not min(nlinks)):
            raise NotPlain(f"catalog: some of the inodes {start} to {stop} have wrong sizes or links")
        return Attributes(sizes, self._mtime[start:stop].tolist(), nlinks)

    def status(self, inode: int) -> Status:
        """Of one inode, which is no hard link. Raises CatalogCorrupt."""
        mode, size, nlink = self._mode[inode], self._size[inode], self._nlink[inode]
        if mode >> 12 not in _TYPES or size >= MAX_SIZE or not nlink:
            raise CatalogCorrupt(f"catalog is damaged: inode {inode} has mode {mode:o}, size {size}, {nlink} links")
        return Status(mode, size, self._mtime[inode], nlink)

    def _names(self, start: int, stop: int) -> list[bytes]:
        offsets = self._name[start : stop + 1].tolist()
        lengths = list(map(sub, offsets[1:], offsets))
        first, shortest = offsets[0], min(lengths)
        if shortest < 1 or max(lengths) > MAX_NAME or offsets[-1] > len(self._heap):
            raise NotPlain(f"catalog: some names of {start} to {stop} are not where they can be")
        joined = self._heap[first : offsets[-1]].tobytes()
        names = [joined[a - first : b - first] for a, b in pairwise(offsets)]
        if b"/" in joined or b"\0" in joined or (shortest <= 2 and not _DOTS.isdisjoint(names)):
            raise NotPlain(f"catalog: some names of {start} to {stop} are none")
        return names

    def raw_name(self, inode: int) -> bytes:
        """The name as it lies there, of 1 to 255 bytes. Raises CatalogCorrupt if it lies where it cannot."""
        start, stop = self._name[inode], self._name[inode + 1]
        if not 1 <= stop - start <= MAX_NAME or stop > len(self._heap):
            raise _misplaced(inode, start, stop)
        return self._heap[start:stop].tobytes()

    def place(self, entries: range, name: bytes) -> int:
        """The first of `entries`, which are in name order, whose name is not before `name`; `entries.stop` if none
        is. Raises CatalogCorrupt if a name on the way lies where it cannot."""
        offsets, heap, size = self._name, self._heap, len(self._heap)
        low, high = entries.start, entries.stop
        while low < high:  # bisect_left with a key function takes twice the time
            middle = (low + high) >> 1
            start, stop = offsets[middle], offsets[middle + 1]
            if not 0 < stop - start <= MAX_NAME or stop > size:
                raise _misplaced(middle, start, stop)
            if heap[start:stop].tobytes() < name:
                low = middle + 1
            else:
                high = middle
        return low


def _misplaced(inode: int, start: int, stop: int) -> CatalogCorrupt:
    return CatalogCorrupt(f"catalog is damaged: inode {inode} has a name from {start} to {stop} of the heap")
