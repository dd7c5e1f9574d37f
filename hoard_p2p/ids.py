"""Names of things: chunk ids and snapshot ids, made from bytes and shown as hexadecimal.

Ids are plain `bytes` under a `NewType`: they are compared, sorted and stored by the million.
"""

from typing import NewType, TypeAlias

from blake3 import blake3

Bytes: TypeAlias = bytes | bytearray | memoryview
"""Anything that holds bytes and can be hashed or written without a copy."""

ChunkId = NewType("ChunkId", bytes)
"""32 bytes: blake3-256 of a chunk's bytes."""

SnapshotId = NewType("SnapshotId", bytes)
"""32 bytes: blake3 in key-derivation mode of a root record (docs/formats.md)."""

ID_SIZE = 32
HOLE = ChunkId(bytes(ID_SIZE))
"""The reserved id of a hole: a run of zero bytes that is never read, stored or sent."""

SNAPSHOT_CONTEXT = "hoard 2026-11-29 snapshot id v1"
"""Key-derivation context, so that no snapshot id can equal a chunk id. Never changes."""

MIN_PREFIX = 6
"""Hex digits that a snapshot prefix needs at least."""


def chunk_id(data: Bytes) -> ChunkId:
    """The id of a chunk with these bytes. Releases the GIL for large buffers."""
    return ChunkId(blake3(data).digest())


def snapshot_id(root: Bytes) -> SnapshotId:
    """The id of the snapshot whose encoded root is `root`."""
    return SnapshotId(blake3(root, derive_key_context=SNAPSHOT_CONTEXT).digest())


def parse_snapshot_id(text: str) -> SnapshotId:
    """The id written as 64 hex digits. Raises ValueError for anything else."""
    return SnapshotId(from_hex(text, ID_SIZE, "a snapshot id"))


def from_hex(text: str, size: int, what: str) -> bytes:
    """The `size` bytes that `text` writes as hex digits and nothing else. Raises ValueError."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(text) != 2 * size or len(data) != size:  # fromhex skips blanks
        raise ValueError(f"{what} has {2 * size} hex digits, unlike {text[:80]!r}")
    return data


def short(identifier: bytes) -> str:
    """The first 12 hex digits, for logs."""
    return identifier.hex()[:12]
