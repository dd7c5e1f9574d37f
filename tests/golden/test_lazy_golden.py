"""Origin keys, slots, and the catalogs and roots of data sets from origins, by hand from docs/formats.md."""

import io
import struct
import tempfile

from blake3 import blake3

from hoard_p2p.catalog.builder import CatalogBuilder, Meta
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.catalog.root import CatalogRun, Root, Totals, decode, encode
from hoard_p2p.catalog.sealed import write_sealed
from hoard_p2p.chunking import PIECES, piece_lengths
from hoard_p2p.ids import ChunkId, is_origin_key, origin_key, slot_id, snapshot_id
from hoard_p2p.publish.pieces import piece_runs, piece_slots

MIB = 1 << 20
BIG = 9 * MIB


def key(name: bytes, version: bytes, offset: int, length: int) -> bytes:
    material = struct.pack("<II", len(name), len(version)) + name + version + struct.pack("<QQ", offset, length)
    return b"hoardkey" + blake3(material, derive_key_context="hoard 2026-11-30 origin key v1").digest(24)


def slot(path: bytes, offset: int) -> bytes:
    return blake3(struct.pack("<Q", offset) + path, derive_key_context="hoard 2026-11-30 slot v1").digest()


# The data set s3://b/p/, breadth-first:
#  0  /        0755   time 0
#  1  a        0644   5 bytes, version e1
#  2  d/       0755   time 0
#  3  d/big    0644   9 MiB, version e2: pieces of 4, 4 and 1 MiB; large, so in segments of its own;
#                      the slot of the second piece ends one
KEYS = (
    key(b"s3://b/p/a", b"e1", 0, 5)
    + key(b"s3://b/p/d/big", b"e2", 0, 4 * MIB)
    + key(b"s3://b/p/d/big", b"e2", 4 * MIB, 4 * MIB)
    + key(b"s3://b/p/d/big", b"e2", 8 * MIB, MIB)
)
CONTENTS = tuple(blake3(data).digest() for data in (b"hello", b"same", b"same", b"end"))

ALIKE = [
    (1, 4, struct.pack("<4I", 0o040755, 0o100644, 0o040755, 0o100644)),
    (2, 8, struct.pack("<4Q", 0, 5, 0, BIG)),
    (3, 8, struct.pack("<4q", 0, 7, 0, 8)),
    (4, 4, struct.pack("<4I", 1, 1, 1, 1)),
    (5, 4, struct.pack("<4I", 0, 0, 0, 2)),
    (6, 8, struct.pack("<5Q", 0, 0, 1, 2, 5)),
    (7, 1, b"adbig"),
    (8, 8, struct.pack("<4Q", 1, 0, 3, 1)),
    (9, 4, struct.pack("<4I", 2, 1, 1, 3)),
    (17, 8, struct.pack("<5Q", 0, 5, 5 + 4 * MIB, 5 + 8 * MIB, 5 + 9 * MIB)),
    (24, 4, struct.pack("<4I", 0, 1, 3, 4)),
    (25, 4, struct.pack("<3I", 0, 3, 3)),
    (26, 32, slot(b"a", 0) + slot(b"d/big", 4 * MIB) + slot(b"d/big", 8 * MIB)),
]
LAZY = [
    *ALIKE,
    (16, 32, KEYS),
    (18, 4, struct.pack("<4I", 0, 1, 2, 3)),
    (48, 8, struct.pack("<5Q", 0, 0, 2, 2, 4)),
    (49, 1, b"e1e2"),
]
SEALED = [*ALIKE, (16, 32, b"".join(CONTENTS)), (18, 4, struct.pack("<4I", 0, 1, 1, 3))]


def by_hand(sections: list[tuple[int, int, bytes]]) -> bytes:
    table = body = b""
    start = 32 + 24 * len(sections)
    for kind, element, content in sorted(sections):
        body += bytes(-(start + len(body)) % 64)
        table += struct.pack("<IIQQ", kind, element, start + len(body), len(content))
        body += content
    return struct.pack("<8sIIQII", b"hoardcat", 1, len(sections), start + len(body), 0, 0) + table + body


def built() -> tuple[bytes, Totals]:
    out = io.BytesIO()
    with CatalogBuilder(spill=tempfile.TemporaryFile, keep_owner=False, lazy=True) as builder:

        def add(path: bytes, size: int, mtime: int, version: bytes) -> None:
            builder.add_file(
                path.rpartition(b"/")[2],
                Meta(0o644, mtime, 0, 0),
                size,
                piece_runs(b"s3://b/p/" + path, version, size),
                slots=piece_slots(path, size),
                version=version,
            )

        builder.add_root(Meta(0o755, 0, 0, 0))
        builder.next_directory()
        add(b"a", 5, 7, b"e1")
        builder.add_directory(b"d", Meta(0o755, 0, 0, 0))
        builder.next_directory()
        add(b"d/big", BIG, 8, b"e2")
        totals = builder.finish(out)
    return out.getvalue(), totals


