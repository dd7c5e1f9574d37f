"""Where fetched chunks and pieces of origins go: the keeper over a real store."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hoard_p2p.catalog.layout import file_key
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import ChunkCorrupt
from hoard_p2p.ids import HOLE, chunk_id
from hoard_p2p.node.collecting import Marks, sweep
from hoard_p2p.node.course import Course
from hoard_p2p.node.evicting import look
from hoard_p2p.node.keeping import Held, StoreKeeper, file_runs, settle_file
from hoard_p2p.node.marking import ids_in
from hoard_p2p.storage.records import FileSlab
from tests.unit.lazy_sets import (
    BIG,
    OBJECTS,
    SEALED,
    Bench,
    bring,
    inode_of,
    large,
    lazy_bytes,
    pieces,
    sealed,
    segments,
)


@pytest.fixture
def lazy() -> Catalog:
    return Catalog(memoryview(lazy_bytes()))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def test_pieces_are_stored_as_what_they_are_and_found_by_their_keys(bench: Bench, lazy: Catalog) -> None:
    assert bring(bench.keeper, lazy) == 4
    bench.writer.flush()
    for key, data in pieces(lazy).items():
        assert bench.keeper.content(key) == chunk_id(data) == bench.store.contents([key])[0]
        room = bytearray(len(data))
        assert bench.reader.read_into(key, 0, memoryview(room)) == bench.reader.place(chunk_id(data))
        assert room == data
    held = Held(bench.store.node_id, bench.reader)
    assert all(held.whole(lazy, number) for number in range(lazy.segments))
    assert bring(bench.keeper, lazy) == 0, "nothing is missing the next time"


def test_several_small_pieces_are_kept_at_once(bench: Bench, lazy: Catalog) -> None:
    segment = next(segment for segment in segments(lazy) if not segment.file)
    data = pieces(lazy)
    places = bench.keeper.keep_many(segment, [(one, memoryview(data[one.chunk_id])) for one in segment.chunks])
    assert places == bench.keeper.places([one.chunk_id for one in segment.chunks])
    bench.writer.flush()
    assert places == bench.reader.places([chunk_id(data[one.chunk_id]) for one in segment.chunks])


@pytest.mark.expect_warnings
def test_a_piece_that_comes_as_other_bytes_than_before_is_not_kept_and_counted(
    bench: Bench, lazy: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    segment, chunk = large(lazy)
    data = pieces(lazy)[chunk.chunk_id]
    bench.keeper.keep(segment, chunk, memoryview(data))
    with caplog.at_level(logging.WARNING), pytest.raises(ChunkCorrupt, match="came as"):
        bench.keeper.keep(segment, chunk, memoryview(bytes(len(data))))
    assert bench.keeper.conflicts == 1
    assert chunk_id(data).hex()[:12] in caplog.text
    assert bench.keeper.content(chunk.chunk_id) == chunk_id(data)


def test_a_large_lazy_file_is_complete_when_its_last_piece_is_here_also_for_its_sealed_twin(
    bench: Bench, lazy: Catalog
) -> None:
    bring(bench.keeper, lazy)
    bench.writer.flush()
    twin, inode = sealed(lazy), inode_of(lazy, BIG)
    names = [file_key(file_runs(catalog, inode)) for catalog in (lazy, twin)]
    assert names[0] != names[1]
    found = bench.store.file_slab(names[0])
    assert found is not None and found.complete and bench.store.file_slab(names[1]) == found
    fd = bench.reader.open_slab(found.slab)
    with open(fd, "rb") as slab:
        assert slab.read() == OBJECTS[BIG]


def test_a_sealed_file_goes_on_with_the_slab_that_its_lazy_twin_began(bench: Bench, lazy: Catalog) -> None:
    twin, inode = sealed(lazy), inode_of(lazy, BIG)
    lazy_name, name = (file_key(file_runs(catalog, inode)) for catalog in (lazy, twin))
    bring(bench.keeper, lazy, most=2)
    began = bench.store.file_slab(lazy_name)
    assert began is not None and not began.complete
    bench.writer.flush()
    assert bring(bench.keeper, twin, SEALED) == 2
    bench.writer.flush()
    assert bench.store.file_slab(name) == FileSlab(began.slab, True)
    assert [slab for _, slab in bench.store.life.file_slabs()] == [began.slab]


def test_a_lazy_file_that_goes_on_after_its_twin_was_sealed_is_complete_in_one_slab(
    bench: Bench, lazy: Catalog
) -> None:
    twin, inode = sealed(lazy), inode_of(lazy, BIG)
    bring(bench.keeper, twin, SEALED)
    bench.writer.flush()
    for key, data in pieces(lazy).items():
        bench.writer.know(key, chunk_id(data))
    assert bring(bench.keeper, lazy) == 0
    assert settle_file(bench.store, bench.writer, lazy, inode)
    found = bench.store.file_slab(file_key(file_runs(lazy, inode)))
    assert found is not None and found.complete
    assert found == bench.store.file_slab(file_key(file_runs(twin, inode)))


def test_another_version_of_an_object_does_not_go_on_in_a_slab_with_other_bytes(bench: Bench, lazy: Catalog) -> None:
    segment, chunk = large(lazy)
    bench.keeper.keep(segment, chunk, memoryview(bytes(chunk.length)))
    second = segment.chunks[1] if len(segment.chunks) > 1 else next(s for s in segments(lazy) if s.file).chunks[-1]
    assert second != chunk
    bench.keeper.keep(segment, second, memoryview(pieces(lazy)[second.chunk_id]))
    bench.writer.flush()
    twin = sealed(lazy)
    began = bench.store.file_slab(file_key(file_runs(lazy, segment.file)))
    bring(bench.keeper, twin, SEALED)
    bench.writer.flush()
    found = bench.store.file_slab(file_key(file_runs(twin, segment.file)))
    assert began is not None and found is not None and began.slab != found.slab
    assert bench.reader.read_into(chunk_id(bytes(chunk.length)), 0, memoryview(bytearray(chunk.length))) is not None


def test_parts_of_a_piece_lie_where_the_piece_will_and_are_not_listed(bench: Bench, lazy: Catalog) -> None:
    segment, chunk = large(lazy)
    data = memoryview(pieces(lazy)[chunk.chunk_id])
    room = memoryview(bytearray(8192))
    assert not bench.keeper.part_at(segment, chunk, 0, room)
    before = bench.store.room.used
    place = bench.keeper.keep_part(segment, chunk, 4096, data[4096:12_288])
    assert place is not None and place.length == chunk.length
    bench.writer.note_space()
    assert bench.store.room.used >= before + chunk.length, "room for all of it is taken at once"
    assert bench.keeper.keep_part(segment, chunk, 0, data[:4096]) == place
    assert bench.keeper.part_at(segment, chunk, 4096, room) and room == data[4096:12_288]
    bench.reader.read_at(place, 0, room)
    assert room == data[:8192]
    bench.writer.flush()
    assert bench.store.extents_count() == 0 and bench.keeper.place(chunk.chunk_id) is None
    kept = bench.keeper.keep(segment, chunk, data)
    assert kept[:3] == place[:3]
    assert not bench.keeper.part_at(segment, chunk, 0, room), "it is a chunk like any other now"


def test_a_piece_of_a_small_object_has_no_place_for_parts(bench: Bench, lazy: Catalog) -> None:
    segment = next(segment for segment in segments(lazy) if not segment.file)
    assert bench.keeper.keep_part(segment, segment.chunks[0], 0, memoryview(b"some")) is None


def test_of_too_many_files_parts_stay_in_memory(bench: Bench, lazy: Catalog) -> None:
    keeper = StoreKeeper(bench.writer, bench.reader, bench.store.heal, most_parted=1)
    other = Catalog(memoryview(lazy_bytes(b"w")))
    segment, chunk = large(lazy)
    assert keeper.keep_part(segment, chunk, 0, memoryview(b"some")) is not None
    assert keeper.keep_part(*large(other), 0, memoryview(b"some")) is not None, "a file is known by its place in a set"
    elsewhere = replace(large(other)[0], snapshot=SEALED)
    third = Catalog(memoryview(lazy_bytes(b"x")))
    assert keeper.keep_part(replace(elsewhere, catalog=third), large(third)[1], 0, memoryview(b"some")) is None
    keeper.drop_part(chunk)
    keeper.drop_part(large(other)[1])
    assert keeper.keep_part(replace(elsewhere, catalog=third), large(third)[1], 0, memoryview(b"some")) is not None


def test_a_part_beyond_its_piece_is_refused(bench: Bench, lazy: Catalog) -> None:
    segment, chunk = large(lazy)
    assert bench.keeper.keep_part(segment, chunk, chunk.length - 1, memoryview(b"some")) is None
    assert bench.keeper.keep_part(segment, chunk, chunk.length - 4, memoryview(b"some")) is not None
    assert not bench.keeper.part_at(segment, chunk, chunk.length - 3, memoryview(bytearray(4)))


def test_garbage_collection_leaves_parts_alone_and_gives_back_those_that_were_dropped(
    bench: Bench, lazy: Catalog
) -> None:
    segment, chunk = large(lazy)
    data = memoryview(pieces(lazy)[chunk.chunk_id])
    place = bench.keeper.keep_part(segment, chunk, 0, data[:4096])
    assert place is not None
    bench.store.reclaimer.leftovers()
    room = memoryview(bytearray(4096))
    assert bench.keeper.part_at(segment, chunk, 0, room) and room == data[:4096]
    bench.writer.note_space()
    used = bench.store.room.used
    bench.keeper.drop_part(chunk)
    bench.writer.put_aside(place.slab)
    bench.store.reclaimer.leftovers()
    assert bench.store.room.used <= used - chunk.length
    assert not bench.keeper.part_at(segment, chunk, 0, room)


def test_what_a_crash_leaves_of_parts_is_given_back_at_the_next_start(tmp_path: Path, lazy: Catalog) -> None:
    segment, chunk = large(lazy)
    first = Bench(tmp_path)
    assert first.keeper.keep_part(segment, chunk, 0, memoryview(bytes(4096))) is not None
    first.close()
    second = Bench(tmp_path)
    used = second.store.room.used
    second.store.reclaimer.leftovers()
    assert second.store.room.used <= used - chunk.length
    second.close()


def test_a_living_lazy_snapshot_keeps_what_its_pieces_were_found_to_be(bench: Bench, lazy: Catalog) -> None:
    bring(bench.keeper, lazy)
    garbage = chunk_id(b"garbage")
    bench.writer.put(garbage, b"garbage")
    bench.writer.flush()
    found = Marks([lambda: ids_in(lazy_bytes())], lazy.chunks)
    sweep(bench.store, found, lambda: False, Course(), dry_run=False)
    assert bench.reader.place(garbage) is None
    assert None not in bench.reader.places(list(pieces(lazy)))
    assert None not in bench.store.contents(list(pieces(lazy)))


def test_keys_are_forgotten_with_their_chunks(bench: Bench, lazy: Catalog) -> None:
    bring(bench.keeper, lazy)
    bench.writer.flush()
    sweep(bench.store, Marks(), lambda: False, Course(), dry_run=False)
    assert bench.store.extents_count() == 0
    assert bench.store.contents(list(pieces(lazy))) == [None] * 4
    bench.store.reclaimer.reclaim()
    bench.store.reclaimer.leftovers()
    sweep(bench.store, Marks(), lambda: False, Course(), dry_run=False)
    assert list(bench.store.keybook.keys_of({chunk_id(data) for data in pieces(lazy).values()})) == []
    assert bring(bench.keeper, lazy) == 4, "they have to be read again"


def test_eviction_finds_the_chunks_of_a_lazy_snapshot(bench: Bench, lazy: Catalog) -> None:
    bring(bench.keeper, lazy)
    bench.writer.flush()
    batch = look(bench.reader, lazy, range(lazy.segments))
    named = {identifier for chunks in batch.chunks.values() for identifier, _ in chunks}
    assert named == {chunk_id(data) for data in pieces(lazy).values()}
    bench.store.reclaimer.drop(named)
    assert bench.reader.places(list(pieces(lazy))) == [None] * 4
    assert HOLE not in named


def test_a_piece_that_is_damaged_here_is_healed_in_its_place(bench: Bench, lazy: Catalog) -> None:
    bring(bench.keeper, lazy)
    bench.writer.flush()
    segment, chunk = large(lazy)
    place = bench.reader.place(chunk.chunk_id)
    assert place is not None
    with bench.reader.slab_path(place.slab).open("r+b") as slab:
        slab.seek(place.offset)
        slab.write(b"damage")
    assert bench.store.distrust(chunk.chunk_id, place)
    assert bench.keeper.place(chunk.chunk_id) is None
    assert chunk in bench.keeper.missing(segment)
    healed = bench.keeper.keep(segment, chunk, memoryview(pieces(lazy)[chunk.chunk_id]))
    assert healed[:3] == place[:3] and healed.generation != place.generation
    found = bench.store.file_slab(file_key(file_runs(lazy, segment.file)))
    assert found is not None and found.complete
