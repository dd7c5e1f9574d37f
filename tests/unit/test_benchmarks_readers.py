"""The benchmark's readers read what they say they read."""

import math
import time
from pathlib import Path

import pytest

from benchmarks.figures import make_small
from benchmarks.phases import names_of, parts, shuffled
from benchmarks.readers import PAGE, ReaderFailed, at_once, random_reads, random_touches, whole_files


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    make_small(tmp_path, 6, 3 * PAGE)
    return [tmp_path / name for name in names_of(tmp_path)]


def test_several_readers_read_all_their_files_whole(files: list[Path]) -> None:
    reading = at_once([whole_files(files[:4]), whole_files(files[4:])])
    assert (reading.size, reading.counts, reading.count) == (6 * 3 * PAGE, (4, 2), 6)
    assert reading.seconds > 0


def test_a_reader_whose_time_is_over_counts_no_file_that_it_left_half_read(files: list[Path]) -> None:
    done = whole_files(files)()(time.perf_counter() - 1)
    assert (done.count, done.size) == (0, 3 * PAGE)


def test_random_readers_do_the_number_asked_for(files: list[Path]) -> None:
    for make in (random_reads, random_touches):
        done = make(files, 2500)()(math.inf)
        assert (done.count, done.size) == (2500, 2500 * PAGE)


def test_the_error_of_a_reader_is_raised(tmp_path: Path) -> None:
    with pytest.raises(ReaderFailed, match="No such file"):
        at_once([whole_files([tmp_path / "absent"])])
    with pytest.raises(ReaderFailed, match="No such file"):
        at_once([random_reads([tmp_path / "absent"], 1)])


def test_the_order_of_a_training_loader_is_mixed_and_the_same_each_time() -> None:
    names = [str(number) for number in range(100)]
    assert shuffled(names) == shuffled(names) != names
    assert sorted(shuffled(names)) == sorted(names)
    assert sorted(name for part in parts(names, 8) for name in part) == sorted(names)
