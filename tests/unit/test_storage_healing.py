"""Damaged places: quarantined, written over where they lie, listed again; and slabs that do not allow it."""

import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hoard_p2p.ids import HOLE, ChunkId, chunk_id
from hoard_p2p.interfaces import Place
from hoard_p2p.storage.store import Store
from hoard_p2p.storage.writer import ChunkWriter

KEY = b"0123456789abcdef"
STEP = 300_000
RNG = random.Random(5)
FILE = [RNG.randbytes(STEP) for _ in range(6)]
RUNS = [(chunk_id(data), len(data)) for data in FILE]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data") as opened:
        yield opened


def put_file(store: Store, numbers: range = range(len(FILE))) -> None:
    with store.writer() as writer:
        sink = writer.resume_file(KEY, STEP * len(FILE))
        for number in numbers:
            sink.put(chunk_id(FILE[number]), FILE[number], number * STEP)
        if len(numbers) == len(FILE):
            sink.finish(KEY, RUNS)


def put(store: Store, *datas: bytes) -> None:
    with store.writer() as writer:
        for data in datas:
            writer.put(chunk_id(data), data)


def place_of(store: Store, data: bytes) -> Place:
    place = store.reader().place(chunk_id(data))
    assert place is not None
    return place


def slab_of(store: Store, place: Place) -> Path:
    return store.reader().slab_path(place.slab)


