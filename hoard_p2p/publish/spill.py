"""Collections that move to unlinked temporary files when they grow: what keeps a publish of any tree in bounded memory.

Used from one thread each. Nothing here knows what the names and numbers mean.
"""

import heapq
import os
import sqlite3
import tempfile
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import BinaryIO, TypeAlias

Spill: TypeAlias = Callable[[], BinaryIO]
"""Makes an empty temporary file without a name."""

NAMES_IN_MEMORY = 200_000
"""Strings that are sorted in memory, about 20 MB if they are names; more go to disk in sorted runs."""

RECORDS_IN_MEMORY = 32 << 20
"""Bytes that are sorted in memory, beside 50 for each string."""

PATHS_IN_MEMORY = 8 << 20
"""Bytes of directory paths that wait in memory."""

LINKS_IN_MEMORY = 200_000
"""Files with several links that are remembered in memory, about 30 MB."""

_LENGTH = Struct("<I")
_BLOCK = 256 << 10
_SMALL_BLOCK = 16 << 10
_MERGE_BUFFERS = 32 << 20
"""Bytes that all runs which are merged read ahead together."""


def spill_into(directory: Path) -> Spill:
    """A `Spill` whose files lie in `directory`."""
    return lambda: tempfile.TemporaryFile(dir=directory)


class SortedRecords:
    """Strings of bytes, like the names of one directory, given back in byte order and once each."""

    def __init__(self, spill: Spill, limit: int = NAMES_IN_MEMORY, bytes_limit: int = RECORDS_IN_MEMORY) -> None:
        self._spill = spill
        self._limit = limit
        self._bytes_limit = bytes_limit
        self._records: list[bytes] = []
        self._size = 0
        self._file: BinaryIO | None = None
        self._runs: list[tuple[int, int]] = []

    def add(self, record: bytes) -> None:
        self._records.append(record)
        self._size += len(record)
        if len(self._records) >= self._limit or self._size >= self._bytes_limit:
            self._write_run()

    def __iter__(self) -> Iterator[bytes]:
        self._records.sort()
        sources: list[Iterator[bytes]] = [self._read_run(start, end) for start, end in self._runs]
        previous = None
        for record in heapq.merge(*sources, self._records) if sources else self._records:
            if record != previous:  # readdir may repeat a name while the directory changes
                yield record
            previous = record

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write_run(self) -> None:
        if self._file is None:
            self._file = self._spill()
        self._records.sort()
        start = self._file.tell()
        for record in self._records:
            self._file.write(_LENGTH.pack(len(record)) + record)
        self._file.flush()
        self._runs.append((start, self._file.tell()))
        self._records.clear()
        self._size = 0

    def _read_run(self, start: int, end: int) -> Iterator[bytes]:
        # One file for all runs, read by position: any number of records takes one descriptor.
        assert self._file is not None
        window = min(_BLOCK, max(_SMALL_BLOCK, _MERGE_BUFFERS // len(self._runs)))
        block = b""
        while start < end or block:
            more = os.pread(self._file.fileno(), min(window, end - start), start)
            start += len(more)
            block += more
            at = 0
            while at + _LENGTH.size <= len(block):
                after = at + _LENGTH.size + _LENGTH.unpack_from(block, at)[0]
                if after > len(block):
                    break
                yield block[at + _LENGTH.size : after]
                at = after
            block = block[at:]


class PathQueue:
    """First in, first out, of paths; the middle of a long queue is on disk."""

    def __init__(self, spill: Spill, limit: int = PATHS_IN_MEMORY) -> None:
        self._spill = spill
        self._limit = limit
        self._front: deque[bytes] = deque()
        self._front_size = 0
        self._file: BinaryIO | None = None
        self._read_at = 0
        self._write_at = 0

    def put(self, path: bytes) -> None:
        if self._read_at == self._write_at and self._front_size < self._limit:
            self._front.append(path)
            self._front_size += len(path)
            return
        if self._file is None:
            self._file = self._spill()
        self._file.seek(self._write_at)
        self._file.write(_LENGTH.pack(len(path)) + path)
        self._write_at = self._file.tell()

    def get(self) -> bytes | None:
        """The oldest path; None if there is none."""
        if not self._front and self._read_at < self._write_at:
            self._refill()
        if not self._front:
            return None
        path = self._front.popleft()
        self._front_size -= len(path)
        return path

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _refill(self) -> None:
        assert self._file is not None
        self._file.seek(self._read_at)
        while self._read_at < self._write_at and self._front_size < self._limit:
            (length,) = _LENGTH.unpack(self._file.read(_LENGTH.size))
            self._front.append(self._file.read(length))
            self._front_size += length
            self._read_at += _LENGTH.size + length
        if self._read_at == self._write_at:
            self._file.truncate(0)
            self._read_at = self._write_at = 0


class LinkMap:
    """(device, inode) -> a number, for files with several links."""

    def __init__(self, directory: Path, limit: int = LINKS_IN_MEMORY) -> None:
        self._directory = directory
        self._limit = limit
        self._recent: dict[tuple[int, int], int] = {}
        self._older: sqlite3.Connection | None = None

    def get(self, key: tuple[int, int]) -> int | None:
        number = self._recent.get(key)
        if number is not None or self._older is None:
            return number
        row = self._older.execute("SELECT number FROM links WHERE device = ? AND inode = ?", _signed(key)).fetchone()
        return None if row is None else int(row[0])

    def set(self, key: tuple[int, int], number: int) -> None:
        self._recent[key] = number
        if len(self._recent) >= self._limit:
            self._move()

    def close(self) -> None:
        if self._older is not None:
            self._older.close()

    def _move(self) -> None:
        if self._older is None:
            self._older = _open_table(self._directory)
        rows = ((*_signed(key), number) for key, number in self._recent.items())
        self._older.execute("BEGIN")
        self._older.executemany("INSERT OR REPLACE INTO links VALUES (?, ?, ?)", rows)
        self._older.execute("COMMIT")
        self._recent.clear()


def _signed(key: tuple[int, int]) -> tuple[int, int]:
    """The key in SQLite's 64-bit signed integers."""
    device, inode = array("q", array("Q", key).tobytes())
    return device, inode


def _open_table(directory: Path) -> sqlite3.Connection:
    """A table in a file that is unlinked at once and never synced: it only has to outlive this publish."""
    fd, name = tempfile.mkstemp(dir=directory)
    os.close(fd)
    try:
        table = sqlite3.connect(name, isolation_level=None)
        table.execute("PRAGMA journal_mode = OFF")
        table.execute("PRAGMA synchronous = OFF")
        table.execute("PRAGMA locking_mode = EXCLUSIVE")
        table.execute("PRAGMA temp_store = MEMORY")
        table.execute(
            "CREATE TABLE links (device INTEGER, inode INTEGER, number INTEGER, PRIMARY KEY (device, inode))"
            " WITHOUT ROWID"
        )
    finally:
        with suppress(FileNotFoundError):
            Path(name).unlink()
    return table
