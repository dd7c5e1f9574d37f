"""The room of the store: what is granted, what counts as used, and that it is what `du` says."""

import contextlib
import os
import random
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hoard_p2p.config import Floor
from hoard_p2p.errors import StoreFailed, StoreFull
from hoard_p2p.ids import ChunkId, chunk_id
from hoard_p2p.interfaces import Extent, SlabKind
from hoard_p2p.storage.allowance import STEP, Allowance, Loan
from hoard_p2p.storage.groups import WriterSettings
from hoard_p2p.storage.layout import DataDir
from hoard_p2p.storage.openslab import BLOCK, FIRST_RESERVE, OpenSlab, make_slab, whole_blocks
from hoard_p2p.storage.room import Disk, Room, default_capacity
from hoard_p2p.storage.sidecar import SidecarHeader
from hoard_p2p.storage.store import Store
from hoard_p2p.storage.writer import ChunkWriter
from hoard_p2p.testing.rooms import FixedRoom

MIB = 1 << 20
GIB = 1 << 30
RNG = random.Random(7)
NO_FLOOR = Floor()


def room(path: Path, capacity: int | None = GIB, floor: Floor = NO_FLOOR, free: int = 10 * GIB) -> Room:
    layout = DataDir(path)
    layout.make()
    return Room(layout, capacity, floor, lambda: Disk(10 * GIB, free))


def du(path: Path) -> int:
    return int(subprocess.run(["du", "-s", "-B1", path], capture_output=True, text=True, check=True).stdout.split()[0])


# --- granting


def test_what_is_promised_and_used_never_exceeds_the_capacity(tmp_path: Path) -> None:
    there = room(tmp_path, 512 * MIB)
    given = 0
    with pytest.raises(StoreFull):
        while True:
            there.grant(16 * MIB)
            given += 16 * MIB
    assert 480 * MIB <= given == there.promised
    assert there.used + there.promised <= 512 * MIB
    there.settle(16 * MIB)
    assert there.promised == given - 16 * MIB
    with pytest.raises(StoreFull):
        there.grant(16 * MIB)
    there.freed(16 * MIB)
    there.grant(16 * MIB)


def test_promised_bytes_count_against_the_floor_before_they_are_written(tmp_path: Path) -> None:
    there = room(tmp_path, None, Floor(percent=10), free=GIB + 40 * MIB)
    there.grant(30 * MIB)
    with pytest.raises(StoreFull, match=r"20\.0 MiB are missing; the disk has 1\.0 GiB free, and 1\.0 GiB of it"):
        there.grant(30 * MIB)
    there.give_back(20 * MIB)
    there.grant(30 * MIB)


def test_a_refusal_says_how_much_is_missing_and_what_could_go(tmp_path: Path) -> None:
    there = room(tmp_path, 64 * MIB)
    there.advice = lambda missing: f"hoard evict frees {missing // MIB} MiB"
    with pytest.raises(
        StoreFull, match=r"37\.\d MiB are missing; .* capacity of 64\.0 MiB; .*; hoard evict frees 37 MiB"
    ):
        there.grant(100 * MIB)


def test_relief_is_asked_once_for_what_is_wanted_and_the_grant_goes_on_if_it_helped(tmp_path: Path) -> None:
    there = room(tmp_path, 64 * MIB)
    there.settle(60 * MIB)
    asked = []

    def relief(size: int) -> bool:
        asked.append(size)
        there.freed(32 * MIB)
        return True

    def in_vain(size: int) -> bool:
        asked.append(size)
        return False

    there.relief = relief
    there.grant(16 * MIB)
    assert asked == [16 * MIB]
    there.relief = in_vain
    with pytest.raises(StoreFull):
        there.grant(64 * MIB)
    assert asked == [16 * MIB, 64 * MIB]


def test_of_many_in_need_one_asks_for_relief(tmp_path: Path) -> None:
    there = room(tmp_path, 64 * MIB)
    there.settle(60 * MIB)
    asked: list[int] = []
    waiting = threading.Barrier(4)

    def relief(size: int) -> bool:
        asked.append(size)
        there.freed(60 * MIB)
        return True

    def want(_: int) -> None:
        waiting.wait(10)
        there.grant(8 * MIB)

    there.relief = relief
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(want, range(4)))
    assert len(asked) == 1 and there.promised == 32 * MIB


def test_a_disk_that_cannot_be_looked_at_is_a_failed_store_with_nothing_available(tmp_path: Path) -> None:
    layout = DataDir(tmp_path)
    layout.make()

    def ill() -> Disk:
        raise OSError(5, "Input/output error")

    there = Room(layout, GIB, Floor(), ill)
    assert there.available == 0
    with pytest.raises(StoreFailed, match="cannot be looked at"):
        there.grant(1)
    assert there.promised == 0


def test_capacity_and_floor_can_be_changed_while_it_is_in_use(tmp_path: Path) -> None:
    there = room(tmp_path, 64 * MIB)
    there.grant(60 * MIB)
    there.limit(capacity=32 * MIB)
    assert there.available == 0
    there.limit(capacity=GIB, floor=Floor(size=9 * GIB + 500 * MIB))
    assert 450 * MIB < there.available <= 464 * MIB
    assert there.figures().floor == 9 * GIB + 500 * MIB


