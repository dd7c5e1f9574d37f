"""What is fetched before it is asked for: pure decisions, event in, segments out."""

import random

import pytest

from hoard_p2p.fetch.ahead import LONGEST_WINDOW, STREAMS, Ahead, Span

MIB = 1 << 20
DISK = Span(1000, lambda segment: 8 * MIB)


def read(ahead: Ahead, segments: list[int], span: Span = DISK, reader: str = "m") -> list[list[int]]:
    """What is given out for each segment that a reader misses; what was given out is here by the next one."""
    given = []
    for segment in segments:
        given.append(ahead.at(reader, segment, segment * 100, span))
        for ended in given[-1]:
            ahead.ended(reader, ended)
    return given


def test_a_reader_in_order_that_is_seen_only_when_it_misses_gets_windows_that_double() -> None:
    assert read(Ahead(), [0, 1, 3, 6, 11, 20, 29]) == [
        [], [2], [4, 5], [7, 8, 9, 10], list(range(12, 20)), list(range(21, 29)), list(range(30, 38)),
    ]  # fmt: skip


def test_a_reader_in_order_that_is_seen_at_each_segment_has_its_window_kept_full() -> None:
    given = read(Ahead(), list(range(20)))
    flat = [segment for part in given for segment in part]
    assert flat == list(range(2, 20 + LONGEST_WINDOW))
    assert all(len(part) == 1 for part in given[6:])


def test_nothing_is_given_out_for_one_segment_or_for_the_end_of_the_snapshot() -> None:
    assert read(Ahead(), [5, 5, 5]) == [[], [], []]
    assert read(Ahead(), [0, 1, 2], Span(3, lambda segment: MIB)) == [[], [2], []]


def test_reading_on_inside_one_segment_brings_the_next_one_before_it_is_reached() -> None:
    ahead = Ahead()
    given = [ahead.at("m", 4, run, DISK) for run in range(40, 50)]
    assert [segment for part in given for segment in part] == [5]
    assert given[0] == []


def test_reading_back_and_forth_inside_one_segment_brings_nothing() -> None:
    ahead = Ahead()
    assert not any(ahead.at("m", 4, run, DISK) for run in [9, 2, 7, 1, 8, 3, 6, 2, 9, 1])


def test_random_access_gets_next_to_nothing() -> None:
    draw = random.Random(3)
    segments = [draw.randrange(1000) for _ in range(500)]
    given = sum(map(len, read(Ahead(), segments)))
    assert given < 60


def test_a_reader_that_jumps_starts_anew_with_nothing() -> None:
    ahead = Ahead()
    read(ahead, list(range(10)))
    assert read(ahead, [500]) == [[]]
    assert read(ahead, [501]) == [[502]]


def test_four_readers_of_four_shards_each_have_their_window() -> None:
    ahead = Ahead()
    mixed = [start + step for step in range(6) for start in (0, 200, 400, 600)]
    given = read(ahead, mixed)
    for number, start in enumerate((0, 200, 400, 600)):
        own = [segment for part in given[number::4] for segment in part]
        assert own[:5] == [start + step for step in range(2, 7)]


def test_one_stream_is_at_most_so_many_bytes_ahead_and_all_together_too() -> None:
    span = Span(1000, lambda segment: 30 * MIB)
    ahead = Ahead()
    for step in range(6):
        assert len(ahead.at("m", step, step, span)) <= 2
        for ended in range(step + 1):
            ahead.ended("m", ended)
    ahead = Ahead(total_bytes=100 * MIB)
    for step in range(6):
        for start in (0, 200, 400, 600):
            ahead.at("m", start + step, 0, DISK)
            assert ahead.bytes <= 100 * MIB


def test_what_ended_makes_room_and_what_was_cut_off_for_lack_of_room_is_given_out_later() -> None:
    ahead = Ahead(total_bytes=8 * MIB)
    ahead.at("m", 0, 0, DISK)
    assert ahead.at("m", 1, 0, DISK) == [2]
    assert ahead.at("m", 2, 0, DISK) == []
    ahead.ended("m", 2)
    assert ahead.at("m", 2, 1, DISK) == [3]


def test_a_segment_is_given_out_once_however_many_streams_come_to_it() -> None:
    ahead = Ahead()
    given: list[int] = []
    for segment in (0, 1, 10, 11, 2, 12, 3, 4, 5, 6, 7, 8, 9):
        given += ahead.at("m", segment, segment, DISK)
    assert len(given) == len(set(given))


def test_a_reader_that_left_is_forgotten_with_all_that_was_under_way() -> None:
    ahead = Ahead()
    for segment in range(5):
        ahead.at("m", segment, 0, DISK)
        ahead.at("other", segment, 0, DISK)
    before = ahead.bytes
    ahead.left("m")
    assert ahead.bytes == before // 2
    assert ahead.at("m", 5, 0, DISK) == []
    ahead.ended("m", 6)
    assert ahead.bytes == before // 2


@pytest.mark.parametrize("readers", [1, 300])
def test_memory_is_bounded_whatever_is_read(readers: int) -> None:
    ahead = Ahead()
    for step in range(20 * STREAMS):
        ahead.at(step % readers, (step * 7919) % 1000, step, DISK)
    assert ahead.bytes <= 256 * MIB
