"""What the builder refuses, counts, and does when columns outgrow memory."""

import io
import random
import tempfile
from typing import BinaryIO

import pytest

from hoard_p2p.catalog.builder import CatalogBuilder, Meta
from hoard_p2p.catalog.dedup import fill_canonical
from hoard_p2p.catalog.layout import MAX_RUNS
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.catalog.spill import BLOCK, SpilledBytes, SpilledColumn
from hoard_p2p.errors import Refused
from hoard_p2p.ids import HOLE, ChunkId, chunk_id

META = Meta(0o644, 0, 0, 0)


class Spills:
    """Gives temporary files and remembers them."""

    def __init__(self) -> None:
        self.files: list[BinaryIO] = []

    def __call__(self) -> BinaryIO:
        self.files.append(tempfile.TemporaryFile())  # noqa: SIM115 - the builder closes it
        return self.files[-1]


def started(keep_owner: bool = False) -> CatalogBuilder:
    builder = CatalogBuilder(spill=tempfile.TemporaryFile, keep_owner=keep_owner)
    builder.add_root(META)
    builder.next_directory()
    return builder


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"a\0", b"n" * 256])
def test_names_that_a_directory_cannot_have_are_refused(name: bytes) -> None:
    with pytest.raises(ValueError, match="not allowed"):
        started().add_directory(name, META)


def test_names_must_ascend_within_a_directory() -> None:
    builder = started()
    builder.add_directory(b"b", META)
    for name in (b"a", b"b"):
        with pytest.raises(ValueError, match="does not come after"):
            builder.add_directory(name, META)
    builder.add_directory(b"c", META)
    builder.next_directory()
    builder.add_directory(b"a", META)


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [(chunk_id(b"x"), 9)],
        [(chunk_id(b"x"), 11)],
        [(chunk_id(b"x"), 10), (chunk_id(b"y"), 0)],
        [(ChunkId(b"short"), 10)],
    ],
)
def test_runs_must_make_the_size(runs: list[tuple[ChunkId, int]]) -> None:
    with pytest.raises(ValueError, match="run"):
        started().add_file(b"f", META, 10, runs)


def test_a_chunk_of_more_than_4_mib_is_refused_and_a_hole_is_not() -> None:
    size = (4 << 20) + 1
    with pytest.raises(ValueError, match="run of"):
        started().add_file(b"f", META, size, [(chunk_id(b"x"), size)])
    started().add_file(b"f", META, size, [(HOLE, size)])


@pytest.mark.parametrize("target", [b"", b"a\0b", b"t" * 4096])
def test_symlink_targets_have_1_to_4095_bytes_without_nul(target: bytes) -> None:
    with pytest.raises(ValueError, match="symlink"):
        started().add_symlink(b"l", META, target)


@pytest.mark.parametrize("target", [0, 1, 99])
def test_a_hard_link_points_to_an_earlier_entry(target: int) -> None:
    with pytest.raises(ValueError, match="hard link"):
        started().add_hard_link(b"h", target)


@pytest.mark.parametrize(
    "xattrs",
    [((b"", b"v"),), ((b"n" * 256, b""),), ((b"a\0", b""),), ((b"a", b"1"), (b"a", b"2")), ((b"a", bytes(16 << 20)),)],
)
def test_attributes_that_cannot_be_read_back_are_refused(xattrs: tuple[tuple[bytes, bytes], ...]) -> None:
    with pytest.raises(ValueError, match="attribute"):
        started().add_directory(b"d", Meta(0o755, 0, 0, 0, xattrs))


def test_the_calls_must_come_in_order() -> None:
    builder = CatalogBuilder(spill=tempfile.TemporaryFile, keep_owner=False)
    with pytest.raises(ValueError, match="directories were visited"):
        builder.finish(io.BytesIO())
    builder.add_root(META)
    with pytest.raises(ValueError, match="only root"):
        builder.add_root(META)
    with pytest.raises(ValueError, match="next_directory"):
        builder.add_directory(b"d", META)
    builder.next_directory()
    builder.add_directory(b"d", META)
    with pytest.raises(ValueError, match="1 of 2 directories"):
        builder.finish(io.BytesIO())
    builder.next_directory()
    with pytest.raises(ValueError, match="has been visited"):
        builder.next_directory()


def test_times_that_do_not_fit_are_stored_as_the_nearest() -> None:
    builder = started()
    builder.add_directory(b"a", Meta(0o755, 1 << 70, 0, 0))
    builder.add_directory(b"b", Meta(0o755, -1 << 70, 0, 0))
    builder.next_directory()
    builder.next_directory()
    out = io.BytesIO()
    builder.finish(out)
    catalog = Catalog(memoryview(out.getvalue()))
    assert (catalog.mtime(1), catalog.mtime(2)) == ((1 << 63) - 1, -1 << 63)


