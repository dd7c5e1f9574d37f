"""Laws of segments: they cover, keep their bounds, and survive changes elsewhere."""

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from hoard_p2p.ids import HOLE, ChunkId
from hoard_p2p.limits import MAX_SEGMENT, MAX_SEGMENT_CHUNKS
from hoard_p2p.segments import (
    LARGE_FILE,
    Segmenter,
    SegmentTable,
    data_size,
)

MIB = 1 << 20
MAX_CHUNK = 4 * MIB
File = list[tuple[ChunkId, int]]


def tree(seed: int, files: int) -> list[File]:
    """Files of many sizes, some sparse."""
    source = random.Random(seed)
    made: list[File] = []
    for _ in range(files):
        runs = [
            (ChunkId(source.randbytes(32)), source.randrange(1, MAX_CHUNK + 1))
            for _ in range(source.choice((1, 1, 1, 2, 9)))
        ]
        if source.random() < 0.2:
            runs.insert(source.randrange(len(runs) + 1), (HOLE, source.randrange(1, 1 << 40)))
        made.append(runs)
    return made


def segment(files: list[File]) -> SegmentTable:
    segmenter = Segmenter()
    for inode, file in enumerate(files, 1):
        segmenter.add_file(file, inode)
    return segmenter.finish()


def contents(files: list[File]) -> list[File]:
    """The runs of each segment."""
    runs = [run for file in files for run in file]
    firsts = segment(files).firsts
    return [runs[start:stop] for start, stop in itertools.pairwise(firsts)]


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.integers(0, 1 << 30), st.integers(0, 120))
def test_segments_cover_the_table_within_their_bounds(seed: int, count: int) -> None:
    files = tree(seed, count)
    parts = contents(files)
    assert [run for part in parts for run in part] == [run for file in files for run in file]
    for part in parts:
        assert part
        assert data_size(part) < MAX_SEGMENT + MAX_CHUNK
        assert sum(chunk_id != HOLE for chunk_id, _ in part) <= MAX_SEGMENT_CHUNKS


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.integers(0, 1 << 30), st.integers(1, 120))
def test_a_segment_names_its_file_exactly_if_that_is_large(seed: int, count: int) -> None:
    files = tree(seed, count)
    owners = [inode for inode, file in enumerate(files, 1) for _ in file]
    table = segment(files)
    for number, file in enumerate(table.files):
        inodes = set(owners[table.firsts[number] : table.firsts[number + 1]])
        if file:
            assert inodes == {file}
            assert data_size(files[file - 1]) > LARGE_FILE
        else:
            assert all(data_size(files[inode - 1]) <= LARGE_FILE for inode in inodes)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.integers(0, 1 << 30), st.integers(50, 200), st.data())
def test_segments_survive_insertions_and_deletions(seed: int, count: int, data: st.DataObject) -> None:
    files = tree(seed, count)
    place = data.draw(st.integers(0, count - 1))
    inserted = files[:place] + tree(seed + 1, 1) + files[place:]
    removed = files[:place] + files[place + 1 :]
    before = {tuple(part) for part in contents(files)}
    for changed in (inserted, removed):
        after = [tuple(part) for part in contents(changed)]
        # The segments around the change, those of a large file itself, and a few until the boundaries meet again.
        assert sum(part not in before for part in after) <= 16


def test_the_mean_size_of_segments_does_not_depend_on_the_size_of_files() -> None:
    source = random.Random(7)
    for length in (4_000, 110_000, MIB, MAX_CHUNK):
        count = min(2_000 * MIB // length, 300_000)
        files = [[(ChunkId(source.randbytes(32)), length)] for _ in range(count)]
        mean = count * length / len(segment(files).files)
        assert 6 * MIB < mean < 13 * MIB
