"""What every ChunkSink and LocalChunks promises, over the real store, read by itself and through its node, and the one
in memory."""

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from hoard_p2p.errors import ChunkCorrupt, StoreFailed
from hoard_p2p.ids import HOLE, ChunkId, chunk_id
from hoard_p2p.interfaces import ChunkSink, LocalChunks, Place
from hoard_p2p.node.through import ThroughNode
from hoard_p2p.storage.store import Store
from hoard_p2p.testing.memory import MemorySink
from tests.node_thread import node_in_thread

KEY = b"the file's key.."
MIB = 1 << 20


@dataclass(frozen=True)
class Subject:
    """A sink, the chunks that it makes readable, and the large files it recorded: (slab, complete) by key."""

    sink: ChunkSink
    chunks: LocalChunks
    file: Callable[[bytes], tuple[int, bool] | None]


def real(directory: Path, undo: ExitStack) -> Subject:
    store = undo.enter_context(Store.open(directory))
    return Subject(undo.enter_context(store.writer()), store.reader(), store.file_slab)


def in_memory(directory: Path, undo: ExitStack) -> Subject:
    sink = MemorySink()
    return Subject(sink, sink.chunks, sink.files.get)


def through_node(directory: Path, undo: ExitStack) -> Subject:
    node = undo.enter_context(node_in_thread(directory))
    chunks = undo.enter_context(ThroughNode(directory, "this is a test"))
    return Subject(node.writer, chunks, chunks.file_slab)


@pytest.fixture(params=[real, through_node, in_memory])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    with ExitStack() as undo:
        yield request.param(tmp_path, undo)


def pieces(count: int, seed: int = 1) -> list[bytes]:
    """Chunk bytes of many lengths, around the block boundary too."""
    rng = random.Random(seed)
    lengths = [1, 2, 4095, 4096, 4097, 110_000, MIB, 3 * MIB + 5]
    return [rng.randbytes(lengths[n % len(lengths)]) for n in range(count)]


def read(chunks: LocalChunks, identifier: ChunkId, length: int, start: int = 0) -> bytes | None:
    into = bytearray(length)
    return bytes(into) if chunks.read_into(identifier, start, memoryview(into)) is not None else None


def test_what_was_put_and_flushed_is_read_back(subject: Subject) -> None:
    datas = pieces(16)
    for data in datas:
        subject.sink.put(chunk_id(data), data)
    subject.sink.flush()
    for data in datas:
        assert read(subject.chunks, chunk_id(data), len(data)) == data


def test_any_part_of_a_chunk_can_be_read(subject: Subject) -> None:
    data = random.Random(2).randbytes(50_000)
    subject.sink.put(chunk_id(data), data)
    subject.sink.flush()
    for start, length in ((0, 1), (1, 4096), (49_999, 1), (123, 40_000), (7, 0)):
        assert read(subject.chunks, chunk_id(data), length, start) == data[start : start + length]


def test_the_place_that_was_read_is_told_and_can_be_read_again(subject: Subject) -> None:
    data = random.Random(3).randbytes(9000)
    subject.sink.put(chunk_id(data), data)
    subject.sink.flush()
    into = bytearray(100)
    place = subject.chunks.read_into(chunk_id(data), 500, memoryview(into))
    assert place is not None
    assert place == subject.chunks.place(chunk_id(data))
    assert (place.length, 1 <= place.generation <= 255) == (9000, True)
    again = bytearray(100)
    subject.chunks.read_at(place, 500, memoryview(again))
    assert again == into == data[500:600]


def test_a_chunk_that_was_never_put_has_no_place(subject: Subject) -> None:
    unknown = ChunkId(bytes(31) + b"?")
    subject.sink.put(chunk_id(b"known"), b"known")
    subject.sink.flush()
    assert subject.chunks.place(unknown) is None
    assert read(subject.chunks, unknown, 10) is None
    known, missing = subject.chunks.places([chunk_id(b"known"), unknown])
    assert known is not None
    assert missing is None
    assert subject.chunks.places([]) == []


def test_a_place_where_nothing_lies_is_damage(subject: Subject) -> None:
    with pytest.raises(ChunkCorrupt):
        subject.chunks.read_at(Place(4_000_000, 0, 10, 1), 0, memoryview(bytearray(10)))


def test_has_tells_what_is_stored_or_on_its_way(subject: Subject) -> None:
    datas = pieces(4)
    ids = [chunk_id(data) for data in datas]
    assert subject.sink.has(ids) == [False] * 4
    subject.sink.put(ids[1], datas[1])
    assert subject.sink.has(ids) == [False, True, False, False]
    subject.sink.flush()
    assert subject.sink.has([ids[1], ids[1], ids[0]]) == [True, True, False]
    assert subject.sink.has([]) == []


def test_a_chunk_put_twice_keeps_its_first_place(subject: Subject) -> None:
    data = b"again" * 3000
    subject.sink.put(chunk_id(data), data)
    subject.sink.flush()
    before = subject.chunks.place(chunk_id(data))
    subject.sink.put(chunk_id(data), data)
    subject.sink.flush()
    assert subject.chunks.place(chunk_id(data)) == before


