"""A folder of 20,000 entries: listed by many at once, resumed anywhere, before and after the first look-ups."""

import ctypes
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE
from typing import NamedTuple

import pytest

from hoard_p2p.testing.mountfakes import Shop, mounted, publish_folder

pytestmark = [pytest.mark.root, pytest.mark.fuse]

COUNT = 20_000
NAMES = [f"entry-{number:05d}{'x' * (number % 7)}" for number in range(COUNT)]
_SYS_GETDENTS64 = {"x86_64": 217, "aarch64": 61}
_libc = ctypes.CDLL(None, use_errno=True)


class Listed(NamedTuple):
    """One `struct linux_dirent64` (getdents64(2)). `off`: where the listing goes on behind it."""

    ino: int
    off: int
    name: str


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    source = tmp_path_factory.mktemp("s")
    for name in NAMES:
        (source / name).touch()
    shop = Shop(tmp_path_factory.mktemp("shop"))
    publish_folder(source, shop)
    return shop


@pytest.fixture
def mountpoint(huge: Shop, new_directory: Callable[[str], Path]) -> Iterator[Path]:
    point = new_directory("m")
    with mounted(huge, point, workers=2):
        yield point


def _some(fd: int, room: int) -> list[Listed]:
    """The next entries of an open folder, in at most `room` bytes; empty at its end."""
    buffer = ctypes.create_string_buffer(room)
    length = _libc.syscall(_SYS_GETDENTS64[os.uname().machine], fd, buffer, room)
    assert length >= 0, os.strerror(ctypes.get_errno())
    found, at = [], 0
    while at < length:
        ino, off, size, _ = struct.unpack_from("<QqHB", buffer, at)
        name = buffer.raw[at + 19 : at + size].partition(b"\0")[0].decode()
        found.append(Listed(ino, off, name))
        at += size
    return found


def _all(folder: Path, room: int) -> list[Listed]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = []
        while some := _some(fd, room):
            found += some
    finally:
        os.close(fd)
    return found


def _look_up(folder: Path) -> None:
    for name in NAMES[:: COUNT // 100]:
        os.stat(folder / name)


def test_every_entry_comes_once_in_any_buffer_before_and_after_files_are_looked_up(mountpoint: Path) -> None:
    first = _all(mountpoint, 32 << 10)
    assert [entry.name for entry in first] == [".", "..", *NAMES]
    for room in (600, 1 << 20):
        assert _all(mountpoint, room) == first
    _look_up(mountpoint)
    for room in (600, 32 << 10, 1 << 20):  # attributes come along now, then the kernel answers alone
        assert _all(mountpoint, room) == first
    assert [os.stat(mountpoint / entry.name).st_ino for entry in first[2::997]] == [e.ino for e in first[2::997]]


def test_a_listing_is_resumed_at_any_offset_by_another_reader_also_across_the_first_look_ups(mountpoint: Path) -> None:
    before = os.open(mountpoint, os.O_RDONLY)
    everything = _some(before, 64 << 10)
    _look_up(mountpoint)
    while some := _some(before, 64 << 10):
        everything += some
    os.close(before)
    assert [entry.name for entry in everything] == [".", "..", *NAMES]
    for at in (0, 1, 700, 12_345, COUNT, COUNT + 1):
        fd = os.open(mountpoint, os.O_RDONLY)
        os.lseek(fd, everything[at].off, os.SEEK_SET)
        assert _some(fd, 4096)[:5] == everything[at + 1 : at + 6]
        os.close(fd)


def test_many_who_list_at_once_see_the_same(mountpoint: Path) -> None:
    kinds = (["-type", "f"], ["-type", "f", "-size", "0"])
    command = ["find", os.fspath(mountpoint), "-printf", "%f\\n"]
    with ExitStack() as stack:
        readers = [
            stack.enter_context(subprocess.Popen([*command[:2], *kinds[at % 2], *command[2:]], stdout=PIPE, text=True))
            for at in range(6)
        ]
        for reader in readers:
            told, _ = reader.communicate(timeout=60)
            assert sorted(told.split()) == NAMES


def test_once_files_are_looked_up_a_listing_brings_attributes_and_the_kernel_asks_nothing_any_more(
    huge: Shop, new_directory: Callable[[str], Path]
) -> None:
    point = new_directory("m")
    with mounted(huge, point, workers=1) as mount, mount.memory() as shared:

        def asked(work: Callable[[], object]) -> int:
            """Requests that the mount's worker got meanwhile."""
            before = shared.slot(0).served
            work()
            return shared.slot(0).served - before

        _all(point, 1 << 20)
        assert not shared.stats
        _look_up(point)
        assert shared.stats
        _all(point, 1 << 20)  # the kernel keeps this one, with every file's attributes
        assert asked(lambda: [_all(point, 1 << 20), [os.stat(point / name) for name in NAMES[::7]]]) <= 2