def test_ghosts_count_as_used_until_they_are_gone(tmp_path: Path) -> None:
    there = room(tmp_path)
    before = there.used
    there.settle(8 * MIB)
    there.pinned(6 * MIB)
    assert there.used == before + 8 * MIB and there.figures().ghosts == 6 * MIB
    assert there.measure(), "nothing is there in truth but what is pinned"
    assert there.used == before + 6 * MIB
    there.unpinned(6 * MIB)
    assert there.used == before


def test_a_measure_is_not_believed_while_something_is_being_written(tmp_path: Path) -> None:
    there = room(tmp_path)
    there.grant(MIB)
    assert not there.measure()
    there.give_back(MIB)
    assert there.measure()


# --- asking in steps


def test_a_writer_asks_in_growing_steps(tmp_path: Path) -> None:
    owner = FixedRoom()
    allowance = Allowance(owner)
    for _ in range(48):
        allowance.take(MIB)
        allowance.done(MIB)
        allowance.changed(MIB)
    assert owner.grants == [MIB, 2 * MIB, 4 * MIB, *[STEP] * 6]
    allowance.settle()
    assert (owner.promised, owner.used) == (0, 48 * MIB)


def test_what_is_not_needed_is_handed_back_and_what_is_under_way_is_not() -> None:
    owner = FixedRoom()
    allowance = Allowance(owner)
    allowance.take(3 * MIB)
    allowance.settle()
    assert owner.promised == 3 * MIB
    allowance.done(3 * MIB)
    allowance.settle()
    assert owner.promised == 0


def test_the_last_bytes_are_granted_though_a_whole_step_is_not_there() -> None:
    owner = FixedRoom(5 * MIB)
    allowance = Allowance(owner)
    allowance.take(4 * MIB)
    assert owner.promised == 4 * MIB


def test_a_refusal_is_believed_for_a_second_by_those_who_ask_for_as_much() -> None:
    owner = FixedRoom(2 * MIB)
    now = [0.0]
    allowance = Allowance(owner, clock=lambda: now[0])
    for _ in range(10):
        with pytest.raises(StoreFull):
            allowance.take(4 * MIB)
    assert owner.grants == [4 * MIB]
    allowance.take(MIB)
    owner.size = GIB
    now[0] = 1.1
    allowance.take(4 * MIB)


def test_what_a_process_was_granted_comes_back_when_it_dies_even_if_it_died_asking() -> None:
    owner = FixedRoom()
    loan = Loan(owner)
    loan.grant(16 * MIB)
    loan.grant(16 * MIB)
    loan.give_back(16 * MIB, 15 * MIB)
    loan.close()
    assert (owner.promised, owner.used) == (0, 15 * MIB)
    loan.grant(16 * MIB)
    assert owner.promised == 0
    loan.give_back(1 << 50, 0)
    assert owner.promised == 0, "nobody hands back more than he has"


# --- slabs


def entered(layout: DataDir, kind: SlabKind, size: int, owner: FixedRoom) -> tuple[OpenSlab, Path, Allowance]:
    layout.make()
    path = layout.slab(kind, 1, 1)
    allowance = Allowance(owner)
    slab = OpenSlab(make_slab(path, SidecarHeader(1, 1, size, kind)), allowance)
    assert slab.enter()
    return slab, path, allowance


