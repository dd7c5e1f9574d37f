"""Scrub of a store: what is found, and what becomes of it."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoard_p2p.ids import HOLE, ChunkId, SnapshotId, chunk_id
from hoard_p2p.interfaces import Place
from hoard_p2p.storage import journal
from hoard_p2p.storage.chronicle import Chronicle
from hoard_p2p.storage.index import Index
from hoard_p2p.storage.layout import DataDir, sidecar_path
from hoard_p2p.storage.mending import Mended
from hoard_p2p.storage.recording import Recorder
from hoard_p2p.storage.records import SnapshotRecord, encode_snapshot
from hoard_p2p.storage.scrub import BLOCK, GAP, PIECE, Scrubber, Verdict, gaps, pieces
from hoard_p2p.storage.store import Store
from hoard_p2p.storage.survey import Stored, contents

RNG = random.Random(11)
KEY = b"0123456789abcdef"
SMALL = [RNG.randbytes(length) for length in (10, 700, 4096, 5000, 70_000, 300_000)]
LARGE = [RNG.randbytes(300_000) for _ in range(4)]
HOLE_SIZE = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data") as opened:
        yield opened


def put(store: Store, *datas: bytes) -> None:
    with store.writer() as writer:
        for data in datas:
            writer.put(chunk_id(data), data)


def put_file(store: Store) -> None:
    """Four chunks, a hole, and the first chunk again."""
    with store.writer() as writer:
        sink = writer.resume_file(KEY, 5 * 300_000 + HOLE_SIZE)
        offsets = [0, 300_000, 600_000, 900_000]
        for data, offset in zip(LARGE, offsets):
            sink.put(chunk_id(data), data, offset)
        last = 4 * 300_000 + HOLE_SIZE
        sink.put(chunk_id(LARGE[0]), LARGE[0], last)
        runs = [(chunk_id(data), 300_000) for data in LARGE]
        sink.finish(KEY, [*runs, (HOLE, HOLE_SIZE), runs[0]])
    assert is_complete(store)


def is_complete(store: Store) -> bool:
    known = store.file_slab(KEY)
    return known is not None and known.complete


def verdicts(store: Store) -> list[Verdict]:
    inventory = store.mender.inventory
    scrubber = Scrubber(inventory, lambda size: None)
    try:
        extra = scrubber.unnamed()
        found = [scrubber.slab(slab, extra.pop(slab.number, ())) for slab in inventory.slabs()]
        return found + [scrubber.nowhere(number, stored) for number, stored in extra.items()]
    finally:
        scrubber.close()


def scrub(store: Store) -> list[Mended]:
    return [store.mender.mend(verdict) for verdict in verdicts(store)]


def place_of(store: Store, data: bytes) -> Place:
    return store.reader().places_of(chunk_id(data))[0]


def slab_of(store: Store, data: bytes) -> Path:
    return store.reader().slab_path(place_of(store, data).slab)


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0x40]))


def missing(mended: list[Mended]) -> set[ChunkId]:
    return {identifier for one in mended for identifier in one.missing}


def test_a_store_in_order_is_found_in_order_and_all_of_it_is_looked_at(store: Store) -> None:
    put(store, *SMALL)
    put_file(store)
    found = verdicts(store)
    assert all(verdict.fine for verdict in found)
    assert sum(verdict.size for verdict in found) == sum(map(len, SMALL)) + 5 * 300_000
    assert sum(verdict.chunks for verdict in found) == len(SMALL) + 5


@pytest.mark.parametrize("number", range(len(SMALL)))
def test_one_flipped_bit_is_found_and_its_chunk_is_out_of_the_index(store: Store, number: int) -> None:
    put(store, *SMALL)
    place = place_of(store, SMALL[number])
    flip(slab_of(store, SMALL[number]), place.offset + place.length - 1)
    assert missing(scrub(store)) == {chunk_id(SMALL[number])}
    assert store.reader().place(chunk_id(SMALL[number])) is None
    assert [data for data in SMALL if store.reader().place(chunk_id(data)) is None] == [SMALL[number]]
    assert store.healer.damaged() == [chunk_id(SMALL[number])]


def test_every_place_of_a_chunk_is_looked_at_and_healed_from_another(store: Store) -> None:
    put_file(store)
    first, second = store.reader().places_of(chunk_id(LARGE[0]))
    whole = slab_of(store, LARGE[0]).read_bytes()
    flip(slab_of(store, LARGE[0]), second.offset + 5)
    [mended] = scrub(store)
    assert mended == Mended(frozenset({chunk_id(LARGE[0])}))
    assert slab_of(store, LARGE[0]).read_bytes() == whole
    assert len(store.reader().places_of(chunk_id(LARGE[0]))) == 2
    assert is_complete(store)
    assert store.reader().place(chunk_id(LARGE[0])) == first


def test_a_deleted_slab_is_found_and_leaves_the_index(store: Store) -> None:
    put(store, *SMALL)
    slab_of(store, SMALL[0]).unlink()
    assert missing(scrub(store)) == {chunk_id(data) for data in SMALL}
    assert store.extents_count() == 0
    put(store, *SMALL)
    assert all(verdict.fine for verdict in verdicts(store) if not verdict.gone)
    assert store.extents_count() == len(SMALL)
    assert store.healer.damaged() == [], "what was stored anew is no longer missed"


def test_places_in_a_slab_that_the_index_has_forgotten_are_found(store: Store) -> None:
    put(store, *SMALL)
    slab_of(store, SMALL[0]).unlink()
    store.reclaimer.leftovers()
    assert store.mender.inventory.slabs() == []
    assert missing(scrub(store)) == {chunk_id(data) for data in SMALL}
    assert store.extents_count() == 0


def test_a_slab_that_was_cut_loses_what_is_behind_the_cut(store: Store) -> None:
    put(store, *SMALL)
    last = max((place_of(store, data) for data in SMALL), key=lambda place: place.offset)
    os.truncate(slab_of(store, SMALL[0]), last.offset + 1)
    assert len(missing(scrub(store))) == 1


@pytest.mark.parametrize("longer", [True, False])
def test_a_complete_file_has_its_exact_length_or_is_complete_no_more(store: Store, longer: bool) -> None:
    put_file(store)
    path = slab_of(store, LARGE[0])
    size = path.stat().st_size
    os.truncate(path, size + 1 if longer else size - 1)
    [mended] = scrub(store)
    assert mended.others == 1
    assert is_complete(store) is longer
    if longer:
        assert path.stat().st_size == size


def test_bytes_in_a_hole_of_a_complete_file_are_found(store: Store) -> None:
    put_file(store)
    with slab_of(store, LARGE[0]).open("r+b") as file:
        file.seek(4 * 300_000 + HOLE_SIZE // 2)
        file.write(b"\x01")
    [mended] = scrub(store)
    assert (mended.chunks, mended.others) == (frozenset(), 1)
    assert not is_complete(store)
    assert [verdict.fine for verdict in verdicts(store)] == [True]


def test_a_damaged_sidecar_is_written_anew_from_the_index(store: Store) -> None:
    put(store, *SMALL)
    side = sidecar_path(slab_of(store, SMALL[0]))
    before = set(contents(slab_of(store, SMALL[0]), 1).extents)
    damages: list[Callable[[], None]] = [
        lambda: flip(side, 40),
        lambda: flip(side, 3),
        side.unlink,
        lambda: os.truncate(side, 32 + 96),
    ]
    for damage in damages:
        damage()
        assert [mended.others for mended in scrub(store)] == [1]
        known = contents(slab_of(store, SMALL[0]), 1)
        assert known.whole and set(known.extents) == before


def test_a_chunk_that_no_sidecar_names_is_checked_all_the_same(store: Store) -> None:
    put(store, *SMALL)
    path, place = slab_of(store, SMALL[5]), place_of(store, SMALL[5])
    sidecar_path(path).unlink()
    flip(path, place.offset)
    assert missing(scrub(store)) == {chunk_id(SMALL[5])}


def test_a_sidecar_that_is_written_anew_names_what_will_be_healed(store: Store) -> None:
    put(store, *SMALL)
    damaged = SMALL[-1]
    assert store.quarantine(chunk_id(damaged), place_of(store, damaged))
    sidecar_path(slab_of(store, SMALL[0])).unlink()
    scrub(store)
    assert store.heal(chunk_id(damaged), damaged) is not None
    store.reclaimer.leftovers()  # what no sidecar names is garbage
    into = bytearray(len(damaged))
    assert store.reader().read_into(chunk_id(damaged), 0, memoryview(into)) is not None
    assert into == damaged


def test_the_sidecar_of_a_slab_that_is_written_is_left_alone(store: Store) -> None:
    with store.writer() as writer:
        writer.put(chunk_id(SMALL[0]), SMALL[0])
        writer.flush()
        side = sidecar_path(slab_of(store, SMALL[0]))
        flip(side, 40)
        damaged = side.read_bytes()
        [mended] = scrub(store)
        assert len(mended.left) == 1 and "being written" in mended.left[0]
        assert side.read_bytes() == damaged


def test_what_left_the_index_meanwhile_is_no_damage(store: Store) -> None:
    put(store, *SMALL)
    [verdict] = verdicts(store)
    lost = Stored(chunk_id(SMALL[0]), place_of(store, SMALL[0]))
    store.quarantine(*lost)
    assert store.mender.mend(verdict._replace(wrong=(lost,))) == Mended()


# --- reads


@given(st.lists(st.tuples(st.integers(0, 3 * GAP), st.integers(1, 4 << 20)), max_size=30))
def test_pieces_cover_every_chunk_on_block_boundaries_and_are_bounded(steps: list[tuple[int, int]]) -> None:
    stored, at = [], 0
    for skip, length in steps:
        stored.append(Stored(HOLE, Place(1, at + skip, length, 1)))
        at += skip + length
    found = list(pieces(stored))
    assert [one for piece in found for one in piece.stored] == stored
    for piece in found:
        assert piece.start % BLOCK == piece.stop % BLOCK == 0
        assert piece.stop - piece.start <= PIECE + 2 * BLOCK
        for one in piece.stored:
            assert piece.start <= one.place.offset < one.place.offset + one.place.length <= piece.stop


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=10), st.integers(0, 100))
def test_gaps_and_places_cover_a_slab_exactly_once(steps: list[tuple[int, int]], tail: int) -> None:
    stored, at, covered = [], 0, set()
    for skip, length in steps:
        stored.append(Stored(HOLE, Place(1, at + skip, length, 1)))
        covered |= set(range(at + skip, at + skip + length))
        at += skip + length
    free = [byte for gap in gaps(stored, at + tail) for byte in gap]
    assert sorted(free) == sorted(set(range(at + tail)) - covered)
    assert len(free) == len(set(free))


def test_a_scrub_goes_on_where_it_was(store: Store) -> None:
    put(store, *SMALL)
    inventory = store.mender.inventory
    scrubber = Scrubber(inventory, lambda size: None)
    try:
        [slab] = inventory.slabs()
        at = seen = 0
        while True:
            verdict = scrubber.slab(slab, start=at, most=1)
            seen += verdict.chunks
            at = verdict.rest
            if not at:
                break
    finally:
        scrubber.close()
    assert seen == len(SMALL)


# --- the journal


def record(number: int, *, removed: int = 0) -> SnapshotRecord:
    return SnapshotRecord(SnapshotId(bytes([number]) * 32), 5, 5, 2, False, 60, True, "here", removed)


def test_a_damaged_journal_and_format_are_written_anew(store: Store) -> None:
    store.put_root(record(1).id, b"root", record(1))
    store.set_capacity(1 << 30)
    store.add_holds(record(1).id, [1, 2])
    assert store.recorder.mend() == 0
    flip(store.data_dir / "journal", 60)
    flip(store.data_dir / "format", 2)
    assert store.recorder.mend() == 2
    assert store.recorder.mend() == 0
    assert journal.is_whole((store.data_dir / "journal").read_bytes())


def test_a_lost_journal_is_written_anew_and_goes_on(store: Store) -> None:
    store.put_root(record(1).id, b"root", record(1))
    (store.data_dir / "journal").unlink()
    assert store.recorder.mend() == 1
    store.show_snapshot(record(2).id, record(2))
    told = Chronicle.of_journal(journal.scan(store.data_dir / "journal"))
    assert set(told.snapshots) == {record(1).id, record(2).id}


def test_a_long_journal_is_shortened_and_says_the_same(tmp_path: Path) -> None:
    layout = DataDir(tmp_path)
    layout.make()
    index = Index.for_writing(layout.index)
    recorder = Recorder(index, layout, room=5000)
    try:
        recorder.begin()
        longest = 0
        for number in range(200):
            entry = journal.Entry(journal.Kind.SNAPSHOT, encode_snapshot(record(number % 4)))
            with recorder.recorded([entry]) as txn:
                Chronicle(snapshots={record(number % 4).id: entry.payload}).write_names(txn)
            longest = max(longest, layout.journal.stat().st_size)
        assert 4500 <= longest <= 5000
        told = Chronicle.of_journal(journal.scan(layout.journal))
        with index.read() as txn:
            assert told.agrees(Chronicle.of_index(txn))
        assert len(told.snapshots) == 4
    finally:
        recorder.close()
        index.close()
