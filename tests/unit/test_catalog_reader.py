"""The reader beyond its laws: memory, closing, wrong kinds, and searching holes in long files."""

import io
import mmap
import random
import struct
import tempfile
import tracemalloc

import pytest

from hoard_p2p.catalog import file_key
from hoard_p2p.catalog.builder import CatalogBuilder, Meta
from hoard_p2p.catalog.reader import ABSENT, Catalog
from hoard_p2p.errors import CatalogCorrupt, PathNotFound
from hoard_p2p.ids import HOLE, ChunkId, chunk_id

META = Meta(0o644, 0, 0, 0)


def flat(files: list[list[tuple[ChunkId, int]]]) -> bytes:
    """A catalog with one directory of these files, a directory `zd` and a symlink `zs`."""
    out = io.BytesIO()
    with CatalogBuilder(spill=tempfile.TemporaryFile, keep_owner=False) as builder:
        builder.add_root(META)
        builder.next_directory()
        for number, runs in enumerate(files):
            builder.add_file(b"f%07d" % number, META, sum(length for _, length in runs), runs)
        builder.add_directory(b"zd", META)
        builder.add_symlink(b"zs", META, b"zd")
        builder.next_directory()
        builder.finish(out)
    return out.getvalue()


def linked() -> bytes:
    """1 and 2 are files `a` and `b`, 3 and 4 links `c` and `d` to `a`, 5 is a symlink `dd`."""
    out = io.BytesIO()
    with CatalogBuilder(spill=tempfile.TemporaryFile, keep_owner=False) as builder:
        builder.add_root(META)
        builder.next_directory()
        builder.add_file(b"a", META, 0, [])
        builder.add_file(b"b", META, 3, [(chunk_id(b"abc"), 3)])
        builder.add_hard_link(b"c", 1)
        builder.add_hard_link(b"d", 1)
        builder.add_symlink(b"dd", META, b"a")
        builder.finish(out)
    return out.getvalue()


def test_opening_and_using_a_catalog_keeps_no_object_per_file() -> None:
    data = memoryview(flat([[(chunk_id(b"x"), 1)]] * 30_000))
    tracemalloc.start()
    try:
        catalog = Catalog(data)
        for inode in range(0, catalog.inodes, 7):
            catalog.path_of(inode)
            catalog.span(inode, 0, 10)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_a_mapping_can_be_closed_after_the_catalog() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(flat([[(chunk_id(b"x"), 1)]]))
        file.flush()
        mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        catalog = Catalog(mapping)
        assert catalog.find(b"f0000000") == 1
        with pytest.raises(BufferError):
            mapping.close()
        catalog.close()
        mapping.close()


def test_the_wrong_kind_of_inode_gives_nothing() -> None:
    catalog = Catalog(memoryview(flat([[(chunk_id(b"x"), 5)]])))
    file, directory, symlink = (catalog.find(name) for name in (b"f0000000", b"zd", b"zs"))
    for inode in (file, symlink):
        assert catalog.children(inode) == range(0)
        assert catalog.lookup(inode, b"x") == ABSENT
    for inode in (directory, symlink):
        assert catalog.runs(inode) == range(0)
        assert catalog.span(inode, 0, 10) == []
        assert catalog.data_size(inode) == 0
        assert catalog.next_data(inode, 0) == catalog.next_hole(inode, 0) == ABSENT
    assert catalog.target(file) == catalog.target(directory) == b""
    assert catalog.uid_gid(file) is None
    assert catalog.xattrs(file) == {}


def test_paths_may_have_slashes_in_excess_and_do_not_follow_symlinks() -> None:
    catalog = Catalog(memoryview(flat([[(chunk_id(b"x"), 5)]])))
    assert catalog.find(b"/") == catalog.find(b"") == 0
    assert catalog.find(b"//zd/") == catalog.find(b"zd")
    assert catalog.is_symlink(catalog.find(b"zs"))
    for path in (b"zs/x", b"f0000000/x", b"zd/..", b".", b"none"):
        with pytest.raises(PathNotFound):
            catalog.find(path)


def test_an_offset_is_asked_only_for_a_run_of_the_file() -> None:
    catalog = Catalog(memoryview(flat([[(chunk_id(b"x"), 5), (chunk_id(b"y"), 6)], [(chunk_id(b"z"), 7)]])))
    assert [catalog.run_offset(1, run) for run in (0, 1)] == [0, 5]
    assert catalog.run_offset(2, 2) == 0
    with pytest.raises(ValueError, match="run 2 is not in inode 1"):
        catalog.run_offset(1, 2)


