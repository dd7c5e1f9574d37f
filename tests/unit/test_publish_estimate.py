"""Whether a publish can fit: what is sampled, how it is judged, when it is refused."""

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hoard_p2p.chunking import FASTCDC, FIXED, Chunker
from hoard_p2p.errors import StoreFailed, StoreFull
from hoard_p2p.ids import ChunkId
from hoard_p2p.publish import publish_directory
from hoard_p2p.publish.estimate import SAMPLES, SCARCE, Estimate, Picked, Sample, least_new, new_share
from hoard_p2p.testing.memory import MemorySink
from tests.unit.publish_trees import options

MIB = 1 << 20
RNG = random.Random(17)


class Room:
    """`Fits` for so many bytes; keeps what it was asked."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.asked: list[int] = []

    def __call__(self, size: int) -> None:
        self.asked.append(size)
        if size > self.size:
            raise StoreFull(f"{size - self.size} bytes are missing")


def nothing(ids: Sequence[ChunkId]) -> list[bool]:
    return [False] * len(ids)


def everything(ids: Sequence[ChunkId]) -> list[bool]:
    return [True] * len(ids)


def opener(path: Path) -> Callable[[bytes], int]:
    return lambda name: os.open(path / os.fsdecode(name), os.O_RDONLY)


def until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def published(path: Path, sink: MemorySink, tmp: Path, chunker: Chunker = FASTCDC, fits: Room | None = None) -> None:
    fd = os.open(path, os.O_RDONLY)
    tmp.mkdir(exist_ok=True)
    try:
        chosen = options(tmp)
        publish_directory(
            fd, sink, replace(chosen, chunker=chunker, fits=fits), report=lambda _: None, stop=lambda: False
        )
    finally:
        os.close(fd)


def test_a_sample_prefers_large_files_and_keeps_all_where_there_are_few() -> None:
    few = Sample()
    for number in range(5):
        few.add(b"%d" % number, 10)
    few.add(b"empty", 0)
    assert sorted(few.files) == [Picked(b"%d" % number, 10) for number in range(5)]
    many = Sample()
    for number in range(20_000):
        many.add(b"small", 1000)
        if number % 1000 == 0:
            many.add(b"large", 100 * MIB)
    assert len(many.files) == SAMPLES and sum(path == b"large" for path, _ in many.files) == 20


def test_the_share_of_new_bytes_is_taken_at_its_lower_end() -> None:
    assert least_new([]) == 0
    assert 0.95 < least_new([1.0] * 32) < 1
    assert least_new([1.0]) == 0, "one file says nothing"
    assert 0.2 < least_new([1.0, 0.0] * 16) < 0.35
    assert least_new([0.0] * 32) == 0


@pytest.mark.parametrize("size", [MIB, MIB + 1, 4 * MIB, 8 * MIB, 8 * MIB + 1])
def test_files_of_any_size_can_be_judged(tmp_path: Path, size: int) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(RNG.randbytes(size))
    sink = MemorySink()
    published(tmp_path / "tree", sink, tmp_path / "spill")
    with (tmp_path / "tree" / "file").open("rb") as file:
        assert new_share(file.fileno(), size, FASTCDC, sink.has, 0) == 0
        assert new_share(file.fileno(), size, FASTCDC, nothing, 0) == 1


@pytest.mark.parametrize("chunker", [FASTCDC, FIXED], ids=["fastcdc", "fixed"])
def test_a_region_of_a_large_file_is_found_stored_though_it_begins_in_the_middle(
    tmp_path: Path, chunker: Chunker
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(RNG.randbytes(40 * MIB))
    sink = MemorySink()
    published(tmp_path / "tree", sink, tmp_path / "spill", chunker)
    with (tmp_path / "tree" / "file").open("rb") as file:
        for offset in (0, 5 * MIB, 13 * MIB + 17):
            assert new_share(file.fileno(), 40 * MIB, chunker, sink.has, offset) == 0
            assert new_share(file.fileno(), 40 * MIB, chunker, nothing, offset) == 1


def test_what_fits_anyway_is_not_looked_at() -> None:
    def fail(_: bytes) -> int:
        raise AssertionError

    room = Room(100)
    estimate = Estimate(FASTCDC, nothing, room)
    estimate.ask(100, [Picked(b"x", 100)], fail)
    estimate.check()
    assert room.asked == [100]


def test_what_is_new_and_too_much_is_refused_and_what_is_known_is_not(tmp_path: Path) -> None:
    files = [Picked(b"%d" % number, 1000) for number in range(32)]
    for path, size in files:
        (tmp_path / os.fsdecode(path)).write_bytes(RNG.randbytes(size))
    known = Estimate(FASTCDC, everything, Room(100))
    known.ask(32_000, files, opener(tmp_path))
    known.check()
    new = Estimate(FASTCDC, nothing, Room(100))
    new.ask(32_000, files, opener(tmp_path))
    with pytest.raises(StoreFull, match="are missing"):
        new.check()


def test_files_that_vanish_and_an_owner_that_is_gone_refuse_nothing(tmp_path: Path) -> None:
    files = [Picked(b"%d" % number, 1000) for number in range(32)]
    vanished = Estimate(FASTCDC, nothing, Room(100))
    vanished.ask(32_000, files, opener(tmp_path))
    vanished.check()

    def gone(_: int) -> None:
        raise StoreFailed("the node is gone")

    alone = Estimate(FASTCDC, nothing, gone)
    alone.ask(32_000, files, opener(tmp_path))
    alone.check()


def test_a_publish_that_cannot_fit_stops_before_it_has_stored_anything(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    for number in range(40):
        (tmp_path / "tree" / str(number)).write_bytes(RNG.randbytes(100_000))
    os.link(tmp_path / "tree" / "0", tmp_path / "tree" / "again")
    asked = Room(1000)
    fd = os.open(tmp_path / "tree", os.O_RDONLY)

    sink = MemorySink()
    try:
        chosen = replace(options(tmp_path), fits=asked)
        with pytest.raises(StoreFull):
            publish_directory(fd, sink, chosen, report=lambda _: None, stop=lambda: False)
    finally:
        os.close(fd)
    assert asked.asked[:2] == [SCARCE, 40 * 100_000], "each file once"
    assert not sink.stored
