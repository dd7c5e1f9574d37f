"""READs of a lazy snapshot: of a long piece only the pages that are wanted are asked for, and nothing is remembered."""

import errno
from collections.abc import Iterator
from io import BytesIO
from stat import S_IFDIR, S_IFREG

import pytest

from hoard_p2p.catalog.builder import CatalogBuilder, Meta
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.ids import ChunkId, origin_key, slot_id
from hoard_p2p.interfaces import Found, MissFailed, Place
from hoard_p2p.limits import MAX_CHUNK, PAGE, WHOLE_PIECE
from hoard_p2p.mount.kernel import MAX_READ
from hoard_p2p.mount.reads import Read, Reads
from hoard_p2p.mount.shared import SharedState
from hoard_p2p.mount.verified import VerifiedChunks
from hoard_p2p.testing.memory import MemoryChunks

LONG = 2 * MAX_CHUNK
DATA = bytes(range(256)) * (LONG // 256)
SMALL = WHOLE_PIECE
LONG_FILE, SMALL_FILE = 1, 2
PLACE = Place(7, 0, MAX_CHUNK, 1)


def key(name: bytes, offset: int, length: int) -> ChunkId:
    return origin_key(name, b"v1", offset, length)


def catalog() -> Catalog:
    """`long`: two pieces of 4 MiB; `small`: one of 1 MiB."""
    out = BytesIO()
    with CatalogBuilder(spill=BytesIO, keep_owner=False) as builder:
        builder.add_root(Meta(S_IFDIR | 0o755, 0, 0, 0))
        builder.next_directory()
        meta = Meta(S_IFREG | 0o644, 0, 0, 0)
        runs = [(key(b"long", at, MAX_CHUNK), MAX_CHUNK) for at in (0, MAX_CHUNK)]
        slots = [slot_id(b"long", at) for at in (0, MAX_CHUNK)]
        builder.add_file(b"long", meta, LONG, runs, slots=slots, version=b"v1")
        runs, slots = [(key(b"small", 0, SMALL), SMALL)], [slot_id(b"small", 0)]
        builder.add_file(b"small", meta, SMALL, runs, slots=slots, version=b"v1")
        builder.finish(out)
    return Catalog(memoryview(out.getvalue()))


class Asked:
    """A channel that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, tuple[int, int] | None]] = []
        self.distrusted: list[int] = []

    def trouble(self) -> str:
        return ""

    def fileno(self) -> int:
        return -1

    def ask(self, run: int, span: tuple[int, int] | None = None) -> None:
        self.asked.append((run, span))

    def distrust(self, run: int, place: Place) -> None:
        self.distrusted.append(run)

    def touch(self, run: int) -> None:
        pass

    def answers(self) -> list[Found | MissFailed]:
        return []

    def tend(self) -> None:
        pass


class Parts(MemoryChunks):
    """Bytes of the first piece lie at `PLACE`, though it is in no index."""

    gone = False

    def read_at(self, place: Place, start: int, into: memoryview) -> None:
        assert place == PLACE
        into[:] = bytes(len(into)) if self.gone else DATA[start : start + len(into)]


class Replies:
    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes | int]] = []
        self.room = memoryview(bytearray(MAX_READ))

    def send_room(self, unique: int, length: int) -> None:
        self.sent.append((unique, bytes(self.room[:length])))

    def fail(self, unique: int, number: int) -> None:
        self.sent.append((unique, number))


class Bench:
    def __init__(self, shared: SharedState) -> None:
        self.chunks, self.misses, self.replies, self.shared = Parts(), Asked(), Replies(), shared
        one = catalog()
        verified = VerifiedChunks(one, self.chunks, shared.verified, "first")
        self.reads = Reads(one, verified, self.misses, self.replies, shared, timeout=60.0, failed=lambda: None)

    def read(self, unique: int, index: int, offset: int, size: int) -> None:
        self.reads.start(Read(unique, index, offset, size), 0.0)

    def answer(self, answer: Found | MissFailed) -> None:
        self.reads.answered(answer, 1.0)
        while read := self.reads.take_ready():
            self.reads.start(read, 1.0)


@pytest.fixture
def bench() -> Iterator[Bench]:
    shared = SharedState.create(name="test", workers=1, runs=3)
    yield Bench(shared)
    shared.close()


def test_of_a_long_piece_just_the_pages_of_a_read_are_asked_for(bench: Bench) -> None:
    bench.read(10, LONG_FILE, 5000, 6000)
    assert bench.misses.asked == [(0, (PAGE, 3 * PAGE))]
    bench.answer(Found(0, PLACE, b"", (PAGE, 3 * PAGE)))
    assert bench.replies.sent == [(10, DATA[5000:11_000])]
    assert bench.shared.verified[0] == 0
    bench.read(12, LONG_FILE, 5000, 6000)  # not remembered either
    assert len(bench.misses.asked) == 2


def test_a_piece_of_a_mebibyte_is_asked_for_as_a_whole(bench: Bench) -> None:
    bench.read(10, SMALL_FILE, 0, 4096)
    assert bench.misses.asked == [(2, None)]


def test_a_read_across_two_pieces_waits_for_both_parts_and_keeps_the_first_one(bench: Bench) -> None:
    bench.read(10, LONG_FILE, MAX_CHUNK - PAGE, 2 * PAGE)
    spans = [(MAX_CHUNK - PAGE, MAX_CHUNK), (0, PAGE)]
    assert bench.misses.asked == [(0, spans[0]), (1, spans[1])]
    bench.answer(Found(0, PLACE, b"", spans[0]))
    assert bench.replies.sent == []
    bench.chunks.gone = True  # the node ended, and its successor cleaned up
    bench.answer(Found(1, None, DATA[:PAGE], spans[1]))
    assert bench.replies.sent == [(10, DATA[-PAGE:] + DATA[:PAGE])]


def test_an_answer_about_one_part_frees_nobody_who_waits_for_another(bench: Bench) -> None:
    bench.read(10, LONG_FILE, 0, PAGE)
    bench.read(12, LONG_FILE, 2 * PAGE, PAGE)
    bench.answer(Found(0, None, DATA[2 * PAGE : 3 * PAGE], (2 * PAGE, 3 * PAGE)))
    assert bench.replies.sent == [(12, DATA[2 * PAGE : 3 * PAGE])]
    assert bench.reads.parked == 1


def test_bytes_of_another_length_than_the_part_are_not_used(bench: Bench) -> None:
    bench.read(10, LONG_FILE, 0, PAGE)
    bench.answer(Found(0, None, b"short", (0, PAGE)))
    assert bench.replies.sent == []
    assert bench.misses.asked == [(0, (0, PAGE))] * 2


@pytest.mark.expect_warnings
def test_a_part_that_cannot_be_had_fails_who_waits_for_it(bench: Bench) -> None:
    bench.read(10, LONG_FILE, 0, PAGE)
    bench.read(12, LONG_FILE, 2 * PAGE, PAGE)
    bench.answer(MissFailed(0, "s3://bucket/long was v1 and is v2", (0, PAGE)))
    assert bench.replies.sent == [(10, errno.EIO)]
    bench.answer(MissFailed(0, "it was removed"))  # about the run: all who wait for a part of it
    assert bench.replies.sent == [(10, errno.EIO), (12, errno.EIO)]
