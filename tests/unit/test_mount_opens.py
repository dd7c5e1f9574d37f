"""OPEN and RELEASE against a model of the kernel that is as strict as the real one, and a worker that is killed at
every step of them."""

import errno
import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from stat import S_IFDIR, S_IFREG
from typing import BinaryIO

import pytest

from hoard_p2p.catalog.builder import CatalogBuilder, Meta
from hoard_p2p.catalog.reader import Catalog, file_key
from hoard_p2p.errors import ChunkCorrupt
from hoard_p2p.ids import ChunkId
from hoard_p2p.mount.kernel import OPEN_OUT, RELEASE_IN, RESENT, Fopen
from hoard_p2p.mount.opening import PATIENCE, SOON, Opening
from hoard_p2p.mount.shared import URGENT, SharedState
from hoard_p2p.segments import LARGE_FILE

SIZES = (LARGE_FILE + 1, LARGE_FILE + 2, LARGE_FILE + 3, 5000, SOON + 1)
FIRST, SECOND, THIRD, SMALL, HUGE, LINK = 1, 2, 3, 4, 5, 6
CHUNK = 4 << 20


def _spill() -> BinaryIO:
    return BytesIO()


def _runs(number: int, size: int) -> list[tuple[ChunkId, int]]:
    ends = [*range(0, size, CHUNK), size]
    return [(ChunkId(b"%16d%16d" % (number, start)), end - start) for start, end in itertools.pairwise(ends)]


def _catalog() -> Catalog:
    """Three large files, a small one, a huge one, and a hard link to the first."""
    out = BytesIO()
    with CatalogBuilder(spill=_spill, keep_owner=False) as builder:
        builder.add_root(Meta(S_IFDIR | 0o755, 0, 0, 0))
        builder.next_directory()
        meta = Meta(S_IFREG | 0o644, 0, 0, 0)
        for number, size in enumerate(SIZES, 1):
            builder.add_file(b"%d" % number, meta, size, _runs(number, size))
        builder.add_hard_link(b"6", FIRST)
        builder.finish(out)
    return Catalog(memoryview(out.getvalue()))


class Killed(Exception):
    """The worker was killed here."""


@dataclass
class Slabs:
    """Slab n is the one of inode n."""

    lengths: dict[int, int] = field(default_factory=lambda: dict(enumerate(SIZES, 1)))
    incomplete: set[int] = field(default_factory=set)
    missing: set[int] = field(default_factory=set)
    moved: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._keys = {file_key(_runs(number, size)): number for number, size in enumerate(SIZES, 1)}

    def file_slab(self, file_key: bytes) -> tuple[int, bool] | None:
        number = self._keys.get(file_key)
        if number is None or number == SMALL:
            return None
        return self.moved.get(number, number), number not in self.incomplete

    def open_slab(self, slab: int) -> int:
        if slab in self.missing:
            raise ChunkCorrupt(f"slab {slab} is not there")
        fd = os.memfd_create("slab")
        os.truncate(fd, self.lengths[slab])
        return fd


@dataclass
class Kernel:
    """Ids, requests in flight and open files, with the rules that end in EIO for a user."""

    kill_in: int = -1
    refusal: int = 0
    ids: set[int] = field(default_factory=set)
    asked: dict[int, int] = field(default_factory=dict)  # inode, by number of an OPEN that is not answered
    releasing: dict[int, int] = field(default_factory=dict)  # handle, by number of a RELEASE that is not answered
    opened: dict[int, tuple[int, int]] = field(default_factory=dict)  # inode and backing id, by handle
    failed: dict[int, int] = field(default_factory=dict)
    _newest: int = 0

    def _step(self) -> None:
        self.kill_in -= 1
        if self.kill_in == 0:
            raise Killed

    def register(self, fd: int) -> int:
        self._step()
        if self.refusal:
            raise OSError(self.refusal, os.strerror(self.refusal))
        self._newest += 1
        self.ids.add(self._newest)
        self._step()
        return self._newest

    def close(self, backing_id: int) -> None:
        self._step()
        self.ids.discard(backing_id)
        self._step()

    def send(self, unique: int, body: bytes) -> bool:
        self._step()
        number = unique & ~RESENT
        if number in self.asked:
            self._open(number, *OPEN_OUT.unpack(body))
        elif self.releasing.pop(number, None) is None:
            return False
        self._step()
        return True

    def _open(self, handle: int, told: int, flags: int, backing_id: int) -> None:
        inode = self.asked.pop(handle)
        assert told == handle
        assert flags == (Fopen.PASSTHROUGH if backing_id else Fopen.KEEP_CACHE) | Fopen.NOFLUSH
        assert backing_id == 0 or backing_id in self.ids, "EIO: no such backing file"
        others = {backing for other, backing in self.opened.values() if other == inode}
        assert others <= {backing_id}, "EIO: open in another way"
        self.opened[handle] = (inode, backing_id)

    def fail(self, unique: int, number: int) -> None:
        self.failed[unique & ~RESENT] = number
        self.asked.pop(unique & ~RESENT, None)


