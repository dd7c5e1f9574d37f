"""Reading a catalog in place: nothing is parsed, no Python object is kept per file. Pure.

A catalog may come from anybody, so every value is checked when it is used, in O(1); docs/formats.md, "Checks".
"""

from bisect import bisect_right
from collections.abc import Iterator
from mmap import mmap
from typing import NoReturn

from hoard_p2p.catalog import layout
from hoard_p2p.catalog.entries import Entries
from hoard_p2p.catalog.layout import HARD_LINK, MAX_PATH, MAX_SIZE, MAX_TARGET, Column, file_key
from hoard_p2p.catalog.provenance import Provenance
from hoard_p2p.catalog.runs import ChunkSpan, SegmentChunk, hole_runs
from hoard_p2p.catalog.xattrs import find_xattrs
from hoard_p2p.errors import CatalogCorrupt, PathNotFound
from hoard_p2p.ids import HOLE, ID_SIZE, ChunkId
from hoard_p2p.limits import MAX_CHUNK, MAX_SEGMENT, MAX_SEGMENT_CHUNKS

__all__ = ["ABSENT", "Catalog", "ChunkSpan", "SegmentChunk", "file_key"]

ABSENT = -1
"""What `lookup`, `next_data` and `next_hole` give when there is nothing."""

_ATTRIBUTES = (Column.MODE, Column.SIZE, Column.MTIME, Column.NLINK)
_TREE = (Column.PARENT, Column.NAME, Column.NAME_HEAP, Column.FIRST, Column.COUNT)
_CHUNKS = (Column.CHUNK_ID, Column.CHUNK_END, Column.CANONICAL)
_SEGMENTS = (Column.SEGMENT_FIRST, Column.SEGMENT_FILE)

_DIRECTORY, _FILE, _SYMLINK = 0o040000, 0o100000, 0o120000
_TYPE = ~0o7777
_TYPES = frozenset((_DIRECTORY, _FILE, _SYMLINK))


