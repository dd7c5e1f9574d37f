"""The byte layout of a catalog: header, section table, columns, limits (docs/formats.md, "Catalog"). Pure.

Everything is little-endian. `sections` finds and checks the sections of a catalog without touching their contents.
"""

import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias

from blake3 import blake3

from hoard_p2p.errors import CatalogCorrupt, HoardError
from hoard_p2p.ids import ID_SIZE, ChunkId

MAGIC = b"hoardcat"
VERSION = 1
ALIGNMENT = 64

HEADER = struct.Struct("<8sIIQII")
"""Magic, version, number of sections, length of the catalog, flags, zero. The section table follows."""

SECTION = struct.Struct("<IIQQ")
"""Type, element size, offset from the start of the catalog, length in bytes."""

FLAG_HOLES = 1
"""Some run is a hole."""

HARD_LINK = 0xFFFFFFFF
"""The `count` of a hard link, whose `first` is the target inode."""

MAX_SECTIONS = 64
MAX_INODES = 0xFFFFFFFE
MAX_RUNS = 0xFFFFFFFE
MAX_SIZE = 1 << 63
MAX_NAME = 255
MAX_TARGET = 4095
MAX_PATH = 16 << 20
"""Bytes of a whole path that a reader puts together."""
MAX_XATTR_NAME = 255
MAX_VERSION = 255
"""Bytes of the version of an object."""
MAX_XATTR_BYTES = 16 << 20
"""Encoded attributes of one inode."""

XATTR = struct.Struct("<HI")
"""Length of the name, length of the value; name and value follow."""


class Column(IntEnum):
    """Section types. Numbers are never reused; a reader skips those it does not know."""

    MODE = 1
    SIZE = 2
    MTIME = 3
    NLINK = 4
    PARENT = 5
    NAME = 6
    NAME_HEAP = 7
    FIRST = 8
    COUNT = 9
    CHUNK_ID = 16
    CHUNK_END = 17
    CANONICAL = 18
    SEGMENT_FIRST = 24
    SEGMENT_FILE = 25
    SEGMENT_KEY = 26
    XATTR_INODE = 32
    XATTR_OFFSET = 33
    XATTR_HEAP = 34
    UID = 40
    GID = 41
    VERSION = 48
    VERSION_HEAP = 49


Code: TypeAlias = Literal["B", "I", "Q", "q"]

ELEMENTS: dict[Column, Code] = {
    Column.MODE: "I",
    Column.SIZE: "Q",
    Column.MTIME: "q",
    Column.NLINK: "I",
    Column.PARENT: "I",
    Column.NAME: "Q",
    Column.NAME_HEAP: "B",
    Column.FIRST: "Q",
    Column.COUNT: "I",
    Column.CHUNK_ID: "B",
    Column.CHUNK_END: "Q",
    Column.CANONICAL: "I",
    Column.SEGMENT_FIRST: "I",
    Column.SEGMENT_FILE: "I",
    Column.SEGMENT_KEY: "B",
    Column.XATTR_INODE: "I",
    Column.XATTR_OFFSET: "Q",
    Column.XATTR_HEAP: "B",
    Column.UID: "I",
    Column.GID: "I",
    Column.VERSION: "Q",
    Column.VERSION_HEAP: "B",
}
"""How a reader sees each section: the code of `struct`, `array` and `memoryview.cast`."""

XATTR_COLUMNS = (Column.XATTR_INODE, Column.XATTR_OFFSET, Column.XATTR_HEAP)
OWNER_COLUMNS = (Column.UID, Column.GID)
VERSION_COLUMNS = (Column.VERSION, Column.VERSION_HEAP)
"""Of lazy snapshots: the version of each object."""
_OPTIONAL = (XATTR_COLUMNS, OWNER_COLUMNS, VERSION_COLUMNS, (Column.SEGMENT_KEY,))
REQUIRED = tuple(column for column in Column if not any(column in columns for columns in _OPTIONAL))
_ID_COLUMNS = (Column.CHUNK_ID, Column.SEGMENT_KEY)


@dataclass(frozen=True, slots=True)
class Totals:
    """What a snapshot holds, counted by the builder and bound by the root.

    `files` counts regular files, each hard link set once; `hard_links` the further names of such sets; `directories`
    the root too. `size` is the bytes of all files, `data` the same without holes, `unique` with each distinct chunk
    once. `chunks` counts chunk runs, holes included.
    """

    files: int
    directories: int
    symlinks: int
    hard_links: int
    size: int
    data: int
    unique: int
    chunks: int
    segments: int
    inodes: int