@dataclass
class Bench:
    """One mount: a worker's opening, and successors of it."""

    shared: SharedState
    verify: str = "arrival"
    kernel: Kernel = field(default_factory=Kernel)
    slabs: Slabs = field(default_factory=Slabs)
    rung: int = 0
    number: int = 0

    def __post_init__(self) -> None:
        self.catalog = _catalog()
        self.start()

    def start(self) -> None:
        """A worker starts, or its successor does."""
        self.opening = Opening(
            self.catalog, self.slabs, self.kernel, self.shared, self.kernel, verify=self.verify, ring=self._ring
        )

    def _ring(self) -> None:
        self.rung += 1

    def ask(self, inode: int) -> int:
        """The kernel asks to open; the number."""
        self.number += 2
        self.kernel.asked[self.number] = self.catalog.resolve(inode)
        return self.number

    def open(self, inode: int, now: float = 0.0) -> int:
        handle = self.ask(inode)
        self.opening.open(handle, inode, now)
        return handle

    def backing(self, handle: int) -> int:
        return self.kernel.opened[handle][1]

    def release(self, handle: int) -> None:
        """The kernel closes; it lets go of the file before it asks."""
        del self.kernel.opened[handle]
        self.number += 2
        self.kernel.releasing[self.number] = handle
        self.opening.release(self.number, memoryview(RELEASE_IN.pack(handle, 0, 0, 0)))

    def verifies(self) -> None:
        """A verifier is there."""
        self.shared.attach(self.shared.verifier, 1)


@pytest.fixture
def shared() -> Iterator[SharedState]:
    shared = SharedState.create(name="test", workers=1, runs=10_000, inodes=7, opens=32)
    yield shared
    shared.close()


def test_open_files_of_one_inode_share_one_backing_id_until_the_last_is_closed(shared: SharedState) -> None:
    bench = Bench(shared)
    one, two, link = bench.open(FIRST), bench.open(FIRST), bench.open(LINK)
    other = bench.open(SECOND)
    assert bench.backing(one) == bench.backing(two) == bench.backing(link) != bench.backing(other)
    assert bench.kernel.ids == {bench.backing(one), bench.backing(other)}
    first = bench.backing(one)
    bench.release(one)
    bench.release(two)
    assert first in bench.kernel.ids
    bench.release(link)
    assert bench.kernel.ids == {bench.backing(other)}
    assert bench.backing(bench.open(FIRST)) not in (0, first)


def test_a_mode_does_not_change_while_a_file_is_open(shared: SharedState) -> None:
    bench = Bench(shared)
    bench.slabs.incomplete = {FIRST}
    cached = bench.open(FIRST)
    bench.slabs.incomplete = {SECOND}
    again = bench.open(FIRST)
    assert bench.backing(cached) == bench.backing(again) == 0
    passing = bench.open(THIRD)
    bench.slabs.incomplete = {THIRD}
    assert bench.backing(bench.open(THIRD)) == bench.backing(passing) != 0
    bench.release(cached)
    bench.release(again)
    assert bench.backing(bench.open(FIRST)) != 0


