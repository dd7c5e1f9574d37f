"""Ranges of long pieces: given at once, read once, whole in the end."""

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Container
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from hoard_p2p.errors import ChunkUnavailable, ObjectChanged, PeerUnavailable, StoreFull, Unavailable
from hoard_p2p.fetch.segment import Landed, Segment, Wanted
from hoard_p2p.ids import ChunkId, SnapshotId, origin_key
from hoard_p2p.interfaces import Place
from hoard_p2p.limits import MAX_CHUNK, PAGE
from hoard_p2p.node.ranged import Part, Range, Ranged
from hoard_p2p.node.ranges import DELIVERED_SECONDS, GIVEN_SECONDS, Awaited, Here, Mine, Ranges
from hoard_p2p.peer import NodeId, Peer

PIECES = 16
OBJECT = random.Random(6).randbytes(PIECES * MAX_CHUNK)
CHUNKS = tuple(
    Wanted(run, origin_key(b"bucket/object", b"v1", run * MAX_CHUNK, MAX_CHUNK), MAX_CHUNK) for run in range(PIECES)
)
SEGMENT = Segment(SnapshotId(bytes(32)), 0, CHUNKS, ChunkId(bytes(32)))
RECORD = 110_000
TIMEOUT = 60.0


def bytes_of(chunk: Wanted, start: int, stop: int) -> bytes:
    at = chunk.run * MAX_CHUNK
    return OBJECT[at + start : at + stop]


@dataclass
class SlabOfOne:
    """A `PartStore` with one slab for the object, or, without `slabs`, none."""

    slabs: bool = True
    full: bool = False
    slab: bytearray = field(default_factory=lambda: bytearray(len(OBJECT)))
    kept: dict[ChunkId, Place] = field(default_factory=dict)
    parted: set[ChunkId] = field(default_factory=set)
    """Pieces whose parts take space."""

    def keep_part(self, segment: Segment, chunk: Wanted, start: int, data: memoryview) -> Place | None:
        if not self.slabs:
            return None
        at = chunk.run * MAX_CHUNK
        self.slab[at + start : at + start + len(data)] = data
        self.parted.add(chunk.chunk_id)
        return Place(1, at, chunk.length, 1)

    def part_at(self, segment: Segment, chunk: Wanted, start: int, into: memoryview) -> bool:
        at = chunk.run * MAX_CHUNK + start
        into[:] = self.slab[at : at + len(into)]
        return self.slabs

    def drop_part(self, chunk: Wanted) -> None:
        self.parted.discard(chunk.chunk_id)

    def place(self, chunk_id: ChunkId) -> Place | None:
        return self.kept.get(chunk_id)

    def keep(self, segment: Segment, chunk: Wanted, data: memoryview) -> Place:
        if self.full:
            raise StoreFull("the disk is full")
        assert data == bytes_of(chunk, 0, chunk.length)
        at = chunk.run * MAX_CHUNK
        self.slab[at : at + len(data)] = data
        self.kept[chunk.chunk_id] = Place(1, at, chunk.length, 1)
        self.drop_part(chunk)
        return self.kept[chunk.chunk_id]


def peer(number: int) -> Peer:
    return Peer(NodeId(bytes([number]) * 16), 1, f"n{number}", "", f"10.0.0.{number}", 7600, 1)


@dataclass
class CountingLane:
    """Reads the object, counts what is read; `readers` in order. `error`: what reading here ends in."""

    readers: list[Peer]
    read: int = 0
    error: Exception | None = None
    lenient: bool = False
    late: list[Peer] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reader(self, segment: Segment, without: Container[NodeId]) -> Peer | None:
        return next((one for one in self.readers if one.node_id not in without), None)

    def read_range(self, segment: Segment, chunk: Wanted, start: int, stop: int) -> bytes:
        if self.error is not None:
            raise self.error
        with self.lock:
            self.read += stop - start
        return bytes_of(chunk, start, stop)

    def may_bypass(self, segment: Segment, size: int, waited: float) -> bool:
        return self.lenient

    def bypassed(self, segment: Segment, reader: Peer, size: int) -> None:
        self.late.append(reader)

    def silent(self, reader: Peer) -> None:
        self.late.append(reader)


