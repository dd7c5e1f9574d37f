"""The store as a state machine against plain dictionaries: put, large files, get, flush, damage, names, holds, removal,
eviction, gc, restart, and kill -9 before any call that touches the disk.

`HOARD_MACHINE_STEPS` (`make nightly`: 10,000) says how many steps; a short run is part of the tests.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hoard_p2p.errors import HoardError
from hoard_p2p.ids import ChunkId, SnapshotId, chunk_id
from hoard_p2p.peer import NodeId
from hoard_p2p.storage.groups import WriterSettings
from hoard_p2p.storage.records import RefRecord, SnapshotRecord, Stamp
from hoard_p2p.storage.store import Store
from tests.fault.killpoint import Camera
from tests.fault.power_work import check_places, check_space

STEPS = int(os.environ.get("HOARD_MACHINE_STEPS", "210"))
STEPS_A_RUN = 15 if STEPS < 1000 else 50
PIECES = st.builds(
    lambda byte, length: bytes([byte]) * length, st.integers(0, 9), st.sampled_from([1, 100, 4096, 9000])
)
SNAPSHOTS = st.builds(lambda byte: SnapshotId(bytes([byte]) * 32), st.integers(0, 2))
FILES = st.lists(PIECES, min_size=1, max_size=5)
WHICH = st.integers(0, 99)
NAMES = st.sampled_from(["a", "b"])
NODE = NodeId(b"n" * 16)


@dataclass
class Model:
    """What must be there. `chunks`: every chunk that was put and not lost; `safe`: those that a kill cannot take."""

    chunks: dict[ChunkId, bytes] = field(default_factory=dict)
    safe: set[ChunkId] = field(default_factory=set)
    roots: dict[SnapshotId, bytes] = field(default_factory=dict)
    removed: set[SnapshotId] = field(default_factory=set)
    holds: dict[SnapshotId, frozenset[int]] = field(default_factory=dict)
    refs: dict[str, SnapshotId] = field(default_factory=dict)

    def copy(self) -> "Model":
        return Model(
            dict(self.chunks), set(self.safe), dict(self.roots), set(self.removed), dict(self.holds), dict(self.refs)
        )


class StoreMachine(RuleBasedStateMachine):
    """Each rule acts on the store and on the model alike."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="store-machine-"))
        self.directory = self.home / "0"
        self.kills = 0
        self.clock = 0
        self.model = Model()
        self.camera = Camera()
        self._open()

    def _open(self) -> None:
        self.store = Store.open(self.directory)
        with self.camera.worn():
            self.writer = self.store.writer(WriterSettings(group_chunks=5, group_seconds=3600))

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.home)

    # --- chunks

    @rule(data=PIECES)
    def put(self, data: bytes) -> None:
        self.writer.put(chunk_id(data), data)
        self.model.chunks[chunk_id(data)] = data

    @rule(pieces=FILES, resumed=st.booleans())
    def put_file(self, pieces: list[bytes], resumed: bool) -> None:
        key = chunk_id(b"".join(pieces))[:16]
        size = sum(map(len, pieces))
        sink = self.writer.resume_file(key, size) if resumed else self.writer.open_file(size)
        offset = 0
        for data in pieces:
            sink.put(chunk_id(data), data, offset)
            offset += len(data)
            self.model.chunks[chunk_id(data)] = data
        sink.finish(key, [(chunk_id(data), len(data)) for data in pieces])

    @rule()
    def flush(self) -> None:
        self.writer.flush()
        places = self.store.reader().places(list(self.model.chunks))
        assert all(place is not None for place in places)
        self.model.safe = set(self.model.chunks)

    @rule(which=WHICH, skip=st.integers(0, 9000))
    def get(self, which: int, skip: int) -> None:
        wanted = self._one(which)
        if wanted is None:
            return
        start = min(skip, len(self.model.chunks[wanted]))
        into = bytearray(len(self.model.chunks[wanted]) - start)
        if self.writer.pending(wanted) is None:
            assert self.store.reader().read_into(wanted, start, memoryview(into)) is not None
            assert into == self.model.chunks[wanted][start:]

    @rule(which=WHICH)
    def quarantine_all_places_of_one(self, which: int) -> None:
        self.flush()
        victim = self._one(which)
        if victim is None:
            return
        seen = set()
        while (place := self.store.reader().place(victim)) is not None:
            assert place.generation not in seen
            seen.add(place.generation)
            assert self.store.quarantine(victim, place)
        self._lose(victim)

    @rule(which=WHICH)
    def damage_and_heal(self, which: int) -> None:
        self.flush()
        victim = self._one(which)
        if victim is None:
            return
        place = self.store.reader().place(victim)
        assert place is not None
        with self.store.reader().slab_path(place.slab).open("r+b") as slab:
            slab.seek(place.offset)
            slab.write(bytes([self.model.chunks[victim][0] ^ 255]))
        assert self.store.distrust(victim, place)
        if self.store.reader().place(victim) is None:
            assert self.store.heal(victim, self.model.chunks[victim]) is not None

    def quarantine_and_heal(self, which: int) -> None:
        self.flush()
        victim = self._one(which)
        if victim is None:
            return
        place = self.store.reader().place(victim)
        assert place is not None
        self.model.safe.discard(victim)
        assert self.store.quarantine(victim, place)
        assert self.store.heal(victim, self.model.chunks[victim]) is not None

    # --- space

    @rule(which=st.sets(WHICH, max_size=4))
    def evict(self, which: set[int]) -> None:
        self.flush()
        victims = {victim for number in which if (victim := self._one(number)) is not None}
        self.model.safe -= victims
        self.store.reclaimer.drop(victims)
        for victim in victims:
            self._lose(victim)
        self.store.reclaimer.reclaim()

    @rule(mask=st.integers(0, 7))
    def gc(self, mask: int) -> None:
        """What is not wanted goes from the index, and what is not listed from the disk."""
        self.flush()
        victims = {known for known in self.model.chunks if known[0] & 7 == mask}
        self.model.safe -= victims
        self.store.reclaimer.sweep(lambda identifier: identifier[0] & 7 != mask)
        for victim in victims:
            self._lose(victim)
        self.store.reclaimer.reclaim()
        self.store.reclaimer.leftovers()

    @rule()
    def no_space_is_lost(self) -> None:
        self.reopen()  # what somebody writes is not cleared away
        check_space(self.store)

    def _one(self, which: int) -> ChunkId | None:
        """A chunk by number: what a rule draws must not depend on what a kill left."""
        known = sorted(self.model.chunks)
        return known[which % len(known)] if known else None

    def _lose(self, victim: ChunkId) -> None:
        self.model.chunks.pop(victim, None)
        self.model.safe.discard(victim)

    # --- names and holds

    @rule(snapshot=SNAPSHOTS, root=st.binary(min_size=1, max_size=40))
    def publish(self, snapshot: SnapshotId, root: bytes) -> None:
        self.store.put_root(snapshot, root, SnapshotRecord(snapshot, 1, 2, 2, False, 3, True, "dir"))
        self.model.roots[snapshot] = root
        self.model.removed.discard(snapshot)

    @rule(snapshot=SNAPSHOTS)
    def rm(self, snapshot: SnapshotId) -> None:
        self.store.remove_snapshot(snapshot, 99)
        self.model.roots.pop(snapshot, None)
        self.model.holds.pop(snapshot, None)
        self.model.removed.add(snapshot)

    @rule(snapshot=SNAPSHOTS, segments=st.frozensets(st.integers(0, 3), min_size=1))
    def hold(self, snapshot: SnapshotId, segments: frozenset[int]) -> None:
        self.store.add_holds(snapshot, segments)
        self.model.holds[snapshot] = self.model.holds.get(snapshot, frozenset()) | segments

    @rule(snapshot=SNAPSHOTS, segments=st.frozensets(st.integers(0, 3), min_size=1))
    def release(self, snapshot: SnapshotId, segments: frozenset[int]) -> None:
        self.store.life.drop_holds(snapshot, segments)
        self.model.holds[snapshot] = self.model.holds.get(snapshot, frozenset()) - segments

    @rule(name=NAMES, snapshot=SNAPSHOTS)
    def tag(self, name: str, snapshot: SnapshotId) -> None:
        self.clock += 1
        self.store.put_ref(RefRecord(name, snapshot, Stamp(self.clock, 0, NODE)))
        self.model.refs[name] = snapshot

    # --- ends

    @rule()
    def reopen(self) -> None:
        start = self.store.start_number
        self.store.close()
        self._open()
        assert self.store.start_number == start + 1
        assert self.store.extents_count() == len(self.model.chunks)
        self.model.safe = set(self.model.chunks)

    @rule(pieces=FILES, as_file=st.booleans(), at=st.integers(1, 25))
    def kill_while_putting(self, pieces: list[bytes], as_file: bool, at: int) -> None:
        def action() -> None:
            if as_file:
                self.put_file(pieces, True)
            else:
                for piece in pieces:
                    self.put(piece)
            self.flush()

        self._kill_during(action, at)

    @rule(which=WHICH, heals=st.booleans(), at=st.integers(1, 25))
    def kill_while_healing(self, which: int, heals: bool, at: int) -> None:
        action = self.quarantine_and_heal if heals else self.quarantine_all_places_of_one
        self._kill_during(lambda: action(which), at)

    @rule(which=st.sets(WHICH, min_size=1, max_size=4), at=st.integers(1, 40))
    def kill_while_evicting(self, which: set[int], at: int) -> None:
        self._kill_during(lambda: self.evict(which), at)

    @rule(mask=st.integers(0, 7), at=st.integers(1, 80))
    def kill_while_collecting(self, mask: int, at: int) -> None:
        self.reopen()
        self._kill_during(lambda: self.gc(mask), at)

    @rule(at=st.integers(1, 40))
    def kill_while_reopening(self, at: int) -> None:
        self._kill_during(self.reopen, at)

    @rule(which=st.integers(0, 4), at=st.integers(1, 5))
    def kill_while_naming(self, which: int, at: int) -> None:
        snapshot = SnapshotId(bytes(32))
        actions = (
            lambda: self.publish(snapshot, b"killed"),
            lambda: self.rm(snapshot),
            lambda: self.tag("a", snapshot),
            lambda: self.hold(snapshot, frozenset({7})),
            lambda: self.release(snapshot, frozenset({1, 7})),
        )
        self._kill_during(actions[which], at)

    def _kill_during(self, action: Callable[[], None], at: int) -> None:
        before = self.model.copy()
        self.kills += 1
        copy = self.home / str(self.kills)
        with self.camera.aimed(self.directory, copy, at):
            action()
        if not self.camera.taken:
            with self.camera.aimed(self.directory, copy, 1):
                self.store.set_capacity(1 << 40)
        assert self.camera.taken
        with suppress(HoardError):
            self.store.close()
        shutil.rmtree(self.directory)
        self.directory = copy
        self._open()
        self._adopt(before, self.model)

    def _adopt(self, before: Model, after: Model) -> None:
        """Whatever was the case before or after the step may be; what both have must be."""
        listed = check_places(self.store)
        assert before.safe & after.safe <= listed
        known = {**before.chunks, **after.chunks}
        assert listed <= known.keys()
        found = Model({chunk: known[ChunkId(chunk)] for chunk in map(ChunkId, listed)}, set(map(ChunkId, listed)))
        for snapshot in {*before.roots, *after.roots, *before.removed, *after.removed, *before.holds, *after.holds}:
            root = self.store.root(snapshot)
            assert root in (before.roots.get(snapshot), after.roots.get(snapshot))
            if root is not None:
                found.roots[snapshot] = root
            record = self.store.snapshot(snapshot)
            if record is not None and record.removed:
                assert root is None
                found.removed.add(snapshot)
            holds = frozenset(self.store.holds(snapshot))
            assert holds in (before.holds.get(snapshot, frozenset()), after.holds.get(snapshot, frozenset()))
            found.holds[snapshot] = holds
        for ref in self.store.refs():
            assert ref.snapshot in (before.refs.get(ref.name), after.refs.get(ref.name))
            if ref.snapshot is not None:
                found.refs[ref.name] = ref.snapshot
        assert before.refs.keys() & after.refs.keys() <= found.refs.keys()
        self.model = found

    # --- always

    @invariant()
    def everything_put_reads_back(self) -> None:
        for identifier, data in self.model.chunks.items():
            place = self.writer.pending(identifier) or self.store.reader().place(identifier)
            assert place is not None
            assert place.length == len(data)
            into = bytearray(len(data))
            self.store.reader().read_at(place, 0, memoryview(into))
            assert into == data

    @invariant()
    def has_agrees(self) -> None:
        unknown = ChunkId(bytes(32))
        known = self.model.chunks
        assert self.writer.has([*known, unknown]) == [True] * len(known) + [False]

    @invariant()
    def names_are_as_they_were_set(self) -> None:
        assert {ref.name: ref.snapshot for ref in self.store.refs()} == self.model.refs
        for snapshot in {*self.model.roots, *self.model.removed}:
            assert self.store.root(snapshot) == self.model.roots.get(snapshot)
            assert self.store.holds(snapshot) == self.model.holds.get(snapshot, frozenset())


StoreMachine.TestCase.settings = settings(
    max_examples=STEPS // STEPS_A_RUN,
    stateful_step_count=STEPS_A_RUN,
    deadline=None,
    derandomize=STEPS < 1000,
    phases=(Phase.generate,),  # each step takes tens of milliseconds; a failing run is short enough to be read
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestStoreMachine = StoreMachine.TestCase
