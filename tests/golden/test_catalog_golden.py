"""The bytes of a catalog, put together by hand from the tables in docs/formats.md, "Catalog"."""

import io
import struct
import tempfile

from hoard_p2p.catalog.builder import CatalogBuilder, Meta, Totals
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.ids import ChunkId

HELLO = bytes.fromhex("ea8f163db38682925e4491c5e58d4bb3506ef8c14eb78a86e908c5624a67200f")  # blake3-256 of b"hello"
OTHER = bytes(range(1, 33))
HOLE = bytes(32)

# The tree, breadth-first:
#  0  /        0755  1.0 s   children 1 - 6
#  1  a        0644  -1 ns   "hello", two names, user.k = v
#  2  b        hard link to a
#  3  d        0700          children 6 - 7
#  4  l        symlink to a
#  5  \xff     empty file
#  6  d/big    64 KiB of zeros, then 7 bytes
#  7  d/x      "hello" again
MODE = (0o040755, 0o100644, 0o100000, 0o040700, 0o120777, 0o100600, 0o104755, 0o100444)
SIZE = (0, 5, 0, 0, 1, 0, 65543, 5)
MTIME = (1_000_000_000, -1, 0, 2**62, 7, 8, 9, 10)
NLINK = (1, 2, 0, 1, 1, 1, 1, 1)
PARENT = (0, 0, 0, 0, 0, 0, 3, 3)
NAMES = b"abdl\xffbigx"
NAME = (0, 0, 1, 2, 3, 4, 5, 8, 9)
FIRST = (1, 0, 1, 6, 9, 1, 1, 3)
COUNT = (5, 1, 0xFFFFFFFF, 2, 1, 0, 2, 1)
IDS = HELLO + HOLE + OTHER + HELLO
ENDS = (0, 5, 65541, 65548, 65553)
CANONICAL = (0, 1, 2, 0)
XATTRS = struct.pack("<HI", 6, 1) + b"user.k" + b"v"
UID = (1, 2, 0, 4, 5, 6, 7, 8)
GID = (11, 12, 0, 14, 15, 16, 17, 18)

SECTIONS = [
    (1, 4, struct.pack("<8I", *MODE)),
    (2, 8, struct.pack("<8Q", *SIZE)),
    (3, 8, struct.pack("<8q", *MTIME)),
    (4, 4, struct.pack("<8I", *NLINK)),
    (5, 4, struct.pack("<8I", *PARENT)),
    (6, 8, struct.pack("<9Q", *NAME)),
    (7, 1, NAMES + b"a"),
    (8, 8, struct.pack("<8Q", *FIRST)),
    (9, 4, struct.pack("<8I", *COUNT)),
    (16, 32, IDS),
    (17, 8, struct.pack("<5Q", *ENDS)),
    (18, 4, struct.pack("<4I", *CANONICAL)),
    (24, 4, struct.pack("<2I", 0, 4)),
    (25, 4, struct.pack("<1I", 0)),
    (32, 4, struct.pack("<1I", 1)),
    (33, 8, struct.pack("<2Q", 0, len(XATTRS))),
    (34, 1, XATTRS),
    (40, 4, struct.pack("<8I", *UID)),
    (41, 4, struct.pack("<8I", *GID)),
]


def by_hand() -> bytes:
    """Header, table and sections; every section at a multiple of 64."""
    table = b""
    body = b""
    start = 32 + 24 * len(SECTIONS)
    for kind, element, content in SECTIONS:
        body += bytes(-(start + len(body)) % 64)
        table += struct.pack("<IIQQ", kind, element, start + len(body), len(content))
        body += content
    return struct.pack("<8sIIQII", b"hoardcat", 1, len(SECTIONS), start + len(body), 1, 0) + table + body


def built() -> tuple[bytes, Totals]:
    def meta(mode: int, inode: int, *xattrs: tuple[bytes, bytes]) -> Meta:
        return Meta(mode, MTIME[inode], UID[inode], GID[inode], xattrs)

    out = io.BytesIO()
    with CatalogBuilder(spill=tempfile.TemporaryFile, keep_owner=True) as builder:
        builder.add_root(meta(0o755, 0))
        builder.next_directory()
        target = builder.add_file(b"a", meta(0o644, 1, (b"user.k", b"v")), 5, [(ChunkId(HELLO), 5)])
        builder.add_hard_link(b"b", target)
        builder.add_directory(b"d", meta(0o040700, 3))
        builder.add_symlink(b"l", meta(0o777, 4), b"a")
        builder.add_file(b"\xff", meta(0o600, 5), 0, [])
        builder.next_directory()
        builder.add_file(b"big", meta(0o104755, 6), 65543, [(ChunkId(HOLE), 65536), (ChunkId(OTHER), 7)])
        builder.add_file(b"x", meta(0o444, 7), 5, [(ChunkId(HELLO), 5)])
        totals = builder.finish(out)
    return out.getvalue(), totals


def test_the_builder_writes_the_bytes_of_the_tables() -> None:
    assert built()[0] == by_hand()


def test_the_totals_count_each_hard_link_set_and_each_repeated_chunk_once() -> None:
    assert built()[1] == Totals(
        files=4,
        directories=2,
        symlinks=1,
        hard_links=1,
        size=65553,
        data=17,
        unique=12,
        chunks=4,
        segments=1,
        inodes=8,
    )


def test_the_reader_finds_in_the_bytes_of_the_tables_what_the_tables_say() -> None:
    catalog = Catalog(memoryview(by_hand()))
    catalog.validate()
    paths = [b"", b"a", b"b", b"d", b"l", b"\xff", b"d/big", b"d/x"]
    assert [catalog.path_of(inode) for inode in range(8)] == paths
    assert [catalog.find(path) for path in paths] == list(range(8))
    assert [catalog.mode(inode) for inode in range(8)] == [*MODE[:2], MODE[1], *MODE[3:]]
    assert [catalog.mtime(inode) for inode in range(8)] == [*MTIME[:2], MTIME[1], *MTIME[3:]]
    assert [catalog.nlink(inode) for inode in (1, 2, 6)] == [2, 2, 1]
    assert [catalog.runs(inode) for inode in (1, 2, 5, 6, 7)] == [range(1)] * 2 + [
        range(1, 1),
        range(1, 3),
        range(3, 4),
    ]
    assert (catalog.target(4), catalog.xattrs(2), catalog.uid_gid(2)) == (b"a", {b"user.k": b"v"}, (2, 12))
    assert [catalog.canonical(run) for run in range(4)] == list(CANONICAL)
    assert (catalog.has_holes, catalog.has_xattrs, catalog.has_owner) == (True, True, True)
    assert catalog.placement_key(0) == HELLO
