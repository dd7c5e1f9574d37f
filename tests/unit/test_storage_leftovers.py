"""What crashes, deletions and drops leave in `slabs/` is found, and nothing else is touched."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from hoard_p2p.ids import HOLE, ChunkId, chunk_id
from hoard_p2p.interfaces import Extent, SlabKind
from hoard_p2p.storage import sidecar
from hoard_p2p.storage.groups import WriterSettings
from hoard_p2p.storage.layout import sidecar_path
from hoard_p2p.storage.store import Store

RNG = random.Random(18)
KEY = b"0123456789abcdef"
DATAS = [RNG.randbytes(20_000) for _ in range(10)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data") as opened:
        yield opened


def put(store: Store, *datas: bytes) -> Path:
    with store.writer() as writer:
        for data in datas:
            writer.put(chunk_id(data), data)
    return slab_of(store, datas[0])


def slab_of(store: Store, data: bytes) -> Path:
    place = store.reader().place(chunk_id(data))
    assert place is not None
    return store.reader().slab_path(place.slab)


def is_right(store: Store, data: bytes) -> bool:
    into = bytearray(len(data))
    return store.reader().read_into(chunk_id(data), 0, memoryview(into)) is not None and into == data


def space(path: Path) -> int:
    return path.stat().st_blocks * 512


def recorded(slab: Path) -> list[ChunkId]:
    with sidecar_path(slab).open("rb") as file:
        return [extent.chunk_id for extent in sidecar.scan(file.fileno())]


def names(store: Store) -> set[str]:
    return {path.name for path in (store.data_dir / "slabs").iterdir()}


def test_nothing_is_left_over_in_a_store_that_is_in_use(store: Store) -> None:
    with store.writer() as writer:
        for data in DATAS:
            writer.put(chunk_id(data), data)
        writer.flush()
        sink = writer.resume_file(KEY, 60_000)
        sink.put(chunk_id(DATAS[0] + b"x"), DATAS[0] + b"x", 0)
        before = names(store)
        assert store.reclaimer.leftovers().bytes == 0
        assert names(store) == before
    put(store, b"more" * 5000)
    assert store.reclaimer.leftovers().bytes == 0
    assert all(is_right(store, data) for data in DATAS)


def test_bytes_that_a_killed_writer_never_committed_return_recorded_or_not(store: Store) -> None:
    handle = store.new_slab(SlabKind.SHARED, 0)
    extents = []
    for number, data in enumerate(DATAS):
        os.pwrite(handle.data_fd, data, 20_480 * number)
        extents.append(Extent(handle.slab, 20_480 * number, len(data), chunk_id(data)))
    os.write(handle.sidecar_fd, sidecar.encode_records(extents[:8]))
    store.commit(extents[:5])
    (slab,) = (store.data_dir / "slabs").glob("*.slab")
    assert store.reclaimer.leftovers().bytes == 0  # it is being written
    os.close(handle.data_fd)
    os.close(handle.sidecar_fd)
    before = space(slab)
    assert store.reclaimer.leftovers().bytes == before - space(slab) >= 4 * 20_480
    assert [is_right(store, data) for data in DATAS] == [True] * 5 + [False] * 5


def test_a_slab_without_a_row_is_removed_unless_somebody_writes_it(store: Store) -> None:
    slab = put(store, *DATAS)
    handle = store.new_slab(SlabKind.SHARED, 0)
    orphan = slab.with_name(f"S-1-{handle.slab + 7}.slab")
    os.rename(slab.with_name(f"S-1-{handle.slab}.slab"), orphan)
    lost = slab.with_name("F-1-99.slab")
    lost.write_bytes(b"x" * 50_000)
    sidecar_path(lost).write_bytes(b"x")
    sidecar_path(slab).with_name("S-1-1.side.new").write_bytes(b"half")
    store.reclaimer.leftovers()
    assert names(store) == {slab.name, sidecar_path(slab).name, orphan.name}
    os.close(handle.data_fd)
    os.close(handle.sidecar_fd)
    store.reclaimer.leftovers()
    assert names(store) == {slab.name, sidecar_path(slab).name}
    assert all(is_right(store, data) for data in DATAS)


def test_a_row_whose_slab_was_deleted_goes_and_its_chunks_can_be_stored_again(store: Store) -> None:
    slab = put(store, *DATAS)
    slab.unlink()
    store.reclaimer.leftovers()
    assert not names(store)
    assert not store.reclaimer.leftovers().bytes
    for data in DATAS:
        place = store.reader().place(chunk_id(data))
        assert place is not None
        assert store.quarantine(chunk_id(data), place)
    put(store, *DATAS)
    assert all(is_right(store, data) for data in DATAS)


def _tear(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(sidecar.HEADER_SIZE + 3 * sidecar.RECORD_SIZE + 5)
        file.write(b"?")


def _behead(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"?")


@pytest.mark.parametrize("hurt", [_tear, _behead, Path.unlink])
def test_a_sidecar_that_is_damaged_or_gone_costs_no_chunk_and_is_made_again(store: Store, hurt: object) -> None:
    slab = put(store, *DATAS)
    assert callable(hurt)
    hurt(sidecar_path(slab))
    store.reclaimer.drop([chunk_id(DATAS[0])])
    store.reclaimer.reclaim()
    store.reclaimer.leftovers()
    assert all(is_right(store, data) for data in DATAS[1:])
    assert sorted(recorded(slab)) == sorted(map(chunk_id, DATAS[1:]))


def test_a_sidecar_that_is_made_again_is_as_private_as_before(store: Store) -> None:
    side = sidecar_path(put(store, *DATAS))
    before = side.stat().st_mode
    _behead(side)
    store.reclaimer.leftovers()
    assert side.stat().st_mode == before


def test_a_sidecar_is_rewritten_when_most_of_it_is_dead(store: Store) -> None:
    small = [RNG.randbytes(9000) for _ in range(200)]
    slab = put(store, *small)
    store.reclaimer.drop(map(chunk_id, small[20:]))
    assert len(recorded(slab)) == 200
    store.reclaimer.leftovers()  # they are in limbo: a publish may claim them yet
    assert len(recorded(slab)) == 200
    store.reclaimer.reclaim()
    store.reclaimer.leftovers()
    assert sorted(recorded(slab)) == sorted(map(chunk_id, small[:20]))
    assert all(is_right(store, data) for data in small[:20])


def test_a_slab_that_is_nearly_empty_is_emptied_into_another(store: Store) -> None:
    many = [RNG.randbytes(9000) for _ in range(100)]
    slab = put(store, *many)
    store.reclaimer.drop(map(chunk_id, many[:-3]))
    store.reclaimer.reclaim()
    store.reclaimer.leftovers()
    store.reclaimer.reclaim()
    assert not slab.exists()
    assert all(is_right(store, data) for data in many[-3:])
    assert len(names(store)) == 2


def test_a_nearly_empty_slab_gives_up_no_chunk_whose_other_copy_is_damaged(store: Store) -> None:
    many = [RNG.randbytes(9000) for _ in range(100)]
    put(store, *many)
    kept = many[-1]
    with store.writer() as writer:
        writer.put_copy(chunk_id(kept), kept)
    other = store.reader().places_of(chunk_id(kept))[1]
    with store.reader().slab_path(other.slab).open("r+b") as file:
        file.seek(other.offset)
        file.write(b"damage")
    store.reclaimer.drop(map(chunk_id, many[:-1]))
    for _ in range(2):
        store.reclaimer.reclaim()
        store.reclaimer.leftovers()
    assert any(store.healer.good(chunk_id(kept), place) for place in store.reader().places_of(chunk_id(kept)))


def test_a_nearly_empty_slab_stays_if_what_it_has_is_damaged(store: Store) -> None:
    many = [RNG.randbytes(9000) for _ in range(100)]
    slab = put(store, *many)
    place = store.reader().place(chunk_id(many[-1]))
    assert place is not None
    with slab.open("r+b") as file:
        file.seek(place.offset)
        file.write(b"damage")
    store.reclaimer.drop(map(chunk_id, many[:-1]))
    store.reclaimer.reclaim()
    store.reclaimer.leftovers()
    store.reclaimer.reclaim()
    assert slab_of(store, many[-1]) == slab
    assert store.reader().place(chunk_id(many[-1])) == place


@pytest.mark.parametrize("heals", [True, False])
def test_a_file_with_damage_keeps_repeats_that_the_index_does_not_list(store: Store, heals: bool) -> None:
    """It is complete again once healed, and a mount that had it as backing file reads there all the time."""
    data, other = RNG.randbytes(30_000), RNG.randbytes(30_000)
    pieces = [*[data] * 20, other, *[data] * 20]
    runs = [(chunk_id(piece), len(piece)) for piece in pieces]
    with store.writer(WriterSettings(copy_share=1)) as writer:
        sink = writer.open_file(sum(map(len, pieces)))
        for number, piece in enumerate(pieces):
            sink.put(chunk_id(piece), piece, number * len(data))
        writer.flush()
        sink.finish(KEY, runs)
    slab = slab_of(store, other)
    places = store.reader().places_of(chunk_id(data)) if heals else []
    for place in (*places, *store.reader().places_of(chunk_id(other))):
        identifier = chunk_id(data) if place in places else chunk_id(other)
        assert store.quarantine(identifier, place)
    if not heals:
        store.healer.give_up([chunk_id(other)])
    with slab.open("rb"):  # as a mount has it
        store.reclaimer.leftovers()
    content = slab.read_bytes()
    assert content[: 20 * len(data)] == data * 20
    assert content[21 * len(data) :] == data * 20
    for piece in (data, other) if heals else ():
        assert store.heal(chunk_id(piece), piece) is not None
    found = store.file_slab(KEY)
    assert found is not None
    assert found.complete is heals
    if not heals:
        before = space(slab)
        store.reclaimer.leftovers()
        assert space(slab) < before - 20 * len(data), "nobody has it open any more"


def test_a_file_that_is_complete_in_one_slab_is_not_said_to_be_in_another(store: Store) -> None:
    """The first may be a mount's backing file: all of it is kept because it is recorded."""
    slabs = []
    for _ in range(2):
        handle = store.new_slab(SlabKind.FILE, 20_000)
        store.complete_file(KEY, handle.slab, True)
        slabs.append(handle.slab)
        os.close(handle.data_fd)
        os.close(handle.sidecar_fd)
    assert store.file_slab(KEY) == (slabs[0], True)


def test_a_complete_file_keeps_repeats_that_the_index_does_not_list(store: Store) -> None:
    """A chunk has at most 16 places there; the file has it 40 times, and a hole."""
    data, hole = RNG.randbytes(30_000), 40_000
    runs = [(chunk_id(data), len(data))] * 40 + [(HOLE, hole)]
    with store.writer(WriterSettings(copy_share=1)) as writer:
        sink = writer.open_file(40 * len(data) + hole)
        for number in range(40):
            sink.put(chunk_id(data), data, number * len(data))
        writer.flush()
        sink.finish(KEY, runs)
    store.reclaimer.leftovers()
    slab = slab_of(store, data)
    content = slab.read_bytes()
    found = store.file_slab(KEY)
    assert found is not None
    assert found.complete
    assert content == data * 40 + bytes(hole)
    store.reclaimer.drop([chunk_id(data)])
    store.reclaimer.reclaim()
    store.reclaimer.leftovers()
    assert not slab.exists()
