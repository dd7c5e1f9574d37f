"""What a store does on a disk whose power will be cut, and how to tell afterwards whether it kept its promises.

As a program (DATA_DIR SEED ACTIONS) it is the store's process; after each promise it sets a mark on the disk: JSON,
`{"must": {NAME: VALUE}}` once that is durable, `{"may": [NAME]}` before a step that may lose it.
"""

import json
import os
import random
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from hoard_p2p.errors import StoreFailed
from hoard_p2p.ids import HOLE, ChunkId, SnapshotId, chunk_id, snapshot_id
from hoard_p2p.interfaces import Place
from hoard_p2p.peer import NodeId
from hoard_p2p.storage.extents import all_slabs, is_complete
from hoard_p2p.storage.groups import WriterSettings
from hoard_p2p.storage.index import Table
from hoard_p2p.storage.layout import DataDir
from hoard_p2p.storage.openslab import BLOCK
from hoard_p2p.storage.rebuild import rebuild
from hoard_p2p.storage.records import RefRecord, SnapshotRecord, Stamp, decode_places
from hoard_p2p.storage.store import Store
from hoard_p2p.storage.writer import ChunkWriter

SIZES = (1, 100, 4095, 4096, 5000, 60_000)
PART = 30_000
MAP_BLOCKS = 2
"""Of a file with holes, in which ext4 notes where its blocks are."""
NODE = NodeId(b"n" * 16)


class Work:
    """Random actions on a store; `say` takes the marks."""

    def __init__(self, data_dir: Path, seed: int, say: Callable[[dict[str, object]], None]) -> None:
        self._data_dir = data_dir
        self._draw = random.Random(seed)
        self._say = say
        self._chunks: dict[ChunkId, bytes] = {}
        self._files: dict[bytes, set[ChunkId]] = {}
        self._clock = 0
        self._snapshots: list[SnapshotId] = []
        self._open()

    def _open(self) -> None:
        self._store = Store.open(self._data_dir)
        self._writer: ChunkWriter = self._store.writer(WriterSettings(group_chunks=4, group_seconds=3600))
        self._say({"must": {"store": True}})

    def close(self) -> None:
        self._store.close()

    def go(self, actions: int) -> None:
        for _ in range(actions):
            self._draw.choice(actions_of(self))()

    def put(self) -> None:
        data = [self._draw.randbytes(self._draw.choice(SIZES)) for _ in range(self._draw.randint(1, 6))]
        for each in data:
            self._writer.put(chunk_id(each), each)
        self._flushed(data)

    def put_file(self) -> None:
        data = self._pieces()
        sink = self._writer.open_file(PART * len(data))
        for n, each in enumerate(data):
            if each is not None:
                sink.put(chunk_id(each), each, n * PART)
        self._finish(sink.finish, data)

    def fill_file(self) -> None:
        """A file that arrives in parts, flushed in between, by a store that is perhaps closed in between."""
        data = self._pieces()
        key = chunk_id(b"".join(each or b"" for each in data))[:16]
        order = list(range(len(data)))
        self._draw.shuffle(order)
        for n in order:
            each = data[n]
            if each is not None:
                if self._draw.random() < 0.2:
                    self.reopen()
                self._writer.resume_file(key, PART * len(data)).put(chunk_id(each), each, n * PART)
                self._flushed([each])
        self._finish(self._writer.resume_file(key, PART * len(data)).finish, data)

    def _pieces(self) -> list[bytes | None]:
        data: list[bytes | None] = [self._draw.randbytes(PART) for _ in range(self._draw.randint(2, 4))]
        return [*data, None, self._draw.randbytes(PART)] if self._draw.random() < 0.5 else data

    def _finish(self, finish: Callable[[bytes, list[tuple[ChunkId, int]]], None], data: list[bytes | None]) -> None:
        key = chunk_id(b"".join(each or b"" for each in data))[:16]
        finish(key, [(HOLE if each is None else chunk_id(each), PART) for each in data])
        self._flushed([each for each in data if each is not None])
        self._files[key] = {chunk_id(each) for each in data if each is not None}
        self._say({"must": {f"file:{key.hex()}": [None if each is None else chunk_id(each).hex() for each in data]}})

    def _flushed(self, data: Iterable[bytes]) -> None:
        self._writer.flush()
        fresh = {chunk_id(each): each for each in data}
        self._chunks.update(fresh)
        self._say({"must": {f"chunk:{each.hex()}": True for each in fresh}})

    def name(self) -> None:
        root = self._draw.randbytes(80)
        snapshot = snapshot_id(root)
        self._store.put_root(snapshot, root, SnapshotRecord(snapshot, 1, 2, 2, False, 3, True, "dir"))
        self._say({"must": {f"root:{snapshot.hex()}": root.hex()}})
        self._store.add_holds(snapshot, [3, 1])
        self._say({"must": {f"holds:{snapshot.hex()}": [1, 3]}})
        self._clock += 1
        self._say({"may": ["ref:x"]})
        self._store.put_ref(RefRecord("x", snapshot, Stamp(self._clock, 0, NODE)))
        self._say({"must": {"ref:x": snapshot.hex()}})
        self._snapshots.append(snapshot)
        if len(self._snapshots) > 2:
            old = self._snapshots.pop(0)
            self._say({"may": [f"root:{old.hex()}", f"holds:{old.hex()}"]})
            self._store.remove_snapshot(old, 99)
            self._say({"must": {f"removed:{old.hex()}": True}})

    def heal(self) -> None:
        if not self._chunks:
            return
        victim = self._draw.choice(list(self._chunks))
        place = self._store.reader().place(victim)
        if place is None:
            raise StoreFailed(f"{victim.hex()} is not there")
        self._say({"may": [f"chunk:{victim.hex()}", "files"]})
        self._store.quarantine(victim, place)
        if self._store.heal(victim, self._chunks[victim]) is None:
            raise StoreFailed(f"{victim.hex()} was not healed")
        self._say({"must": {f"chunk:{victim.hex()}": True, "files": True}})

    def evict(self) -> None:
        """Some chunks go, and their space; what is left over besides is cleared away now and then."""
        victims = self._some()
        if not victims:
            return
        self._lose(victims)
        self._store.reclaimer.drop(victims)
        self._store.reclaimer.reclaim()

    def gc(self) -> None:
        victims = set(self._some())
        self._lose(victims)
        self._store.reclaimer.sweep(lambda identifier: identifier not in victims)
        self._store.reclaimer.reclaim()
        self._store.reclaimer.leftovers()

    def _some(self) -> list[ChunkId]:
        return [identifier for identifier in self._chunks if self._draw.random() < 0.3]

    def _lose(self, victims: Iterable[ChunkId]) -> None:
        lost = set(victims)
        keys = [key for key, ids in self._files.items() if lost & ids]
        self._say({"may": [f"chunk:{each.hex()}" for each in lost] + [f"file:{key.hex()}" for key in keys]})
        for each in lost:
            self._chunks.pop(each, None)

    def reopen(self) -> None:
        self._store.close()
        self._open()

    def limit(self) -> None:
        capacity = (1 << 30) + self._draw.randrange(1000)
        self._say({"may": ["capacity"]})
        self._store.set_capacity(capacity)
        self._say({"must": {"capacity": capacity}})


