"""How far is verified ahead of which readers, and in which pieces: decisions without any I/O."""

import random

from hoard_p2p.ids import ChunkId
from hoard_p2p.mount.ahead import DISORDER, FIRST, MOST, MOST_FILES, MOST_RUNS, Readers
from hoard_p2p.mount.pieces import GAP, PIECE, Lying, assemble

RUN = 100_000
RUNS = 1_000_000


def _readers(run: int = RUN) -> Readers:
    return Readers(lambda number: number * run, RUNS)


def _taken(readers: Readers) -> int:
    """Runs that are given out until nobody wants more."""
    count = 0
    while stream := readers.due():
        count += len(readers.take(stream, 1 << 20, 256))
    return count


def test_a_new_reader_gets_a_short_window_behind_what_it_reads() -> None:
    readers = _readers()
    stream = readers.hint(500, 501)
    assert readers.take(stream, 1 << 20, 256).start == 501
    assert _taken(readers) <= FIRST // RUN + 2


def test_the_window_of_a_reader_in_order_grows_up_to_its_most() -> None:
    readers = _readers()
    windows = []
    for run in range(0, 1000, 40):
        windows.append(readers.window(readers.hint(run, run + 1)))
    assert windows == sorted(windows)
    assert windows[-1] == MOST


def test_each_run_is_given_out_once_however_often_the_reader_is_told_of() -> None:
    readers = _readers()
    given: list[int] = []
    for run in (0, 40, 40, 20, 80):
        readers.hint(run, run + 1)
        while stream := readers.due():
            given.extend(readers.take(stream, 1 << 20, 256))
    assert len(given) == len(set(given))


def test_readers_that_share_the_work_are_one_and_those_far_apart_are_several() -> None:
    readers = _readers()
    near = {id(readers.hint(run, run + 1)) for run in (0, 3, 1, 2, 7, 5)}
    assert len(near) == 1
    far = {id(readers.hint(run, run + 1)) for run in (100_000, 200_000, 300_000)}
    assert len(far) == 3


def test_shuffled_reading_soon_gets_nothing_ahead() -> None:
    readers, draw = _readers(), random.Random(1)
    _read_at_random(readers, draw, DISORDER + 4)
    assert not readers.in_order
    for _ in range(100):
        _read_at_random(readers, draw, 1)
        assert _taken(readers) < 10


def _read_at_random(readers: Readers, draw: random.Random, times: int) -> None:
    for _ in range(times):
        run = draw.randrange(RUNS - 1)
        readers.hint(run, run + 1)


def test_order_is_trusted_again_when_readers_go_on_in_order() -> None:
    readers, draw = _readers(), random.Random(1)
    _read_at_random(readers, draw, 20)
    _taken(readers)
    for run in range(0, 1000, 40):
        readers.hint(run, run + 1)
    assert readers.in_order
    assert _taken(readers) > 1000


def test_a_reader_of_large_files_gets_four_of_them() -> None:
    readers = _readers(run=1 << 20)
    for file in range(4):
        stream = readers.hint(file * 256, file * 256 + 256)
    assert readers.window(stream) == min(4 * 256 << 20, MOST_FILES)


def test_tiny_runs_are_bounded_by_number_and_the_end_of_the_table_is_the_end() -> None:
    readers = _readers(run=100)
    readers.hint(0, 1)
    assert _taken(readers) == MOST_RUNS
    readers.hint(RUNS - 5, RUNS - 4)
    assert _taken(readers) == 4


def _lying(offset: int, length: int, slab: int = 1) -> Lying:
    return Lying(slab, offset, offset, ChunkId(bytes(32)), length, 1)


def test_chunks_side_by_side_are_read_at_once_in_the_order_of_the_disk() -> None:
    pieces = assemble([_lying(8192, 4000), _lying(0, 4000), _lying(4096, 4000), _lying(0, 4000, slab=2)])
    assert [(piece.slab, piece.offset, piece.length, len(piece.checks)) for piece in pieces] == [
        (1, 0, 12_192, 3),
        (2, 0, 4000, 1),
    ]
    assert [check.start for check in pieces[0].checks] == [0, 4096, 8192]


def test_what_lies_apart_or_is_long_is_read_by_itself() -> None:
    pieces = assemble([_lying(0, 10), _lying(20 + GAP, 10), _lying(1 << 20, PIECE), _lying((2 << 20) + 1, 3 * PIECE)])
    assert [len(piece.checks) for piece in pieces] == [1, 1, 1, 1]
