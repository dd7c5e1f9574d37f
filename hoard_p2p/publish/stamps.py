"""What a publish remembers of its source, so that the next one need not read what did not change.

A *stamp file* holds, per directory in the order of the walk, the names and the `lstat` of every entry as they were
when it was read, and the snapshot that came of it. Its layout is in `stampscan`. It is no source of truth: whatever is
wrong with it, the files are read.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import BinaryIO

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.config import Json
from hoard_p2p.publish.outcome import PublishResult
from hoard_p2p.publish.stampfs import WINDOWS, Trust
from hoard_p2p.publish.stampscan import (
    FLAG_QUICK,
    HEADER,
    LOOSE,
    RECORD,
    ROW,
    Header,
    digest_of,
    read_header,
)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MOST_META = 16 << 20
_PIECE = 1 << 20
CLOCK_SLACK = 1_000_000_000
"""Nanoseconds that the wall clock may lose against the time since boot before it counts as set back."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A time by the wall, and one that nobody sets: since which boot, in nanoseconds."""

    wall: int
    boot: str
    since_boot: int

    @classmethod
    def now(cls, wall: Callable[[], int] = time.time_ns) -> "Moment":
        try:
            boot = _BOOT_ID.read_text().strip()
        except OSError:
            boot = ""
        return cls(wall(), boot, time.clock_gettime_ns(time.CLOCK_BOOTTIME))

    def set_back_until(self, now: "Moment") -> bool:
        """Whether the wall clock is known to have been set back since: then stamps may repeat."""
        if now.wall < self.wall:
            return True
        passed = now.since_boot - self.since_boot
        return self.boot == now.boot and now.wall - self.wall < passed - CLOCK_SLACK


@dataclass(frozen=True, slots=True)
class Meta:
    """What a stamp file says in words. `begin` and `end`: of the publish, whose readings lie between."""

    snapshot: str
    begin: int
    end: Moment
    summary: Mapping[str, Json]

    def encode(self) -> bytes:
        end = [self.end.wall, self.end.boot, self.end.since_boot]
        body = {"snapshot": self.snapshot, "begin": self.begin, "end": end, "summary": dict(self.summary)}
        return json.dumps(body, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Meta":
        """Raises ValueError."""
        try:
            body = json.loads(data)
            wall, boot, since_boot = body["end"]
            end = Moment(int(wall), str(boot), int(since_boot))
            return cls(str(body["snapshot"]), int(body["begin"]), end, dict(body["summary"]))
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"stamp file with {error!r}") from error


@dataclass(frozen=True, slots=True)
class Remembering:
    """What a publish is given to remember by. `known`: the last publish of this source with these options. `out`: where
    the stamps of this one go. `describe`: what the user is told about a result, which is remembered too. `wall`:
    nanoseconds since the epoch."""

    out: BinaryIO
    describe: Callable[[PublishResult], Mapping[str, Json]]
    known: "Known | None" = None
    wall: Callable[[], int] = time.time_ns


def is_racy(mtime: int, ctime: int, begin: int, end: int, trust: Trust) -> bool:
    """Whether a file read between `begin` and `end` may have changed afterwards without a new stamp: its stamps are
    younger than the reading, or nearly so, or from the future."""
    window = WINDOWS[trust]
    return ctime >= begin - window or begin - window <= mtime <= end + window


class StampFile:
    """A stamp file, mapped. Only its header and meta are looked at before `is_whole`."""

    def __init__(self, fd: int) -> None:
        """`fd` stays the caller's. Raises ValueError if this is no stamp file."""
        header = read_header(fd)
        if header is None or header.meta > _MOST_META:
            raise ValueError("this is no stamp file of this version")
        self.header: Header = header
        self.meta = Meta.decode(os.pread(fd, header.meta, HEADER.size))
        self.data = mmap(fd, header.length, access=ACCESS_READ)
        self._fd = fd

    @property
    def is_quick(self) -> bool:
        """Whether equal stamps alone mean that nothing changed."""
        return bool(self.header.flags & FLAG_QUICK)

    def is_whole(self) -> bool:
        """Whether every byte is as it was written. Reads all of it, but not through the map: there a bad disk kills the
        process. Raises OSError."""
        starts = range(HEADER.size, self.header.length, _PIECE)
        pieces = (os.pread(self._fd, min(_PIECE, self.header.length - at), at) for at in starts)
        return digest_of(self.header, pieces) == self.header.digest

    def close(self) -> None:
        self.data.close()


@dataclass(frozen=True, slots=True)
class Known:
    """The last publish of a source: its stamps, and its catalog."""

    stamps: StampFile
    catalog: Catalog

    @property
    def has_other_attributes(self) -> bool:
        """Whether some file had attributes that a snapshot does not keep, and which therefore only the file tells."""
        not_kept = self.stamps.meta.summary.get("not_kept")
        return not isinstance(not_kept, list) or any(
            not isinstance(kind, dict) or kind.get("name") != "mtime" for kind in not_kept
        )


@dataclass(frozen=True, slots=True)
class Stamped:
    """An entry that the last publish found."""

    record: tuple[int, ...]
    raw: bytes
    inode: int


class Follower:
    """Goes through a stamp file beside a walk, in the same order, in constant memory."""

    def __init__(self, stamps: StampFile) -> None:
        header = stamps.header
        self._data = stamps.data
        self._rows = self._each_row(header)
        self._row: _Row | None = next(self._rows, None)
        self._entries: Iterator[tuple[bytes, Stamped]] = iter(())
        self._entry: tuple[bytes, Stamped] | None = None

    def enter(self, path: bytes) -> None:
        """The walk is in directory `path` now."""
        wanted = _order(path)
        while self._row is not None and _order(self._row.path) < wanted:
            self._row = next(self._rows, None)
        here = self._row is not None and self._row.path == path
        self._entries = self._each_entry(self._row) if here and self._row is not None else iter(())
        self._entry = next(self._entries, None)

    def find(self, name: bytes) -> Stamped | None:
        """The entry of that name; names are asked for in order."""
        while self._entry is not None and self._entry[0] < name:
            self._entry = next(self._entries, None)
        return self._entry[1] if self._entry is not None and self._entry[0] == name else None

    def _each_row(self, header: Header) -> Iterator["_Row"]:
        path_at, names_at, record_at = header.paths_at, header.names_at, header.records_at
        for number in range(header.rows):
            inode, names, entries, _, path = ROW.unpack_from(self._data, header.rows_at + number * ROW.size)
            yield _Row(self._data[path_at : path_at + path], names_at, names_at + names, record_at, entries, inode)
            path_at, names_at, record_at = path_at + path, names_at + names, record_at + entries * RECORD.size

    def _each_entry(self, row: "_Row") -> Iterator[tuple[bytes, Stamped]]:
        at, inode = row.names_at, row.inode
        for start in range(row.records_at, row.records_at + row.entries * RECORD.size, RECORD.size):
            end = self._data.find(b"\0", at, row.names_end)
            end = row.names_end if end < 0 else end
            raw = self._data[start : start + RECORD.size]
            record = RECORD.unpack(raw)
            if not record[0] & LOOSE:
                yield self._data[at:end], Stamped(record, raw, inode)
                inode += 1
            at = end + 1


@dataclass(frozen=True, slots=True)
class _Row:
    """One directory, and where its entries lie in the file."""

    path: bytes
    names_at: int
    names_end: int
    records_at: int
    entries: int
    inode: int


def _order(path: bytes) -> tuple[int, list[bytes]]:
    """Sorts paths in the order of the walk: breadth first, names by bytes."""
    return (path.count(b"/") + 1, path.split(b"/")) if path else (0, [])
