"""The READs of one worker without a kernel: what is answered, parked, asked and freed."""

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from stat import S_IFDIR, S_IFREG
from typing import BinaryIO

import pytest

from hoard_p2p.catalog.builder import CatalogBuilder, Meta
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.ids import HOLE, ChunkId, chunk_id
from hoard_p2p.interfaces import Found, MissFailed, Place
from hoard_p2p.mount.kernel import MAX_READ, RESENT
from hoard_p2p.mount.reads import FAILURE_MEMORY, Read, Reads
from hoard_p2p.mount.shared import SharedState
from hoard_p2p.mount.verified import VerifiedChunks
from hoard_p2p.testing.memory import MemoryChunks

A, B, LONG = b"a" * 5000, b"b" * 3000, b"l" * 10_000
TIMEOUT = 60.0


@dataclass
class RecordedReplies:
    """Replies that go nowhere: (number, bytes or errno)."""

    sent: list[tuple[int, bytes | int]] = field(default_factory=list)
    room: memoryview = field(default_factory=lambda: memoryview(bytearray(MAX_READ)))

    def send_room(self, unique: int, length: int) -> None:
        self.sent.append((unique, bytes(self.room[:length])))

    def fail(self, unique: int, number: int) -> None:
        self.sent.append((unique, number))


@dataclass
class RecordedMisses:
    """A channel whose node never answers by itself."""

    asked: list[int] = field(default_factory=list)
    distrusted: list[tuple[int, Place]] = field(default_factory=list)
    touched: list[int] = field(default_factory=list)
    trouble_now: str = ""

    def trouble(self) -> str:
        return self.trouble_now

    def fileno(self) -> int:
        return -1

    def ask(self, run: int, span: tuple[int, int] | None = None) -> None:
        self.asked.append(run)

    def distrust(self, run: int, place: Place) -> None:
        self.distrusted.append((run, place))

    def touch(self, run: int) -> None:
        self.touched.append(run)

    def answers(self) -> list[Found | MissFailed]:
        return []

    def tend(self) -> None:
        pass


class DamagedOnce(MemoryChunks):
    """Flips a bit of one chunk until it is told that it was repaired; then it lies elsewhere, with a new generation."""

    def __init__(self, damaged: ChunkId) -> None:
        super().__init__()
        self._damaged = damaged
        self.repaired = False

    def place(self, chunk_id: ChunkId) -> Place | None:
        place = super().place(chunk_id)
        if chunk_id == self._damaged and self.repaired and place is not None:
            return place._replace(generation=2)
        return place

    def read_at(self, place: Place, start: int, into: memoryview) -> None:
        super().read_at(place._replace(generation=1), start, into)
        damaged = super().place(self._damaged)
        if damaged is not None and place.offset == damaged.offset and not self.repaired:
            into[0] ^= 1


def _spill() -> BinaryIO:
    return BytesIO()


def _catalog() -> Catalog:
    """`both`: A, a hole of 65,536 bytes, B. `first`: A again. `long`: a chunk of its own."""
    out = BytesIO()
    with CatalogBuilder(spill=_spill, keep_owner=False) as builder:
        builder.add_root(Meta(S_IFDIR | 0o755, 0, 0, 0))
        builder.next_directory()
        meta = Meta(S_IFREG | 0o644, 0, 0, 0)
        runs = [(chunk_id(A), len(A)), (HOLE, 65_536), (chunk_id(B), len(B))]
        builder.add_file(b"both", meta, 65_536 + len(A) + len(B), runs)
        builder.add_file(b"first", meta, len(A), [(chunk_id(A), len(A))])
        builder.add_file(b"long", meta, len(LONG), [(chunk_id(LONG), len(LONG))])
        builder.finish(out)
    return Catalog(memoryview(out.getvalue()))


BOTH, FIRST, LONG_FILE = 1, 2, 3
BOTH_BYTES = A + bytes(65_536) + B


@dataclass
class Bench:
    """A worker's reads with everything around them recorded."""

    chunks: MemoryChunks
    shared: SharedState
    verify: str = "first"

    def __post_init__(self) -> None:
        self.catalog = _catalog()
        self.replies = RecordedReplies()
        self.misses = RecordedMisses()
        self.failures = 0
        verified = VerifiedChunks(self.catalog, self.chunks, self.shared.verified, self.verify)
        self.reads = Reads(
            self.catalog, verified, self.misses, self.replies, self.shared, timeout=TIMEOUT, failed=self._failed
        )

    def _failed(self) -> None:
        self.failures += 1

    def read(self, unique: int, index: int, offset: int = 0, size: int = MAX_READ, now: float = 0.0) -> None:
        self.reads.start(Read(unique, index, offset, size), now)

    def finish(self, now: float = 1.0) -> None:
        while read := self.reads.take_ready():
            self.reads.start(read, now)

    def run(self, data: bytes) -> int:
        return next(run for run in range(self.catalog.chunks) if self.catalog.chunk_id(run) == chunk_id(data))


