"""What a root, a list chunk and a catalog must agree on."""

import io
import tempfile
from dataclasses import replace

import pytest

from hoard_p2p.catalog.builder import CatalogBuilder, Meta
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.catalog.root import CatalogRun, Root, Totals, check, decode, decode_list, encode, encode_list
from hoard_p2p.chunking import FASTCDC
from hoard_p2p.errors import CatalogCorrupt
from hoard_p2p.ids import HOLE, chunk_id, snapshot_id

MIB = 1 << 20
META = Meta(0o755, 0, 0, 0)


def small_catalog() -> tuple[bytes, Totals]:
    out = io.BytesIO()
    with CatalogBuilder(spill=tempfile.TemporaryFile, keep_owner=False) as builder:
        builder.add_root(META)
        builder.next_directory()
        builder.add_file(b"f", META, 3, [(chunk_id(b"abc"), 3)])
        totals = builder.finish(out)
    return out.getvalue(), totals


def root_of(catalog: bytes, totals: Totals) -> Root:
    return Root(FASTCDC, totals, len(catalog), (CatalogRun(chunk_id(catalog), len(catalog)),))


def test_the_options_are_part_of_the_snapshot_id() -> None:
    root = root_of(*small_catalog())
    variants = [root, replace(root, lazy=True), replace(root, keep_owner=True), replace(root, keep_mtimes=False)]
    assert len({snapshot_id(encode(variant)) for variant in variants}) == 4
    assert [decode(encode(variant)) for variant in variants] == variants


def test_a_root_promises_what_its_catalog_holds() -> None:
    data, totals = small_catalog()
    catalog = Catalog(memoryview(data))
    check(root_of(data, totals), catalog)
    for lie in ({"inodes": 3}, {"chunks": 0}, {"segments": 0}):
        with pytest.raises(CatalogCorrupt, match="catalog of"):
            check(root_of(data, replace(totals, **lie)), catalog)
    with pytest.raises(CatalogCorrupt, match="catalog of"):
        check(replace(root_of(data, totals), keep_owner=True), catalog)


def test_every_bit_of_a_root_matters() -> None:
    encoded = encode(root_of(*small_catalog()))
    for bit in range(8 * len(encoded)):
        damaged = bytearray(encoded)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            other = decode(damaged)
        except CatalogCorrupt:
            continue
        assert encode(other) == damaged


@pytest.mark.parametrize(
    "lie",
    [
        {"inodes": 7},
        {"directories": 0, "files": 2},
        {"unique": 4},
        {"data": 4},
        {"size": 1 << 63},
        {"segments": 2},
        {"files": 1 << 20, "inodes": (1 << 20) + 1},
        {"chunks": 1 << 20},
    ],
)
def test_totals_that_cannot_be_are_refused(lie: dict[str, int]) -> None:
    data, totals = small_catalog()
    with pytest.raises(ValueError, match="root with"):
        encode(root_of(data, replace(totals, **lie)))


def test_a_catalog_over_the_bound_is_refused() -> None:
    data, totals = small_catalog()
    encoded = encode(root_of(data, totals))
    assert decode(encoded, max_catalog=len(data)).catalog_length == len(data)
    with pytest.raises(CatalogCorrupt, match=f"catalog of {len(data)} bytes"):
        decode(encoded, max_catalog=len(data) - 1)


def test_runs_must_add_up_to_the_catalog() -> None:
    data, totals = small_catalog()
    root = root_of(data, totals)
    run = root.catalog_runs[0]
    for runs in (
        (run, run),
        (CatalogRun(run.chunk_id, 0), run),
        (CatalogRun(run.chunk_id, len(data) - 1),),
        (CatalogRun(run.chunk_id, 1 << 63), CatalogRun(run.chunk_id, (1 << 63) + len(data))),
    ):
        with pytest.raises(ValueError, match="catalog run"):
            encode(replace(root, catalog_runs=runs))
    with pytest.raises(ValueError, match="runs or a list chunk"):
        encode(replace(root, catalog_runs=()))
    with pytest.raises(ValueError, match="runs or a list chunk"):
        encode(replace(root, catalog_list=run))
    with pytest.raises(ValueError, match="more than 256"):
        encode(replace(root, catalog_length=300 * MIB, catalog_runs=(CatalogRun(run.chunk_id, MIB),) * 300))


def test_only_holes_of_a_catalog_are_longer_than_a_chunk() -> None:
    data, totals = small_catalog()
    long = 5 * MIB
    root = replace(root_of(data, totals), catalog_length=long)
    sparse = replace(root, catalog_runs=(CatalogRun(HOLE, long),))
    assert decode(encode(sparse)) == sparse
    with pytest.raises(ValueError, match="catalog run of"):
        encode(replace(root, catalog_runs=(CatalogRun(chunk_id(b"x"), long),)))


def test_a_list_chunk_adds_up_to_the_catalog_and_is_no_longer_than_a_chunk() -> None:
    totals = small_catalog()[1]
    runs = [CatalogRun(chunk_id(b"%d" % number), MIB) for number in range(300)]
    encoded = encode_list(runs)
    root = Root(FASTCDC, totals, 300 * MIB, (), CatalogRun(chunk_id(encoded), len(encoded)))
    assert decode(encode(root)) == root
    assert decode_list(encoded, root) == tuple(runs)
    for damaged in (encoded[:-1], encoded + b"\0", b"x" + encoded[1:], encoded[:12] + b"\0" + encoded[13:], b""):
        with pytest.raises(CatalogCorrupt):
            decode_list(damaged, root)
    with pytest.raises(CatalogCorrupt, match="do not add up"):
        decode_list(encoded, replace(root, catalog_length=301 * MIB))
    for count in (256, 110_000):
        with pytest.raises(ValueError, match="no list chunk"):
            encode_list(runs[:1] * count)
