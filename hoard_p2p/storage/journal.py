"""The journal: every change to roots, snapshots and refs, in order, written before the index learns of it.

What sidecars are to chunks, the journal is to names: the index can be rebuilt from it. Records carry a marker and a
crc, so a torn or damaged record costs itself and nothing after it.
"""

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from hoard_p2p.storage.failures import store_failure

MARKER = b"\xf5HJ1"
_HEAD = struct.Struct("<4sIB")  # marker, length of the payload, kind
_CRC = struct.Struct("<I")  # of everything before it in the record


class Kind(IntEnum):
    """What a record's payload is; unknown kinds are skipped by readers."""

    NODE = 1  # 16 bytes: the node id
    ROOT = 2  # 32 bytes snapshot id, then the root
    SNAPSHOT = 3  # records.encode_snapshot
    REF = 4  # records.encode_ref


class Entry(NamedTuple):
    kind: int
    payload: bytes


def encode(entry: Entry) -> bytes:
    body = _HEAD.pack(MARKER, len(entry.payload), entry.kind) + entry.payload
    return body + _CRC.pack(zlib.crc32(body))


def decode(raw: bytes) -> Iterator[Entry]:
    """The valid entries in `raw`, in order; whatever lies between them is stepped over."""
    at = raw.find(MARKER)
    while at >= 0:
        entry = _entry_at(raw, at)
        if entry is not None:
            yield entry
            at += _HEAD.size + len(entry.payload) + _CRC.size - 1
        at = raw.find(MARKER, at + 1)


def _entry_at(raw: bytes, at: int) -> Entry | None:
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


class Journal:
    """The appending side. Not thread-safe: the store calls it under its own lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries and return once they are on disk. Raises StoreFailed; half a record is stepped over later."""
        raw = b"".join(map(encode, entries))
        try:
            while raw:
                raw = raw[os.write(self._fd, raw) :]
            os.fdatasync(self._fd)
        except OSError as error:
            raise store_failure(f"nothing was changed, the journal {self._path} could not be written", error) from error

    def close(self) -> None:
        os.close(self._fd)