@pytest.fixture
def shared() -> Iterator[SharedState]:
    shared = SharedState.create(name="test", workers=2, runs=5)
    yield shared
    shared.close()


@pytest.fixture
def bench(shared: SharedState) -> Bench:
    return Bench(MemoryChunks(), shared)


def _store(bench: Bench, *contents: bytes) -> None:
    for data in contents:
        bench.chunks.add(chunk_id(data), data)


def test_a_hit_is_answered_with_holes_as_zeros(bench: Bench) -> None:
    _store(bench, A, B)
    bench.read(10, BOTH)
    bench.read(12, BOTH, 4990, 20)
    bench.read(14, BOTH, 65_536 + 4990, 50)
    bench.read(16, BOTH, 1 << 40)
    expected = [BOTH_BYTES, BOTH_BYTES[4990:5010], BOTH_BYTES[70_526:70_576], b""]
    assert [body for _, body in bench.replies.sent] == expected


def test_a_chunk_is_marked_verified_once_for_all_its_places_in_the_tree(bench: Bench) -> None:
    _store(bench, A, B)
    bench.read(10, FIRST)
    assert bench.shared.verified[bench.run(A)] == 1
    assert bench.shared.verified[bench.run(B)] == 0


def test_a_miss_is_parked_and_answered_when_the_last_chunk_is_there(bench: Bench) -> None:
    bench.read(10, BOTH)
    assert (bench.replies.sent, bench.misses.asked, bench.reads.parked) == ([], [bench.run(A), bench.run(B)], 1)
    _store(bench, A)
    place = bench.chunks.place(chunk_id(A))
    bench.reads.answered(Found(bench.run(A), place, b""), 1.0)
    bench.finish()
    assert bench.replies.sent == []
    bench.reads.answered(Found(bench.run(B), None, B), 1.0)
    bench.finish()
    assert (bench.replies.sent, bench.reads.parked) == ([(10, BOTH_BYTES)], 0)


def test_one_answer_frees_all_who_wait_for_it(bench: Bench) -> None:
    bench.read(10, FIRST)
    bench.read(12, FIRST, 100, 50)
    _store(bench, A)
    bench.reads.answered(Found(bench.run(A), bench.chunks.place(chunk_id(A)), b""), 1.0)
    bench.finish()
    assert bench.replies.sent == [(10, A), (12, A[100:150])]


@pytest.mark.expect_warnings
def test_damaged_bytes_are_distrusted_and_the_repaired_ones_served(shared: SharedState) -> None:
    chunks = DamagedOnce(chunk_id(A))
    bench = Bench(chunks, shared)
    _store(bench, A, B)
    bench.read(10, FIRST)
    assert bench.misses.distrusted == [(bench.run(A), Place(1, 0, len(A), 1))]
    assert bench.replies.sent == []
    chunks.repaired = True
    bench.reads.answered(Found(bench.run(A), chunks.place(chunk_id(A)), b""), 1.0)
    bench.finish()
    assert bench.replies.sent == [(10, A)]
    assert shared.verified[bench.run(A)] == 2


@pytest.mark.expect_warnings
def test_a_place_of_another_generation_is_verified_again(shared: SharedState) -> None:
    chunks = DamagedOnce(chunk_id(A))
    bench = Bench(chunks, shared)
    _store(bench, A)
    shared.verified[bench.run(A)] = 2  # verified elsewhere, before it was replaced by what lies there now
    bench.read(10, FIRST, 5, 10)
    assert (bench.replies.sent, len(bench.misses.distrusted)) == ([], 1)


@pytest.mark.expect_warnings
def test_bytes_that_are_wrong_twice_are_an_error(bench: Bench) -> None:
    bench.read(10, FIRST)
    for _ in range(2):
        bench.reads.answered(Found(bench.run(A), None, b"x" * len(A)), 1.0)
        bench.finish()
    assert (bench.replies.sent, bench.failures, bench.reads.parked) == ([(10, errno.EIO)], 1, 0)


@pytest.mark.expect_warnings
def test_a_slab_that_is_too_short_is_asked_for_again(shared: SharedState) -> None:
    class Truncated(MemoryChunks):
        def place(self, chunk_id: ChunkId) -> Place | None:
            place = super().place(chunk_id)
            return place and place._replace(offset=1 << 40)  # nothing lies there

    bench = Bench(Truncated(), shared)
    _store(bench, A)
    bench.read(10, FIRST)
    assert bench.misses.distrusted == [(bench.run(A), Place(1, 1 << 40, len(A), 1))]


