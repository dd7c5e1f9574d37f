"""Building a catalog in breadth-first order, in memory that does not grow with the number of files. Pure."""

import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from types import TracebackType
from typing import BinaryIO, Self

from hoard_p2p.catalog import layout
from hoard_p2p.catalog.dedup import fill_canonical
from hoard_p2p.catalog.layout import Column, Totals
from hoard_p2p.catalog.spill import SpilledBytes, SpilledColumn
from hoard_p2p.catalog.writing import Section, numbers, write_sections
from hoard_p2p.catalog.xattrs import encode_xattrs
from hoard_p2p.errors import Refused
from hoard_p2p.ids import HOLE, ID_SIZE, ChunkId
from hoard_p2p.limits import MAX_CHUNK
from hoard_p2p.segments import Segmenter, data_size

__all__ = ["CatalogBuilder", "Meta", "Totals"]

_INODE_COLUMNS = (
    Column.MODE,
    Column.SIZE,
    Column.MTIME,
    Column.NLINK,
    Column.PARENT,
    Column.NAME,
    Column.FIRST,
    Column.COUNT,
)


@dataclass(frozen=True, slots=True)
class Meta:
    """Attributes of one entry. `mode` may have type bits, only the permission bits are used; `mtime` is in nanoseconds
    since the epoch, may be negative, and is stored as the nearest signed 64-bit number; `xattrs` are (name, value), in
    any order."""

    mode: int
    mtime: int
    uid: int
    gid: int
    xattrs: tuple[tuple[bytes, bytes], ...] = ()


