"""Whether a tree is exactly as its stamp file says: the quick look before a publish, in a process of its own.

Run as a script (`python -I -S`), with nothing but the modules that start with the interpreter, since the whole look at
100,000 files takes as long as a few imports. So the layout of stamp files (docs/formats.md) is told here, and the rest
of the package takes it from here. Reads the tree's listings and `lstat`s, no file; never waits for a writer.
"""

from __future__ import annotations

import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing these takes longer than looking at 10,000 files
    from collections.abc import Iterable, Iterator

MAGIC = b"hoardSTM"
VERSION = 1
HEADER = struct.Struct("<8sIIQQQQQQ16s56s")
"""Magic, version, flags, drops, bytes of meta, rows, entries, bytes of paths, bytes of names, digest, root's record."""

ROW = struct.Struct("<QQIII4x")
"""One directory: catalog inode of its first entry, bytes of names, entries, loose entries, bytes of its path."""

RECORD = struct.Struct("<IQQIIIQqq")
"""Mode, inode, device, links, uid, gid, size, mtime and ctime in nanoseconds: `status[:7]` and the two."""

FLAG_QUICK = 1
"""Nothing in the tree is racy, unreadable or on a file system whose stamps say little: equal stamps mean equal."""

FLAG_LISTED = 2
"""Nothing was excluded: the names are all that the directories hold."""

LOOSE = 1 << 31
"""In a record's mode: a special file, of which only the kind is noted; it is not in the catalog."""

EQUAL, DIFFERENT, BROKEN = 0, 1, 2
"""What the process ends with."""

DROPS, DROPS_OFFSET = struct.Struct("<Q"), 16
"""Where the header has the drops, which are written over as they become known."""

LEAST_SHARE = 4096
"""Entries that are worth a process."""

MOST_SHARES = 4
_KIND = 0o170000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class Header:
    """The beginning of a stamp file."""

    __slots__ = ("digest", "drops", "entries", "flags", "meta", "names", "paths", "root", "rows")

    def __init__(
        self, *, flags: int, drops: int, meta: int, rows: int, entries: int, paths: int, names: int,
        digest: bytes, root: bytes,
    ) -> None:  # fmt: skip
        """`meta`, `paths`, `names`: bytes; `root`: the record of the directory itself."""
        self.flags = flags
        self.drops = drops
        self.meta = meta
        self.rows = rows
        self.entries = entries
        self.paths = paths
        self.names = names
        self.digest = digest
        self.root = root

    def pack(self, *, drops: int, digest: bytes) -> bytes:
        """The encoded header, with these two."""
        return HEADER.pack(
            MAGIC, VERSION, self.flags, drops, self.meta, self.rows, self.entries, self.paths, self.names, digest,
            self.root,
        )  # fmt: skip

    @property
    def rows_at(self) -> int:
        return HEADER.size + self.meta

    @property
    def paths_at(self) -> int:
        return self.rows_at + self.rows * ROW.size

    @property
    def names_at(self) -> int:
        return self.paths_at + self.paths

    @property
    def records_at(self) -> int:
        return self.names_at + self.names

    @property
    def length(self) -> int:
        """Bytes of the whole file."""
        return self.records_at + self.entries * RECORD.size


def read_header(fd: int) -> Header | None:
    """None if this is no stamp file of this version, or not all of one."""
    data = os.pread(fd, HEADER.size, 0)
    if len(data) != HEADER.size:
        return None
    magic, version, flags, drops, meta, rows, entries, paths, names, digest, root = HEADER.unpack(data)
    header = Header(
        flags=flags, drops=drops, meta=meta, rows=rows, entries=entries, paths=paths, names=names, digest=digest,
        root=root,
    )  # fmt: skip
    sound = magic == MAGIC and version == VERSION and os.fstat(fd).st_size == header.length
    return header if sound else None


def digest_of(header: Header, rest: Iterable[bytes | memoryview]) -> bytes:
    """Over the header, but for the drops and the digest itself, and the blocks of all that follows it."""
    from _blake2 import blake2b  # hashlib would load OpenSSL

    hasher = blake2b(header.pack(drops=0, digest=bytes(16)), digest_size=16)
    for block in rest:
        hasher.update(block)
    return bytes(hasher.digest())


def pack(status: os.stat_result) -> bytes:
    """The record of an entry. Raises struct.error for times outside of 64 bits of nanoseconds."""
    return RECORD.pack(*status[:7], status.st_mtime_ns, status.st_ctime_ns)