def damage(store: Store, place: Place) -> None:
    with slab_of(store, place).open("r+b") as slab:
        slab.seek(place.offset + place.length // 2)
        slab.write(b"damage")


def is_right(store: Store, data: bytes) -> bool:
    into = bytearray(len(data))
    return store.reader().read_into(chunk_id(data), 0, memoryview(into)) is not None and into == data


def is_complete(store: Store) -> bool:
    found = store.file_slab(KEY)
    return found is not None and found.complete


def test_a_damaged_chunk_is_healed_in_the_file_that_open_readers_have(store: Store) -> None:
    put_file(store)
    place = place_of(store, FILE[2])
    with slab_of(store, place).open("rb", buffering=0) as reader:
        damage(store, place)
        assert store.distrust(chunk_id(FILE[2]), place)
        assert store.reader().place(chunk_id(FILE[2])) is None
        healed = store.heal(chunk_id(FILE[2]), FILE[2])
        assert reader.read() == b"".join(FILE)
    assert healed == place_of(store, FILE[2])
    assert healed[:3] == place[:3]
    assert healed.generation != place.generation
    assert len(list((store.data_dir / "slabs").glob("*.slab"))) == 1


def test_a_file_slab_is_complete_again_once_the_last_of_its_damage_is_healed(store: Store) -> None:
    put_file(store)
    for number in (1, 4):
        place = place_of(store, FILE[number])
        damage(store, place)
        assert store.distrust(chunk_id(FILE[number]), place)
    assert not is_complete(store)
    assert store.heal(chunk_id(FILE[1]), FILE[1])
    assert not is_complete(store)
    assert store.heal(chunk_id(FILE[4]), FILE[4])
    assert is_complete(store)


def test_bytes_that_are_right_are_not_quarantined_whoever_distrusts_them(store: Store) -> None:
    put_file(store)
    place = place_of(store, FILE[0])
    assert not store.distrust(chunk_id(FILE[0]), place)
    damage(store, place)
    store.distrust(chunk_id(FILE[0]), place)
    healed = store.heal(chunk_id(FILE[0]), FILE[0])
    assert not store.distrust(chunk_id(FILE[0]), place), "who saw the damage late names the old generation"
    assert place_of(store, FILE[0]) == healed
    assert is_complete(store)


def test_damage_that_comes_back_is_healed_again_under_another_generation(store: Store) -> None:
    put(store, b"x" * 5000)
    seen = set()
    for _ in range(5):
        place = place_of(store, b"x" * 5000)
        assert place.generation not in seen
        seen.add(place.generation)
        damage(store, place)
        assert store.distrust(chunk_id(b"x" * 5000), place)
        assert store.heal(chunk_id(b"x" * 5000), b"x" * 5000)
    assert is_right(store, b"x" * 5000)


def test_a_healed_place_has_a_generation_that_no_copy_under_way_was_told(store: Store) -> None:
    data = b"y" * 5000
    put(store, data)
    place = place_of(store, data)
    damage(store, place)
    store.distrust(chunk_id(data), place)
    (told,) = store.reader().vacancies([chunk_id(data)])
    healed = store.heal(chunk_id(data), data)
    assert healed is not None
    assert told not in (healed.generation, place.generation)


def test_another_copy_on_this_disk_heals_at_once(store: Store) -> None:
    put(store, FILE[0])
    put_file(store)
    shared = place_of(store, FILE[0])
    assert slab_of(store, shared).name.startswith("S-")
    damage(store, shared)
    assert store.distrust(chunk_id(FILE[0]), shared)
    assert slab_of(store, shared).read_bytes()[shared.offset : shared.offset + STEP] == FILE[0]
    assert is_right(store, FILE[0])


def test_if_every_copy_is_damaged_none_is_listed_and_all_are_healed(store: Store) -> None:
    put(store, FILE[0])
    put_file(store)
    shared = place_of(store, FILE[0])
    damage(store, shared)
    file = store.file_slab(KEY)
    assert file is not None
    damage(store, Place(file.slab, 0, STEP, 1))
    assert store.distrust(chunk_id(FILE[0]), shared)
    assert store.reader().place(chunk_id(FILE[0])) is None
    assert not is_complete(store)
    assert store.heal(chunk_id(FILE[0]), FILE[0])
    for place in (shared, Place(file.slab, 0, STEP, 1)):
        assert slab_of(store, place).read_bytes()[place.offset : place.offset + STEP] == FILE[0]
    assert is_complete(store)


def test_a_chunk_that_is_stored_anew_heals_its_damaged_place_too(store: Store) -> None:
    """As when the data are published again from their source, by a process that knows of no damage."""
    put_file(store)
    place = place_of(store, FILE[3])
    damage(store, place)
    store.distrust(chunk_id(FILE[3]), place)
    put(store, FILE[3])
    assert is_complete(store)
    assert slab_of(store, place).read_bytes() == b"".join(FILE)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("harm", [_cut, _empty, Path.unlink])
def test_a_slab_that_lost_its_end_or_itself_is_not_healed_and_its_chunks_are_stored_elsewhere(
    store: Store, harm: Callable[[Path], None]
) -> None:
    put_file(store)
    first = place_of(store, FILE[5])
    path = slab_of(store, first)
    harm(path)
    assert store.distrust(chunk_id(FILE[5]), first)
    assert store.heal(chunk_id(FILE[5]), FILE[5]) is None
    put(store, FILE[5])
    assert is_right(store, FILE[5])
    assert place_of(store, FILE[5]).slab != first.slab
    assert not is_complete(store)
    assert not path.exists() or path.stat().st_size <= 4 * STEP, "what was cut off must not come back as zeros"


def test_a_file_slab_that_was_cut_short_is_not_continued(store: Store) -> None:
    put_file(store, range(3))
    _cut(slab_of(store, place_of(store, FILE[0])))
    put_file(store)
    found = store.file_slab(KEY)
    assert found is not None
    assert found.slab != place_of(store, FILE[0]).slab


def test_a_shared_slab_that_was_deleted_while_it_was_written_is_replaced(store: Store) -> None:
    with store.writer() as writer:
        writer.put(chunk_id(b"a" * 5000), b"a" * 5000)
        writer.flush()
        place = place_of(store, b"a" * 5000)
        slab_of(store, place).unlink()
        assert store.distrust(chunk_id(b"a" * 5000), place)
        writer.put(chunk_id(b"a" * 5000), b"a" * 5000)
        writer.flush()
        assert slab_of(store, place_of(store, b"a" * 5000)).exists()


def test_after_a_restart_damage_is_healed_too(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        put_file(store)
    with Store.open(tmp_path) as store:
        place = place_of(store, FILE[2])
        damage(store, place)
        assert store.distrust(chunk_id(FILE[2]), place)
        assert store.heal(chunk_id(FILE[2]), FILE[2])
        assert is_complete(store)


def test_a_place_that_was_quarantined_before_a_restart_is_healed_in_place_after_it(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        put_file(store)
        place = place_of(store, FILE[2])
        damage(store, place)
        store.distrust(chunk_id(FILE[2]), place)
    with Store.open(tmp_path) as store:
        assert store.healer.damaged() == [chunk_id(FILE[2])]
        assert store.heal(chunk_id(FILE[2]), FILE[2]) == place_of(store, FILE[2])
        assert is_complete(store)
        assert slab_of(store, place).read_bytes() == b"".join(FILE)
    with Store.open(tmp_path) as store:
        assert store.healer.damaged() == []


def test_a_file_that_is_recorded_while_a_place_of_it_is_damaged_is_complete_once_that_is_healed(store: Store) -> None:
    put_file(store, range(5))
    place = place_of(store, FILE[1])
    damage(store, place)
    store.distrust(chunk_id(FILE[1]), place)
    store.complete_file(KEY, place.slab, True)  # who puts has not heard of the damage
    assert not is_complete(store)
    store.heal(chunk_id(FILE[1]), FILE[1])
    assert is_complete(store)


def test_a_sink_does_not_count_what_was_quarantined_since_it_was_put(store: Store) -> None:
    with store.writer() as writer:
        sink = writer.resume_file(KEY, STEP * len(FILE))
        for number, data in enumerate(FILE):
            sink.put(chunk_id(data), data, number * STEP)
        writer.flush()
        place = place_of(store, FILE[1])
        damage(store, place)
        store.distrust(chunk_id(FILE[1]), place)
        sink.finish(KEY, RUNS)
    assert not is_complete(store)


def test_readers_and_healers_at_the_same_time_end_with_right_bytes_and_never_with_a_false_quarantine(
    store: Store,
) -> None:
    put_file(store)
    stop = threading.Event()
    data, identifier = FILE[2], chunk_id(FILE[2])

    def read() -> int:
        """As a mount does: what does not match is distrusted, and asked for again."""
        wrong = 0
        into = bytearray(STEP)
        while not stop.is_set():
            place = store.reader().read_into(identifier, 0, memoryview(into))
            if place is None:
                store.heal(identifier, data)
            elif into != data:
                wrong += store.distrust(identifier, place)
        return wrong

    with ThreadPoolExecutor(3) as threads:
        readers = [threads.submit(read) for _ in range(3)]
        place = place_of(store, data)
        for _ in range(20):
            damage(store, place)
            _until_right(store, identifier, data)
        stop.set()
        assert sum(reader.result(20) for reader in readers) <= 20
    assert is_right(store, data)
    assert is_complete(store)


def _until_right(store: Store, identifier: ChunkId, data: bytes) -> None:
    for _ in range(10_000):
        into = bytearray(len(data))
        if store.reader().read_into(identifier, 0, memoryview(into)) is not None and into == data:
            return
    raise AssertionError("the damage was not healed")


# --- file slabs over restarts, and files that were not recorded


def is_settled(store: Store, writer: ChunkWriter) -> bool:
    done = store.settle_file(KEY, RUNS, writer)
    writer.flush()
    return done and is_complete(store)


def content(store: Store) -> bytes:
    found = store.file_slab(KEY)
    assert found is not None
    return store.reader().slab_path(found.slab).read_bytes()


def test_a_file_whose_record_was_lost_is_found_complete(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store, store.writer() as writer:
        sink = writer.open_file(STEP * len(FILE))
        for number, data in enumerate(FILE):
            sink.put(chunk_id(data), data, number * STEP)
    with Store.open(tmp_path) as store, store.writer() as writer:
        assert store.file_slab(KEY) is None
        assert is_settled(store, writer)
        assert content(store) == b"".join(FILE)


def test_a_file_that_lacks_little_is_completed_by_copies_in_its_old_slab(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        put_file(store, range(5))
    with Store.open(tmp_path) as store:
        put(store, FILE[5])
        with store.writer() as writer:
            assert is_settled(store, writer)
        assert content(store) == b"".join(FILE)
        assert len(list((tmp_path / "slabs").glob("F-*.slab"))) == 1


@pytest.mark.parametrize("kept", [range(3), range(0)])
def test_a_file_that_lacks_much_or_is_not_here_stays_as_it_is(store: Store, kept: range) -> None:
    put_file(store, kept)
    put(store, *[FILE[number] for number in range(3, 6)])
    with store.writer() as writer:
        assert not is_settled(store, writer)
    assert not is_complete(store)
    assert len(list((store.data_dir / "slabs").glob("F-*.slab"))) == (1 if kept else 0)


def test_a_slab_that_somebody_writes_is_not_completed_by_another(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store, store.writer() as writer, store.writer() as other:
        sink = writer.resume_file(KEY, STEP * len(FILE))
        for number in range(5):
            sink.put(chunk_id(FILE[number]), FILE[number], number * STEP)
        writer.put(chunk_id(FILE[5]), FILE[5])
        writer.flush()
        assert not is_settled(store, other)
        sink.finish(KEY, RUNS)
        writer.flush()
        assert is_complete(store)


def test_bytes_in_a_hole_that_no_chunk_names_keep_a_slab_from_being_complete(store: Store) -> None:
    runs = [RUNS[0], (HOLE, STEP), RUNS[2]]
    with store.writer() as writer:
        sink = writer.open_file(3 * STEP)
        sink.put(chunk_id(FILE[0]), FILE[0], 0)
        sink.put(chunk_id(FILE[1]), FILE[1], STEP)  # the file had something there when it was read first
        sink.put(chunk_id(FILE[2]), FILE[2], 2 * STEP)
        writer.flush()
        sink.abandon()
        assert not store.settle_file(KEY, runs, writer)
        sink = writer.open_file(3 * STEP)
        other = [RNG.randbytes(STEP) for _ in range(2)]
        sink.put(chunk_id(other[0]), other[0], 0)
        sink.put(chunk_id(other[1]), other[1], 2 * STEP)
        writer.flush()
        sink.abandon()
        runs = [(chunk_id(other[0]), STEP), (HOLE, STEP), (chunk_id(other[1]), STEP)]
        assert store.settle_file(KEY, runs, writer)
    assert content(store) == other[0] + bytes(STEP) + other[1]
