"""The writer: groups, pending chunks, failures, large files that are completed or continued."""

import fcntl
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hoard_p2p.errors import BadRequest, StoreFailed, Unavailable
from hoard_p2p.ids import HOLE, ChunkId, chunk_id
from hoard_p2p.interfaces import Extent, SlabBroker, SlabHandle, SlabKind
from hoard_p2p.storage.filesink import Missing, missing_runs
from hoard_p2p.storage.groups import WriterSettings
from hoard_p2p.storage.openslab import SHARED_SIZE
from hoard_p2p.storage.store import Store
from hoard_p2p.storage.writer import LINGERING, ChunkWriter

KEY = b"0123456789abcdef"
NEVER = WriterSettings(group_seconds=3600)
"""Groups end only when they are full or flushed."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path) as opened:
        yield opened


class StubbornBroker:
    """A broker whose commits and new slabs fail while `ill`, and wait while the gate is shut."""

    def __init__(self, inner: SlabBroker) -> None:
        self._inner = inner
        self.ill = False
        self.gate = threading.Event()
        self.gate.set()
        self.commits: list[list[Extent]] = []

    def new_slab(self, kind: SlabKind, size: int) -> SlabHandle:
        if self.ill:
            raise Unavailable("the node is gone")
        return self._inner.new_slab(kind, size)

    def resume_slab(self, file_key: bytes, size: int) -> SlabHandle:
        return self._inner.resume_slab(file_key, size)

    def commit(self, extents: Sequence[Extent], known: Sequence[tuple[bytes, bytes]] = ()) -> None:
        assert self.gate.wait(30)
        if self.ill:
            raise StoreFailed("the index is ill")
        self.commits.append(list(extents))
        self._inner.commit(extents, known)

    def grant(self, size: int) -> None:
        self._inner.grant(size)

    def give_back(self, size: int, taken: int = 0) -> None:
        self._inner.give_back(size, taken)

    def complete_file(self, file_key: bytes, slab: int, complete: bool) -> None:
        self._inner.complete_file(file_key, slab, complete)


def datas(count: int, length: int = 5000, seed: int = 1) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(length) for _ in range(count)]


def put_all(writer: ChunkWriter, chunks: list[bytes]) -> None:
    for data in chunks:
        writer.put(chunk_id(data), data)


def until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def whole(store: Store, data: bytes) -> bool:
    into = bytearray(len(data))
    return store.reader().read_into(chunk_id(data), 0, memoryview(into)) is not None and into == data


def test_a_chunk_is_pending_and_readable_before_its_commit_and_keeps_its_place(store: Store) -> None:
    (data,) = datas(1)
    with store.writer(NEVER) as writer:
        writer.put(chunk_id(data), data)
        place = writer.pending(chunk_id(data))
        assert place is not None
        assert store.reader().place(chunk_id(data)) is None
        into = bytearray(len(data))
        store.reader().read_at(place, 0, memoryview(into))
        assert into == data
        writer.flush()
        assert writer.pending(chunk_id(data)) is None
        assert store.reader().place(chunk_id(data)) == place


def test_a_group_is_committed_by_itself_soon_after_its_first_chunk(store: Store) -> None:
    (data,) = datas(1)
    with store.writer() as writer:
        writer.put(chunk_id(data), data)
        until(lambda: store.reader().place(chunk_id(data)) is not None)


@pytest.mark.parametrize("settings", [WriterSettings(group_chunks=4, group_seconds=3600),
                                      WriterSettings(group_bytes=20_000, group_seconds=3600)])  # fmt: skip
def test_a_group_that_is_full_is_committed_at_once(store: Store, settings: WriterSettings) -> None:
    broker = StubbornBroker(store)
    chunks = datas(8)
    with ChunkWriter(broker, store.reader(), settings) as writer:
        put_all(writer, chunks)
        until(lambda: len(broker.commits) == 2)
        assert [len(extents) for extents in broker.commits] == [4, 4]


def test_puts_wait_when_more_than_two_groups_are_behind_and_go_on_afterwards(store: Store) -> None:
    broker = StubbornBroker(store)
    chunks = datas(40)
    done = []
    with (
        ChunkWriter(broker, store.reader(), WriterSettings(group_chunks=2, group_seconds=3600)) as writer,
        ThreadPoolExecutor(1) as threads,
    ):
        broker.gate.clear()

        def put_each() -> None:
            for data in chunks:
                writer.put(chunk_id(data), data)
                done.append(data)

        putting = threads.submit(put_each)
        until(lambda: len(done) == 6)
        assert not putting.done()
        broker.gate.set()
        putting.result(20)
        writer.flush()
        assert len(done) == 6 + 34
    assert all(whole(store, data) for data in chunks)


def slab_of(store: Store, data: bytes) -> int:
    place = store.reader().place(chunk_id(data))
    assert place is not None
    return place.slab


def test_a_failed_group_is_forgotten_told_by_the_next_flush_only_and_can_be_put_again(store: Store) -> None:
    broker = StubbornBroker(store)
    chunks = datas(3)
    with ChunkWriter(broker, store.reader(), NEVER) as writer:
        put_all(writer, chunks[:1])
        writer.flush()
        put_all(writer, chunks)
        broker.ill = True
        with pytest.raises(StoreFailed, match="the index is ill"):
            writer.flush()
        assert writer.has([chunk_id(data) for data in chunks]) == [True, False, False]
        broker.ill = False
        writer.flush()
        put_all(writer, chunks)
        writer.flush()
    assert all(whole(store, data) for data in chunks)
    assert slab_of(store, chunks[1]) > slab_of(store, chunks[0])  # what failed to sync once is not trusted again


def test_with_marks_each_user_hears_of_losses_since_its_own_mark(store: Store) -> None:
    broker = StubbornBroker(store)
    one, two, three = datas(3)
    with ChunkWriter(broker, store.reader(), NEVER) as writer:
        early = writer.mark()
        put_all(writer, [one])
        broker.ill = True
        with pytest.raises(StoreFailed):
            writer.flush(early)
        broker.ill = False
        late = writer.mark()
        put_all(writer, [two])
        writer.flush(late)
        put_all(writer, [three])
        with pytest.raises(StoreFailed):
            writer.flush(early)
        with pytest.raises(StoreFailed):
            writer.flush()
        writer.flush()


def test_closing_tells_of_losses_that_nobody_heard_of(store: Store) -> None:
    broker = StubbornBroker(store)
    writer = ChunkWriter(broker, store.reader(), NEVER)
    put_all(writer, datas(1))
    broker.ill = True
    with pytest.raises(StoreFailed):
        writer.close()
    writer.close()
    with pytest.raises(StoreFailed):
        writer.put(chunk_id(b"late"), b"late")


def test_a_put_without_a_slab_fails_and_the_next_one_may_work(store: Store) -> None:
    broker = StubbornBroker(store)
    (data,) = datas(1)
    with ChunkWriter(broker, store.reader()) as writer:
        broker.ill = True
        with pytest.raises(StoreFailed, match="the node is gone"):
            writer.put(chunk_id(data), data)
        broker.ill = False
        writer.put(chunk_id(data), data)
    assert whole(store, data)


def test_a_chunk_larger_than_a_slab_is_refused(store: Store) -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return SHARED_SIZE + 1

    with store.writer() as writer, pytest.raises(BadRequest):
        writer.put(chunk_id(b""), Huge())


def test_a_second_writer_of_the_same_chunk_adds_a_place_and_harms_nothing(store: Store) -> None:
    (data,) = datas(1)
    with store.writer(NEVER) as one, store.writer(NEVER) as two:
        put_all(one, [data])
        put_all(two, [data])
        one.flush()
        first = store.reader().place(chunk_id(data))
        two.flush()
        assert first is not None
        assert store.reader().place(chunk_id(data)) == first
        assert store.quarantine(chunk_id(data), first)
    assert whole(store, data)


# --- large files


def file_of(chunks: list[bytes]) -> list[tuple[ChunkId, int]]:
    return [(chunk_id(data), len(data)) for data in chunks]


def test_missing_runs_leave_out_holes_and_what_is_present_at_its_offset() -> None:
    a, b = chunk_id(b"a"), chunk_id(b"b")
    runs = [(a, 10), (HOLE, 5), (b, 7), (a, 10)]
    assert missing_runs(runs, {0: a}) == [Missing(b, 15, 7), Missing(a, 22, 10)]
    assert missing_runs(runs, {0: b, 15: b, 22: a}) == [Missing(a, 0, 10)]


@pytest.mark.parametrize(("known", "complete"), [(1, True), (2, True), (3, False)])
def test_a_file_slab_is_completed_by_copies_if_little_is_missing(store: Store, known: int, complete: bool) -> None:
    chunks = datas(8, 300_000)
    size = 8 * 300_000
    with store.writer() as writer:
        put_all(writer, chunks[:known])
        sink = writer.open_file(size)
        for n, data in enumerate(chunks):
            sink.put(chunk_id(data), data, n * 300_000)
        sink.finish(KEY, file_of(chunks))
        writer.flush()
    found = store.file_slab(KEY)
    assert found is not None
    assert found.complete is complete
    if complete:
        path = store.data_dir / "slabs" / f"F-1-{found.slab}.slab"
        assert path.read_bytes() == b"".join(chunks)


def test_a_file_that_repeats_a_chunk_gets_it_copied_to_each_offset(store: Store) -> None:
    a, b, c, d = datas(4, 300_000)
    chunks = [a, b, c, d, b]
    with store.writer() as writer:
        sink = writer.open_file(5 * 300_000)
        for n, data in enumerate(chunks):
            sink.put(chunk_id(data), data, n * 300_000)
        sink.finish(KEY, file_of(chunks))
    found = store.file_slab(KEY)
    assert found is not None
    assert found.complete
    path = store.data_dir / "slabs" / f"F-1-{found.slab}.slab"
    assert path.read_bytes() == b"".join(chunks)


def test_a_complete_slab_has_every_byte_of_the_file_at_its_own_offset(store: Store) -> None:
    chunks = datas(100, 5000)
    hole, often = 70_000, [chunks[0]] * 20  # more places than one chunk has in the index
    content = [*chunks[:50], bytes(hole), *often, *chunks[50:], bytes(hole)]
    runs = [(HOLE if not any(data) else chunk_id(data), len(data)) for data in content]
    with store.writer() as writer:
        put_all(writer, chunks[7:10])
        sink = writer.open_file(sum(map(len, content)))
        offset = 0
        for (identifier, length), data in zip(runs, content):
            if identifier != HOLE:
                sink.put(identifier, data, offset)
            offset += length
        sink.finish(KEY, runs)
    found = store.file_slab(KEY)
    assert found is not None
    assert found.complete
    fd = store.reader().open_slab(found.slab)
    try:
        assert os.pread(fd, offset + 1, 0) == b"".join(content)
    finally:
        os.close(fd)


def test_a_copy_that_went_bad_does_not_complete_a_file(store: Store) -> None:
    chunks = datas(8, 300_000)
    with store.writer() as writer:
        put_all(writer, chunks[:1])
        writer.flush()
        place = store.reader().place(chunk_id(chunks[0]))
        assert place is not None
        with (store.data_dir / "slabs" / f"S-1-{place.slab}.slab").open("r+b") as slab:
            slab.seek(place.offset)
            slab.write(b"damage")
        sink = writer.open_file(8 * 300_000)
        for n, data in enumerate(chunks):
            sink.put(chunk_id(data), data, n * 300_000)
        sink.finish(KEY, file_of(chunks))
    found = store.file_slab(KEY)
    assert found is not None
    assert not found.complete


def test_a_failed_group_of_a_file_is_put_into_a_fresh_slab(store: Store) -> None:
    broker = StubbornBroker(store)
    chunks = datas(4, 300_000)
    with ChunkWriter(broker, store.reader(), NEVER) as writer:
        sink = writer.open_file(4 * 300_000)
        sink.put(chunk_id(chunks[0]), chunks[0], 0)
        broker.ill = True
        with pytest.raises(StoreFailed):
            writer.flush()
        broker.ill = False
        for n, data in enumerate(chunks):
            sink.put(chunk_id(data), data, n * 300_000)
        sink.finish(KEY, file_of(chunks))
        writer.flush()
    found = store.file_slab(KEY)
    assert found is not None
    assert found.complete
    assert all(whole(store, data) for data in chunks)


def put_part(writer: ChunkWriter, chunks: list[bytes], which: range, *, finish: bool = False) -> None:
    sink = writer.resume_file(KEY, sum(map(len, chunks)))
    for n in which:
        sink.put(chunk_id(chunks[n]), chunks[n], n * 300_000)
    if finish:
        sink.finish(KEY, file_of(chunks))
    else:
        sink.abandon()


def test_a_resumed_file_goes_on_in_its_slab_within_a_writer_and_with_the_next_one(store: Store) -> None:
    chunks = datas(9, 300_000)
    with store.writer() as writer:
        put_part(writer, chunks, range(6, 9))
        put_part(writer, chunks, range(3))
        known = store.file_slab(KEY)
    with store.writer() as writer:
        put_part(writer, chunks, range(3, 6), finish=True)
    found = store.file_slab(KEY)
    assert known is not None
    assert found == known._replace(complete=True)
    assert not known.complete


def test_a_resumed_file_goes_on_in_its_slab_in_the_next_start_of_the_node(tmp_path: Path) -> None:
    chunks = datas(9, 300_000)
    for start in range(3):
        with Store.open(tmp_path) as store:
            with store.writer() as writer:
                put_part(writer, chunks, range(3 * start, 3 * start + 3), finish=start == 2)
            found = store.file_slab(KEY)
            assert found is not None
            assert found.complete is (start == 2)
    (slab,) = (tmp_path / "slabs").glob("F-*.slab")
    assert slab.read_bytes() == b"".join(chunks)


@pytest.mark.parametrize(("held", "complete"), [(2, True), (5, False)])
def test_a_slab_whose_writer_outlived_its_node_is_left_alone_and_copied_from_if_little_is_missing(
    tmp_path: Path, held: int, complete: bool
) -> None:
    chunks = datas(9, 300_000)
    with Store.open(tmp_path) as store, store.writer() as writer:
        put_part(writer, chunks, range(held))
        first = store.file_slab(KEY)
        assert first is not None
    with (tmp_path / "slabs" / f"F-1-{first.slab}.slab").open("r+b") as outliving:
        fcntl.flock(outliving, fcntl.LOCK_EX)
        with Store.open(tmp_path) as store:
            with store.writer() as writer:
                put_part(writer, chunks, range(held, 9), finish=True)
            found = store.file_slab(KEY)
            assert found is not None
            assert found.complete is complete
            assert found.slab != first.slab


def test_more_large_files_at_once_than_are_kept_open_get_one_slab_each(store: Store) -> None:
    files = {b"%16d" % number: datas(3, 5000, seed=number) for number in range(LINGERING + 20)}
    with store.writer() as writer:
        for part in range(3):
            for key, chunks in files.items():
                sink = writer.resume_file(key, 15_000)
                sink.put(chunk_id(chunks[part]), chunks[part], part * 5000)
        for key, chunks in files.items():
            writer.resume_file(key, 15_000).finish(key, file_of(chunks))
    found = [store.file_slab(key) for key in files]
    assert all(file is not None and file.complete for file in found)
    assert len(list((store.data_dir / "slabs").glob("F-*.slab"))) == len(files)


def test_several_users_may_resume_one_file_at_once(store: Store) -> None:
    chunks = datas(9, 300_000)
    with store.writer() as writer, ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda start: put_part(writer, chunks, range(start, start + 3)), (0, 3, 6)))
        put_part(writer, chunks, range(0), finish=True)
    found = store.file_slab(KEY)
    assert found is not None
    assert found.complete
    assert len(list((store.data_dir / "slabs").glob("F-*.slab"))) == 1


def test_many_resumed_files_do_not_keep_their_slabs_open(store: Store) -> None:
    with store.writer() as writer:
        for n in range(100):
            data = b"%d" % n * 100
            sink = writer.resume_file(b"%16d" % n, len(data))
            sink.put(chunk_id(data), data, 0)
            sink.abandon()
        writer.flush()
        names = [path.readlink().name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        assert sum(name.startswith("F-") for name in names) <= 2 * 64


def test_a_quarantined_place_makes_a_complete_file_incomplete(store: Store) -> None:
    chunks = datas(3, 300_000)
    with store.writer() as writer:
        put_part(writer, chunks, range(3), finish=True)
        writer.flush()
        place = store.reader().place(chunk_id(chunks[1]))
        assert place is not None
        assert store.quarantine(chunk_id(chunks[1]), place)
        found = store.file_slab(KEY)
        assert found is not None
        assert not found.complete
        put_part(writer, chunks, range(1, 2), finish=True)
        writer.flush()
    found = store.file_slab(KEY)
    assert found is not None
    assert found.complete
    assert (store.data_dir / "slabs" / f"F-1-{found.slab}.slab").read_bytes() == b"".join(chunks)