def test_the_callers_buffer_may_be_used_again_at_once(subject: Subject) -> None:
    buffer = bytearray(10_000)
    ids = []
    for n in range(20):
        buffer[:] = bytes([n]) * len(buffer)
        ids.append(chunk_id(buffer))
        subject.sink.put(ids[-1], memoryview(buffer))
    subject.sink.flush()
    assert [read(subject.chunks, identifier, 1) for identifier in ids] == [bytes([n]) for n in range(20)]


def test_many_threads_may_put_the_same_chunks(subject: Subject) -> None:
    datas = pieces(24, seed=4)
    barrier = threading.Barrier(4)

    def put_all(seed: int) -> None:
        order = random.Random(seed).sample(datas, len(datas))
        barrier.wait(10)
        for data in order:
            subject.sink.put(chunk_id(data), data)
            assert subject.sink.has([chunk_id(data)]) == [True]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(put_all, range(4)))
    subject.sink.flush()
    for data in datas:
        assert read(subject.chunks, chunk_id(data), len(data)) == data


def test_a_flush_with_nothing_put_returns(subject: Subject) -> None:
    subject.sink.flush()
    subject.sink.flush()


# --- large files

File = tuple[list[bytes], list[tuple[ChunkId, int]]]


def large_file(seed: int, count: int = 12, hole: int = 8 * MIB) -> File:
    """Chunks of a file with a hole in the middle, and its runs."""
    rng = random.Random(seed)
    datas = [rng.randbytes(rng.randrange(300_000, 400_000)) for _ in range(count)]
    runs = [(chunk_id(data), len(data)) for data in datas]
    runs.insert(count // 2, (HOLE, hole))
    return datas, runs


def offsets(runs: list[tuple[ChunkId, int]]) -> list[int]:
    """Where the runs that are not holes start."""
    found, at = [], 0
    for run_id, length in runs:
        if run_id != HOLE:
            found.append(at)
        at += length
    return found


def size_of(file: File) -> int:
    return sum(length for _, length in file[1])


def put_file(subject: Subject, file: File, which: range | list[int]) -> None:
    datas, runs = file
    sink = subject.sink.open_file(size_of(file))
    starts = offsets(runs)
    for n in which:
        sink.put(chunk_id(datas[n]), datas[n], starts[n])
    sink.finish(KEY, runs)
    subject.sink.flush()


def test_a_large_file_put_in_any_order_is_complete_in_one_slab_at_its_own_offsets(subject: Subject) -> None:
    file = large_file(5)
    put_file(subject, file, random.Random(5).sample(range(12), 12))
    recorded = subject.file(KEY)
    assert recorded is not None
    slab, complete = recorded
    assert complete
    places = subject.chunks.places([chunk_id(data) for data in file[0]])
    assert [(place.slab, place.offset) for place in places if place] == [(slab, at) for at in offsets(file[1])]
    for data in file[0]:
        assert read(subject.chunks, chunk_id(data), len(data)) == data


def test_a_large_file_of_known_chunks_only_has_no_slab(subject: Subject) -> None:
    file = large_file(6)
    for data in file[0]:
        subject.sink.put(chunk_id(data), data)
    put_file(subject, file, range(12))
    assert subject.file(KEY) is None


def test_a_large_file_with_mostly_known_chunks_stays_incomplete_and_readable(subject: Subject) -> None:
    file = large_file(7)
    for data in file[0][:9]:
        subject.sink.put(chunk_id(data), data)
    put_file(subject, file, range(12))
    recorded = subject.file(KEY)
    assert recorded is not None
    assert not recorded[1]
    for data in file[0]:
        assert read(subject.chunks, chunk_id(data), len(data)) == data


def test_the_chunks_of_an_abandoned_file_stay_usable(subject: Subject) -> None:
    file = large_file(8)
    sink = subject.sink.open_file(size_of(file))
    data = file[0][0]
    sink.put(chunk_id(data), data, 0)
    sink.abandon()
    subject.sink.flush()
    assert subject.file(KEY) is None
    assert read(subject.chunks, chunk_id(data), len(data)) == data


def test_a_file_sink_that_got_nothing_can_be_abandoned_or_finished(subject: Subject) -> None:
    file = large_file(9)
    subject.sink.open_file(100).abandon()
    for data in file[0]:
        subject.sink.put(chunk_id(data), data)
    subject.sink.open_file(size_of(file)).finish(KEY, file[1])
    subject.sink.flush()
    assert subject.file(KEY) is None


def test_a_chunk_beyond_the_end_of_its_file_is_refused(subject: Subject) -> None:
    sink = subject.sink.open_file(100)
    with pytest.raises(StoreFailed):
        sink.put(chunk_id(b"x" * 60), b"x" * 60, 50)
    sink.abandon()


def test_threads_may_share_a_file_sink(subject: Subject) -> None:
    file = large_file(10)
    datas, runs = file
    sink = subject.sink.open_file(size_of(file))
    starts = offsets(runs)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: sink.put(chunk_id(datas[n]), datas[n], starts[n]), range(12)))
    sink.finish(KEY, runs)
    subject.sink.flush()
    recorded = subject.file(KEY)
    assert recorded is not None
    assert recorded[1]
