"""The store as the node's other rooms use it: starts, locks, names, holds, quarantine, what lies on the disk."""

import os
import random
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hoard_p2p.errors import BadRequest, NodeRunning, NoNode, Refused, StoreFormatUnknown
from hoard_p2p.ids import ChunkId, SnapshotId, chunk_id
from hoard_p2p.interfaces import Extent, Place, SlabKind
from hoard_p2p.peer import NodeId
from hoard_p2p.storage import journal
from hoard_p2p.storage.chronicle import Chronicle
from hoard_p2p.storage.environment import LOCK_SIZE
from hoard_p2p.storage.extents import next_generation
from hoard_p2p.storage.journal import Kind
from hoard_p2p.storage.reader import StoreReader
from hoard_p2p.storage.records import PastValue, RefRecord, SnapshotRecord, Stamp
from hoard_p2p.storage.store import Store

RNG = random.Random(14)
SNAPSHOTS = [SnapshotId(bytes.fromhex("abcdef") + RNG.randbytes(29)) for _ in range(2)]
SNAPSHOTS.append(SnapshotId(bytes.fromhex("abcd12") + RNG.randbytes(29)))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data") as opened:
        yield opened


def record(snapshot: SnapshotId) -> SnapshotRecord:
    return SnapshotRecord(snapshot, 5, 6, 2, False, 30 * 86400, True, "dir")


def stored(store: Store, *datas: bytes) -> list[ChunkId]:
    with store.writer() as writer:
        for data in datas:
            writer.put(chunk_id(data), data)
    return [chunk_id(data) for data in datas]


def test_a_data_directory_holds_what_the_format_says_and_nothing_else(store: Store) -> None:
    stored(store, b"x" * 5000)
    found = sorted(str(path.relative_to(store.data_dir)) for path in store.data_dir.rglob("*"))
    assert found == [
        "format", "index", "index/data.mdb", "index/lock.mdb", "journal", "node-lock",
        "slabs", "slabs/S-1-1.side", "slabs/S-1-1.slab",
    ]  # fmt: skip
    assert (store.data_dir / "format").read_text() == "hoard store 1\n"


def test_the_index_is_open_to_the_group_as_far_as_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        Store.open(tmp_path / "data").close()
    finally:
        os.umask(before)
    modes = {
        name: stat.S_IMODE((tmp_path / "data" / "index" / name).stat().st_mode) for name in ("data.mdb", "lock.mdb")
    }
    assert modes == {"data.mdb": 0o660, "lock.mdb": 0o660}


def test_the_node_id_stays_and_the_start_number_counts(tmp_path: Path) -> None:
    with Store.open(tmp_path) as first:
        node_id = first.node_id
        assert first.start_number == 1
    with Store.open(tmp_path, create=False) as second:
        assert (second.node_id, second.start_number) == (node_id, 2)
    assert len(node_id) == 16


def test_a_second_store_in_the_same_process_is_refused(store: Store) -> None:
    with pytest.raises(NodeRunning) as caught:
        Store.open(store.data_dir)
    assert caught.value.pid == os.getpid()


def test_a_second_store_in_another_process_is_refused_with_the_holders_pid(store: Store) -> None:
    code = (
        "import sys; from pathlib import Path; from hoard_p2p.errors import NodeRunning;"
        "from hoard_p2p.storage.store import Store\n"
        "try: Store.open(Path(sys.argv[1]))\nexcept NodeRunning as error: print(error.pid)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, store.data_dir], capture_output=True, text=True, timeout=30, check=True
    )
    assert run.stdout == f"{os.getpid()}\n"


def test_a_refused_open_does_not_disturb_the_store_that_runs(store: Store) -> None:
    with pytest.raises(NodeRunning):
        Store.open(store.data_dir)
    store.set_capacity(77)
    assert store.capacity() == 77