@dataclass
class Bench:
    store: SlabOfOne
    lane: CountingLane
    ask: Callable[[Peer, Range], bytes | None]
    held: bool = False
    now: float = 0.0
    most_pieces: int = PIECES
    ordinary: list[ChunkId] = field(default_factory=list)
    landed: list[ChunkId] = field(default_factory=list)

    def ranged(self, group: asyncio.TaskGroup) -> Ranged:
        async def holds(segment: Segment) -> bool:
            return self.held

        async def chunk(segment: Segment, wanted: Wanted, seconds: float) -> Landed:
            self.ordinary.append(wanted.chunk_id)
            if not self.held:
                assert await asyncio.to_thread(self.ranges.settled, segment, wanted, TIMEOUT)
                return Landed(None, bytes_of(wanted, 0, wanted.length))  # as the fill lands it
            return Landed(None, bytes_of(wanted, 0, wanted.length))

        self.ranges = Ranges(self.store, lambda: self.now, self.most_pieces)
        return Ranged(
            me=peer(1).node_id,
            ranges=self.ranges,
            lane=self.lane,
            place=lambda wanted: self.store.place(wanted.chunk_id),
            chunk=chunk,
            held=holds,
            landed=lambda _segment, wanted, _landed: self.landed.append(wanted.chunk_id),
            ask=self.ask,
            group=group,
        )

    def data(self, part: Part, chunk: Wanted, start: int, stop: int) -> bytes:
        """What a mount's worker makes of it."""
        if part.place is not None:
            at = part.place.offset + start
            return bytes(self.store.slab[at : at + stop - start])
        return part.data if part.partial else part.data[start:stop]


def nobody(_peer: Peer, _wanted: Range) -> bytes | None:
    raise PeerUnavailable("it does not answer")


def bench(store: SlabOfOne | None = None, *readers: int, ask: Callable[[Peer, Range], bytes | None] = nobody) -> Bench:
    return Bench(store or SlabOfOne(), CountingLane([peer(number) for number in readers or (1,)]), ask)