def test_nothing_is_reserved_that_was_not_granted(tmp_path: Path) -> None:
    owner = FixedRoom(3 * MIB // 4)
    slab, path, allowance = entered(DataDir(tmp_path), SlabKind.SHARED, 0, owner)
    with pytest.raises(StoreFull):
        slab.reserve(0, 2 * MIB)
    assert path.stat().st_size == 0
    slab.reserve(0, MIB // 2)
    assert path.stat().st_size == MIB // 2 < FIRST_RESERVE
    slab.retire()
    slab.leave()
    allowance.settle()
    assert owner.promised == 0


def test_refused_puts_leave_no_gap_that_later_ones_must_pay_for(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store, store.writer(WriterSettings(refused_seconds=0)) as writer:
        store.set_capacity(8 * MIB)
        for _ in range(40):
            data = RNG.randbytes(4 * MIB)
            with contextlib.suppress(StoreFull):
                writer.put(chunk_id(data), data)
        assert store.room.used + store.room.promised <= 8 * MIB
        store.set_capacity(32 * MIB)
        data = RNG.randbytes(4 * MIB)
        writer.put(chunk_id(data), data)
        writer.flush()
        assert du(tmp_path) <= 32 * MIB


def extent(offset: int, length: int) -> Extent:
    return Extent(1, offset, length, ChunkId(RNG.randbytes(32)))


def test_only_whole_blocks_of_lost_extents_are_given_back() -> None:
    lost = [extent(5000, 8000), extent(13_000, 20_000), extent(100_000, 3000), extent(200_000, 4096)]
    assert whole_blocks(lost) == [(2 * BLOCK, 8 * BLOCK)]


def test_a_file_slab_gives_back_what_a_failed_group_wrote_and_keeps_the_rest(tmp_path: Path) -> None:
    owner = FixedRoom()
    slab, path, allowance = entered(DataDir(tmp_path), SlabKind.FILE, 12 * MIB, owner)
    data = RNG.randbytes(12 * MIB)
    for start in range(0, 12 * MIB, 4 * MIB):
        slab.reserve(start, 4 * MIB)
        slab.write(data[start : start + 4 * MIB], start)
    slab.keep([extent(0, 4 * MIB), extent(8 * MIB, 4 * MIB)])
    slab.lose([extent(4 * MIB, 4 * MIB)])
    slab.sync()
    slab.retire()
    slab.leave()
    allowance.settle()
    assert path.stat().st_size == 12 * MIB
    assert abs(path.stat().st_blocks * 512 - 8 * MIB) <= 64 << 10
    assert path.read_bytes()[: 4 * MIB] == data[: 4 * MIB] and path.read_bytes()[8 * MIB :] == data[8 * MIB :]
    assert abs(owner.used - 8 * MIB) <= 64 << 10


class FullIndex:
    """A store whose commits find no room for index pages while `full`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.full = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def commit(self, extents: list[Extent], known: Sequence[tuple[bytes, bytes]] = ()) -> None:
        if self.full:
            raise StoreFull("no page for the index")
        self._store.commit(extents, known)


def test_what_a_failed_group_wrote_and_reserved_is_given_back(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        before = store.room.used
        broker = FullIndex(store)
        with ChunkWriter(broker, store.reader(), WriterSettings(group_seconds=3600)) as writer:  # type: ignore[arg-type]
            kept = RNG.randbytes(MIB)
            writer.put(chunk_id(kept), kept)
            writer.flush()
            broker.full = True
            for data in (RNG.randbytes(MIB) for _ in range(20)):
                writer.put(chunk_id(data), data)
            sink = writer.open_file(8 * MIB)
            part = RNG.randbytes(4 * MIB)
            sink.put(chunk_id(part), part, 4 * MIB)
            sink.abandon()
            with pytest.raises(StoreFull):
                writer.flush()
            assert du(tmp_path / "slabs") < 2 * MIB
            broker.full = False
            writer.put(chunk_id(part), part)
        into = bytearray(MIB)
        assert store.reader().read_into(chunk_id(kept), 0, memoryview(into)) is not None and into == kept
        assert store.room.promised == 0
        assert 5 * MIB <= store.room.used - before < 6 * MIB


# --- the count


def test_the_count_is_what_du_says_after_all_kinds_of_writing_and_a_restart(tmp_path: Path) -> None:
    def agrees(store: Store) -> bool:
        real = du(tmp_path)
        return abs(store.room.used - real) <= max(real // 100, 64 << 10)

    with Store.open(tmp_path) as store, store.writer() as writer:
        for length in (100, 3000, 5000, 70_000):
            for _ in range(200):
                data = RNG.randbytes(length)
                writer.put(chunk_id(data), data)
        writer.flush()
        assert agrees(store), "one shared slab, open"
        sink = writer.open_file(40 * MIB)
        runs = []
        for start in range(0, 40 * MIB, 10 * MIB // 3 // 10 * 10):
            data = RNG.randbytes(min(10 * MIB // 3 // 10 * 10, 40 * MIB - start))
            sink.put(chunk_id(data), data, start)
            runs.append((chunk_id(data), len(data)))
        sink.finish(b"k" * 16, runs)
        writer.flush()
        assert agrees(store), "and a file slab"
        lazily = writer.resume_file(b"q" * 16, 20 * MIB)
        for start in (12 * MIB, MIB, 4 * MIB):
            data = RNG.randbytes(MIB)
            lazily.put(chunk_id(data), data, start)
        writer.flush()
        assert agrees(store), "and parts of another"
        (tmp_path / "tmp").mkdir()
        (tmp_path / "tmp" / "spill").write_bytes(bytes(5 * MIB))
        store.room.measure()
        assert agrees(store), "and a temporary file"
    with Store.open(tmp_path) as store:
        assert agrees(store), "after a restart"


def test_a_killed_writers_space_is_found_by_a_measure(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        before = store.room.used
        handle = store.new_slab(SlabKind.FILE, 8 * MIB)
        loan = Loan(store)
        loan.grant(16 * MIB)

        os.posix_fallocate(handle.data_fd, 0, 8 * MIB)
        os.close(handle.data_fd)
        os.close(handle.sidecar_fd)
        loan.close()
        assert store.room.used - before < MIB and store.room.promised == 0
        assert store.room.measure()
        assert store.room.used - before >= 8 * MIB


@pytest.mark.parametrize(("free", "floor", "capacity"), [(1000, 50, 800), (1000, 300, 700), (100, 300, 0)])
def test_what_a_store_may_take_at_first_leaves_the_floor_free(free: int, floor: int, capacity: int) -> None:
    assert default_capacity(Disk(6000, free), floor) == capacity