def test_opening_without_create_needs_a_store(tmp_path: Path) -> None:
    with pytest.raises(NoNode):
        Store.open(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()
    with pytest.raises(NoNode):
        StoreReader.open(tmp_path / "none")


def test_a_directory_with_files_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    (tmp_path / "log").mkdir()
    with pytest.raises(Refused, match=r"it holds other files \('thesis.tex'\)"):
        Store.open(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "thesis.tex"]


def test_an_index_that_an_interrupted_first_start_left_damaged_is_made_anew(tmp_path: Path) -> None:
    for name in ("index", "slabs"):
        (tmp_path / name).mkdir()
    (tmp_path / "index" / "data.mdb").write_bytes(bytes(8192))
    with Store.open(tmp_path) as store:
        assert store.start_number == 1


def test_what_an_interrupted_start_left_is_no_file_of_somebody_else(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    (tmp_path / "format").rename(tmp_path / "format.new")
    for name in ("log", "lost+found"):
        (tmp_path / name).mkdir()
    Store.open(tmp_path).close()
    (tmp_path / "notes").touch()  # once it is a store, other files are nobody's business
    Store.open(tmp_path).close()


def test_an_unknown_format_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    (tmp_path / "format").write_text("hoard store 2\n")
    journal_before = (tmp_path / "journal").read_bytes()
    with pytest.raises(StoreFormatUnknown, match="hoard store 2"):
        Store.open(tmp_path)
    with pytest.raises(StoreFormatUnknown):
        StoreReader.open(tmp_path)
    assert (tmp_path / "journal").read_bytes() == journal_before


def test_closing_twice_and_leaving_a_writer_open_leaves_no_descriptor(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    store = Store.open(tmp_path)
    store.writer().put(chunk_id(b"a"), b"a")
    store.close()
    store.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_an_idle_store_takes_less_than_twenty_mebibytes_and_a_closed_writer_a_hundred_kilobytes(store: Store) -> None:
    writer = store.writer()
    writer.put(chunk_id(b"z" * 10_000), b"z" * 10_000)
    writer.flush()
    assert store.used_bytes() < 20 << 20
    writer.close()
    assert store.used_bytes() < 100_000


def test_capacity_is_unset_at_first_and_kept(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        assert store.capacity() is None
        store.set_capacity(10 << 40)
    with Store.open(tmp_path) as store:
        assert store.capacity() == 10 << 40


def test_roots_and_snapshot_records_are_kept_over_a_restart(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.put_root(SNAPSHOTS[0], b"root", replace(record(SNAPSHOTS[0]), shown=False))
        store.show_snapshot(SNAPSHOTS[0], replace(record(SNAPSHOTS[0]), last_used=9))
    with Store.open(tmp_path) as store:
        assert store.root(SNAPSHOTS[0]) == b"root"
        assert store.snapshots() == [replace(record(SNAPSHOTS[0]), last_used=9)]
        assert store.snapshot(SNAPSHOTS[0]) == replace(record(SNAPSHOTS[0]), last_used=9)
        assert store.root(SNAPSHOTS[1]) is None
        assert store.snapshot(SNAPSHOTS[1]) is None


def test_a_record_must_belong_to_its_snapshot(store: Store) -> None:
    with pytest.raises(BadRequest):
        store.put_root(SNAPSHOTS[0], b"root", record(SNAPSHOTS[1]))
    assert store.snapshots() == []


def test_removing_a_snapshot_leaves_a_tombstone_without_root_or_holds(store: Store) -> None:
    store.put_root(SNAPSHOTS[0], b"r", replace(record(SNAPSHOTS[0]), pinned=True))
    store.add_holds(SNAPSHOTS[0], [1, 2])
    store.remove_snapshot(SNAPSHOTS[0], 99)
    store.remove_snapshot(SNAPSHOTS[1], 98)
    assert store.root(SNAPSHOTS[0]) is None
    assert store.holds(SNAPSHOTS[0]) == set()
    assert {found.id: found.removed for found in store.snapshots()} == {SNAPSHOTS[0]: 99, SNAPSHOTS[1]: 98}
    assert not any(found.pinned or found.shown for found in store.snapshots())


def test_refs_are_replaced_and_sorted_by_name(store: Store) -> None:
    old = RefRecord("b", SNAPSHOTS[0], Stamp(1, 0, store.node_id))
    new = RefRecord("b", None, Stamp(2, 0, store.node_id), (PastValue(SNAPSHOTS[0], old.stamp),))
    first = RefRecord("a", SNAPSHOTS[1], Stamp(1, 1, NodeId(bytes(16))))
    for ref in (old, new, first):
        store.put_ref(ref)
    assert store.refs() == [first, new]
    for name in ("", "n" * 512):
        with pytest.raises(BadRequest):
            store.put_ref(RefRecord(name, None, old.stamp))


def test_holds_are_a_set_per_snapshot(store: Store) -> None:
    store.add_holds(SNAPSHOTS[0], range(300))
    store.add_holds(SNAPSHOTS[0], [2, 2**32 - 1])
    store.add_holds(SNAPSHOTS[1], [7])
    assert store.holds(SNAPSHOTS[0]) == {*range(300), 2**32 - 1}
    store.remove_snapshot(SNAPSHOTS[0], 99)
    assert store.holds(SNAPSHOTS[0]) == set()
    assert store.holds(SNAPSHOTS[1]) == {7}


def test_a_change_that_the_index_did_not_take_is_not_told_by_the_journal(store: Store) -> None:
    store.put_root(SNAPSHOTS[0], b"root", record(SNAPSHOTS[0]))
    gone = journal.Entry(Kind.FORGOTTEN, SNAPSHOTS[0])
    with pytest.raises(ZeroDivisionError), store.recorder.recorded([gone]):
        raise ZeroDivisionError
    told = Chronicle.of_journal(journal.scan(store.data_dir / "journal"))
    assert told.roots == {SNAPSHOTS[0]: b"root"}
    store.put_root(SNAPSHOTS[1], b"root", record(SNAPSHOTS[1]))
    assert SNAPSHOTS[1] in Chronicle.of_journal(journal.scan(store.data_dir / "journal")).roots


def test_the_journal_tells_every_change_of_names_in_order(store: Store) -> None:
    store.put_root(SNAPSHOTS[0], b"root", record(SNAPSHOTS[0]))
    store.put_ref(RefRecord("a", SNAPSHOTS[0], Stamp(1, 0, store.node_id)))
    store.remove_snapshot(SNAPSHOTS[0], 99)
    entries = list(journal.scan(store.data_dir / "journal"))
    assert [entry.kind for entry in entries] == [
        Kind.NODE,
        Kind.START,
        Kind.ROOT,
        Kind.SNAPSHOT,
        Kind.REF,
        Kind.SNAPSHOT,
    ]
    assert entries[0].payload == store.node_id
    assert entries[2].payload == SNAPSHOTS[0] + b"root"


def test_a_quarantined_place_is_forgotten_and_the_next_one_has_a_new_generation(store: Store) -> None:
    (one,) = stored(store, b"one" * 2000)
    place = store.reader().place(one)
    assert place is not None
    assert store.quarantine(one, place)
    assert store.reader().place(one) is None
    assert not store.quarantine(one, place)
    with store.writer() as writer:
        assert writer.has([one]) == [False]
        writer.put(one, b"one" * 2000)
        pending = writer.pending(one)
        writer.flush()
    fresh = store.reader().place(one)
    assert fresh is not None
    assert fresh.generation == place.generation + 1
    assert pending in (fresh, None)


def test_a_place_that_was_replaced_meanwhile_is_not_quarantined(store: Store) -> None:
    (one,) = stored(store, b"one")
    place = store.reader().place(one)
    assert place is not None
    assert not store.quarantine(one, place._replace(generation=place.generation + 1))
    assert store.reader().place(one) == place


def test_generations_of_one_chunk_never_repeat_before_they_have_to(store: Store) -> None:
    one = chunk_id(b"x")
    handle = store.new_slab(SlabKind.SHARED, 0)
    seen = []
    for n in range(260):
        store.commit([Extent(handle.slab, n * 4096, 1, one)])
        place = store.reader().place(one)
        assert place is not None
        seen.append(place.generation)
        store.quarantine(one, place)
    os.close(handle.data_fd)
    os.close(handle.sidecar_fd)
    assert seen == [*range(1, 256), 1, 2, 3, 4, 5]


def test_the_next_generation_is_none_that_is_listed() -> None:
    assert next_generation([], None) == 1
    assert next_generation([1, 2], None) == 3
    assert next_generation([1, 2], b"\xff") == 3
    assert next_generation([7], b"\x06") == 8


def test_a_chunk_with_two_places_is_read_from_the_other_after_quarantine(store: Store) -> None:
    one = chunk_id(b"x")
    handle = store.new_slab(SlabKind.SHARED, 0)
    store.commit([Extent(handle.slab, 0, 1, one), Extent(handle.slab, 4096, 1, one)])
    store.commit([Extent(handle.slab, 0, 1, one)])
    first = store.reader().place(one)
    assert first == Place(handle.slab, 0, 1, 1)
    assert store.quarantine(one, first)
    assert store.reader().place(one) == Place(handle.slab, 4096, 1, 2)
    assert store.extents_count() == 1
    os.close(handle.data_fd)
    os.close(handle.sidecar_fd)


def test_extents_of_an_unknown_slab_or_of_an_earlier_start_are_not_committed(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        handle = store.new_slab(SlabKind.SHARED, 0)
        with pytest.raises(BadRequest):
            store.commit([Extent(99, 0, 1, chunk_id(b"x"))])
    with Store.open(tmp_path) as store:
        with pytest.raises(Refused):
            store.commit([Extent(handle.slab, 0, 1, chunk_id(b"x"))])
        assert store.extents_count() == 0
    os.close(handle.data_fd)
    os.close(handle.sidecar_fd)


def test_slab_numbers_are_never_used_again(tmp_path: Path) -> None:
    numbers = []
    for _ in range(3):
        with Store.open(tmp_path) as store:
            for kind in SlabKind:
                handle = store.new_slab(kind, 10)
                numbers.append(handle.slab)
                os.close(handle.data_fd)
                os.close(handle.sidecar_fd)
    assert numbers == [1, 2, 3, 4, 5, 6]


def test_the_file_that_readers_write_through_a_map_has_no_hole_that_a_full_disk_could_make_deadly(
    tmp_path: Path,
) -> None:
    with Store.open(tmp_path):
        lock = (tmp_path / "index" / "lock.mdb").stat()
        assert lock.st_blocks * 512 >= lock.st_size == LOCK_SIZE
