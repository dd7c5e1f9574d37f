"""The contract of `Cutter`: windows, holes that are not read, and what it refuses."""

import pytest
from blake3 import blake3

from hoard_p2p.chunking import FASTCDC, FIXED, MIN_WINDOW, Cutter, Run, runs_of, skippable

KIB, MIB = 1 << 10, 1 << 20


def seeded(seed: bytes, size: int) -> bytes:
    return blake3(seed).digest(length=size)


def test_a_window_of_the_least_size_always_gives_a_run() -> None:
    data = memoryview(seeded(b"progress", 40 * MIB))
    for chunker in (FASTCDC, FIXED):
        cutter = Cutter(chunker, len(data))
        while cutter.position < len(data):
            before = cutter.position
            stop = min(before + MIN_WINDOW, len(data))
            assert cutter.cut(data[before:stop], final=stop == len(data))
            assert cutter.position > before


def test_position_follows_the_runs_that_were_returned() -> None:
    data = memoryview(seeded(b"position", 9 * MIB))
    cutter = Cutter(FASTCDC, len(data))
    runs = cutter.cut(data[: MIN_WINDOW + 5], final=False)
    assert cutter.position == sum(run.length for run in runs) < MIN_WINDOW
    runs += cutter.cut(data[cutter.position :], final=True)
    assert cutter.position == len(data)
    assert runs == runs_of(FASTCDC, data)


def test_a_hole_that_ends_the_file_is_returned_with_the_last_call() -> None:
    cutter = Cutter(FASTCDC, 2 << 40)
    assert cutter.skip_hole(memoryview(b""), 1 << 40) == []
    assert cutter.position == 1 << 40
    assert cutter.skip_hole(memoryview(b""), 1 << 40) == [Run(2 << 40, True)]


def test_skipped_and_read_zeros_are_one_hole() -> None:
    size = 64 * KIB * 10 + 100 + MIB
    cutter = Cutter(FASTCDC, size)
    runs = cutter.cut(memoryview(b"x" * 64 * KIB + bytes(64 * KIB)), final=False)
    runs += cutter.skip_hole(memoryview(bytes(64 * KIB)), 5 * 64 * KIB)
    tail = bytes(2 * 64 * KIB) + b"y" * (MIB + 100)
    runs += cutter.cut(memoryview(tail), final=True)
    assert runs == [Run(64 * KIB, False), Run(9 * 64 * KIB, True), Run(MIB + 100, False)]


def test_data_before_a_skipped_hole_is_cut_to_its_end() -> None:
    cutter = Cutter(FASTCDC, 3 * MIB)
    assert cutter.skip_hole(memoryview(b"x" * 64 * KIB), MIB) == [Run(64 * KIB, False)]
    assert cutter.position == 64 * KIB + MIB


@pytest.mark.parametrize(("window", "length"), [(0, 100), (1, 64 * KIB), (0, 0), (0, 4 * MIB), (0, -64 * KIB)])
def test_a_hole_that_is_not_made_of_whole_blocks_is_refused(window: int, length: int) -> None:
    cutter = Cutter(FASTCDC, 3 * MIB)
    with pytest.raises(ValueError, match="hole of"):
        cutter.skip_hole(memoryview(bytes(window)), length)


@pytest.mark.parametrize(("size", "final"), [(9, True), (10, False), (11, True)])
def test_a_window_that_contradicts_the_size_is_refused(size: int, final: bool) -> None:
    with pytest.raises(ValueError, match="window of"):
        Cutter(FASTCDC, 10).cut(memoryview(bytes(size)), final=final)


def test_skippable_is_the_whole_blocks_of_a_hole_and_the_last_partial_one() -> None:
    block = 64 * KIB
    assert skippable(FASTCDC, 0, 3 * block, 10 * block) == range(3 * block)
    assert skippable(FASTCDC, 1, 3 * block - 1, 10 * block) == range(block, 2 * block)
    assert skippable(FASTCDC, 1, 10 * block + 7, 10 * block + 7) == range(block, 10 * block + 7)
    assert not skippable(FASTCDC, 1, block + 5, 10 * block)
    assert not skippable(FASTCDC, 10 * block + 1, 10 * block + 7, 10 * block + 7)


def test_any_buffer_can_be_cut() -> None:
    data = seeded(b"buffers", 2 * MIB)
    assert runs_of(FASTCDC, bytearray(data)) == runs_of(FASTCDC, memoryview(data)) == runs_of(FASTCDC, data)
