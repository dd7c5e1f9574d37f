"""Slabs: where chunks go, how much is reserved, how descriptors are kept, what is given back."""

import os
import random
import resource
from itertools import pairwise
from pathlib import Path

import pytest

from hoard_p2p.errors import ChunkCorrupt
from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import Extent, SlabHandle, SlabKind
from hoard_p2p.storage.allowance import Allowance
from hoard_p2p.storage.layout import DataDir
from hoard_p2p.storage.openslab import BLOCK, FIRST_RESERVE, SHARED_SIZE, Cursor, OpenSlab, make_slab, reopen_slab, trim
from hoard_p2p.storage.sidecar import HEADER_SIZE, SidecarHeader
from hoard_p2p.storage.slabs import SlabFile, SlabFiles
from hoard_p2p.testing.rooms import FixedRoom


def made(layout: DataDir, slab: int = 1, kind: SlabKind = SlabKind.SHARED, size: int = 0) -> SlabHandle:
    layout.make()
    return make_slab(layout.slab(kind, 1, slab), SidecarHeader(slab, 1, size, kind))


def entered(handle: SlabHandle) -> OpenSlab:
    slab = OpenSlab(handle, Allowance(FixedRoom()))
    assert slab.enter()
    return slab


def test_chunks_of_a_block_or_more_start_at_block_boundaries_and_small_ones_are_packed() -> None:
    cursor = Cursor(1 << 20)
    assert [cursor.take(length) for length in (5000, 4096, 100, 4095, 8192, 1)] == [
        0, 8192, 12288, 12388, 274432, 16483,
    ]  # fmt: skip


def test_rooms_never_overlap_and_stay_inside_the_slab() -> None:
    rng = random.Random(13)
    cursor = Cursor(4 << 20)
    taken: list[tuple[int, int]] = []
    refused = 0
    while refused < 50:
        length = rng.choice([rng.randrange(1, 4096), rng.randrange(4096, 200_000)])
        offset = cursor.take(length)
        if offset is None:
            refused += 1
        else:
            assert length < BLOCK or offset % BLOCK == 0
            taken.append((offset, offset + length))
    taken.sort()
    assert all(end <= start for (_, end), (start, _) in pairwise(taken))
    assert taken[-1][1] <= 4 << 20


def test_a_shared_slab_reserves_one_step_ahead_and_keeps_only_what_was_used(tmp_path: Path) -> None:
    layout = DataDir(tmp_path)
    path = layout.slab(SlabKind.SHARED, 1, 1)
    slab = entered(made(layout))
    slab.reserve(0, 10_000)
    slab.write(b"x" * 10_000, 0)
    assert path.stat().st_size == FIRST_RESERVE
    assert path.stat().st_blocks * 512 >= FIRST_RESERVE
    slab.keep([Extent(1, 0, 10_000, ChunkId(bytes(32)))])
    slab.retire()
    slab.leave()
    assert path.stat().st_size == 10_000
    assert path.stat().st_blocks * 512 < 64 << 10


def test_a_file_slab_has_its_exact_size_and_takes_space_only_for_what_was_written(tmp_path: Path) -> None:
    layout = DataDir(tmp_path)
    path = layout.slab(SlabKind.FILE, 1, 1)
    slab = entered(made(layout, kind=SlabKind.FILE, size=SHARED_SIZE + 5))
    slab.reserve(SHARED_SIZE - 100, 105)
    slab.write(b"y" * 105, SHARED_SIZE - 100)
    slab.retire()
    slab.leave()
    assert path.stat().st_size == SHARED_SIZE + 5
    assert path.stat().st_blocks * 512 < 1 << 20


def test_a_retired_slab_stays_open_until_its_last_user_leaves(tmp_path: Path) -> None:
    handle = made(DataDir(tmp_path))
    slab = entered(handle)
    slab.retire()
    assert not slab.enter()
    os.fstat(handle.data_fd)
    slab.leave()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle.data_fd)


def test_a_slab_with_a_living_writer_is_not_reopened(tmp_path: Path) -> None:
    layout = DataDir(tmp_path)
    path = layout.slab(SlabKind.FILE, 1, 1)
    slab = entered(made(layout, kind=SlabKind.FILE, size=100))
    assert reopen_slab(path, 1, SlabKind.FILE, 100) is None
    slab.retire()
    slab.leave()
    again = reopen_slab(path, 1, SlabKind.FILE, 100)
    assert again is not None
    os.close(again.data_fd)
    os.close(again.sidecar_fd)


