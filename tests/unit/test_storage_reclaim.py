"""Space is given back once nobody can read there any more, block by block, and never under anybody's feet."""

import mmap
import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hoard_p2p.ids import ChunkId, chunk_id
from hoard_p2p.interfaces import Extent, Place, SlabKind
from hoard_p2p.storage.groups import WriterSettings
from hoard_p2p.storage.reclaim import STEP, Dropped
from hoard_p2p.storage.room import size_of
from hoard_p2p.storage.store import Store

RNG = random.Random(17)
KEY = b"0123456789abcdef"
PART = 300_001
"""Not a multiple of a block, so that neighbours in a file slab share one."""
FILE = [RNG.randbytes(PART) for _ in range(8)]
RUNS = [(chunk_id(data), PART) for data in FILE]
BLOCK = 4096
METADATA = 2
"""Blocks that a file system may need to list the others of a file with holes."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data") as opened:
        yield opened


def put(store: Store, *datas: bytes) -> list[ChunkId]:
    with store.writer() as writer:
        for data in datas:
            writer.put(chunk_id(data), data)
    return [chunk_id(data) for data in datas]


def put_file(store: Store) -> Path:
    with store.writer() as writer:
        sink = writer.resume_file(KEY, PART * len(FILE))
        for number, data in enumerate(FILE):
            sink.put(chunk_id(data), data, number * PART)
        sink.finish(KEY, RUNS)
    return store.reader().slab_path(place_of(store, FILE[0]).slab)


def place_of(store: Store, data: bytes) -> Place:
    place = store.reader().place(chunk_id(data))
    assert place is not None
    return place


def is_right(store: Store, data: bytes) -> bool:
    into = bytearray(len(data))
    return store.reader().read_into(chunk_id(data), 0, memoryview(into)) is not None and into == data


def space(path: Path) -> int:
    return path.stat().st_blocks * 512


def slabs(store: Store) -> list[Path]:
    return sorted((store.data_dir / "slabs").glob("*.slab"))


def holds(path: Path, data: bytes, offset: int) -> bool:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(len(data)) == data


def test_every_block_that_only_dropped_chunks_touch_returns_and_no_other(store: Store) -> None:
    datas = [RNG.randbytes(RNG.choice([3, 700, 4095, 4096, 5000, 70_000])) for _ in range(400)]
    put(store, *datas)
    (slab,) = slabs(store)
    places = {data: place_of(store, data) for data in datas}
    kept = RNG.sample(datas, 120)
    blocks = {
        block
        for data in kept
        for block in range(places[data].offset // BLOCK, -(-(places[data].offset + len(data)) // BLOCK))
    }
    gone = [data for data in datas if data not in kept]
    assert store.reclaimer.drop(chunk_id(data) for data in gone) == Dropped(len(gone), sum(map(len, gone)))
    before = store.used_bytes()
    reclaimed = store.reclaimer.reclaim()
    assert not reclaimed.waiting
    assert reclaimed.bytes == before - store.used_bytes()
    assert 0 <= space(slab) - BLOCK * len(blocks) <= BLOCK * METADATA
    assert all(is_right(store, data) for data in kept)
    assert not any(is_right(store, data) for data in gone)


def test_what_the_room_counts_of_slabs_is_what_du_says(store: Store) -> None:
    rest = store.room.used - store.used_bytes()
    with store.writer() as writer:
        datas = [RNG.randbytes(50_000) for _ in range(100)]
        for data in datas:
            writer.put(chunk_id(data), data)
        writer.flush()
        store.reclaimer.drop(chunk_id(data) for data in datas[:30])
        store.reclaimer.reclaim()  # of the slab that is being written
        store.reclaimer.sweep(lambda found: found == chunk_id(datas[40]))
        store.reclaimer.reclaim()
    put_file(store)
    store.reclaimer.drop(chunk_id(data) for data in FILE[1:])
    store.reclaimer.reclaim()
    now = size_of(store.data_dir, store.data_dir / "slabs")
    assert store.room.used - store.used_bytes() in (rest, now)  # it looks at the rest once a second


def test_a_slab_that_holds_nothing_is_unlinked_with_its_sidecar_and_its_row(store: Store) -> None:
    store.reclaimer.drop(put(store, *(RNG.randbytes(9000) for _ in range(20))))
    store.reclaimer.reclaim()
    assert not list((store.data_dir / "slabs").iterdir())
    put_file(store)
    store.reclaimer.sweep(lambda found: False)
    store.reclaimer.reclaim()
    assert not list((store.data_dir / "slabs").iterdir())
    assert store.file_slab(KEY) is None
    assert put(store, b"again" * 2000) and is_right(store, b"again" * 2000)


def test_more_chunks_than_one_transaction_takes_are_dropped_in_several(store: Store) -> None:
    ids = put(store, *(number.to_bytes(4, "little") for number in range(2 * STEP + 5)))
    assert store.reclaimer.sweep(lambda found: found == ids[7]).chunks == 2 * STEP + 4
    assert store.extents_count() == 1
    assert is_right(store, (7).to_bytes(4, "little"))


def test_a_file_slab_that_another_version_shares_but_for_one_chunk_gives_that_chunk_back_without_a_copy(
    store: Store,
) -> None:
    slab = put_file(store)
    before = space(slab)
    assert store.reclaimer.drop([chunk_id(FILE[3])]) == Dropped(1, PART)
    reclaimed = store.reclaimer.reclaim()
    assert reclaimed.bytes == before - space(slab)
    assert 0 <= (4 * PART // BLOCK - (3 * PART // BLOCK + 1)) * BLOCK - reclaimed.bytes <= BLOCK * METADATA
    assert slabs(store) == [slab]
    assert all(is_right(store, data) for data in FILE if data is not FILE[3])
    assert slab.stat().st_size == PART * len(FILE)
    found = store.file_slab(KEY)
    assert found is not None
    assert not found.complete


def test_a_file_slab_that_lost_chunks_is_completed_again_in_the_same_slab(store: Store) -> None:
    slab = put_file(store)
    store.reclaimer.drop([chunk_id(FILE[3])])
    store.reclaimer.reclaim()
    assert put_file(store) == slab
    found = store.file_slab(KEY)
    assert found is not None
    assert found.complete
    assert slab.read_bytes() == b"".join(FILE)
    store.reclaimer.leftovers()
    assert slab.read_bytes() == b"".join(FILE)


def test_places_that_have_another_elsewhere_go_alone(store: Store) -> None:
    with store.writer() as writer:
        writer.put(chunk_id(FILE[2]), FILE[2])  # a place in a shared slab, first
    slab = put_file(store)
    number = store.file_slab(KEY)
    assert number is not None
    assert number.complete  # by a copy
    before = space(slab)
    assert store.reclaimer.drop_redundant([number.slab]) == Dropped(1, PART)
    assert store.reclaimer.reclaim().bytes == before - space(slab) > 0
    assert all(is_right(store, data) for data in FILE)


def test_a_place_that_a_mount_may_have_verified_leaves_its_generation_behind(store: Store) -> None:
    with store.writer() as writer:
        writer.put(chunk_id(FILE[2]), FILE[2])
    put_file(store)
    found = store.file_slab(KEY)
    assert found is not None
    first, second = store.reader().places_of(chunk_id(FILE[2]))
    store.reclaimer.drop_redundant([found.slab])
    with store.writer() as writer:
        writer.put_copy(chunk_id(FILE[2]), FILE[2])
    kept, fresh = store.reader().places_of(chunk_id(FILE[2]))
    assert kept == first
    assert fresh.generation not in (first.generation, second.generation)


def test_what_is_pending_or_claimed_or_committed_meanwhile_stays(store: Store) -> None:
    pending, claimed, fresh, dead = (RNG.randbytes(20_000) for _ in range(4))
    put(store, claimed, dead)
    with store.writer(WriterSettings(group_seconds=3600)) as writer, store.reclaimer.new_claims() as claims:
        writer.put(chunk_id(pending), pending)
        claims.mark([chunk_id(claimed)])
        with store.reclaimer.marking():
            put(store, fresh)
            assert store.reclaimer.sweep(lambda found: False).chunks == 1
        store.reclaimer.reclaim()
        writer.flush()
        assert [is_right(store, data) for data in (pending, claimed, fresh, dead)] == [True, True, True, False]
    assert store.reclaimer.sweep(lambda found: False).chunks == 3  # nobody relies on them any more


def test_what_a_publish_claimed_outlives_its_end_until_older_decisions_are_done(store: Store) -> None:
    one, two, dead = (RNG.randbytes(20_000) for _ in range(3))
    put(store, one, two, dead)
    with store.reclaimer.marking():  # what is live was found out before the publishes ended
        for relied_on in (one, two):
            with store.reclaimer.new_claims() as claims:
                claims.mark([chunk_id(relied_on)])
        store.reclaimer.reclaim()
        assert store.reclaimer.sweep(lambda found: False).chunks == 1
    store.reclaimer.reclaim()
    with store.reclaimer.new_claims() as claims:
        assert store.reclaimer.drop([chunk_id(one)]).chunks == 1
        claims.mark([chunk_id(one)])  # it was looked up just before that
    store.reclaimer.reclaim()
    assert [is_right(store, data) for data in (one, two, dead)] == [True, True, False]
    assert store.reclaimer.sweep(lambda found: False).chunks == 2  # nobody relies on them any more


def test_what_is_being_sent_stays_until_it_was_sent(store: Store) -> None:
    sent, other = RNG.randbytes(50_000), RNG.randbytes(50_000)
    put(store, sent, other)
    (slab,) = slabs(store)
    place = place_of(store, sent)
    with store.reclaimer.sending(place):
        store.reclaimer.drop([chunk_id(sent), chunk_id(other)])
        assert [waiting.bytes for waiting in store.reclaimer.reclaim().waiting] == [len(sent)]
        store.reclaimer.leftovers()
        assert holds(slab, sent, place.offset)
        assert not holds(slab, other, place.offset + 53_248)
    assert not store.reclaimer.reclaim().waiting
    assert not slab.exists()


def test_a_writer_of_ours_puts_a_file_slab_aside_when_its_space_is_wanted(store: Store) -> None:
    with store.writer() as writer:
        sink = writer.resume_file(KEY, PART * len(FILE))
        for number, data in enumerate(FILE):
            sink.put(chunk_id(data), data, number * PART)
        writer.flush()
        (slab,) = slabs(store)
        before = space(slab)
        store.reclaimer.drop([chunk_id(FILE[0])])
        assert store.reclaimer.reclaim().bytes == before - space(slab) > 0
        sink.put(chunk_id(FILE[0]), FILE[0], 0)
        sink.finish(KEY, RUNS)
        writer.flush()
    assert slabs(store) == [slab]
    assert slab.read_bytes() == b"".join(FILE)


def test_a_slab_that_somebody_else_writes_loses_nothing_that_he_wrote(store: Store) -> None:
    """Of a shared slab the blocks of dropped chunks alone return, of a file slab none."""
    datas = [RNG.randbytes(length) for length in (8192, 100, 3996, 4096 * 3 - 5)]  # the small ones fill a block
    handle = store.new_slab(SlabKind.SHARED, 0)
    offsets = (0, 8192, 8292, 12_288)
    for data, offset in zip(datas, offsets):
        os.pwrite(handle.data_fd, data, offset)
    uncommitted = RNG.randbytes(500)
    os.pwrite(handle.data_fd, uncommitted, 24_576)
    store.commit([Extent(handle.slab, o, len(d), chunk_id(d)) for d, o in zip(datas, offsets)])
    (slab,) = slabs(store)
    store.reclaimer.drop(map(chunk_id, datas[:2]))
    assert store.reclaimer.reclaim().bytes == 8192
    store.reclaimer.leftovers()
    assert holds(slab, uncommitted, 24_576)
    assert holds(slab, datas[1], 8192)  # its block is a living chunk's too
    assert is_right(store, datas[2])
    assert is_right(store, datas[3])
    large = store.new_slab(SlabKind.FILE, PART)
    os.pwrite(large.data_fd, FILE[0], 0)
    store.commit([Extent(large.slab, 0, PART, chunk_id(FILE[0]))])
    store.reclaimer.drop([chunk_id(FILE[0])])
    reclaimed = store.reclaimer.reclaim()
    assert [waiting.reason for waiting in reclaimed.waiting] == [f"slab {large.slab} is being written"]
    assert holds(store.data_dir / "slabs" / f"F-1-{large.slab}.slab", FILE[0], 0)
    for fd in (*handle[3:], *large[3:]):
        os.close(fd)
    assert not store.reclaimer.reclaim().waiting
    assert slabs(store) == [slab]


def test_after_a_forced_unmount_a_file_slab_is_punched_only_once_nobody_has_it_open_or_mapped(store: Store) -> None:
    store.reclaimer.mounts_ended_hard()
    slab = put_file(store)
    with slab.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    is_right(store, FILE[0])  # our own reader has it open, too
    store.reclaimer.drop([chunk_id(FILE[3])])
    (waiting,) = store.reclaimer.reclaim().waiting
    assert "ended by force" in waiting.reason
    assert mapped[:] == b"".join(FILE)
    mapped.close()
    assert store.reclaimer.reclaim().bytes > 0
    assert not holds(slab, FILE[3], 3 * PART)


def test_blocks_of_an_unlinked_slab_that_others_still_use_count_until_they_let_go(store: Store) -> None:
    store.reclaimer.mounts_ended_hard()
    slab = put_file(store)
    size = space(slab)
    with slab.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    used = store.room.used
    store.reclaimer.drop(map(chunk_id, FILE))
    store.reclaimer.reclaim()
    assert not slab.exists()
    assert store.reclaimer.ghost_bytes == size
    assert used - store.room.used < size
    assert mapped[:] == b"".join(FILE)
    mapped.close()
    store.reclaimer.reclaim()
    assert store.reclaimer.ghost_bytes == 0
    assert used - store.room.used >= size


def test_a_damaged_place_that_awaits_good_bytes_is_neither_punched_nor_unlinked(store: Store) -> None:
    slab = put_file(store)
    place = place_of(store, FILE[3])
    assert store.quarantine(chunk_id(FILE[3]), place)
    store.reclaimer.leftovers()
    assert holds(slab, FILE[3], place.offset)
    store.reclaimer.drop(map(chunk_id, FILE[:3]))
    store.reclaimer.reclaim()
    assert holds(slab, FILE[3], place.offset)
    assert store.heal(chunk_id(FILE[3]), FILE[3]) is not None
    found = store.file_slab(KEY)
    assert found is not None
    assert not found.complete  # what was dropped is not healed
    store.reclaimer.leftovers()
    assert all(is_right(store, data) for data in FILE[3:])


def test_chunks_are_healed_while_a_slab_is_looked_through_and_count_as_if_they_had_been_seen(store: Store) -> None:
    slab = put_file(store)
    hurt, late = FILE[3], FILE[5]
    for data in (hurt, late):
        assert store.quarantine(chunk_id(data), place_of(store, data))
    with store.healer.watched(place_of(store, FILE[0]).slab) as healing:
        healed = store.heal(chunk_id(hurt), hurt)
        assert [place[:2] for _, place in healing()] == [(slab_number(slab), at * PART) for at in (3, 5)]
        assert healing()[0] == (chunk_id(hurt), healed)
    store.reclaimer.leftovers()
    assert is_right(store, hurt)
    assert holds(slab, late, 5 * PART)


def test_what_is_healed_again_and_again_while_space_is_given_back_stays(store: Store) -> None:
    put_file(store)
    store.reclaimer.drop(map(chunk_id, FILE[:3]))
    ended = threading.Event()

    def reclaim() -> None:
        for _ in range(20):
            store.reclaimer.reclaim()
            store.reclaimer.leftovers()
        ended.set()

    with ThreadPoolExecutor(1) as pool:
        reclaiming = pool.submit(reclaim)
        while not ended.is_set() and not reclaiming.done():
            for data in FILE[3:]:
                assert store.quarantine(chunk_id(data), place_of(store, data))
                assert store.heal(chunk_id(data), data) is not None
        reclaiming.result()
    assert all(is_right(store, data) for data in FILE[3:])


def slab_number(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])