def test_only_a_complete_slab_of_the_files_own_length_backs_it(shared: SharedState) -> None:
    bench = Bench(shared)
    bench.slabs.incomplete = {FIRST}
    bench.slabs.lengths[SECOND] -= 1
    bench.slabs.missing = {THIRD}
    assert [bench.backing(bench.open(inode)) for inode in (FIRST, SECOND, THIRD, SMALL)] == [0, 0, 0, 0]
    assert bench.kernel.ids == set()


def test_a_mount_that_verifies_always_never_passes_through(shared: SharedState) -> None:
    bench = Bench(shared, "always")
    shared.checked[FIRST] = FIRST
    assert bench.backing(bench.open(FIRST)) == 0


def test_an_open_waits_for_its_file_to_be_verified(shared: SharedState) -> None:
    bench = Bench(shared, "first")
    bench.verifies()
    handles = [bench.open(FIRST), bench.open(LINK)]
    other = bench.open(SECOND)
    assert bench.opening.parked == 3
    assert shared.hints(0)[1] == [FIRST | URGENT, FIRST | URGENT, SECOND | URGENT]
    assert bench.rung == 3
    shared.checked[FIRST] = FIRST
    bench.opening.heard()
    assert bench.opening.parked == 1
    assert bench.backing(handles[0]) == bench.backing(handles[1]) != 0
    bench.slabs.incomplete = {SECOND}  # damage was found
    bench.opening.heard()
    assert (bench.opening.parked, bench.backing(other)) == (0, 0)


def test_what_was_verified_of_a_file_in_another_slab_does_not_count(shared: SharedState) -> None:
    bench = Bench(shared, "first")
    bench.verifies()
    shared.checked[FIRST] = FIRST
    bench.release(bench.open(FIRST))
    bench.slabs.moved = {FIRST: 77}
    bench.slabs.lengths[77] = bench.slabs.lengths[FIRST]
    handle = bench.open(FIRST)
    assert (bench.opening.parked, shared.checked[FIRST]) == (1, 0)
    shared.checked[FIRST] = 77
    bench.opening.heard()
    assert bench.backing(handle) != 0


def test_patience_ends_and_a_file_is_waited_for_once(shared: SharedState) -> None:
    bench = Bench(shared, "first")
    bench.verifies()
    handle = bench.open(FIRST, now=10.0)
    bench.opening.expire(10.0 + PATIENCE - 0.01)
    assert bench.opening.parked == 1
    bench.opening.expire(10.0 + PATIENCE)
    assert (bench.opening.parked, bench.backing(handle)) == (0, 0)
    bench.release(handle)
    again = bench.open(FIRST)
    assert bench.backing(again) == 0
    bench.release(again)
    shared.checked[FIRST] = FIRST
    assert bench.backing(bench.open(FIRST)) != 0


def test_nobody_waits_without_a_verifier_or_for_a_huge_file(shared: SharedState) -> None:
    bench = Bench(shared, "first")
    assert bench.backing(bench.open(FIRST)) == 0
    bench.verifies()
    assert bench.backing(bench.open(HUGE)) == 0
    assert shared.hints(0)[1] == [FIRST | URGENT, HUGE | URGENT]


def test_a_huge_file_is_waited_for_when_little_of_it_is_left_to_verify(shared: SharedState) -> None:
    bench = Bench(shared, "first")
    bench.verifies()
    shared.verified[bench.catalog.runs(HUGE).start] = 1
    bench.open(HUGE)
    assert bench.opening.parked == 1


def test_a_parked_open_that_comes_again_is_answered_once_and_under_its_new_number(shared: SharedState) -> None:
    bench = Bench(shared, "first")
    bench.verifies()
    handle = bench.open(FIRST)
    bench.opening.open(handle | RESENT, FIRST, 0.5)
    assert bench.opening.parked == 1
    shared.checked[FIRST] = FIRST
    bench.opening.heard()
    assert list(bench.kernel.opened) == [handle]


def test_an_interrupted_open_ends(shared: SharedState) -> None:
    bench = Bench(shared, "first")
    bench.verifies()
    handle = bench.open(FIRST)
    assert not bench.opening.interrupt(handle + 2)
    assert bench.opening.interrupt(handle)
    assert (bench.kernel.failed, bench.opening.parked) == ({handle: errno.EINTR}, 0)