def test_an_empty_tree_has_a_catalog() -> None:
    out = io.BytesIO()
    totals = started().finish(out)
    catalog = Catalog(memoryview(out.getvalue()))
    catalog.validate()
    assert (totals.inodes, totals.directories, totals.chunks, totals.segments) == (1, 1, 0, 0)
    assert (catalog.children(0), catalog.segments, catalog.has_holes, catalog.has_owner) == (
        range(1, 1),
        0,
        False,
        False,
    )


def test_a_tree_larger_than_memory_blocks_is_the_same_and_leaves_no_file_open() -> None:
    count = 140_000  # more than one block of every column
    spills = Spills()
    out = io.BytesIO()
    with CatalogBuilder(spill=spills, keep_owner=True) as builder:
        builder.add_root(META)
        builder.next_directory()
        for number in range(count):
            name = b"%07d" % number
            match number % 10:
                case 0:
                    builder.add_directory(name, META)
                case 1:
                    builder.add_symlink(name, META, b"to-%d" % number)
                case 2 if number > 10:
                    builder.add_hard_link(name, number - 8)
                case _:
                    content = b"%d" % (number // 20)
                    builder.add_file(
                        name, Meta(0o600, number, number, 1), len(content), [(chunk_id(content), len(content))]
                    )
        for _ in range(0, count, 10):
            builder.next_directory()
            builder.add_file(b"only", META, 0, [])
        totals = builder.finish(out)
    assert spills.files
    assert all(file.closed for file in spills.files)
    catalog = Catalog(memoryview(out.getvalue()))
    catalog.validate()
    assert totals.inodes == catalog.inodes == 1 + count + count // 10
    assert catalog.target(catalog.find(b"0100001")) == b"to-100001"
    assert catalog.resolve(catalog.find(b"0100002")) == catalog.find(b"0099993")
    assert catalog.nlink(catalog.find(b"0099993")) == 2
    assert catalog.uid_gid(catalog.find(b"0120005")) == (120005, 1)
    assert catalog.path_of(catalog.inodes - 1) == b"0139990/only"
    run = catalog.runs(catalog.find(b"0120019"))[0]
    assert catalog.canonical(run) == catalog.runs(catalog.find(b"0120003"))[0]


@pytest.mark.parametrize("limit", [1_000_000, 300, 7])
def test_the_first_run_of_an_id_is_found_in_any_number_of_partitions(limit: int) -> None:
    source = random.Random(5)
    pool = [HOLE, *(ChunkId(source.randbytes(32)) for _ in range(200))]
    runs = [(pool[source.randrange(len(pool))], source.randrange(1, 9)) for _ in range(3000)]
    spills = Spills()
    ids, ends, column = SpilledBytes(spills), SpilledColumn("Q", spills), SpilledColumn("I", spills)
    end = 0
    ends.append(0)
    for identifier, length in runs:
        end += length
        ids.append(identifier)
        ends.append(end)
    repeated = fill_canonical(column, ids, ends, spills, limit=limit)
    first: dict[bytes, int] = {}
    expected = [run if i == HOLE else first.setdefault(i, run) for run, (i, _) in enumerate(runs)]
    assert [column[run] for run in range(len(runs))] == expected
    assert repeated == sum(length for run, (_, length) in enumerate(runs) if expected[run] != run)
    for spilled in (ids, ends, column):
        spilled.close()
    assert all(file.closed for file in spills.files)


def test_a_spilled_column_is_a_list_of_numbers() -> None:
    spills = Spills()
    column = SpilledColumn("Q", spills)
    numbers = list(range(BLOCK // 8 * 3 + 17))
    for number in numbers:
        column.append(number)
    assert spills.files
    assert column[0] == 0
    changes = [(0, 5), (0, 5), (BLOCK // 8, 1), (len(numbers) - 1, 9)]
    column.add_at(changes)
    for index, amount in changes:
        numbers[index] += amount
    assert [number for block in column.arrays() for number in block] == numbers
    assert [column[index] for index in (0, BLOCK // 8, len(numbers) - 1, 3)] == [10, BLOCK // 8 + 1, numbers[-1], 3]
    column.append(1)
    assert len(column) == len(numbers) + 1
    assert len(b"".join(column.blocks())) == 8 * len(column)
    column.close()


def test_more_bytes_than_a_catalog_can_tell_are_refused_in_words_for_users() -> None:
    builder, half = started(), 1 << 62
    builder.add_file(b"a", META, half, [(HOLE, half)])
    with pytest.raises(Refused, match="less than 9,223,372,036,854,775,808 bytes"):
        builder.add_file(b"b", META, half, [(HOLE, half)])


def test_more_runs_than_a_catalog_can_number_are_refused() -> None:
    class Endless(list[tuple[ChunkId, int]]):
        def __len__(self) -> int:
            return MAX_RUNS + 1

    with pytest.raises(Refused, match="at most 4,294,967,294 chunk runs"):
        started().add_file(b"a", META, 1, Endless())