class CatalogBuilder:
    """Takes a tree in breadth-first order and writes its catalog.

    Call order: `add_root`; then, for every directory in the order in which they were added, the root first,
    `next_directory` and the `add_*` of its entries sorted by name bytes; then `finish`. Not thread-safe.
    Raises ValueError for a call that would make a catalog the reader refuses: names out of order or not allowed,
    run lengths that do not add up to the size, and the like; such a builder can only be closed.
    """

    def __init__(self, *, spill: Callable[[], BinaryIO], keep_owner: bool, lazy: bool = False) -> None:
        """`spill` gives an empty, seekable temporary file opened for reading and writing, which the builder closes;
        small trees need none. `keep_owner`: store uid and gid. `lazy`: store the versions of files."""
        self._spill = spill
        kept = _INODE_COLUMNS + (layout.OWNER_COLUMNS if keep_owner else ())
        self._columns = {column: SpilledColumn(layout.ELEMENTS[column], spill) for column in kept}
        self._appends = tuple(column.append for column in self._columns.values())
        self._names = SpilledBytes(spill)
        self._targets = SpilledBytes(spill)
        self._ids = SpilledBytes(spill)
        self._ends = SpilledColumn("Q", spill)
        self._ends.append(0)
        self._canonical = SpilledColumn("I", spill)
        self._end = 0
        self._xattr_inodes = SpilledColumn("I", spill)
        self._xattr_offsets = SpilledColumn("Q", spill)
        self._xattr_heap = SpilledBytes(spill)
        self._directories = SpilledColumn("I", spill)  # inodes, in order: also the queue of those to visit
        self._children = SpilledColumn("I", spill)  # first child of each visited directory
        self._symlinks = SpilledColumn("I", spill)
        self._links = SpilledColumn("I", spill)  # targets of hard links
        self._version_offsets = SpilledColumn("Q", spill) if lazy else None
        self._version_heap = SpilledBytes(spill)
        self._segmenter = Segmenter()
        self._inodes = self._runs = self._files = self._size = self._data = 0
        self._directory = 0  # the inode whose entries are being added
        self._last_name = b""
        self._has_holes = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the temporary files. May be called twice."""
        for column in (*self._columns.values(), self._ends, self._canonical, self._xattr_inodes, self._xattr_offsets):
            column.close()
        for column in (self._directories, self._children, self._symlinks, self._links):
            column.close()
        if self._version_offsets is not None:
            self._version_offsets.close()
        for heap in (self._names, self._targets, self._ids, self._xattr_heap, self._version_heap):
            heap.close()

    def add_root(self, meta: Meta) -> None:
        """The root directory, inode 0. First call."""
        if self._inodes:
            raise ValueError("the root is the first entry, and the only root")
        self._directories.append(0)
        self._add(b"", stat.S_IFDIR, meta)

    def next_directory(self) -> None:
        """Entries that follow belong to the next directory in the order of adding; the first call chooses the root."""
        if len(self._children) == len(self._directories):
            raise ValueError("every directory that was added has been visited")
        self._directory = self._directories[len(self._children)]
        self._children.append(self._inodes)
        self._last_name = b""

    def add_directory(self, name: bytes, meta: Meta) -> int:
        """A directory. Returns its inode index."""
        self._check_name(name)
        self._directories.append(self._inodes)
        return self._add(name, stat.S_IFDIR, meta)

    def add_file(
        self,
        name: bytes,
        meta: Meta,
        size: int,
        runs: Sequence[tuple[ChunkId, int]],
        *,
        slots: Sequence[ChunkId] | None = None,
        version: bytes = b"",
    ) -> int:
        """A regular file whose (id, length) runs, holes included, cover `size` bytes. Returns its inode index.
        `slots`: for data sets from origins, see `Segmenter.add_file`. `version`: of the object, where `lazy`."""
        self._check_name(name)
        if len(version) > layout.MAX_VERSION:
            raise ValueError(f"a version of {len(version)} bytes")
        first = self._runs
        self._add_runs(size, runs)
        self._segmenter.add_file(runs, self._inodes, slots)
        self._files += 1
        return self._add(name, stat.S_IFREG, meta, size=size, first=first, count=self._runs - first, version=version)

    def add_symlink(self, name: bytes, meta: Meta, target: bytes) -> int:
        """A symbolic link. Returns its inode index."""
        self._check_name(name)
        length = len(target)
        if not 1 <= length <= layout.MAX_TARGET or b"\0" in target:
            raise ValueError(f"symlink target of {length} bytes, or with a zero byte")
        self._symlinks.append(self._inodes)
        first = len(self._targets)  # raised by the length of all names at the end
        self._targets.append(target)
        return self._add(name, stat.S_IFLNK, meta, size=length, first=first, count=length)

    def add_hard_link(self, name: bytes, target: int) -> int:
        """One more name of the regular file that `add_file` returned `target` for. Returns its inode index."""
        self._check_name(name)
        if not 0 < target < self._inodes:
            raise ValueError(f"hard link to inode {target}, of {self._inodes}")
        self._links.append(target)
        meta = Meta(mode=0, mtime=0, uid=0, gid=0)
        return self._add(name, stat.S_IFREG, meta, nlink=0, first=target, count=layout.HARD_LINK)

    def finish(self, out: BinaryIO) -> Totals:
        """Write the catalog at the current position of `out`, sequentially. The builder can then only be closed.
        Raises ValueError if a directory was not visited."""
        if len(self._children) != len(self._directories) or not self._inodes:
            raise ValueError(f"{len(self._children)} of {len(self._directories)} directories were visited")
        self._columns[Column.NAME].append(len(self._names))
        self._settle_directories()
        self._settle_symlinks()
        self._settle_links()
        segments = self._segmenter.finish()
        repeated = fill_canonical(self._canonical, self._ids, self._ends, self._spill)
        chunk_sections = [
            Section(Column.CHUNK_ID, len(self._ids), self._ids.blocks()),
            numbers(Column.CHUNK_END, self._ends),
            numbers(Column.CANONICAL, self._canonical),
            Section(Column.SEGMENT_FIRST, 4 * len(segments.firsts), [segments.firsts.tobytes()]),
            Section(Column.SEGMENT_FILE, 4 * len(segments.files), [segments.files.tobytes()]),
        ]
        if segments.keys or self._version_offsets is not None:  # also if all files are empty
            chunk_sections.append(Section(Column.SEGMENT_KEY, len(segments.keys), [segments.keys]))
        flags = layout.FLAG_HOLES if self._has_holes else 0
        rest = [*self._xattr_sections(), *self._version_sections()]
        write_sections(out, [*self._inode_sections(), *chunk_sections, *rest], flags)
        return Totals(
            files=self._files,
            directories=len(self._directories),
            symlinks=len(self._symlinks),
            hard_links=len(self._links),
            size=self._size,
            data=self._data,
            unique=self._data - repeated,
            chunks=self._runs,
            segments=len(segments.files),
            inodes=self._inodes,
        )

    def _add(
        self,
        name: bytes,
        kind: int,
        meta: Meta,
        *,
        size: int = 0,
        nlink: int = 1,
        first: int = 0,
        count: int = 0,
        version: bytes = b"",
    ) -> int:
        inode = self._inodes
        if inode >= layout.MAX_INODES:
            raise Refused(f"a snapshot has at most {layout.MAX_INODES:,} entries; publish it in parts")
        mtime = min(max(meta.mtime, -layout.MAX_SIZE), layout.MAX_SIZE - 1)
        mode = kind | (meta.mode & 0o7777)
        values = (mode, size, mtime, nlink, self._directory, len(self._names), first, count, meta.uid, meta.gid)
        for append, value in zip(self._appends, values, strict=False):  # without owners the last two are left out
            append(value)
        self._names.append(name)
        if self._version_offsets is not None:
            self._version_offsets.append(len(self._version_heap))
            self._version_heap.append(version)
        if meta.xattrs:
            self._xattr_inodes.append(inode)
            self._xattr_offsets.append(len(self._xattr_heap))
            self._xattr_heap.append(encode_xattrs(meta.xattrs))
        self._inodes = inode + 1
        return inode

    def _add_runs(self, size: int, runs: Sequence[tuple[ChunkId, int]]) -> None:
        before = self._end
        if before + size >= layout.MAX_SIZE:
            raise Refused(f"a snapshot has less than {layout.MAX_SIZE:,} bytes; publish it in parts")
        if self._runs + len(runs) > layout.MAX_RUNS:
            raise Refused(f"a snapshot has at most {layout.MAX_RUNS:,} chunk runs; publish it in parts")
        for chunk_id, length in runs:
            hole = chunk_id == HOLE
            if len(chunk_id) != ID_SIZE or length < 1 or (length > MAX_CHUNK and not hole):
                raise ValueError(f"run of {length} bytes with an id of {len(chunk_id)}")
            self._has_holes |= hole
            self._end += length
            self._ids.append(chunk_id)
            self._ends.append(self._end)
        if self._end - before != size:
            raise ValueError(f"runs of {self._end - before} bytes for a file of {size}")
        self._runs += len(runs)
        self._size += size
        self._data += data_size(runs)

    def _check_name(self, name: bytes) -> None:
        if not len(self._children):
            raise ValueError("next_directory must choose the directory first")
        if not 1 <= len(name) <= layout.MAX_NAME or b"/" in name or b"\0" in name or name in (b".", b".."):
            raise ValueError(f"name {name!r} is not allowed")
        if name <= self._last_name:
            raise ValueError(f"name {name!r} does not come after {self._last_name!r}")
        self._last_name = name

    def _settle_directories(self) -> None:
        """Write first child and number of children, known only when the next directory began."""
        self._columns[Column.FIRST].add_at(zip(_each(self._directories), _each(self._children), strict=True))
        starts = _each(self._children)
        next(starts)
        ends = chain(starts, (self._inodes,))
        counts = (end - start for start, end in zip(_each(self._children), ends, strict=True))
        self._columns[Column.COUNT].add_at(zip(_each(self._directories), counts, strict=True))

    def _settle_symlinks(self) -> None:
        names = len(self._names)
        self._columns[Column.FIRST].add_at((inode, names) for inode in _each(self._symlinks))

    def _settle_links(self) -> None:
        for block in self._links.arrays():
            self._columns[Column.NLINK].add_at(sorted(Counter(block).items()))

    def _inode_sections(self) -> Iterator[Section]:
        heap = chain(self._names.blocks(), self._targets.blocks())
        yield Section(Column.NAME_HEAP, len(self._names) + len(self._targets), heap)
        for column, kept in self._columns.items():
            yield numbers(column, kept)

    def _xattr_sections(self) -> Iterator[Section]:
        if len(self._xattr_inodes):
            self._xattr_offsets.append(len(self._xattr_heap))
            yield numbers(Column.XATTR_INODE, self._xattr_inodes)
            yield numbers(Column.XATTR_OFFSET, self._xattr_offsets)
            yield Section(Column.XATTR_HEAP, len(self._xattr_heap), self._xattr_heap.blocks())

    def _version_sections(self) -> Iterator[Section]:
        if self._version_offsets is not None:
            self._version_offsets.append(len(self._version_heap))
            yield numbers(Column.VERSION, self._version_offsets)
            yield Section(Column.VERSION_HEAP, len(self._version_heap), self._version_heap.blocks())


def _each(column: SpilledColumn) -> Iterator[int]:
    return chain.from_iterable(column.arrays())
