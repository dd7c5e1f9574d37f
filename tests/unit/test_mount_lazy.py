"""Lazy runs under a mount: proven right by what their pieces were found to be."""

import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from hoard_p2p.catalog.layout import file_key
from hoard_p2p.catalog.reader import Catalog, ChunkSpan
from hoard_p2p.ids import chunk_id
from hoard_p2p.interfaces import Found, LocalChunks
from hoard_p2p.mount.checking import Checkers, OpenSlabs, Outcome
from hoard_p2p.mount.filecheck import FileCheck
from hoard_p2p.mount.pieces import Task
from hoard_p2p.mount.shared import SharedState
from hoard_p2p.mount.verified import Missing, VerifiedChunks, Wrong
from hoard_p2p.node.keeping import file_runs
from hoard_p2p.node.through import ThroughNode
from hoard_p2p.testing.memory import MemoryChunks
from tests.node_thread import node_in_thread
from tests.unit.lazy_sets import BIG, OBJECTS, SMALL, Bench, bring, inode_of, lazy_bytes, pieces

DATA = OBJECTS[SMALL]


@pytest.fixture
def lazy() -> Catalog:
    return Catalog(memoryview(lazy_bytes()))


@pytest.fixture
def shared(lazy: Catalog) -> Iterator[SharedState]:
    shared = SharedState.create(name="test", workers=2, runs=lazy.chunks, inodes=lazy.inodes)
    yield shared
    shared.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def small_run(catalog: Catalog) -> int:
    return catalog.runs(inode_of(catalog, SMALL)).start


def verified(catalog: Catalog, chunks: LocalChunks, shared: SharedState, verify: str = "first") -> VerifiedChunks:
    return VerifiedChunks(catalog, chunks, shared.verified, verify)


def whole(catalog: Catalog) -> ChunkSpan:
    return ChunkSpan(small_run(catalog), 0, len(DATA))


def test_a_piece_is_compared_with_what_it_was_found_to_be_and_remembered(lazy: Catalog, shared: SharedState) -> None:
    chunks, run, room = MemoryChunks(), small_run(lazy), memoryview(bytearray(len(DATA)))
    subject = verified(lazy, chunks, shared)
    assert subject.fill(whole(lazy), room, None) == Missing(run)
    chunks.add(chunk_id(DATA), DATA)
    chunks.learn(lazy.chunk_id(run), chunk_id(DATA))
    assert subject.fill(whole(lazy), room, None) is None and room == DATA
    assert shared.verified[run] == 1


@pytest.mark.parametrize("verify", ["first", "always"])
def test_a_piece_with_other_bytes_than_it_was_found_to_have_is_wrong(
    lazy: Catalog, shared: SharedState, verify: str
) -> None:
    chunks, run, room = MemoryChunks(), small_run(lazy), memoryview(bytearray(len(DATA)))
    chunks.add(chunk_id(DATA), bytes(len(DATA)))
    chunks.learn(lazy.chunk_id(run), chunk_id(DATA))
    found = verified(lazy, chunks, shared, verify).fill(whole(lazy), room, None)
    assert found == Wrong(run, chunks.place(chunk_id(DATA))) and not shared.verified[run]


def test_what_the_node_has_just_found_is_served_and_remembered_once_the_index_knows_it(
    lazy: Catalog, shared: SharedState
) -> None:
    chunks, run, room = MemoryChunks(), small_run(lazy), memoryview(bytearray(len(DATA)))
    subject = verified(lazy, chunks, shared)
    chunks.add(chunk_id(DATA), DATA)
    place = chunks.place(chunk_id(DATA))
    assert place is not None
    assert subject.fill(whole(lazy), room, Found(run, place, b"")) is None and room == DATA
    assert not shared.verified[run], "it was compared with nothing"
    assert subject.fill(whole(lazy), room, Found(run, None, DATA)) is None
    assert subject.fill(whole(lazy), room, Found(run, None, DATA[:-1])) == Wrong(run, None)
    chunks.learn(lazy.chunk_id(run), chunk_id(DATA))
    assert subject.fill(whole(lazy), room, Found(run, place, b"")) is None and shared.verified[run]
    assert subject.fill(whole(lazy), room, Found(run, None, bytes(len(DATA)))) is None, "here by now, and right"
    shared.verified[run] = 0
    assert subject.fill(whole(lazy), room, Found(run, None, bytes(len(DATA)))) == Wrong(run, None)