class Catalog:
    """The tree, the chunk table and the segments of one snapshot, read in place.

    Opening checks the header and the section table only; everything else is checked in O(1) at each use, and a bad
    value raises CatalogCorrupt: no accessor raises anything else, loops without bound, or takes memory without bound.
    `inode` arguments must be in `range(inodes)`, `run` in `range(chunks)` and `segment` in `range(segments)`: the
    caller checks numbers that come from outside. A hard link has no attributes of its own: every accessor but `name`,
    `parent`, `path_of` answers for the target. Never changes, so several threads may use it.
    """

    def __init__(self, data: memoryview | mmap) -> None:
        """Raises CatalogCorrupt if header or section table are wrong. `data` stays exported until `close`."""
        layout.require_little_endian()
        self._view = memoryview(data)
        flags, self.columns = layout.sections(self._view)
        self.entries = Entries(columns := self.columns)
        column = columns.__getitem__
        self._mode, self._size, self._mtime, self._nlink = map(column, _ATTRIBUTES)
        self._parent, self._name, self._heap, self._first, self._count = map(column, _TREE)
        self._ids, self._end, self._canonical = map(column, _CHUNKS)
        self._segment_first, self._segment_file = map(column, _SEGMENTS)
        self.inodes = len(self._mode)
        self.chunks = len(self._canonical)
        self.segments = len(self._segment_file)
        self.has_holes = bool(flags & layout.FLAG_HOLES)
        self.has_xattrs = Column.XATTR_INODE in columns
        self._owner = (columns[Column.UID], columns[Column.GID]) if Column.UID in columns else None
        self.has_owner = self._owner is not None
        self.provenance = Provenance(columns)
        self.is_placed, self.is_lazy = self.provenance.is_placed, self.provenance.is_lazy
        if self._end[0] or self._segment_first[0] or self._segment_first[-1] != self.chunks:
            raise CatalogCorrupt("chunk ends or segments do not begin at zero, or do not cover the chunk table")

    def close(self) -> None:
        """Release the views, so that a mapping can be closed. Nothing else may be called afterwards."""
        for column in self.columns.values():
            column.release()
        self._view.release()

    # --- inodes

    def resolve(self, inode: int) -> int:
        """The target of a hard link, else `inode`."""
        if self._count[inode] != HARD_LINK:
            return inode
        target = self._first[inode]
        if (
            target >= inode
            or self._count[target] == HARD_LINK
            or self._mode[target] & _TYPE != _FILE
            or self._mode[inode] & _TYPE != _FILE
        ):
            self._corrupt(inode, f"is a hard link to {target}, which is no file before it")
        return target

    def mode(self, inode: int) -> int:
        """File type and permission bits."""
        mode = self._mode[self.resolve(inode)]
        if mode & _TYPE not in _TYPES:
            self._corrupt(inode, f"has mode {mode:o}")
        return mode

    def is_dir(self, inode: int) -> bool:
        return self._mode[inode] & _TYPE == _DIRECTORY

    def is_file(self, inode: int) -> bool:
        """Whether it is a regular file, or a hard link to one."""
        return self._mode[inode] & _TYPE == _FILE

    def is_symlink(self, inode: int) -> bool:
        return self._mode[inode] & _TYPE == _SYMLINK

    def size(self, inode: int) -> int:
        """Bytes of a file, length of a symlink's target, 0 for a directory."""
        size = self._size[self.resolve(inode)]
        if size >= MAX_SIZE:
            self._corrupt(inode, f"has size {size}")
        return size

    def sizes(self) -> memoryview:
        """The sizes of all inodes as they stand in the catalog, unchecked."""
        return self._size

    def mtime(self, inode: int) -> int:
        """Nanoseconds since the epoch, may be negative."""
        return self._mtime[self.resolve(inode)]

    def nlink(self, inode: int) -> int:
        """Names of a file inside the snapshot; 1 for directories and symlinks."""
        nlink = self._nlink[self.resolve(inode)]
        if not nlink:
            self._corrupt(inode, "has no link")
        return nlink

    def uid_gid(self, inode: int) -> tuple[int, int] | None:
        """The owner, None if owners were not kept."""
        if not self._owner:
            return None
        inode = self.resolve(inode)
        return self._owner[0][inode], self._owner[1][inode]

    def version(self, inode: int) -> bytes:
        """The version of the origin object that a file of a lazy snapshot is; empty where there is none."""
        return self.provenance.version(self.resolve(inode)) if self.is_lazy else b""

    def parent(self, inode: int) -> int:
        """The directory that has the entry; the root is its own."""
        parent = self._parent[inode]
        if inode == 0:
            if parent or not self.is_dir(0):
                self._corrupt(0, "is the root and no directory of its own")
        elif parent >= inode or inode not in self.children(parent):
            self._corrupt(inode, f"is no entry of its parent {parent}")
        return parent

    def name(self, inode: int) -> bytes:
        """The entry's name; empty for the root."""
        if inode == 0:
            return b""
        name = self.entries.raw_name(inode)
        if b"/" in name or b"\0" in name or name in (b".", b".."):
            self._corrupt(inode, f"has the name {name!r}")
        return name

    def children(self, directory: int) -> range:
        """The entries of a directory in name order; empty for anything else."""
        if self._mode[directory] & _TYPE != _DIRECTORY:
            return range(0)
        first, count = self._first[directory], self._count[directory]
        stop = first + count
        if first <= directory or stop > self.inodes:
            self._corrupt(directory, f"has {count} entries from {first} of {self.inodes} inodes")
        if count and (self._parent[first] != directory or self._parent[stop - 1] != directory):
            self._corrupt(directory, f"has entries {first} to {stop} with another parent")
        return range(first, stop)

    def lookup(self, directory: int, name: bytes) -> int:
        """The entry of that name, ABSENT if there is none or `directory` is no directory. `.` and `..` are absent."""
        entries = self.children(directory)
        found = self.entries.place(entries, name)
        if found == entries.stop or self.entries.raw_name(found) != name or name in (b".", b".."):
            return ABSENT
        if self._parent[found] != directory:
            self._corrupt(found, f"is listed in {directory}, its parent is {self._parent[found]}")
        return found

    def find(self, path: bytes) -> int:
        """The entry at a slash-separated path from the root; does not follow symlinks. Raises PathNotFound."""
        inode = 0
        for name in path.split(b"/"):
            inode = self.lookup(inode, name) if name else inode
            if inode == ABSENT:
                raise PathNotFound(f"the snapshot has no {path!r}: there is no {name!r}")
        return inode

    def path_of(self, inode: int) -> bytes:
        """The slash-separated path from the root, without a leading slash; empty for the root."""
        names: list[bytes] = []
        length = 0
        while inode:  # ends: a parent is smaller than its entries
            names.append(self.name(inode))
            length += len(names[-1]) + 1
            if length > MAX_PATH:
                self._corrupt(inode, f"is more than {MAX_PATH} bytes of path above another")
            inode = self.parent(inode)
        return b"/".join(reversed(names))

    def target(self, inode: int) -> bytes:
        """Where a symlink points; empty for anything else."""
        if not self.is_symlink(inode):
            return b""
        first, count = self._first[inode], self._count[inode]
        if not 1 <= count <= MAX_TARGET or self._size[inode] != count or first < self._name[self.inodes]:
            self._corrupt(inode, f"is a symlink with {count} bytes at {first} of the name heap")
        target = self._heap[first : first + count].tobytes()
        if len(target) != count or b"\0" in target:
            self._corrupt(inode, f"is a symlink to {target!r}")
        return target

    def xattrs(self, inode: int) -> dict[bytes, bytes]:
        """The extended attributes by name."""
        if not self.has_xattrs:
            return {}
        return find_xattrs(self.columns, self.resolve(inode))

    # --- chunk runs

    def runs(self, inode: int) -> range:
        """The chunk runs of a file; empty for anything else."""
        inode = self.resolve(inode)
        if self._mode[inode] & _TYPE != _FILE:
            return range(0)
        first = self._first[inode]
        stop = first + self._count[inode]
        if stop > self.chunks or self._end[stop] - self._end[first] != self._size[inode]:
            self._corrupt(inode, f"has runs {first} to {stop} of {self.chunks} for {self._size[inode]} bytes")
        return range(first, stop)

    def span(self, inode: int, offset: int, size: int) -> list[ChunkSpan]:
        """Where `size` bytes from `offset` of a file lie, in order; clipped at end of file (so possibly empty)."""
        runs = self.runs(inode)
        base = self._end[runs.start]
        here = base + max(offset, 0)
        last = self._end[runs.stop]
        stop = min(base + offset + size, last)
        if here >= stop:
            return []
        if runs.stop - runs.start == 1:  # most files; `runs` has checked its bounds
            return [ChunkSpan(runs.start, here - base, stop - here)]
        run = self._run_at(runs, here)
        spans: list[ChunkSpan] = []
        while here < stop:
            start, end = self._end[run], self._end[run + 1]
            if not start <= here < end <= last:
                self._corrupt_run(run)
            spans.append(ChunkSpan(run, here - start, min(end, stop) - here))
            here = end
            run += 1
        return spans

    def run_offset(self, inode: int, run: int) -> int:
        """Offset in the file `inode` at which its run `run` starts. Raises ValueError if it is no run of the file."""
        runs = self.runs(inode)
        if run not in runs:
            raise ValueError(f"run {run} is not in inode {inode}, which has {runs}")
        offset = self._end[run] - self._end[runs.start]
        if not 0 <= offset < self._size[self.resolve(inode)]:
            self._corrupt_run(run)
        return offset

    def data_size(self, inode: int) -> int:
        """Bytes of a file that are not holes; 0 for anything else."""
        runs = self.runs(inode)
        size = self._end[runs.stop] - self._end[runs.start]
        return max(0, size - sum(map(self.length, self._holes(runs))))

    def next_data(self, inode: int, offset: int) -> int:
        """The first offset at or after `offset` that is not in a hole, ABSENT if none (SEEK_DATA)."""
        runs = self.runs(inode)
        base = self._end[runs.start]
        if not 0 <= offset < self._end[runs.stop] - base:
            return ABSENT
        if not self.has_holes:
            return offset
        for run in range(self._run_at(runs, base + offset), runs.stop):
            if not self.is_hole(run):
                return max(offset, self._end[run] - base)
        return ABSENT

    def next_hole(self, inode: int, offset: int) -> int:
        """The first offset at or after `offset` that is in a hole or is the end of the file, ABSENT if `offset` is
        not before the end (SEEK_HOLE)."""
        runs = self.runs(inode)
        base = self._end[runs.start]
        size = self._end[runs.stop] - base
        if not 0 <= offset < size:
            return ABSENT
        if not self.has_holes:
            return size
        hole = next(self._holes(range(self._run_at(runs, base + offset), runs.stop)), runs.stop)
        return max(offset, self._end[hole] - base)

    def position(self, run: int) -> int:
        """Bytes of all runs before this one, holes included: where it lies if the chunk table were one long file.
        `run` may be the number of runs. Not checked against its neighbours."""
        return self._end[run]

    def chunk_id(self, run: int) -> ChunkId:
        """The id, HOLE for a hole."""
        return ChunkId(self._ids[run * ID_SIZE : run * ID_SIZE + ID_SIZE].tobytes())

    def is_hole(self, run: int) -> bool:
        return self.chunk_id(run) == HOLE

    def length(self, run: int) -> int:
        """Bytes of the run; at most 4 MiB if it is no hole."""
        length = self._end[run + 1] - self._end[run]
        if length <= 0 or (length > MAX_CHUNK and not self.is_hole(run)):
            self._corrupt_run(run)
        return length

    def canonical(self, run: int) -> int:
        """The first run with the same chunk id; `run` itself for a hole."""
        first = self._canonical[run]
        same = first == run or (first < run and self.chunk_id(first) == self.chunk_id(run))
        if not same or self._canonical[first] != first:
            self._corrupt_run(run)
        return first

    # --- segments

    def segment_of(self, run: int) -> int:
        """The segment that a run's chunk belongs to: the one of its first occurrence."""
        first = self.canonical(run)
        # A segment, also if the column does not ascend: its first entry is 0, its last is the number of runs.
        segment = bisect_right(self._segment_first, first) - 1
        if first not in self.segment_runs(segment):
            self._corrupt_segment(segment)
        return segment

    def segment_runs(self, segment: int) -> range:
        """All runs that lie in the segment, with holes and repeated chunks."""
        first, stop = self._segment_first[segment], self._segment_first[segment + 1]
        if not first < stop <= self.chunks:
            self._corrupt_segment(segment)
        return range(first, stop)

    def segment_size(self, segment: int) -> int:
        """Bytes of all runs that lie in the segment, with holes and repeated chunks; O(1)."""
        runs = self.segment_runs(segment)
        return self._end[runs.stop] - self._end[runs.start]

    def segment_file(self, segment: int) -> int:
        """The inode of the large file that the segment lies in, 0 for none."""
        inode = self._segment_file[segment]
        if inode:
            runs = self.segment_runs(segment)
            if inode >= self.inodes or runs.start not in self.runs(inode) or runs[-1] not in self.runs(inode):
                self._corrupt_segment(segment)
        return inode

    def segment_chunks(self, segment: int) -> list[SegmentChunk]:
        """The chunks that belong to the segment: first occurrences, no holes; at most 16,384, less than 68 MiB."""
        chunks: list[SegmentChunk] = []
        size = 0
        for run in self.segment_runs(segment):
            if self._canonical[run] != run:
                continue
            chunk = SegmentChunk(run, self.chunk_id(run), self.length(run))
            if chunk.chunk_id != HOLE:
                chunks.append(chunk)
                size += chunk.length
            if len(chunks) > MAX_SEGMENT_CHUNKS or size >= MAX_SEGMENT + MAX_CHUNK:
                self._corrupt_segment(segment)
        return chunks

    def placement_key(self, segment: int) -> ChunkId | None:
        """What the segment is placed by: the id of its last chunk, but for what came from an origin, where it is the
        slot of its last piece; None if it has only holes."""
        if self.is_placed:
            return self.provenance.placement_key(segment)
        ids = map(self.chunk_id, reversed(self.segment_runs(segment)))
        return next((chunk_id for chunk_id in ids if chunk_id != HOLE), None)

    def validate(self) -> None:
        """Check everything there is to check, in O(n): for tests and `hoard doctor`. Raises CatalogCorrupt."""
        from hoard_p2p.catalog.validate import validate  # brings the segmenter, which readers do not need

        validate(self, self.columns)

    def _run_at(self, runs: range, position: int) -> int:
        """The run of `runs` at `position` of the whole table; never outside `runs`, also if ends do not ascend."""
        return max(bisect_right(self._end, position, runs.start, runs.stop) - 1, runs.start)

    def _holes(self, runs: range) -> Iterator[int]:
        return hole_runs(self._ids, runs) if self.has_holes else iter(())

    def _corrupt(self, inode: int, what: str) -> NoReturn:
        raise CatalogCorrupt(f"catalog is damaged: inode {inode} {what}")

    def _corrupt_run(self, run: int) -> NoReturn:
        raise CatalogCorrupt(f"catalog is damaged: chunk run {run} has a wrong length or first occurrence")

    def _corrupt_segment(self, segment: int) -> NoReturn:
        raise CatalogCorrupt(f"catalog is damaged: segment {segment} has wrong bounds or size")
