"""Segment boundaries of seeded chunk tables: literals, and the rules of docs/formats.md, "Segments", once more."""

from array import array

from blake3 import blake3

from hoard_p2p.ids import HOLE, ChunkId
from hoard_p2p.segments import Segmenter, placement_key

KIB, MIB = 1 << 10, 1 << 20
File = list[tuple[ChunkId, int]]


def seeded(seed: bytes, lengths: list[int]) -> File:
    stream = blake3(seed).digest(length=32 * len(lengths))
    return [(ChunkId(stream[32 * place : 32 * place + 32]), length) for place, length in enumerate(lengths)]


def by_the_page(files: list[File]) -> list[int]:
    """First runs, and the number of runs."""
    table = [
        (run, sum(n for i, n in file if i != HOLE) > 8 * MIB, number)
        for number, file in enumerate(files)
        for run in file
    ]
    firsts = [0]
    size = chunks = 0
    for place, ((chunk_id, length), large, number) in enumerate(table):
        ends = place + 1 == len(table)
        if not ends:
            _, next_large, next_number = table[place + 1]
            ends = (large or next_large) and number != next_number
        if chunk_id != HOLE:
            size += length
            chunks += 1
            lot = int.from_bytes(chunk_id[8:16], "little")
            ends |= (size >= MIB and lot * 8 * MIB < length * 2**64) or size >= 64 * MIB or chunks >= 16384
        if ends:
            firsts.append(place + 1)
            size = chunks = 0
    return firsts


def segments(files: list[File]) -> tuple[list[int], list[int]]:
    segmenter = Segmenter()
    for number, file in enumerate(files):
        segmenter.add_file(file, 100 + number)
    table = segmenter.finish()
    return list(table.firsts), list(table.files)


def test_boundaries_of_small_files_are_where_the_format_says() -> None:
    files = [[run] for run in seeded(b"hoard golden small files", [110_000] * 400)]
    firsts, inodes = segments(files)
    assert firsts == by_the_page(files) == [0, 163, 230, 302, 375, 400]
    assert set(inodes) == {0}


def test_a_large_file_has_segments_of_its_own() -> None:
    files = [
        seeded(b"before", [500 * KIB]),
        seeded(b"large", [MIB] * 30),
        seeded(b"after", [MIB] * 8),  # 8 MiB is not large
        seeded(b"last", [1]),
    ]
    firsts, inodes = segments(files)
    assert firsts == by_the_page(files) == [0, 1, 4, 11, 12, 28, 31, 40]
    assert inodes == [0, 101, 101, 101, 101, 101, 0]


def test_holes_count_nothing_and_end_nothing() -> None:
    file = seeded(b"sparse", [MIB] * 20)
    sparse = [run for chunk in file for run in ((HOLE, 1 << 40), chunk)] + [(HOLE, 5)]
    firsts, inodes = segments([sparse])
    assert firsts == by_the_page([sparse])
    assert firsts[:-1] == [2 * first for first in segments([file])[0][:-1]]
    assert set(inodes) == {100}
    dense = segments([[(HOLE, 1 << 30), *seeded(b"small", [8 * MIB // 2] * 2)]])
    assert dense[1] == [0] * len(dense[1])


def test_a_segment_ends_at_64_mib_and_at_16384_chunks() -> None:
    never = ChunkId(b"\xff" * 32)
    assert segments([[(never, 4 * MIB)] * 33])[0] == [0, 16, 32, 33]
    assert segments([[(never, 10)]] * 40000)[0] == [0, 16384, 32768, 40000]


def test_a_table_without_runs_has_no_segments() -> None:
    assert segments([[], []]) == ([0], [])
    assert isinstance(Segmenter().finish().firsts, array)


def test_the_placement_key_is_the_last_chunk_that_is_no_hole() -> None:
    first, second = (chunk_id for chunk_id, _ in seeded(b"key", [1, 1]))
    assert placement_key([first, second, HOLE]) == second
    assert placement_key([HOLE, HOLE]) is None
