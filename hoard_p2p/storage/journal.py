"""The journal: every change to roots, snapshots, refs, holds and settings, in order, written before the index learns of
it.

What sidecars are to chunks, the journal is to names: the index can be rebuilt from it. Records carry a marker and a
crc, so a torn or damaged record costs itself and nothing after it.
"""

import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple, TypeAlias

from hoard_p2p.errors import StoreFailed
from hoard_p2p.storage.failures import store_failure
from hoard_p2p.storage.layout import sync_path
from hoard_p2p.storage.punching import reserve

MARKER = b"\xf5HJ1"
_HEAD = struct.Struct("<4sIB")  # marker, length of the payload, kind
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
AHEAD = 64 << 10
"""Bytes behind its end that the disk sets aside, so that what is removed can be noted on a disk that others filled."""
_AT_ONCE = 1 << 20
_CRC = struct.Struct("<I")  # of everything before it in the record


Raw: TypeAlias = bytes | mmap.mmap


class Kind(IntEnum):
    """What a record's payload is; unknown kinds are skipped by readers."""

    NODE = 1  # 16 bytes: the node id
    ROOT = 2  # 32 bytes snapshot id, then the root
    SNAPSHOT = 3  # records.encode_snapshot
    REF = 4  # records.encode_ref
    HELD = 5  # 32 bytes snapshot id, then u32 segments that this node keeps
    UNHELD = 6  # 32 bytes snapshot id, then u32 segments that it keeps no more; none: all
    START = 7  # u64: how often the data directory was opened
    SETTING = 8  # u8 length of the name, name, value as in the index's table META
    FORGOTTEN = 9  # 32 bytes snapshot id: as if it had never been known
    UNNAMED = 10  # the name of a ref, UTF-8: as if it had never been set
    KEYS = 11  # pairs of an origin key and the id of its bytes, 32 bytes each (in the journal `keys` alone)


class Entry(NamedTuple):
    kind: int
    payload: bytes


def encode(entry: Entry) -> bytes:
    body = _HEAD.pack(MARKER, len(entry.payload), entry.kind) + entry.payload
    return body + _CRC.pack(zlib.crc32(body))


def decode(raw: Raw) -> Iterator[Entry]:
    """The valid entries in `raw`, in order; whatever lies between them is stepped over."""
    at = raw.find(MARKER)
    while at >= 0:
        entry = _entry_at(raw, at)
        if entry is not None:
            yield entry
            at += _HEAD.size + len(entry.payload) + _CRC.size - 1
        at = raw.find(MARKER, at + 1)


def _entry_at(raw: Raw, at: int) -> Entry | None:
    if at + _HEAD.size > len(raw):
        return None
    _, length, kind = _HEAD.unpack_from(raw, at)
    end = at + _HEAD.size + length
    if end + _CRC.size > len(raw) or zlib.crc32(raw[at:end]) != _CRC.unpack_from(raw, end)[0]:
        return None
    return Entry(kind, raw[at + _HEAD.size : end])


def scan(path: Path) -> Iterator[Entry]:
    """Every valid entry of a journal, oldest first. Reads the whole file."""
    yield from decode(path.read_bytes())


def is_whole(raw: Raw) -> bool:
    """Whether a journal is nothing but valid entries."""
    return sum(_HEAD.size + len(entry.payload) + _CRC.size for entry in decode(raw)) == len(raw)


class Journal:
    """The appending side. Not thread-safe: the store calls it under its own lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, _FLAGS | os.O_CREAT, 0o640)
        self.size = os.fstat(self._fd).st_size
        self._ahead_end = 0
        self._keep_ahead()

    def _keep_ahead(self) -> None:
        if self.size + AHEAD // 2 > self._ahead_end:
            with suppress(OSError):  # no room now: perhaps later
                reserve(self._fd, self.size, AHEAD)
                self._ahead_end = self.size + AHEAD

    def is_lost(self) -> bool:
        """Whether the file that has this name is no longer the one that is appended to."""
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except FileNotFoundError:
            return True

    def rewrite(self, entries: Iterable[Entry]) -> None:
        """Replace all of it, in one step. Raises StoreFailed; then it is what it was, or says the same."""
        fresh = self.path.with_suffix(".new")
        try:
            fd = os.open(fresh, _FLAGS | os.O_CREAT | os.O_TRUNC, 0o640)
            try:
                size = _append(fd, entries)
                fresh.replace(self.path)
            except BaseException:
                os.close(fd)
                raise
            os.close(self._fd)
            self._fd, self.size, self._ahead_end = fd, size, 0
            self._keep_ahead()
            sync_path(self.path.parent)
        except OSError as error:
            raise StoreFailed(f"journal {self.path} could not be rewritten: {error}; it says what it said") from error

    def append(self, entries: Sequence[Entry], *, sync: bool = True) -> None:
        """Write entries and return once they are on disk; not `sync`: once they would outlive this process. Raises
        StoreFailed; half a record is stepped over later."""
        try:
            self.size += _append(self._fd, entries, sync=sync)
            self._keep_ahead()
        except OSError as error:
            raise store_failure(f"nothing was changed, the journal {self.path} could not be written", error) from error

    def close(self) -> None:
        os.close(self._fd)


def _append(fd: int, entries: Iterable[Entry], *, sync: bool = True) -> int:
    size = 0
    for raw in _batches(map(encode, entries)):
        size += len(raw)
        rest = memoryview(raw)
        while rest:
            rest = rest[os.write(fd, rest) :]
    if sync:
        os.fdatasync(fd)
    return size


def _batches(records: Iterable[bytes]) -> Iterator[bytes]:
    """All of the records, joined until they are a MiB."""
    waiting: list[bytes] = []
    size = 0
    for record in records:
        waiting.append(record)
        size += len(record)
        if size >= _AT_ONCE:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)