def actions_of(work: Work) -> Sequence[Callable[[], None]]:
    """Each as often as it is to be drawn."""
    return (
        work.put, work.put, work.put_file, work.fill_file, work.name, work.heal, work.evict, work.gc, work.reopen,
        work.limit,
    )  # fmt: skip


class Promises:
    """What the marks before a cut say."""

    def __init__(self, marks: Iterable[bytes]) -> None:
        self.must: dict[str, object] = {"files": True}
        for raw in marks:
            word = json.loads(raw)
            self.must.update(word.get("must", {}))
            for name in word.get("may", ()):
                self.must.pop(name, None)

    def without_files(self) -> "Promises":
        """What an index made again has: which file slabs are complete is found out by whoever has their catalogs."""
        rest = Promises(())
        rest.must = {name: value for name, value in self.must.items() if not name.startswith("file")}
        return rest

    def of(self, kind: str) -> dict[bytes, object]:
        found = ((name.partition(":"), value) for name, value in self.must.items())
        return {bytes.fromhex(rest): value for (first, colon, rest), value in found if colon and first == kind}


def examine(data_dir: Path, promises: Promises, draw: random.Random) -> None:
    """Open a store after its end, whatever that was, twice, and let it work in between."""
    more = [draw.randbytes(length) for length in (10, 5000, 70_000)]
    with Store.open(data_dir) as store:
        check(store, promises)
        with store.writer() as writer:
            for data in more:
                writer.put(chunk_id(data), data)
        check(store, promises)
        check_space(store)
        check(store, promises)
    with Store.open(data_dir) as store:
        check(store, promises)
        assert {chunk_id(data) for data in more} <= check_places(store)


def examine_without_index(data_dir: Path, promises: Promises) -> None:
    """The index is lost after the store's end, whatever that was, and made again, twice: that may be interrupted."""
    if "store" not in promises.must:
        return
    layout = DataDir(data_dir)
    for _ in range(2):
        shutil.rmtree(layout.index, ignore_errors=True)
        rebuild(layout, lambda *_: None)
    with Store.open(data_dir) as store:
        check(store, promises.without_files())
        check_space(store)
        check(store, promises.without_files())