@pytest.mark.expect_warnings
def test_a_deadline_is_an_error_and_is_remembered_for_a_moment(bench: Bench) -> None:
    bench.read(10, FIRST, now=100.0)
    bench.read(12, LONG_FILE, now=130.0)
    bench.reads.expire(159.9)
    assert bench.replies.sent == []
    bench.reads.expire(160.0)
    assert (bench.replies.sent, bench.reads.parked) == ([(10, errno.EIO)], 1)
    bench.read(14, FIRST, now=160.5)  # the kernel asks again for the first page of a failed read-ahead
    assert bench.replies.sent[1:] == [(14, errno.EIO)]
    bench.read(16, FIRST, now=160.2 + FAILURE_MEMORY)
    assert bench.reads.parked == 2


@pytest.mark.expect_warnings
def test_a_failed_miss_is_an_error_for_all_who_wait_and_not_for_others(bench: Bench) -> None:
    bench.read(10, BOTH)
    bench.read(12, FIRST)
    bench.read(14, LONG_FILE)
    bench.reads.answered(MissFailed(bench.run(A), "tried n1"), 1.0)
    assert bench.replies.sent == [(10, errno.EIO), (12, errno.EIO)]
    assert bench.reads.parked == 1


def test_a_chunk_that_arrives_after_its_failure_is_served_at_once(bench: Bench) -> None:
    bench.shared.remember_failure(bench.run(A), 100.0)
    _store(bench, A)
    bench.read(10, FIRST, now=50.0)
    assert bench.replies.sent == [(10, A)]


def test_an_interrupt_ends_only_a_parked_request(bench: Bench) -> None:
    bench.read(10, FIRST)
    assert not bench.reads.interrupt(12)
    assert bench.reads.interrupt(10)
    assert bench.replies.sent == [(10, errno.EINTR)]


def test_an_interrupt_that_another_worker_received_is_heard(bench: Bench) -> None:
    bench.read(10, FIRST)
    bench.read(12, FIRST)
    bench.shared.interrupt(10)
    bench.reads.hear_interrupts()
    assert (bench.replies.sent, bench.reads.parked) == ([(10, errno.EINTR)], 1)


def test_a_request_that_is_sent_again_is_answered_once_under_its_new_number(bench: Bench) -> None:
    bench.read(10, FIRST)
    bench.read(10 | RESENT, FIRST)
    assert bench.reads.parked == 1
    bench.reads.answered(Found(bench.run(A), None, A), 1.0)
    bench.finish()
    assert bench.replies.sent == [(10 | RESENT, A)]


def test_a_freed_request_leaves_nothing_behind(bench: Bench) -> None:
    bench.read(10, BOTH)
    bench.reads.forget(10)
    bench.reads.answered(Found(bench.run(A), None, A), 1.0)
    bench.reads.answered(Found(bench.run(B), None, B), 1.0)
    bench.finish()
    assert (bench.replies.sent, bench.reads.parked, bench.reads.ready) == ([], 0, False)


@pytest.mark.expect_warnings
@pytest.mark.parametrize("verify, asks", [("first", 0), ("arrival", 0), ("always", 1)])
def test_verify_says_how_often_bytes_are_checked(shared: SharedState, verify: str, asks: int) -> None:
    chunks = DamagedOnce(chunk_id(A))
    chunks.repaired = True
    bench = Bench(chunks, shared, verify)
    _store(bench, A)
    bench.read(10, FIRST)
    chunks.repaired = False
    shared.verified[bench.run(A)] = 1 if verify == "first" else 0
    bench.read(12, FIRST)
    assert bench.replies.sent[0] == (10, A)
    assert len(bench.misses.distrusted) == asks


@pytest.mark.expect_warnings
@pytest.mark.parametrize("trouble", ["", "no node is running on /d"])
def test_a_read_that_gives_up_says_in_one_line_what_it_waited_for_and_why_in_vain(
    bench: Bench, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench.misses.trouble_now = trouble
    bench.read(1, FIRST)
    bench.reads.expire(TIMEOUT)
    reason = trouble or "the node has not answered"
    chunk = f"it waited for chunk {chunk_id(A).hex()[:12]}"
    assert caplog.messages == [f"read of first at 0+{MAX_READ} gave up after 60 s: {reason}; {chunk}"]
    bench.read(2, BOTH, now=TIMEOUT * 2)
    bench.reads.expire(TIMEOUT * 3)
    assert caplog.messages[1].endswith(f"{chunk} and 1 more")


@pytest.mark.expect_warnings
def test_a_reason_that_names_the_chunk_is_not_followed_by_its_name(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.read(1, FIRST)
    reason = f"chunk {chunk_id(A).hex()[:12]} could not be had anywhere"
    bench.reads.answered(MissFailed(bench.run(A), reason), 1.0)
    assert caplog.messages == [f"read of first at 0+{MAX_READ} failed: {reason}"]