def test_what_the_node_has_just_found_is_compared_with_what_it_says_that_it_is(
    lazy: Catalog, shared: SharedState
) -> None:
    chunks, run, room = MemoryChunks(), small_run(lazy), memoryview(bytearray(len(DATA)))
    subject, content = verified(lazy, chunks, shared), chunk_id(DATA)
    chunks.add(content, bytes(len(DATA)))  # damaged before the index knew the key
    place = chunks.place(content)
    assert subject.fill(whole(lazy), room, Found(run, place, b"", content=content)) == Wrong(run, place)
    assert subject.fill(whole(lazy), room, Found(run, None, bytes(len(DATA)), content=content)) == Wrong(run, None)
    assert not shared.verified[run]
    chunks = MemoryChunks()
    chunks.add(content, DATA)
    subject = verified(lazy, chunks, shared)
    assert subject.fill(whole(lazy), room, Found(run, chunks.place(content), b"", content=content)) is None
    assert room == DATA and shared.verified[run]


def checked(check: FileCheck, bench: Bench, shared: SharedState) -> list[Outcome]:
    checkers, slabs, found = Checkers(shared.verified.__setitem__), OpenSlabs(bench.reader), []
    try:
        while not check.over:
            for piece in check.pieces(frozenset()):
                checkers.submit(Task(piece, check), slabs.get(piece.slab), prompt=True)
            select.select([checkers.fileno()], [], [], 10)
            for outcome in checkers.outcomes():
                check.settled(bool(outcome.wrong))
                found.append(outcome)
    finally:
        checkers.close()
    return found


def test_the_slab_of_a_lazy_file_is_verified_as_a_whole(bench: Bench, lazy: Catalog, shared: SharedState) -> None:
    bring(bench.keeper, lazy)
    bench.writer.flush()
    inode = inode_of(lazy, BIG)
    check = FileCheck(inode, lazy, bench.reader, bench.reader, shared.verified)
    assert checked(check, bench, shared) and check.passes()
    assert all(shared.verified[run] for run in lazy.runs(inode))


def test_damage_in_the_slab_of_a_lazy_file_is_named_by_the_chunk(
    bench: Bench, lazy: Catalog, shared: SharedState
) -> None:
    bring(bench.keeper, lazy)
    bench.writer.flush()
    inode = inode_of(lazy, BIG)
    found = bench.store.file_slab(file_key(file_runs(lazy, inode)))
    assert found is not None
    with bench.reader.slab_path(found.slab).open("r+b") as slab:
        slab.write(b"damage")
    check = FileCheck(inode, lazy, bench.reader, bench.reader, shared.verified)
    wrong = [one for outcome in checked(check, bench, shared) for one in outcome.wrong]
    assert not check.passes()
    assert [one.chunk_id for one in wrong] == [chunk_id(pieces(lazy)[lazy.chunk_id(lazy.runs(inode).start)])]
    assert bench.reader.places_of(wrong[0].chunk_id) == bench.reader.places_of(lazy.chunk_id(lazy.runs(inode).start))


def test_a_reader_through_the_node_learns_what_pieces_were_found_to_be(tmp_path: Path, lazy: Catalog) -> None:
    key = lazy.chunk_id(small_run(lazy))
    with node_in_thread(tmp_path) as node, ThroughNode(tmp_path, "a test") as reader:
        assert reader.contents([key, chunk_id(DATA)]) == [None, chunk_id(DATA)]
        node.writer.put(chunk_id(DATA), DATA)
        node.writer.know(key, chunk_id(DATA))
        node.writer.flush()
        assert reader.content(key) == chunk_id(DATA)
        assert reader.place(key) == node.reader.place(chunk_id(DATA))
        room = bytearray(len(DATA))
        assert reader.read_into(key, 0, memoryview(room)) is not None and room == DATA
    with ThroughNode(tmp_path, "a test") as alone:
        assert alone.content(key) is None


@pytest.mark.parametrize("here", ["the right bytes are new", "the right bytes were here"])
def test_a_run_that_is_marked_is_compared_again_once_its_key_was_found_to_be_something_else(
    bench: Bench, lazy: Catalog, shared: SharedState, here: str
) -> None:
    run, room, wrong = small_run(lazy), memoryview(bytearray(len(DATA))), bytes(len(DATA))
    key, subject = lazy.chunk_id(run), verified(lazy, bench.reader, shared)
    if here == "the right bytes were here":
        bench.writer.put(chunk_id(DATA), DATA)
        bench.writer.flush()
    for told in (wrong, DATA):  # by who lied, and by the origin
        bench.store.unknow([key])
        bench.writer.put(chunk_id(told), told)
        bench.writer.know(key, chunk_id(told))
        bench.writer.flush()
        place = bench.reader.place(key)
        assert place is not None and shared.verified[run] != place.generation, "nobody compared it with these bytes"
        assert subject.fill(whole(lazy), room, None) is None and room == told
        assert shared.verified[run] == place.generation