def test_holes_are_told_from_ids_that_only_have_many_zeros() -> None:
    source = random.Random(3)
    kinds = [
        HOLE,
        ChunkId(b"\x01" + bytes(31)),
        ChunkId(bytes(31) + b"\x01"),
        ChunkId(source.randbytes(32)),
    ]
    runs = [(kinds[source.randrange(4)], source.randrange(1, 100)) for _ in range(70_000)]
    catalog = Catalog(memoryview(flat([runs])))
    assert catalog.data_size(1) == sum(length for identifier, length in runs if identifier != HOLE)
    offset, expected = 0, []
    for identifier, length in runs:
        if identifier == HOLE:
            expected.append(offset)
        offset += length
    found: list[int] = []
    here = catalog.next_hole(1, 0)
    while here < offset and len(found) < 200:
        found.append(here)
        here = catalog.next_hole(1, catalog.next_data(1, here))
    merged = [start for start in expected if start == 0 or catalog.next_data(1, start - 1) == start - 1]
    assert found == merged[: len(found)]
    assert len(found) == 200


def damaged(catalog: bytes, section: int, index: int, code: str, value: int) -> Catalog:
    """A catalog whose section of that type has another value at one place."""
    changed = bytearray(catalog)
    for number in range(struct.unpack_from("<I", catalog, 12)[0]):
        kind, element, offset, _ = struct.unpack_from("<IIQQ", catalog, 32 + 24 * number)
        if kind == section:
            struct.pack_into(f"<{code}", changed, offset + element * index, value)
    return Catalog(memoryview(bytes(changed)))


LINKED = linked()


@pytest.mark.parametrize("target", [0, 3, 4, 5, 9, 0xFFFFFFFF])
def test_a_link_to_anything_but_an_earlier_file_is_corrupt(target: int) -> None:
    catalog = damaged(LINKED, 8, 3, "Q", target)
    for call in (catalog.resolve, catalog.mode, catalog.size, catalog.runs, catalog.nlink):
        with pytest.raises(CatalogCorrupt):
            call(3)


def test_a_link_to_an_earlier_link_is_corrupt() -> None:
    catalog = damaged(LINKED, 8, 4, "Q", 3)
    assert catalog.resolve(3) == 1
    for call in (catalog.resolve, catalog.mode, catalog.size, catalog.runs, catalog.nlink):
        with pytest.raises(CatalogCorrupt):
            call(4)


def test_runs_whose_ends_do_not_ascend_are_corrupt() -> None:
    runs = [(chunk_id(b"%d" % number), 10) for number in range(4)]
    for index, end in ((1, 20), (1, 25), (2, 5), (2, 1 << 63), (3, 10)):
        catalog = damaged(flat([runs]), 17, index, "Q", end)
        with pytest.raises(CatalogCorrupt):
            catalog.span(1, 0, 40)
        with pytest.raises(CatalogCorrupt):
            [catalog.length(run) for run in catalog.runs(1)]


@pytest.mark.parametrize(("index", "offset"), [(2, 0), (2, 300), (2, 1 << 40), (3, 0), (3, 1 << 63)])
def test_names_out_of_bounds_are_corrupt(index: int, offset: int) -> None:
    catalog = damaged(LINKED, 6, index, "Q", offset)
    with pytest.raises(CatalogCorrupt):
        [catalog.name(inode) for inode in range(catalog.inodes)]


@pytest.mark.parametrize("name", [b"a/b", b"a\0b", b"/", b"\0"])
def test_names_with_slash_or_zero_are_corrupt(name: bytes) -> None:
    catalog = Catalog(memoryview(flat([[]]).replace(b"f0000000", (name * 8)[:8])))
    with pytest.raises(CatalogCorrupt, match="has the name"):
        catalog.name(1)


def test_a_name_of_one_or_two_dots_is_corrupt() -> None:
    for dots in (b".", b".."):
        catalog = Catalog(memoryview(LINKED.replace(b"abcdd", dots + b"cdd" if dots == b".." else b".bcdd")))
        listed = catalog.children(0)
        with pytest.raises(CatalogCorrupt, match="has the name"):
            [catalog.name(inode) for inode in listed]
        assert catalog.lookup(0, dots) == ABSENT


def test_a_file_key_depends_on_ids_lengths_and_holes() -> None:
    runs = [(chunk_id(b"x"), 5), (HOLE, 7)]
    assert file_key(runs).hex() == "ae5080b6457339fd29d4737be6269cb3"
    assert (
        len({file_key(runs), file_key(runs[:1]), file_key(runs[::-1]), file_key([(chunk_id(b"x"), 6), (HOLE, 7)])}) == 4
    )
