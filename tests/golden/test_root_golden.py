"""The bytes of roots, list chunks and snapshot ids, by hand from docs/formats.md, "Root"."""

import struct

from hoard_p2p.catalog.root import CatalogRun, Root, Totals, decode, decode_list, encode, encode_list
from hoard_p2p.chunking import FASTCDC, FIXED
from hoard_p2p.ids import ChunkId, snapshot_id

FIRST = bytes(range(32))
LIST = bytes(range(100, 132))
COUNTS = (3, 2, 1, 4, 1000, 900, 800, 5, 1, 10)  # files ... inodes

INLINE_BYTES = b"".join(
    (
        b"hoardrot",
        struct.pack("<II", 1, 4),  # version; flags: mtimes kept
        struct.pack("<5I", 1, 262144, 1048576, 4194304, 65536),  # fastcdc
        struct.pack("<I", 2),  # two runs
        struct.pack("<10Q", *COUNTS),
        struct.pack("<Q", 75536),
        FIRST + struct.pack("<Q", 10000),
        bytes(32) + struct.pack("<Q", 65536),  # a hole
    )
)
INLINE = Root(
    chunker=FASTCDC,
    totals=Totals(*COUNTS),
    catalog_length=75536,
    catalog_runs=(CatalogRun(ChunkId(FIRST), 10000), CatalogRun(ChunkId(bytes(32)), 65536)),
)
INLINE_ID = "29917b982d85c899cb541fc709046c45e4e04525ad7242b3e57aebc66b32566d"

LISTED_BYTES = b"".join(
    (
        b"hoardrot",
        struct.pack("<II", 1, 2),  # owners kept, mtimes dropped
        struct.pack("<5I", 2, 4194304, 4194304, 4194304, 4194304),  # fixed
        struct.pack("<I", 0),  # a list chunk
        struct.pack("<10Q", *COUNTS),
        struct.pack("<Q", 257 * 4194304),
        LIST + struct.pack("<Q", 16 + 257 * 40),
    )
)
LISTED = Root(
    chunker=FIXED,
    totals=Totals(*COUNTS),
    catalog_length=257 * 4194304,
    catalog_runs=(),
    catalog_list=CatalogRun(ChunkId(LIST), 16 + 257 * 40),
    keep_owner=True,
    keep_mtimes=False,
)
LISTED_ID = "d8406d8c6b777ce7dc1c23a76f9cc35cb395aef8196f661d38923af706c642d0"

LIST_BYTES = b"hoardlst" + struct.pack("<II", 1, 257) + (FIRST + struct.pack("<Q", 4194304)) * 257
LIST_RUNS = (CatalogRun(ChunkId(FIRST), 4194304),) * 257


def test_a_root_with_its_runs_has_the_bytes_of_the_table() -> None:
    assert encode(INLINE) == INLINE_BYTES
    assert decode(INLINE_BYTES) == INLINE


def test_a_root_with_a_list_chunk_has_the_bytes_of_the_table() -> None:
    assert encode(LISTED) == LISTED_BYTES
    assert decode(LISTED_BYTES) == LISTED


def test_a_list_chunk_has_the_bytes_of_the_table() -> None:
    assert encode_list(LIST_RUNS) == LIST_BYTES
    assert decode_list(LIST_BYTES, LISTED) == LIST_RUNS


def test_snapshot_ids_never_change() -> None:
    assert snapshot_id(INLINE_BYTES).hex() == INLINE_ID
    assert snapshot_id(LISTED_BYTES).hex() == LISTED_ID
