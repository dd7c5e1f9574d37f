"""A lost index: refused by the store, and made again from sidecars, journal and bytes."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hoard_p2p.config import parse_floor
from hoard_p2p.errors import IndexLost
from hoard_p2p.ids import HOLE, ChunkId, SnapshotId, chunk_id
from hoard_p2p.peer import NodeId
from hoard_p2p.storage import journal
from hoard_p2p.storage.layout import DataDir
from hoard_p2p.storage.rebuild import Rebuilt, rebuild
from hoard_p2p.storage.records import RefRecord, SnapshotRecord, Stamp
from hoard_p2p.storage.store import Store

Lose = Callable[[Path], None]
SNAPSHOT = SnapshotId(b"s" * 32)
PIECES = st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1, 100, 4096, 9000, 70_000])), min_size=1, max_size=12)
"""Byte and length of each chunk."""


def record(*, removed: int = 0, pinned: bool = False) -> SnapshotRecord:
    return SnapshotRecord(SNAPSHOT, 5, 5, 2, pinned, 60, True, "here", removed)


def again(data_dir: Path) -> Rebuilt:
    return rebuild(DataDir(data_dir), lambda done, total: None)


def delete(index: Path) -> None:
    shutil.rmtree(index)


def empty(index: Path) -> None:
    (index / "data.mdb").write_bytes(b"")


def cut(index: Path) -> None:
    os.truncate(index / "data.mdb", 3 * 4096)


def garble(index: Path) -> None:
    (index / "data.mdb").write_bytes(b"no index of lmdb" * 4096)


def is_here(store: Store, data: bytes) -> bool:
    into = bytearray(len(data))
    return store.reader().read_into(chunk_id(data), 0, memoryview(into)) is not None and into == data


@pytest.mark.parametrize("lose", [delete, empty, cut, garble])
def test_a_store_whose_index_was_lost_is_not_opened_and_not_changed(tmp_path: Path, lose: Lose) -> None:
    data = [bytes([number]) * 5000 for number in range(200)]
    with Store.open(tmp_path) as store, store.writer() as writer:
        for one in data:
            writer.put(chunk_id(one), one)
    lose(tmp_path / "index")
    before = {path: path.read_bytes() for path in sorted((tmp_path / "slabs").iterdir())}
    with pytest.raises(IndexLost, match="--rebuild-index"):
        Store.open(tmp_path)
    assert {path: path.read_bytes() for path in sorted((tmp_path / "slabs").iterdir())} == before
    again(tmp_path)
    with Store.open(tmp_path) as store:
        assert all(is_here(store, one) for one in data)


def test_an_index_that_was_made_anew_over_slabs_is_refused_too(tmp_path: Path) -> None:
    with Store.open(tmp_path / "other"):
        pass
    with Store.open(tmp_path / "data") as store, store.writer() as writer:
        writer.put(chunk_id(b"a"), b"a")
    shutil.rmtree(tmp_path / "data" / "index")
    with Store.open(tmp_path / "data2") as _:
        pass
    (tmp_path / "data" / "index").mkdir()
    from hoard_p2p.storage.index import Index

    Index.for_writing(tmp_path / "data" / "index").close()
    with pytest.raises(IndexLost):
        Store.open(tmp_path / "data")


def test_names_holds_settings_and_numbers_are_back(tmp_path: Path) -> None:
    stamp = Stamp(1, 0, NodeId(b"n" * 16))
    gone = SnapshotId(b"g" * 32)
    with Store.open(tmp_path) as store:
        node = store.node_id
        store.set_capacity(5 << 30)
        store.set_floor(parse_floor("7%"))
        store.put_root(SNAPSHOT, b"root", record())
        store.show_snapshot(SNAPSHOT, record(pinned=True))
        store.put_ref(RefRecord("a:1", SNAPSHOT, stamp))
        store.add_holds(SNAPSHOT, range(10))
        store.life.drop_holds(SNAPSHOT, [3, 4])
        store.put_root(gone, b"other", SnapshotRecord(gone, 5, 5, 2, False, 60, True, "", 0))
        store.add_holds(gone, [1])
        store.remove_snapshot(gone, 99)
    for _ in range(3):
        Store.open(tmp_path).close()
    delete(tmp_path / "index")
    assert again(tmp_path) == Rebuilt(snapshots=1, refs=1)
    with Store.open(tmp_path) as store:
        assert (store.node_id, store.start_number) == (node, 5)
        assert (store.capacity(), store.floor()) == (5 << 30, parse_floor("7%"))
        assert store.snapshot(SNAPSHOT) == record(pinned=True)
        assert store.root(SNAPSHOT) == b"root"
        assert store.refs() == [RefRecord("a:1", SNAPSHOT, stamp)]
        assert store.holds(SNAPSHOT) == set(range(10)) - {3, 4}
        removed = store.snapshot(gone)
        assert removed is not None and removed.removed == 99
        assert store.root(gone) is None and store.holds(gone) == set()


def test_what_was_removed_and_stored_again_is_back_and_what_was_dropped_of_that_is_not(tmp_path: Path) -> None:
    dropped = SnapshotId(b"d" * 32)
    with Store.open(tmp_path) as store:
        for snapshot in (SNAPSHOT, dropped):
            store.put_root(snapshot, b"root", SnapshotRecord(snapshot, 5, 5, 2, False, 60, True, "", 0))
            store.remove_snapshot(snapshot, 99)
            over = SnapshotRecord(snapshot, 200, 200, 2, False, 60, False, "", 99)  # hidden, over its tombstone
            store.put_root(snapshot, b"root", over)
            store.add_holds(snapshot, [1, 2])
            store.show_snapshot(snapshot, over)
        store.remove_snapshot(dropped, 99)
        assert store.recorder.mend() == 0, "the journal says what the index says"
    delete(tmp_path / "index")
    again(tmp_path)
    with Store.open(tmp_path) as store:
        assert (store.root(SNAPSHOT), store.holds(SNAPSHOT)) == (b"root", {1, 2})
        assert (store.root(dropped), store.holds(dropped)) == (None, set())
        gone = store.snapshot(dropped)
        assert gone is not None and gone.created <= gone.removed == 99


def test_new_slabs_have_numbers_that_no_slab_had(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store, store.writer() as writer:
        writer.put(chunk_id(b"a"), b"a")
    names = {path.name for path in (tmp_path / "slabs").iterdir()}
    delete(tmp_path / "index")
    (tmp_path / "journal").unlink()
    done = again(tmp_path)
    assert done.new_id and not done.journal_whole
    with Store.open(tmp_path) as store, store.writer() as writer:
        writer.put(chunk_id(b"b"), b"b")
        writer.flush()
        fresh = {path.name for path in (tmp_path / "slabs").iterdir()} - names
        assert fresh == {"S-2-2.slab", "S-2-2.side"}


@settings(
    max_examples=8,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.lists(st.tuples(PIECES, st.booleans()), min_size=1, max_size=4))
def test_what_was_committed_is_back(drawn: list[tuple[list[tuple[int, int]], bool]]) -> None:
    """Chunks and large files, with holes and repeated chunks, over several starts."""
    files = [([bytes([byte]) * length for byte, length in parts], large) for parts, large in drawn]
    data_dir = Path(tempfile.mkdtemp(prefix="rebuild-"))
    try:
        described = [_store(data_dir, parts, large) for parts, large in files]
        with Store.open(data_dir) as store:
            whole = [runs for runs in described if is_complete(store, runs)]
            chunks = {one for parts, _ in files for one in parts}
            before = {one: {place[:3] for place in store.reader().places_of(chunk_id(one))} for one in chunks}
        delete(data_dir / "index")
        done = again(data_dir)
        assert done.wrong == 0 and not done.torn and not done.nameless
        with Store.open(data_dir) as store, store.writer() as writer:
            assert all(is_here(store, one) for one in chunks)
            after = {one: {place[:3] for place in store.reader().places_of(chunk_id(one))} for one in chunks}
            assert after == before
            assert all(store.settle_file(key_of(runs), runs, writer) for runs in whole)
    finally:
        shutil.rmtree(data_dir)


def key_of(runs: list[tuple[ChunkId, int]]) -> bytes:
    return chunk_id(repr(runs).encode())[:16]


def is_complete(store: Store, runs: list[tuple[ChunkId, int]]) -> bool:
    known = store.file_slab(key_of(runs))
    return known is not None and known.complete


def _store(data_dir: Path, parts: list[bytes], large: bool) -> list[tuple[ChunkId, int]]:
    """In a start of its own; the runs of the file, if it is one."""
    with Store.open(data_dir) as store, store.writer() as writer:
        if not large:
            for one in parts:
                writer.put(chunk_id(one), one)
            return []
        size = sum(map(len, parts)) + 8192
        sink = writer.open_file(size)
        offset = 8192
        for one in parts:
            sink.put(chunk_id(one), one, offset)
            offset += len(one)
        runs = [(HOLE, 8192), *((chunk_id(one), len(one)) for one in parts)]
        sink.finish(key_of(runs), runs)
        return runs


def fill(data_dir: Path) -> list[bytes]:
    data = [bytes([number]) * 5000 for number in range(8)]
    with Store.open(data_dir) as store, store.writer() as writer:
        store.put_root(SNAPSHOT, b"root", record())
        for one in data:
            writer.put(chunk_id(one), one)
    delete(data_dir / "index")
    return data


def test_bytes_that_are_wrong_are_not_listed(tmp_path: Path) -> None:
    data = fill(tmp_path)
    [slab] = (tmp_path / "slabs").glob("*.slab")
    with slab.open("r+b") as file:
        file.seek(2 * 8192 + 77)
        file.write(b"damage")
    done = again(tmp_path)
    assert (done.chunks, done.wrong, done.wrong_size) == (7, 1, 5000)
    with Store.open(tmp_path) as store:
        assert [number for number, one in enumerate(data) if not is_here(store, one)] == [2]


@pytest.mark.parametrize("at", [3, 40, 31])
def test_a_damaged_header_or_record_of_a_sidecar_costs_itself_alone(tmp_path: Path, at: int) -> None:
    data = fill(tmp_path)
    [side] = (tmp_path / "slabs").glob("*.side")
    raw = bytearray(side.read_bytes())
    raw[at] ^= 1
    side.write_bytes(raw[:-3])
    done = again(tmp_path)
    assert len(done.torn) == 1 and not done.nameless
    with Store.open(tmp_path) as store:
        left = [number for number, one in enumerate(data) if is_here(store, one)]
        assert left == list(range(1 if at == 40 else 0, 7))


def test_a_slab_without_a_sidecar_is_said_and_left_alone(tmp_path: Path) -> None:
    fill(tmp_path)
    [side] = (tmp_path / "slabs").glob("*.side")
    side.unlink()
    done = again(tmp_path)
    assert done.nameless == ["S-1-1.slab"] and done.chunks == 0
    assert (tmp_path / "slabs" / "S-1-1.slab").stat().st_size > 8 * 5000
    with Store.open(tmp_path) as store:
        assert store.root(SNAPSHOT) == b"root"


def test_a_damaged_record_of_the_journal_costs_itself_alone(tmp_path: Path) -> None:
    fill(tmp_path)
    raw = (tmp_path / "journal").read_bytes()
    entries = list(journal.decode(raw))
    at = raw.index(entries[2].payload)
    (tmp_path / "journal").write_bytes(raw[:at] + b"?" + raw[at + 1 :])
    done = again(tmp_path)
    assert not done.journal_whole and not done.new_id and done.snapshots == 0
    with Store.open(tmp_path) as store:
        assert store.snapshot(SNAPSHOT) == record(), "its record comes after the root"


def test_a_broken_index_is_put_aside_and_kept(tmp_path: Path) -> None:
    data = fill(tmp_path)
    (tmp_path / "index").mkdir()
    garble(tmp_path / "index")
    first = again(tmp_path)
    second = again(tmp_path)
    assert (first.aside, second.aside) == (str(tmp_path / "index.old-1"), str(tmp_path / "index.old-2"))
    with Store.open(tmp_path) as store:
        assert all(is_here(store, one) for one in data)


def test_a_rebuild_that_was_interrupted_leaves_what_was_there(tmp_path: Path) -> None:
    data = fill(tmp_path)
    again(tmp_path)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rebuild(DataDir(tmp_path), interrupt)
    with Store.open(tmp_path) as store:
        assert all(is_here(store, one) for one in data)
    assert again(tmp_path).chunks == len(data)
