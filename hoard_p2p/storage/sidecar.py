"""Sidecars: beside each slab, the append-only list of what was written to it (docs/formats.md, Store).

A sidecar is written before its slab is synced and before the index learns of the bytes, so the index can be rebuilt
from sidecars alone by hashing what they list. It may list bytes that never arrived (a crash); it never omits bytes that
the index refers to (I2).
"""

import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hoard_p2p.errors import Corrupt
from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import Extent, SlabKind
from hoard_p2p.storage.layout import sync_path

MAGIC = b"HOARDSC1"
_HEADER = struct.Struct("<8sIIQBxxxI")  # magic, slab, start, size, kind, crc of what precedes
_RECORD = struct.Struct("<QI32sI")  # offset, length, id, crc of what precedes, started with the slab's number
_BODY = struct.Struct("<QI32s")
_KINDS = (SlabKind.SHARED, SlabKind.FILE)
_BLOCK = _RECORD.size * 21845  # about 1 MiB of records a read

FRESH = ".new"
"""Ends the name of a sidecar that is being written anew."""
MODE = 0o640
HEADER_SIZE = _HEADER.size
RECORD = _RECORD
RECORD_SIZE = _RECORD.size


class SidecarHeader(NamedTuple):
    """Which slab a sidecar belongs to. `size`: the exact length of a FILE slab, 0 for a SHARED one."""

    slab: int
    start: int
    size: int
    kind: SlabKind


def encode_header(header: SidecarHeader) -> bytes:
    body = _HEADER.pack(MAGIC, header.slab, header.start, header.size, _KINDS.index(header.kind), 0)[:-4]
    return body + struct.pack("<I", zlib.crc32(body))


def encode_records(extents: Sequence[Extent]) -> bytes:
    """The records of extents of one slab. The crc is started with the slab's number, so that no record counts in
    another slab's sidecar."""
    out = bytearray()
    for slab, offset, length, chunk_id in extents:
        body = _BODY.pack(offset, length, chunk_id)
        out += body
        out += zlib.crc32(body, slab).to_bytes(4, "little")
    return bytes(out)


def draft(path: Path, header: SidecarHeader, pieces: Iterable[Sequence[Extent]]) -> None:
    """Begin (again) to write a sidecar anew, beside the old one. For who has its slab's lock. Raises OSError."""
    with open(_fresh(path), "wb", opener=_private) as file:
        file.write(encode_header(header))
        for extents in pieces:
            file.write(encode_records(extents))


def settle(path: Path, more: Sequence[Extent] = ()) -> None:
    """Put what `draft` wrote, and `more`, in the place of the old one, in one step. Raises OSError; then the old one is
    there still, or the new one."""
    fresh = _fresh(path)
    with fresh.open("ab") as file:
        file.write(encode_records(more))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_path(path.parent)


def _fresh(path: Path) -> Path:
    return path.with_name(path.name + FRESH)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, MODE)


def read_header(fd: int) -> SidecarHeader:
    """Raises Corrupt if the file does not start with a whole header."""
    raw = os.pread(fd, HEADER_SIZE, 0)
    if len(raw) != HEADER_SIZE or raw[:8] != MAGIC or zlib.crc32(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
        raise Corrupt(f"sidecar has no valid header ({raw[:8]!r}); the slab's bytes cannot be named")
    _, slab, start, size, kind, _ = _HEADER.unpack(raw)
    return SidecarHeader(slab, start, size, _KINDS[kind])


def count(fd: int) -> int:
    """How many records there are, whether they count or not; a torn one at the end left out."""
    return (os.fstat(fd).st_size - HEADER_SIZE) // RECORD_SIZE


def scan(fd: int) -> Iterator[Extent]:
    """Every extent that the sidecar lists, in the order written; records with a wrong crc and a torn tail are left out.

    Reads the whole file. Raises Corrupt without a valid header."""
    slab = read_header(fd).slab
    at = HEADER_SIZE
    while block := os.pread(fd, _BLOCK, at):
        whole = len(block) - len(block) % RECORD_SIZE
        for start in range(0, whole, RECORD_SIZE):
            offset, length, chunk_id, crc = _RECORD.unpack_from(block, start)
            if crc == zlib.crc32(block[start : start + _BODY.size], slab):
                yield Extent(slab, offset, length, ChunkId(chunk_id))
        if whole < RECORD_SIZE:
            return
        at += whole
