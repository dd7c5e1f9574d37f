"""Putting chunks once, and the windows in which large files pass."""

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Lock

import pytest

from hoard_p2p.chunking import FASTCDC, FIXED, MIB, Chunker, runs_of
from hoard_p2p.errors import Refused, StoreFailed
from hoard_p2p.ids import HOLE, Bytes, ChunkId, chunk_id
from hoard_p2p.publish.deposit import Deposit, Piece
from hoard_p2p.publish.large import READ, WINDOW, PackedRuns, WindowReader
from hoard_p2p.testing.memory import MemorySink


def pieces(*datas: bytes) -> list[Piece]:
    return [Piece(chunk_id(data), memoryview(data), 0) for data in datas]


def test_chunks_are_put_once_and_counted() -> None:
    sink = MemorySink()
    sink.put(chunk_id(b"known"), b"known")
    deposit = Deposit(sink)
    deposit.keep(pieces(b"a", b"bb", b"a", b"known"))
    deposit.keep(pieces(b"bb", b"ccc"))
    deposit.keep([])
    assert (deposit.stored, deposit.deduplicated) == (1 + 2 + 3, 1 + 5 + 2)
    assert sink.stored == 6 + 5


class FailsOnce(MemorySink):
    def __init__(self) -> None:
        super().__init__()
        self._failed = False

    def put(self, chunk_id: ChunkId, data: Bytes) -> None:
        if not self._failed:
            self._failed = True
            raise StoreFailed("once")
        super().put(chunk_id, data)


def test_a_chunk_whose_put_failed_can_be_put_again() -> None:
    deposit = Deposit(FailsOnce())
    with pytest.raises(StoreFailed):
        deposit.keep(pieces(b"a", b"b"))
    assert deposit.stored == 0
    deposit.keep(pieces(b"a", b"b"))
    assert deposit.stored == 2


# --- windows


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


def expected(chunker: Chunker, data: bytes) -> list[tuple[ChunkId, int]]:
    runs, at = [], 0
    for run in runs_of(chunker, data):
        runs.append((HOLE if run.hole else chunk_id(data[at : at + run.length]), run.length))
        at += run.length
    return runs


@pytest.mark.parametrize("chunker", [FASTCDC, FIXED])
@pytest.mark.parametrize("size", [0, 1, MIB, MIB + 1, WINDOW - 1, WINDOW, WINDOW + 1, 5 * WINDOW + 12_345])
def test_windows_give_the_runs_of_the_whole_file(
    tmp_path: Path, pool: ThreadPoolExecutor, chunker: Chunker, size: int
) -> None:
    data = random.Random(size).randbytes(size)
    (tmp_path / "f").write_bytes(data)
    sink = MemorySink()
    moved: list[int] = []
    reader = WindowReader(chunker, Deposit(sink), pool, threads=2, check=lambda: None)
    with (tmp_path / "f").open("rb") as file:
        runs = reader.runs(file.fileno(), size, None, moved.append)
    assert runs is not None
    assert list(runs) == expected(chunker, data) == [runs[number] for number in range(len(runs))]
    assert sum(moved) == size
    assert b"".join(sink.chunks.get(chunk) for chunk, _ in runs) == data


def test_runs_are_a_sequence() -> None:
    runs = PackedRuns()
    for number, run in enumerate(runs_of(FIXED, bytes(4 * MIB) + b"x" * 5 * MIB)):
        runs.append(run)
        if not run.hole:
            runs.name(number, chunk_id(b"%d" % number))
    assert len(runs) == 3
    assert runs[0] == (HOLE, 4 * MIB)
    assert runs[-1] == (chunk_id(b"2"), MIB)
    assert runs[1:] == [runs[1], runs[2]]
    with pytest.raises(IndexError):
        runs[3]


def test_a_file_that_ends_early_has_no_runs(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    (tmp_path / "f").write_bytes(random.Random(1).randbytes(WINDOW + 5))
    reader = WindowReader(FASTCDC, Deposit(MemorySink()), pool, threads=2, check=lambda: None)
    with (tmp_path / "f").open("rb") as file:
        for size in (WINDOW + 6, 3 * WINDOW):
            assert reader.runs(file.fileno(), size, None, lambda _: None) is None


class Slow(MemorySink):
    """Takes a chunk only some time after it was asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = Event()
        self.ended = 0
        self._guard = Lock()

    def put(self, chunk_id: ChunkId, data: Bytes) -> None:
        before = bytes(data)
        self.begun.set()
        Event().wait(0.2)
        assert data == before
        with self._guard:
            self.ended += 1


def test_buffers_are_not_used_again_before_the_work_on_them_has_ended(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    (tmp_path / "f").write_bytes(random.Random(2).randbytes(2 * WINDOW))
    sink = Slow()
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 2:
            assert sink.begun.wait(10)
            raise Refused("enough")

    reader = WindowReader(FIXED, Deposit(sink), pool, threads=1, check=check)
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    try:
        with pytest.raises(Refused):
            reader.runs(fd, 2 * WINDOW, None, lambda _: None)
    finally:
        os.close(fd)
    assert sink.ended == READ // (4 * MIB)