def test_an_answer_that_the_kernel_does_not_take_leaves_nothing_open(shared: SharedState) -> None:
    bench = Bench(shared)
    handle = bench.ask(FIRST)
    del bench.kernel.asked[handle]  # sent again, and not yet read
    bench.opening.open(handle, FIRST, 0.0)
    assert bench.kernel.ids == set()
    bench.kernel.asked[handle] = FIRST
    bench.opening.open(handle | RESENT, FIRST, 0.0)
    assert bench.backing(handle) in bench.kernel.ids


def test_a_release_may_come_twice(shared: SharedState) -> None:
    bench = Bench(shared)
    one, two = bench.open(FIRST), bench.open(FIRST)
    bench.release(one)
    bench.opening.release(bench.number | RESENT, memoryview(RELEASE_IN.pack(one, 0, 0, 0)))
    assert bench.backing(two) in bench.kernel.ids


def test_a_full_table_is_too_many_open_files_and_room_comes_back(shared: SharedState) -> None:
    bench = Bench(shared)
    handles = [bench.open(SMALL) for _ in range(32)]
    for inode in (SMALL, FIRST):
        assert bench.kernel.failed.get(bench.open(inode)) == errno.ENFILE
    assert bench.kernel.ids == set()
    bench.release(handles[7])
    assert bench.backing(bench.open(FIRST)) in bench.kernel.ids
    assert shared.opens_used == 32


@pytest.mark.expect_warnings
@pytest.mark.parametrize("refusal", [errno.EPERM, errno.ELOOP, errno.EMFILE])
def test_a_kernel_that_takes_no_backing_file_makes_no_error(shared: SharedState, refusal: int) -> None:
    bench = Bench(shared, kernel=Kernel(refusal=refusal))
    assert [bench.backing(bench.open(inode)) for inode in (FIRST, SECOND, FIRST)] == [0, 0, 0]
    assert shared.backing_refused > 0


@pytest.mark.expect_warnings
def test_a_refused_backing_file_is_told_once_per_mount(shared: SharedState, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(shared, kernel=Kernel(refusal=errno.EMFILE))
    bench.open(FIRST)
    bench.start()
    bench.open(SECOND)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def _act(bench: Bench, draw: random.Random) -> None:
    """One thing that a user does, in the worker as it is."""
    if draw.random() < len(bench.kernel.opened) / 4:  # so that files are often closed by all
        bench.release(draw.choice(sorted(bench.kernel.opened)))
    else:
        bench.slabs.incomplete = set(draw.sample((FIRST, SECOND, THIRD), draw.randrange(3)))
        bench.open(draw.choice((FIRST, SECOND, THIRD, LINK)))


def _revive(bench: Bench, draw: random.Random) -> None:
    """A successor starts, and the kernel sends what was not answered again, among new requests and in any order; it may
    be killed as well."""
    bench.start()
    for inode in draw.choices((FIRST, SECOND, THIRD), k=draw.randrange(3)):
        bench.open(inode)
    kernel = bench.kernel
    again = [*kernel.asked, *kernel.releasing]
    draw.shuffle(again)
    for number in again:
        if number in kernel.asked:
            bench.opening.open(number | RESENT, kernel.asked[number], 0.0)
        else:
            bench.opening.release(number | RESENT, memoryview(RELEASE_IN.pack(kernel.releasing[number], 0, 0, 0)))


@pytest.mark.parametrize("seed", range(4))
def test_a_worker_can_be_killed_at_every_step(shared: SharedState, seed: int) -> None:
    draw = random.Random(seed)
    bench = Bench(shared)
    kernel = bench.kernel
    for _ in range(500):
        kernel.kill_in = draw.randrange(1, 8)
        try:
            _act(bench, draw)
        except Killed:
            while True:
                kernel.kill_in = draw.choice((-1, draw.randrange(1, 8)))
                try:
                    _revive(bench, draw)
                    break
                except Killed:
                    continue
        assert not kernel.asked
        assert not kernel.releasing
    kernel.kill_in = -1
    bench.start()
    assert kernel.ids == {backing for _, backing in kernel.opened.values()} - {0}, "ids that nobody uses are closed"
    for handle in list(kernel.opened):
        bench.release(handle)
    assert kernel.ids == set()
    assert not any(shared.opens[::2])
