"""Names of things: chunk ids and snapshot ids, made from bytes and shown as hexadecimal.

Ids are plain `bytes` under a `NewType`: they are compared, sorted and stored by the million.
"""

from typing import NewType, TypeAlias

from blake3 import blake3

Bytes: TypeAlias = bytes | bytearray | memoryview
"""Anything that holds bytes and can be hashed or written without a copy."""

ChunkId = NewType("ChunkId", bytes)
"""32 bytes: blake3-256 of a chunk's bytes; in the chunk table of a lazy snapshot an origin key (`is_origin_key`)."""

SnapshotId = NewType("SnapshotId", bytes)
"""32 bytes: blake3 in key-derivation mode of a root record (docs/formats.md)."""

ID_SIZE = 32
HOLE = ChunkId(bytes(ID_SIZE))
"""The reserved id of a hole: a run of zero bytes that is never read, stored or sent."""

SNAPSHOT_CONTEXT = "hoard 2026-11-29 snapshot id v1"
"""Key-derivation context, so that no snapshot id can equal a chunk id. Never changes."""

LAZY_CONTEXT = "hoard 2026-11-30 lazy snapshot id v1"
"""The same for lazy snapshots, which commit to names and versions, not to bytes."""

ORIGIN_KEY_TAG = b"hoardkey"
"""Origin keys begin with it, so that each id tells what it is: nobody finds bytes whose blake3 does."""

_KEY_CONTEXT = "hoard 2026-11-30 origin key v1"
_SLOT_CONTEXT = "hoard 2026-11-30 slot v1"
_LAZY_FLAG = 1
"""Of the flags at byte 12 of a root (docs/formats.md, Root)."""

MIN_PREFIX = 6
"""Hex digits that a snapshot prefix needs at least."""


def chunk_id(data: Bytes) -> ChunkId:
    """The id of a chunk with these bytes. Releases the GIL for large buffers."""
    return ChunkId(blake3(data).digest())


def snapshot_id(root: Bytes) -> SnapshotId:
    """The id of the snapshot, lazy or not, whose encoded root is `root`."""
    lazy = len(root) > 12 and root[12] & _LAZY_FLAG
    return SnapshotId(blake3(root, derive_key_context=LAZY_CONTEXT if lazy else SNAPSHOT_CONTEXT).digest())


def origin_key(name: bytes, version: bytes, offset: int, length: int) -> ChunkId:
    """What stands for a piece of an origin object until its bytes are known: `name` is the object's whole name, the
    same for all data sets that hold it (`objects.Origin.identity`)."""
    sizes = len(name).to_bytes(4, "little") + len(version).to_bytes(4, "little")
    where = offset.to_bytes(8, "little") + length.to_bytes(8, "little")
    digest = blake3(sizes + name + version + where, derive_key_context=_KEY_CONTEXT).digest(length=ID_SIZE - 8)
    return ChunkId(ORIGIN_KEY_TAG + digest)


def is_origin_key(identifier: bytes) -> bool:
    """Whether an id of a chunk table is an origin key, and no digest of bytes."""
    return identifier.startswith(ORIGIN_KEY_TAG)


def slot_id(path: bytes, offset: int) -> ChunkId:
    """What a piece of a data set from an origin is segmented and placed by: its place in the data set, so that it
    keeps its home when it is sealed, and when it changes (decision 0008)."""
    return ChunkId(blake3(offset.to_bytes(8, "little") + path, derive_key_context=_SLOT_CONTEXT).digest())


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
    """The first 12 hex digits, for logs; of an origin key those behind what all keys begin with."""
    return (identifier[len(ORIGIN_KEY_TAG) :] if is_origin_key(identifier) else identifier).hex()[:12]