def element_size(column: Column) -> int:
    """Bytes of one element: what the section table says."""
    return ID_SIZE if column in _ID_COLUMNS else struct.calcsize("<" + ELEMENTS[column])


def aligned(offset: int) -> int:
    """The first place for a section at or after `offset`."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def require_little_endian() -> None:
    """Columns are used in place. Raises HoardError where the processor cannot."""
    if sys.byteorder != "little":
        raise HoardError("catalogs can only be used on little-endian machines")


def file_key(runs: Iterable[tuple[ChunkId, int]]) -> bytes:
    """16 bytes that name a large file by its runs' (id, length) in order, holes included."""
    hasher = blake3()
    for chunk_id, length in runs:
        hasher.update(chunk_id + length.to_bytes(8, "little"))
    return hasher.digest(16)


def sections(data: memoryview) -> tuple[int, dict[Column, memoryview]]:
    """The flags and the known sections of a catalog, each as a view of its elements.

    Raises CatalogCorrupt unless every section lies inside the catalog, aligned, after the one before it, with the
    element size of its type, and all required ones are there with lengths that agree.
    """
    if len(data) < HEADER.size:
        raise CatalogCorrupt(f"catalog of {len(data)} bytes is shorter than its header")
    magic, version, count, length, flags, zero = HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise CatalogCorrupt(f"not a catalog of version {VERSION}: magic {magic!r}, version {version}")
    if length != len(data) or count > MAX_SECTIONS or flags & ~FLAG_HOLES or zero:
        raise CatalogCorrupt(f"catalog header: length {length} of {len(data)}, {count} sections, flags {flags:#x}")
    if HEADER.size + count * SECTION.size > length:
        raise CatalogCorrupt(f"section table of {count} entries does not fit into {length} bytes")
    found = _section_table(data, count)
    _check_lengths(found)
    return flags, found


def _section_table(data: memoryview, count: int) -> dict[Column, memoryview]:
    found: dict[Column, memoryview] = {}
    known = {int(column): column for column in Column}
    last_type, end = 0, HEADER.size + count * SECTION.size
    for number in range(count):
        kind, element, offset, length = SECTION.unpack_from(data, HEADER.size + number * SECTION.size)
        if kind <= last_type or offset % ALIGNMENT or offset < end or length > len(data) - offset:
            raise CatalogCorrupt(f"section {kind} at {offset}, {length} bytes: out of order, place or bounds")
        last_type, end = kind, offset + length
        column = known.get(kind)
        if column is None:
            continue
        if element != element_size(column) or length % element:
            raise CatalogCorrupt(f"section {kind} has elements of {element} bytes and {length} in all")
        found[column] = data[offset:end].cast(ELEMENTS[column])
    return found


def _check_lengths(found: dict[Column, memoryview]) -> None:
    missing = [column.name for column in REQUIRED if column not in found]
    if missing:
        raise CatalogCorrupt(f"catalog without section {missing[0]}")
    for optional in _OPTIONAL:
        if 0 < sum(column in found for column in optional) < len(optional):
            raise CatalogCorrupt(f"some of the sections {[column.name for column in optional]} are missing")
    inodes, runs = len(found[Column.MODE]), len(found[Column.CANONICAL])
    segments, attributed = len(found[Column.SEGMENT_FILE]), len(found.get(Column.XATTR_INODE, ()))
    expected = {
        **dict.fromkeys((Column.SIZE, Column.MTIME, Column.NLINK, Column.PARENT, Column.FIRST), inodes),
        **dict.fromkeys((Column.COUNT, *OWNER_COLUMNS), inodes),
        Column.NAME: inodes + 1,
        Column.CHUNK_ID: runs * ID_SIZE,
        Column.CHUNK_END: runs + 1,
        Column.SEGMENT_FIRST: segments + 1,
        Column.SEGMENT_KEY: segments * ID_SIZE,
        Column.VERSION: inodes + 1,
        Column.XATTR_OFFSET: attributed + 1,
    }
    for column, entries in expected.items():
        if column in found and len(found[column]) != entries:
            raise CatalogCorrupt(f"section {column.name} has {len(found[column])} entries, not {entries}")
    if not 1 <= inodes <= MAX_INODES or runs > MAX_RUNS or segments > runs:
        raise CatalogCorrupt(f"catalog of {inodes} inodes, {runs} runs, {segments} segments")
