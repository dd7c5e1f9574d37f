"""What a verifier reads and marks: a real store, real threads, no mount."""

import os
import random
import select
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from stat import S_IFDIR, S_IFREG
from typing import BinaryIO

import pytest

from hoard_p2p.catalog.builder import CatalogBuilder, Meta
from hoard_p2p.catalog.layout import file_key
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.ids import HOLE, ChunkId, chunk_id
from hoard_p2p.mount.agenda import QUIET, RETRY, Agenda
from hoard_p2p.mount.checking import DEPTH, Checkers, OpenSlabs
from hoard_p2p.mount.pieces import Check
from hoard_p2p.mount.shared import URGENT, SharedState
from hoard_p2p.mount.verified import VerifiedChunks, Wrong
from hoard_p2p.segments import LARGE_FILE
from hoard_p2p.storage.store import Store

DRAW = random.Random(7)
CHUNK = 1 << 20
HOLE_SIZE = 3 * CHUNK
LARGE = [DRAW.randbytes(CHUNK) for _ in range(LARGE_FILE // CHUNK + 2)]
SMALL = [DRAW.randbytes(50_000) for _ in range(20)]
RUNS = [*((chunk_id(data), CHUNK) for data in LARGE), (HOLE, HOLE_SIZE)]
FIRST_LARGE, SECOND_LARGE = 1, 2


def _catalog() -> Catalog:
    """Two large files (the second is the first without its first chunk), then small ones."""
    out = BytesIO()
    meta = Meta(S_IFREG | 0o644, 0, 0, 0)
    with CatalogBuilder(spill=_spill, keep_owner=False) as builder:
        builder.add_root(Meta(S_IFDIR | 0o755, 0, 0, 0))
        builder.next_directory()
        builder.add_file(b"a", meta, sum(length for _, length in RUNS), RUNS)
        builder.add_file(b"b", meta, sum(length for _, length in RUNS[1:]), RUNS[1:])
        for number, data in enumerate(SMALL):
            builder.add_file(b"c%04d" % number, meta, len(data), [(chunk_id(data), len(data))])
        builder.finish(out)
    return Catalog(memoryview(out.getvalue()))


def _spill() -> BinaryIO:
    return BytesIO()


@dataclass
class Bench:
    """An agenda and its threads, driven by a test."""

    store: Store
    shared: SharedState
    catalog: Catalog = field(default_factory=_catalog)
    wrong: list[Check] = field(default_factory=list)
    read: int = 0

    def __post_init__(self) -> None:
        reader = self.store.reader()
        self.now = 100.0
        self.agenda = Agenda(self.catalog, reader, reader, self.shared, self.now)
        self.slabs = OpenSlabs(reader)

    def work(self, *, calm: bool = False) -> None:
        """Until there is nothing more to do."""
        checkers = Checkers(self.shared.verified.__setitem__)
        try:
            while self._submit(checkers, calm) or checkers.outstanding:
                select.select([checkers.fileno()], [], [], 10)
                self._settle(checkers)
        finally:
            checkers.close()

    def _submit(self, checkers: Checkers, calm: bool) -> bool:
        while checkers.outstanding < DEPTH:
            self.now += 3 * calm
            task = self.agenda.next_calm(self.now) if calm else self.agenda.next(self.now)
            if task is None:
                return False
            checkers.submit(task, self.slabs.get(task.piece.slab), calm=calm)
        return True

    def _settle(self, checkers: Checkers) -> None:
        for outcome in checkers.outcomes():
            self.read += outcome.task.piece.length
            self.wrong.extend(outcome.wrong)
            self.agenda.settle(outcome.task, bool(outcome.wrong))

    def slab_of(self, inode: int) -> int:
        runs = self.catalog.runs(inode)
        found = self.store.file_slab(file_key((self.catalog.chunk_id(run), self.catalog.length(run)) for run in runs))
        assert found is not None
        return found.slab

    def put_file(self, inode: int) -> None:
        runs = self.catalog.runs(inode)
        named = [(self.catalog.chunk_id(run), self.catalog.length(run)) for run in runs]
        with self.store.writer() as writer:
            sink = writer.open_file(self.catalog.size(inode))
            for run in runs:
                if not self.catalog.is_hole(run):
                    data = next(data for data in LARGE if chunk_id(data) == self.catalog.chunk_id(run))
                    sink.put(self.catalog.chunk_id(run), data, self.catalog.run_offset(inode, run))
            sink.finish(file_key(named), named)

    def put_small(self) -> None:
        with self.store.writer() as writer:
            for data in SMALL:
                writer.put(chunk_id(data), data)

    def damage(self, identifier: ChunkId) -> None:
        place = self.store.reader().place(identifier)
        assert place is not None
        with self.store.reader().slab_path(place.slab).open("r+b") as slab:
            slab.seek(place.offset + 5)
            slab.write(b"damage")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    catalog = _catalog()
    shared = SharedState.create(name="test", workers=1, runs=catalog.chunks, inodes=catalog.inodes, opens=4)
    with Store.open(tmp_path / "data") as store:
        yield Bench(store, shared)
    shared.close()


def test_a_file_that_an_open_waits_for_is_checked_as_a_whole(bench: Bench) -> None:
    bench.put_file(FIRST_LARGE)
    bench.agenda.hear(FIRST_LARGE | URGENT, bench.now)
    bench.work()
    assert bench.shared.checked[FIRST_LARGE] == bench.slab_of(FIRST_LARGE)
    assert bench.agenda.finished
    assert all(bench.shared.verified[run] for run in range(len(LARGE)))


def test_what_was_verified_in_the_file_slab_is_not_read_again(bench: Bench) -> None:
    bench.put_file(FIRST_LARGE)
    bench.agenda.hear(0, bench.now)
    bench.work()
    read = bench.read
    bench.agenda.hear(FIRST_LARGE | URGENT, bench.now)
    bench.work()
    assert bench.read - read <= 2 * CHUNK + HOLE_SIZE  # the run that the reader was at, and the hole
    assert bench.shared.checked[FIRST_LARGE] == bench.slab_of(FIRST_LARGE)


def test_a_damaged_file_slab_is_not_checked_and_its_damage_is_named(bench: Bench) -> None:
    bench.put_file(FIRST_LARGE)
    hurt = chunk_id(LARGE[4])
    bench.damage(hurt)
    bench.agenda.hear(FIRST_LARGE | URGENT, bench.now)
    bench.work()
    assert bench.shared.checked[FIRST_LARGE] == 0
    assert bench.agenda.finished
    assert [check.chunk_id for check in bench.wrong] == [hurt]
    assert bench.shared.verified[4] == 0


def test_bytes_in_a_hole_of_a_file_slab_are_damage(bench: Bench) -> None:
    bench.put_file(FIRST_LARGE)
    found = bench.store.file_slab(file_key(RUNS))
    assert found is not None
    with bench.store.reader().slab_path(found.slab).open("r+b") as slab:
        slab.seek(len(LARGE) * CHUNK + 2 * CHUNK)
        slab.write(b"not empty")
    bench.agenda.hear(FIRST_LARGE | URGENT, bench.now)
    bench.work()
    assert bench.shared.checked[FIRST_LARGE] == 0
    assert [check.chunk_id for check in bench.wrong] == [HOLE]


def test_a_file_found_wrong_is_not_read_again_at_every_open(bench: Bench) -> None:
    bench.put_file(FIRST_LARGE)
    bench.damage(chunk_id(LARGE[4]))
    for _ in range(3):
        bench.agenda.finished = False
        bench.agenda.hear(FIRST_LARGE | URGENT, bench.now)
        bench.work()
        assert bench.agenda.finished
    assert len(bench.wrong) == 1
    bench.now += RETRY + 1
    bench.agenda.hear(FIRST_LARGE | URGENT, bench.now)
    bench.work()
    assert len(bench.wrong) == 2


def test_the_files_behind_an_opened_one_are_checked_too(bench: Bench) -> None:
    bench.put_file(FIRST_LARGE)
    bench.put_file(SECOND_LARGE)
    bench.agenda.hear(FIRST_LARGE | URGENT, bench.now)
    bench.work()
    found = bench.store.file_slab(file_key(RUNS[1:]))
    whole = found is not None and found.complete
    assert bool(bench.shared.checked[SECOND_LARGE]) == whole


def test_a_hint_that_names_nothing_is_dropped(bench: Bench) -> None:
    for hint in (1 << 40, URGENT | 1 << 40, bench.catalog.chunks, URGENT | bench.catalog.inodes, URGENT):
        bench.agenda.hear(hint, bench.now)
    bench.work()
    assert bench.read == 0


def test_runs_ahead_of_a_reader_are_verified_those_that_are_not_here_are_left_out(bench: Bench) -> None:
    bench.put_small()
    first = bench.catalog.runs(3).start
    bench.agenda.hear(first, bench.now)
    bench.work()
    assert [bool(bench.shared.verified[first + at]) for at in range(len(SMALL))] == [False, *[True] * (len(SMALL) - 1)]


def test_files_that_nobody_asked_for_are_checked_in_quiet_times(bench: Bench) -> None:
    bench.put_file(FIRST_LARGE)
    assert bench.agenda.calm_wait(bench.now) is not None
    bench.work(calm=True)
    assert bench.shared.checked[FIRST_LARGE] == bench.slab_of(FIRST_LARGE)
    bench.agenda.next_calm(bench.now + 10)
    assert bench.agenda.calm_wait(bench.now + 10) is None


def test_a_file_that_is_wanted_while_it_is_checked_in_quiet_is_checked_at_once(bench: Bench) -> None:
    bench.put_file(FIRST_LARGE)
    assert bench.agenda.next_calm(bench.now) is None
    bench.now += QUIET
    task = bench.agenda.next_calm(bench.now)  # and much more of it is planned
    assert task is not None
    bench.agenda.hear(FIRST_LARGE | URGENT, bench.now)
    bench.work()
    assert bench.shared.checked[FIRST_LARGE] == 0  # that piece is still on its way
    bench.agenda.settle(task, False)
    bench.work()
    assert bench.shared.checked[FIRST_LARGE] == bench.slab_of(FIRST_LARGE)


def test_a_reader_never_gets_the_bytes_of_a_place_that_was_not_verified(bench: Bench) -> None:
    """One thread replaces the chunk's place again and again, every other one is damaged when it comes; another verifies
    ahead; the reader must get right bytes or be told that they are wrong."""
    data, bad = SMALL[5], bytes(len(SMALL[5]))
    identifier, run = chunk_id(data), bench.catalog.runs(3 + 5).start
    reader, over = bench.store.reader(), threading.Event()

    def replace() -> None:
        for turn in range(60):
            if over.is_set():
                return
            place = reader.place(identifier)
            if place is not None:
                bench.store.quarantine(identifier, place)
            with bench.store.writer() as writer:
                writer.put(identifier, data if turn % 2 else bad)
        over.set()

    def verify() -> None:
        while not over.is_set():
            bench.agenda.verify(run)
            bench.work()

    threads = [threading.Thread(target=target) for target in (replace, verify)]
    verified = VerifiedChunks(bench.catalog, bench.store.reader(), bench.shared.verified, "first")
    into = memoryview(bytearray(len(data)))
    seen = set()
    for thread in threads:
        thread.start()
    try:
        while not over.is_set():
            (span,) = bench.catalog.span(3 + 5, 0, len(data))
            trouble = verified.fill(span, into, None)
            seen.add(type(trouble))
            assert trouble is not None or into == data
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert {type(None), Wrong} <= seen


def test_slabs_are_closed_when_they_are_no_longer_needed(bench: Bench) -> None:
    bench.put_small()
    before = len(os.listdir("/proc/self/fd"))
    bench.agenda.hear(bench.catalog.runs(3).start, bench.now)
    bench.work()
    del bench.slabs
    assert len(os.listdir("/proc/self/fd")) <= before