class _Part:
    """Consecutive entries of one directory, `first` to `stop` of them: where its names and their records lie."""

    __slots__ = ("entries", "first", "loose", "names", "path", "records", "stop")

    def __init__(
        self, path: bytes, names: range, records: range, *, first: int, stop: int, entries: int, loose: int
    ) -> None:
        self.path = path
        self.names = names
        self.records = records
        self.first = first
        self.stop = stop
        self.entries = entries
        self.loose = loose


def _parts(header: Header, data: memoryview, share: range) -> Iterator[_Part]:
    """What of each directory falls into `share`, a range of all entries of the file. Empty directories belong to the
    share of the entry that would follow."""
    path_at, names_at, entry = header.paths_at, header.names_at, 0
    for row in range(header.rows):
        _, name_bytes, entries, loose, path_bytes = ROW.unpack_from(data, header.rows_at + row * ROW.size)
        first, stop = max(share.start, entry), min(share.stop, entry + entries)
        if first < stop or (not entries and share.start <= entry < share.stop):
            path = bytes(data[path_at : path_at + path_bytes])
            at = header.records_at + first * RECORD.size
            records = range(at, at + (stop - first) * RECORD.size)
            names = range(names_at, names_at + name_bytes)
            yield _Part(path, names, records, first=first - entry, stop=stop - entry, entries=entries, loose=loose)
        path_at, names_at, entry = path_at + path_bytes, names_at + name_bytes, entry + entries


def _same(part: _Part, data: memoryview, root: int, listed: bool) -> bool:
    fd = os.open(part.path or b".", _DIRECTORY, dir_fd=root)
    try:
        os.fchdir(fd)
        blob = bytes(data[part.names.start : part.names.stop])
        names = os.fsdecode(blob).split("\0") if part.entries else []
        if listed and part.first == 0 and set(os.listdir(fd)) != set(names):
            return False
    finally:
        os.close(fd)
    if (part.first, part.stop) != (0, part.entries):
        names = names[part.first : part.stop]
    recorded = data[part.records.start : part.records.stop]
    if part.loose:
        return _same_loosely(names, recorded)
    fill = RECORD.pack
    found = [fill(*status[:7], status.st_mtime_ns, status.st_ctime_ns) for status in map(os.lstat, names)]
    return b"".join(found) == recorded


def _same_loosely(names: list[str], recorded: memoryview) -> bool:
    for at, name in enumerate(names):
        record = recorded[at * RECORD.size : (at + 1) * RECORD.size]
        mode = RECORD.unpack(record)[0]
        status = os.lstat(name)
        if mode & LOOSE:
            if status.st_mode & _KIND != mode & _KIND:
                return False
        elif pack(status) != record:
            return False
    return True


def scan(header: Header, data: memoryview, root: int, share: range) -> bool:
    """Whether the entries in `share` are as recorded. Changes the working directory."""
    listed, parent = bool(header.flags & FLAG_LISTED), os.getppid()
    try:
        return all(os.getppid() == parent and _same(part, data, root, listed) for part in _parts(header, data, share))
    except (OSError, struct.error):  # gone, not readable, a time that no record can hold
        return False


def shares(entries: int, processes: int) -> list[range]:
    """All entries in ranges of equal length, one a process."""
    count = max(1, min(processes, MOST_SHARES, entries // LEAST_SHARE))
    cuts = [entries * number // count for number in range(count)]
    return [range(start, stop) for start, stop in zip(cuts, [*cuts[1:], entries + 1])]


def _scan_in_parallel(header: Header, data: memoryview, root: int) -> bool:
    first, *others = shares(header.entries, len(os.sched_getaffinity(0)))
    children = []
    for share in others:
        child = os.fork()
        if child == 0:
            os._exit(EQUAL if scan(header, data, root, share) else DIFFERENT)
        children.append(child)
    same = scan(header, data, root, first)
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return same and set(ends) <= {EQUAL}


def main(stamps: int, root: int) -> int:
    """`stamps` and `root`: descriptors of the stamp file and of the directory."""
    header = read_header(stamps)
    if header is None:
        return BROKEN
    data = os.pread(stamps, header.length, 0)
    view = memoryview(data)
    if len(data) != header.length or digest_of(header, [view[HEADER.size :]]) != header.digest:
        return BROKEN
    try:
        same_root = pack(os.fstat(root)) == header.root
    except struct.error:
        return DIFFERENT
    return EQUAL if same_root and _scan_in_parallel(header, view, root) else DIFFERENT


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