def run(one: Bench, work: Callable[[Ranged], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as group:
            ranged = one.ranged(group)
            try:
                await work(ranged)
            finally:
                await asyncio.to_thread(ranged.close)

    try:
        asyncio.run(main())
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


def records(seed: int, count: int) -> list[tuple[Wanted, int, int]]:
    """Page-rounded records, as the kernel asks for them, each within one piece."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        start = rng.randrange(MAX_CHUNK - RECORD) // PAGE * PAGE
        stop = min(-(-(start + RECORD) // PAGE) * PAGE, MAX_CHUNK)
        found.append((rng.choice(CHUNKS), start, stop))
    return found


def fill(one: Bench) -> None:
    """What reads whole pieces of a segment does, in a thread."""
    for chunk in random.Random(5).sample(CHUNKS, len(CHUNKS)):
        if one.store.place(chunk.chunk_id) is not None:
            continue
        whole = None
        for start, stop in one.ranges.claim(SEGMENT, chunk):
            data = one.lane.read_range(SEGMENT, chunk, start, stop)
            whole = one.ranges.came(SEGMENT, chunk, start, memoryview(data))
        if whole is not None:
            one.store.keep(SEGMENT, chunk, whole)
        else:
            assert one.ranges.settled(SEGMENT, chunk, TIMEOUT)


@pytest.mark.parametrize("slabs", [True, False])
def test_shuffled_readers_and_a_fill_read_no_byte_twice(slabs: bool) -> None:
    one = bench(SlabOfOne(slabs))

    async def work(ranged: Ranged) -> None:
        async def reader(seed: int) -> None:
            for chunk, start, stop in records(seed, 60):
                part = await ranged.need(Range(SEGMENT, chunk, start, stop), TIMEOUT)
                assert one.data(part, chunk, start, stop) == bytes_of(chunk, start, stop)

        with ThreadPoolExecutor(1) as pool:
            async with asyncio.TaskGroup() as group:
                for seed in range(8):
                    group.create_task(reader(seed))
                filling = asyncio.get_running_loop().run_in_executor(pool, fill, one)
                await filling

    run(one, work)
    assert one.lane.read == len(OBJECT)
    assert set(one.store.kept) == {chunk.chunk_id for chunk in CHUNKS}


def test_readers_alone_make_a_piece_whole_and_it_lands() -> None:
    one, chunk = bench(), CHUNKS[3]

    async def work(ranged: Ranged) -> None:
        for start in range(0, MAX_CHUNK, MAX_CHUNK // 4):
            part = await ranged.need(Range(SEGMENT, chunk, start, start + MAX_CHUNK // 4), TIMEOUT)
        assert not part.partial
        assert part.place == one.store.kept[chunk.chunk_id]

    run(one, work)
    assert one.landed == [chunk.chunk_id]
    assert one.lane.read == MAX_CHUNK


def test_two_readers_of_one_range_share_its_reading() -> None:
    one = bench()

    async def work(ranged: Ranged) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(ranged.need(Range(SEGMENT, CHUNKS[0], 0, 8192), TIMEOUT))

    run(one, work)
    assert one.lane.read == 8192


def test_a_piece_that_could_not_be_stored_reaches_its_reader_all_the_same() -> None:
    one = bench(SlabOfOne(slabs=False, full=True))

    async def work(ranged: Ranged) -> None:
        part = await ranged.need(Range(SEGMENT, CHUNKS[0], 0, MAX_CHUNK), TIMEOUT)
        assert (part.place, part.data, part.partial) == (None, bytes_of(CHUNKS[0], 0, MAX_CHUNK), False)

    run(one, work)


def test_a_segment_that_a_peer_holds_comes_as_other_chunks_do() -> None:
    one = bench()
    one.held = True

    async def work(ranged: Ranged) -> None:
        part = await ranged.need(Range(SEGMENT, CHUNKS[0], 0, PAGE), TIMEOUT)
        assert not part.partial

    run(one, work)
    assert (one.lane.read, one.ordinary) == (0, [CHUNKS[0].chunk_id])


def test_the_reader_of_the_segment_is_asked_for_just_the_range() -> None:
    asked: list[tuple[str, int, int, int]] = []

    def ask(whom: Peer, wanted: Range) -> bytes | None:
        asked.append((whom.name, wanted.start, wanted.stop, wanted.hops))
        return None if len(asked) < 2 else bytes_of(wanted.chunk, wanted.start, wanted.stop)

    one = bench(None, 2, ask=ask)

    async def work(ranged: Ranged) -> None:
        part = await ranged.need(Range(SEGMENT, CHUNKS[1], PAGE, 3 * PAGE), TIMEOUT)
        assert one.data(part, CHUNKS[1], PAGE, 3 * PAGE) == bytes_of(CHUNKS[1], PAGE, 3 * PAGE)
        assert one.ranges.claim(SEGMENT, CHUNKS[1]) == [(0, MAX_CHUNK)]  # no chunk is made of it

    run(one, work)
    assert asked == [("n2", PAGE, 3 * PAGE, 1)] * 2
    assert one.lane.read == 0


def test_who_comes_behind_a_reader_that_cannot_takes_over() -> None:
    one = bench(None, 2, 1)

    async def work(ranged: Ranged) -> None:
        assert (await ranged.need(Range(SEGMENT, CHUNKS[1], 0, PAGE), TIMEOUT)).partial

    run(one, work)
    assert one.lane.read == PAGE


def test_a_reader_that_is_late_is_passed_by_within_the_budget() -> None:
    answer = threading.Event()

    def ask(_peer: Peer, wanted: Range) -> bytes | None:
        answer.wait(TIMEOUT)
        return bytes_of(wanted.chunk, wanted.start, wanted.stop)

    one = bench(None, 2, ask=ask)
    one.lane.lenient = True

    async def work(ranged: Ranged) -> None:
        try:
            assert (await ranged.need(Range(SEGMENT, CHUNKS[1], 0, PAGE), TIMEOUT)).partial
        finally:
            answer.set()

    run(one, work)
    assert (one.lane.read, one.lane.late) == (PAGE, [peer(2)])


def test_a_question_is_passed_on_twice_at_most() -> None:
    one = bench(None, 2)

    async def work(ranged: Ranged) -> None:
        await ranged.need(Range(SEGMENT, CHUNKS[1], 0, PAGE, hops=2), TIMEOUT)

    with pytest.raises(ChunkUnavailable, match="passed on twice"):
        run(one, work)


def test_a_changed_object_is_told_with_its_name_and_nobody_else_is_asked() -> None:
    one = bench(None, 1, 2)
    one.lane.error = ObjectChanged("s3://bucket/object was version v1 and is v2; publish it again")

    async def work(ranged: Ranged) -> None:
        await ranged.need(Range(SEGMENT, CHUNKS[1], 0, PAGE), TIMEOUT)

    with pytest.raises(ObjectChanged, match="v1 and is v2"):
        run(one, work)


def test_a_range_that_failed_is_read_again_by_the_next_who_wants_it() -> None:
    one = bench()
    one.lane.error = Unavailable("the origin is away")

    async def work(ranged: Ranged) -> None:
        with suppress(Unavailable):
            await ranged.need(Range(SEGMENT, CHUNKS[1], 0, PAGE), TIMEOUT)
        one.lane.error = None
        assert (await ranged.need(Range(SEGMENT, CHUNKS[1], 0, PAGE), TIMEOUT)).partial

    run(one, work)


def test_a_reader_that_gives_up_leaves_its_reading_to_the_others() -> None:
    go = threading.Event()
    one = bench()
    read = one.lane.read_range

    async def work(ranged: Ranged) -> None:
        def slowly(segment: Segment, chunk: Wanted, start: int, stop: int) -> bytes:
            go.wait(TIMEOUT)
            return read(segment, chunk, start, stop)

        one.lane.read_range = slowly  # type: ignore[method-assign]
        try:
            with pytest.raises(ChunkUnavailable, match="did not come within"):
                await ranged.need(Range(SEGMENT, CHUNKS[1], 0, PAGE), 0.01)
        finally:
            go.set()
        assert (await ranged.need(Range(SEGMENT, CHUNKS[1], 0, PAGE), TIMEOUT)).partial

    run(one, work)
    assert one.lane.read == PAGE


def test_parts_whose_slab_is_gone_are_read_again() -> None:
    one, chunk = bench(), CHUNKS[0]

    async def work(ranged: Ranged) -> None:
        await ranged.need(Range(SEGMENT, chunk, 0, PAGE), TIMEOUT)
        one.store.slabs = False
        part = await ranged.need(Range(SEGMENT, chunk, 0, MAX_CHUNK), TIMEOUT)
        assert one.data(part, chunk, 0, PAGE) == bytes_of(chunk, 0, PAGE)

    run(one, work)


def test_a_piece_that_was_delivered_is_awaited_and_not_read_again() -> None:
    one, chunk = bench(), CHUNKS[0]

    async def work(ranged: Ranged) -> None:
        assert one.ranges.claim(SEGMENT, chunk) == [(0, MAX_CHUNK)]
        assert one.ranges.look(SEGMENT, chunk, 0, PAGE) == Awaited(True)
        whole = one.ranges.came(SEGMENT, chunk, 0, memoryview(bytes_of(chunk, 0, MAX_CHUNK)))
        assert whole is not None
        assert one.ranges.look(SEGMENT, chunk, 0, PAGE) == Awaited(True)
        one.now += DELIVERED_SECONDS  # nobody kept it: there was no room
        assert one.ranges.look(SEGMENT, chunk, 0, PAGE) == Mine([(0, PAGE)])

    run(one, work)


def test_a_fill_reads_around_what_is_here() -> None:
    one, chunk = bench(), CHUNKS[0]

    async def work(ranged: Ranged) -> None:
        await ranged.need(Range(SEGMENT, chunk, 4 * PAGE, 8 * PAGE), TIMEOUT)
        assert one.ranges.claim(SEGMENT, chunk) == [(0, 4 * PAGE), (8 * PAGE, MAX_CHUNK)]
        one.ranges.gave_up(SEGMENT, chunk, 0, 4 * PAGE)
        assert isinstance(one.ranges.look(SEGMENT, chunk, 4 * PAGE, 8 * PAGE), Here)
        assert one.ranges.look(SEGMENT, chunk, 0, PAGE) == Mine([(0, PAGE)])

    run(one, work)


@pytest.mark.parametrize("why", ["not stored", "not delivered", "too many", "lost and given up"])
def test_the_space_of_parts_that_are_forgotten_is_given_back_when_no_reader_can_be_at_it(why: str) -> None:
    one, chunk = bench(), CHUNKS[0]
    one.most_pieces = 1 if why == "too many" else PIECES

    async def work(ranged: Ranged) -> None:
        await ranged.need(Range(SEGMENT, chunk, 0, PAGE), TIMEOUT)
        assert one.store.parted == {chunk.chunk_id}
        await forget(ranged)
        one.now += GIVEN_SECONDS - 1
        one.ranges.let_go()
        assert one.store.parted == {chunk.chunk_id}, "a worker may read there yet"
        one.now += 1
        one.ranges.let_go()
        assert not one.store.parted

    async def forget(ranged: Ranged) -> None:
        if why == "not stored":
            one.store.full = True
            await ranged.need(Range(SEGMENT, chunk, 0, MAX_CHUNK), TIMEOUT)
        elif why == "not delivered":
            ((start, _stop),) = one.ranges.claim(SEGMENT, chunk)
            data = memoryview(bytes_of(chunk, start, MAX_CHUNK))
            assert one.ranges.came(SEGMENT, chunk, start, data) is not None
        elif why == "too many":
            one.ranges.look(SEGMENT, CHUNKS[1], 0, PAGE)
        else:
            one.store.slabs = False
            ((start, _stop),) = one.ranges.claim(SEGMENT, chunk)
            data = memoryview(bytes_of(chunk, start, MAX_CHUNK))
            assert one.ranges.came(SEGMENT, chunk, start, data) is None
            assert one.ranges.look(SEGMENT, chunk, 0, PAGE) == Mine([(0, PAGE)])
            one.ranges.release(chunk, 0, PAGE)

    run(one, work)


def test_a_piece_that_is_begun_again_keeps_its_space() -> None:
    one, chunk = bench(), CHUNKS[0]

    async def work(ranged: Ranged) -> None:
        ((start, stop),) = one.ranges.claim(SEGMENT, chunk)
        half = memoryview(bytes_of(chunk, start, stop // 2))
        assert one.ranges.came(SEGMENT, chunk, 0, half) is None
        assert one.ranges.came(SEGMENT, chunk, stop // 2, memoryview(bytes_of(chunk, stop // 2, stop))) is not None
        one.now += DELIVERED_SECONDS  # who was to keep it did not
        await ranged.need(Range(SEGMENT, chunk, 0, PAGE), TIMEOUT)
        one.now += GIVEN_SECONDS
        one.ranges.let_go()
        assert one.store.parted == {chunk.chunk_id}
        assert isinstance(one.ranges.look(SEGMENT, chunk, 0, PAGE), Here)

    run(one, work)