def test_half_a_sidecar_record_is_cut_off_before_a_slab_is_continued(tmp_path: Path) -> None:
    layout = DataDir(tmp_path)
    path = layout.slab(SlabKind.FILE, 1, 1)
    slab = entered(made(layout, kind=SlabKind.FILE, size=100))
    extents = [Extent(1, n, 1, ChunkId(bytes([n]) * 32)) for n in range(3)]
    slab.append_sidecar(extents[:2])
    slab.retire()
    slab.leave()
    side = path.with_suffix(".side")
    os.truncate(side, side.stat().st_size - 5)
    handle = reopen_slab(path, 1, SlabKind.FILE, 100)
    assert handle is not None
    slab = entered(handle)
    slab.append_sidecar(extents[2:])
    assert slab.listed() == [extents[0], extents[2]]
    slab.retire()
    slab.leave()


def test_the_reserve_of_a_killed_writer_is_given_back_and_a_living_ones_is_not(tmp_path: Path) -> None:
    layout = DataDir(tmp_path)
    handles = [made(layout, number) for number in (1, 2)]
    for handle in handles:
        slab = entered(handle)
        slab.reserve(0, 5000)
        slab.append_sidecar([Extent(handle.slab, 0, 5000, ChunkId(bytes(31) + b"1"))])
    os.close(handles[0].data_fd)  # as the kernel does for a process that dies
    os.close(handles[0].sidecar_fd)
    trim(layout)
    sizes = [layout.slab(SlabKind.SHARED, 1, number).stat().st_size for number in (1, 2)]
    assert sizes == [5000, FIRST_RESERVE]
    slab.retire()
    slab.leave()


@pytest.mark.parametrize("damaged", [0, HEADER_SIZE + 5], ids=["header", "record"])
def test_nothing_is_cut_off_a_slab_whose_sidecar_is_damaged(tmp_path: Path, damaged: int) -> None:
    layout = DataDir(tmp_path)
    handle = made(layout)
    slab = entered(handle)
    slab.reserve(0, 5000)
    slab.append_sidecar([Extent(1, 0, 5000, ChunkId(bytes(31) + b"1"))])
    with layout.slab(SlabKind.SHARED, 1, 1).with_suffix(".side").open("r+b") as side:
        side.seek(damaged)
        side.write(b"?")
    os.close(handle.data_fd)
    os.close(handle.sidecar_fd)
    trim(layout)
    path = layout.slab(SlabKind.SHARED, 1, 1)
    assert path.stat().st_size == FIRST_RESERVE
    if not damaged:
        assert reopen_slab(path, 1, SlabKind.SHARED, 0) is None


def test_no_more_slabs_are_open_than_allowed_and_a_referenced_one_stays_readable(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 10)
    before = len(os.listdir("/proc/self/fd"))
    slabs = SlabFiles(lambda slab: tmp_path / str(slab), limit=3)
    held = slabs.get(0)
    for number in range(10):
        into = bytearray(4)
        slabs.get(number).read(2, memoryview(into))
        assert into == bytes([number]) * 4
    assert len(os.listdir("/proc/self/fd")) == before + 4
    into = bytearray(4)
    held.read(0, memoryview(into))
    slabs.close()
    del held
    assert len(os.listdir("/proc/self/fd")) == before


def test_where_no_descriptor_is_left_the_slabs_that_are_open_make_room(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).write_bytes(bytes([number]))
    slabs, limits = SlabFiles(lambda slab: tmp_path / str(slab)), resource.getrlimit(resource.RLIMIT_NOFILE)
    free = SlabFile(tmp_path / "0").fd  # closed by now: the lowest number that is free
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 8, limits[1]))
    try:
        read = []
        for number in range(20):
            into = bytearray(1)
            slabs.get(number).read(0, memoryview(into))
            read.append(into[0])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        slabs.close()
    assert read == list(range(20))


def test_a_slab_that_is_too_short_or_gone_means_damaged_chunks(tmp_path: Path) -> None:
    (tmp_path / "1").write_bytes(b"x" * 10)
    slabs = SlabFiles(lambda slab: tmp_path / str(slab))
    with pytest.raises(ChunkCorrupt):
        slabs.get(1).read(5, memoryview(bytearray(6)))
    with pytest.raises(ChunkCorrupt):
        slabs.get(2)
    slabs.close()


def test_opening_a_slab_that_is_not_there_leaves_nothing_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        SlabFile(tmp_path / "none")
    assert len(os.listdir("/proc/self/fd")) == before
