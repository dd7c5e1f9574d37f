"""Cut points of seeded inputs: literals, and the algorithm of docs/formats.md, "Cutting", written down once more."""

import struct

from blake3 import blake3
from pyfastcdc.py.constants import GEAR

from hoard_p2p.chunking import FASTCDC, FIXED, Run, runs_of

KIB, MIB = 1 << 10, 1 << 20
GEAR_DIGEST = "9af822d1e10df25d0157a43ccd0a73b56d1c1d0a5d77acb4e6e979522d0fe149"


def seeded(seed: bytes, size: int) -> bytes:
    """`size` bytes of blake3's extended output for `seed`."""
    return blake3(seed).digest(length=size)


def chunk_lengths(extent: bytes) -> list[int]:
    """FastCDC by the page, slowly."""
    lengths = []
    here = 0
    while here < len(extent):
        lengths.append(next_length(extent[here : here + 4 * MIB], len(extent) - here))
        here += lengths[-1]
    return lengths


def next_length(data: bytes, left: int) -> int:
    if left <= 262144:
        return left
    end = min(left, 4194304) // 2 * 2
    middle = min(left, 1048576) // 2 * 2
    hashed = 0
    for place in range(262144, end, 2):
        mask = 0x0000D91767537000 if place < middle else 0x0000D91707537000
        hashed = (4 * hashed + 2 * GEAR[data[place]]) % 2**64
        if hashed & (2 * mask) == 0:
            return place
        hashed = (hashed + GEAR[data[place + 1]]) % 2**64
        if hashed & mask == 0:
            return place + 1
    return min(left, 4194304)


def chunks(*lengths: int) -> list[Run]:
    return [Run(length, False) for length in lengths]


def test_the_gear_table_is_the_one_of_the_format() -> None:
    assert GEAR[0] == 0x3B5D3C7D207E37DC
    assert blake3(struct.pack("<256Q", *GEAR)).hexdigest() == GEAR_DIGEST


def test_random_bytes_are_cut_where_the_format_says() -> None:
    data = seeded(b"hoard golden 1", 6 * MIB + 12345)
    assert (
        [run.length for run in runs_of(FASTCDC, data)]
        == chunk_lengths(data)
        == [1265146, 1390998, 643830, 1353377, 746700, 695883, 207867]
    )


def test_bytes_without_a_cut_point_are_cut_at_the_longest_length() -> None:
    data = b"\x01" * (5 * MIB + 1)
    assert runs_of(FASTCDC, data) == chunks(4 * MIB, MIB + 1)


def test_an_odd_rest_without_a_cut_point_is_kept_whole() -> None:
    data = b"\x01" * (MIB + 1)
    assert chunk_lengths(data) == [MIB + 1]
    assert runs_of(FASTCDC, data) == chunks(MIB + 1)


def test_each_extent_between_holes_is_cut_by_itself() -> None:
    head, tail = seeded(b"hoard golden 2", 2 * MIB), seeded(b"hoard golden 3", MIB + 70001)
    data = head + bytes(3 * 64 * KIB + 100) + tail
    # The zeros begin at a block boundary: three blocks are a hole, 100 zeros are the start of the second extent.
    expected = [*chunks(*chunk_lengths(head)), Run(3 * 64 * KIB, True), *chunks(*chunk_lengths(bytes(100) + tail))]
    assert runs_of(FASTCDC, data) == expected
    assert expected == [*chunks(1153438, 466953, 476761), Run(196608, True), *chunks(839117, 279560)]


def test_fixed_chunks_end_at_multiples_of_4_mib_of_the_file() -> None:
    data = seeded(b"hoard golden 4", 4 * MIB) + bytes(8 * MIB) + b"end"
    assert runs_of(FIXED, data) == [Run(4 * MIB, False), Run(8 * MIB, True), Run(3, False)]


def test_each_extent_of_a_small_file_is_one_chunk() -> None:
    data = b"x" * 70000 + bytes(128 * KIB) + b"y" * 10
    # Of the blocks of 64 KiB only the third has no byte but zeros.
    assert runs_of(FASTCDC, data) == [Run(128 * KIB, False), Run(64 * KIB, True), Run(70000 - 64 * KIB + 10, False)]
    assert runs_of(FIXED, data) == chunks(len(data))


def test_a_file_of_zeros_is_one_hole_and_an_empty_file_nothing() -> None:
    for chunker in (FASTCDC, FIXED):
        assert runs_of(chunker, bytes(1)) == [Run(1, True)]
        assert runs_of(chunker, bytes(9 * MIB + 5)) == [Run(9 * MIB + 5, True)]
        assert runs_of(chunker, b"") == []