def check(store: Store, promises: Promises) -> None:
    """Every place that the index lists has its chunk's bytes, and everything promised is there."""
    chunks = check_places(store)
    assert not promises.of("chunk").keys() - chunks, "a chunk was lost"
    check_files(store, promises)
    check_names(store, promises)


def check_files(store: Store, promises: Promises) -> None:
    for key, runs in promises.of("file").items():
        found = store.file_slab(key)
        assert isinstance(runs, list)
        if "files" in promises.must:
            assert found is not None, "the record of a large file was lost"
            assert found.complete, "a large file is not complete any more"
        if found is not None and found.complete:
            check_file(store, found.slab, runs)


def check_names(store: Store, promises: Promises) -> None:
    for snapshot, root in promises.of("root").items():
        assert store.root(SnapshotId(snapshot)) == bytes.fromhex(str(root)), "a root was lost"
    for snapshot, segments in promises.of("holds").items():
        assert sorted(store.holds(SnapshotId(snapshot))) == segments
    for snapshot in promises.of("removed"):
        record = store.snapshot(SnapshotId(snapshot))
        assert record is not None
        assert record.removed == 99
    assert store.capacity() == promises.must.get("capacity", store.capacity())
    refs = {ref.name: ref.snapshot for ref in store.refs()}
    if "ref:x" in promises.must:
        assert refs["x"] == bytes.fromhex(str(promises.must["ref:x"])), "a ref is not what was promised"


def check_places(store: Store) -> set[bytes]:
    """The chunks of the index, each of whose places was read and hashed (I2)."""
    with store._index.read() as txn:
        rows = list(txn.scan(Table.CHUNKS))
    for identifier, raw in rows:
        for place in decode_places(raw):
            into = bytearray(place.length)
            store.reader().read_at(place, 0, memoryview(into))
            assert chunk_id(into) == identifier, f"the index lists wrong bytes at {place}"
    return {identifier for identifier, _ in rows}


def check_space(store: Store) -> None:
    """Nothing takes room that nobody can read, once what is left over was cleared away."""
    clear_away(store)
    needed: dict[int, set[int]] = defaultdict(set)
    with store._index.read() as txn:
        for _, raw in txn.scan(Table.CHUNKS):
            for place in decode_places(raw):
                needed[place.slab].update(blocks_of(place))
        rows = all_slabs(txn)
        complete = {slab for slab in rows if is_complete(txn, slab)}
    with store.healer.still() as wounds:  # what awaits good bytes keeps its place
        for slab in rows:
            for _, place in wounds(slab):
                needed[slab].update(blocks_of(place))
    files = {path.name for path in (store.data_dir / "slabs").iterdir()}
    paths = {slab: store.reader().slab_path(slab) for slab in rows}
    assert files == {name for path in paths.values() for name in (path.name, path.with_suffix(".side").name)}
    for slab, path in paths.items():
        blocks = path.stat().st_blocks * 512 // BLOCK
        assert needed[slab], f"slab {slab} holds nothing"
        assert slab in complete or blocks <= len(needed[slab]) + MAP_BLOCKS, f"slab {slab} takes more than it needs"
    assert store.room.measure()


def clear_away(store: Store) -> None:
    """Until nothing is found any more: slabs into which the rest of others was copied reserve some room themselves."""
    store.reclaimer.reclaim()
    for _ in range(5):  # what was copied elsewhere is unlisted by the first, and freed by the second
        if not store.reclaimer.leftovers().bytes + store.reclaimer.reclaim().bytes:
            return
    raise AssertionError("there are always leftovers")


def blocks_of(place: Place) -> range:
    return range(place.offset // BLOCK, (place.offset + place.length - 1) // BLOCK + 1)


def check_file(store: Store, slab: int, runs: list[str | None]) -> None:
    """A complete slab is what the kernel serves by itself: its bytes, holes and length must be the file's."""
    with store.reader().slab_path(slab).open("rb") as file:
        assert os.fstat(file.fileno()).st_size == PART * len(runs)
        for run in runs:
            data = file.read(PART)
            assert data == bytes(PART) if run is None else chunk_id(data).hex() == run


def main(argv: list[str]) -> None:
    data_dir, seed, actions = Path(argv[0]), int(argv[1]), int(argv[2])

    def say(word: dict[str, object]) -> None:
        os.setxattr(data_dir.parent, b"user.mark", json.dumps(word).encode())

    work = Work(data_dir, seed, say)
    work.go(actions)
    work.close()


if __name__ == "__main__":
    main(sys.argv[1:])