def test_keys_and_slots_are_the_digests_of_the_format() -> None:
    name, path = b"s3://bucket/set/a", "sub/ä".encode()
    assert origin_key(name, b"etag", 4 * MIB, MIB) == key(name, b"etag", 4 * MIB, MIB)
    assert slot_id(path, 4 * MIB) == slot(path, 4 * MIB)
    assert (
        origin_key(name, b"etag", 4 * MIB, MIB).hex()
        == "686f6172646b6579f98e1bd67eac9bec8b3e42800c8cdfc38216cba596d5de32"
    )
    assert slot_id(path, 4 * MIB).hex() == "f72c6eed03dca35aba6d7694ad5a7b8b4cd5f4abce17183a1ab765cfd7a58531"
    assert is_origin_key(key(name, b"", 0, 1)) and not is_origin_key(slot(path, 0))


def test_objects_are_cut_at_multiples_of_4_mib_unless_they_are_small() -> None:
    assert piece_lengths(0) == [] and piece_lengths(MIB) == [MIB]
    assert piece_lengths(MIB + 1) == [MIB + 1] and piece_lengths(4 * MIB) == [4 * MIB]
    assert piece_lengths(BIG) == [4 * MIB, 4 * MIB, MIB]
    assert len(piece_lengths(5 << 40)) == (5 << 40) // (4 * MIB)
    for size in (0, 5, MIB, MIB + 1, BIG):
        assert [length for _, length in piece_runs(b"n", b"v", size)] == piece_lengths(size)


def test_a_lazy_catalog_has_the_bytes_of_the_tables() -> None:
    data, totals = built()
    assert data == by_hand(LAZY)
    assert (totals.files, totals.directories, totals.segments, totals.unique) == (2, 2, 3, BIG + 5)


def test_the_sealed_twin_has_ids_of_bytes_and_no_versions() -> None:
    known = {KEYS[32 * run : 32 * run + 32]: ChunkId(CONTENTS[run]) for run in range(4)}
    lazy, out = Catalog(memoryview(by_hand(LAZY))), io.BytesIO()
    assert write_sealed(lazy, lambda keys: [known[one] for one in keys], tempfile.TemporaryFile, out) == 4 * MIB
    assert out.getvalue() == by_hand(SEALED)


def test_the_reader_finds_versions_slots_and_segments() -> None:
    for sections, versions in ((LAZY, [b"", b"e1", b"", b"e2"]), (SEALED, [b""] * 4)):
        catalog = Catalog(memoryview(by_hand(sections)))
        catalog.validate()
        assert [catalog.version(inode) for inode in range(4)] == versions
        assert [catalog.placement_key(segment) for segment in range(3)] == [
            slot(b"a", 0),
            slot(b"d/big", 4 * MIB),
            slot(b"d/big", 8 * MIB),
        ]
        assert (catalog.is_placed, catalog.is_lazy) == (True, sections is LAZY)
        assert catalog.provenance.has_origin_keys is (sections is LAZY)


def test_lazy_roots_have_a_flag_and_ids_of_their_own() -> None:
    run = CatalogRun(ChunkId(CONTENTS[0]), 1000)
    totals = Totals(2, 2, 0, 0, BIG + 5, BIG + 5, BIG + 5, 4, 3, 4)
    root = Root(chunker=PIECES, totals=totals, catalog_length=1000, catalog_runs=(run,), lazy=True)
    expected = b"".join(
        (
            b"hoardrot",
            struct.pack("<II", 1, 1 | 4),  # lazy, times are kept
            struct.pack("<5I", 3, 4 * MIB, 4 * MIB, 4 * MIB, 4 * MIB),  # pieces
            struct.pack("<I", 1),
            struct.pack("<10Q", 2, 2, 0, 0, BIG + 5, BIG + 5, BIG + 5, 4, 3, 4),
            struct.pack("<Q", 1000),
            CONTENTS[0] + struct.pack("<Q", 1000),
        )
    )
    assert encode(root) == expected and decode(expected) == root
    assert snapshot_id(expected) == blake3(expected, derive_key_context="hoard 2026-11-30 lazy snapshot id v1").digest()
