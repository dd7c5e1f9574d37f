"""A mounted snapshot is the published tree, for every way to look at it."""

import ctypes
import errno
import fcntl
import mmap
import os
import random
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hoard_p2p.testing.mountfakes import Shop, mounted, publish_folder

pytestmark = [pytest.mark.root, pytest.mark.fuse]

MIB = 1 << 20
NAMES = [
    b"-rf", b" lead", b"trail ", b"tab\there", b"new\nline", b"quote\"'`", b"back\\slash", b"*?[x]", b"...", b".hidden",
    b"caf\xe9-latin1", b"\xff\xfe", "e\u0301".encode(), b"Case", b"case", b"x" * 255, b"\x01\x7f",
]  # fmt: skip
SIZES = [0, 1, 4, 511, 4095, 4096, 4097, 131_073, MIB - 1, MIB, MIB + 1, 4 * MIB + 7, 9 * MIB + 4097]
TIMES = {
    "before-1970": -1_234_567_890_123_456_789,
    "after-2038": 4_102_444_800_000_000_001,
    "epoch-minus": -1,
    "zero": 0,
}


def _fill(source: Path) -> None:
    rng = random.Random(3)
    (source / "sizes").mkdir()
    for size in SIZES:
        (source / "sizes" / str(size)).write_bytes(rng.randbytes(size))
    (source / "names").mkdir()
    for name in NAMES:
        (source / "names" / os.fsdecode(name)).write_bytes(name)
    (source / "links").mkdir()
    (source / "links" / "soft").symlink_to("../sizes/4")
    (source / "links" / "dangling").symlink_to("no/such/" + "x" * 200)
    (source / "links" / "hard").hardlink_to(source / "sizes" / "4096")
    (source / "deep").mkdir()
    (source / "deep" / "er").mkdir(mode=0o711)
    (source / "deep" / "er" / "tool").write_text("#!/bin/sh\n")
    (source / "deep" / "er" / "tool").chmod(0o4755)
    os.setxattr(source / "deep" / "er" / "tool", "user.label", b"\0binary\xff")
    os.setxattr(source / "deep" / "er" / "tool", "user.empty", b"")
    (source / "times").mkdir()
    for moment_name, moment in TIMES.items():
        (source / "times" / moment_name).write_text(moment_name)
        os.utime(source / "times" / moment_name, ns=(0, moment))
    (source / "sparse").mkdir()
    with (source / "sparse" / "mid").open("wb") as file:
        file.truncate(5 * MIB)
        file.seek(2 * MIB)
        file.write(b"X" * 65536)
    with (source / "sparse" / "all").open("wb") as file:
        file.truncate(3 * MIB + 5)
    (source / "many").mkdir()
    (source / "many" / "first").write_bytes(b"one file, many names: they are quicker to make")
    for number in range(5000):
        (source / "many" / f"{number:05d}{'n' * (number % 90)}").hardlink_to(source / "many" / "first")


@pytest.fixture(scope="module")
def tree() -> Iterator[tuple[Path, Path]]:
    """The source and its mount."""
    with tempfile.TemporaryDirectory(prefix="t-") as name:
        folder = Path(name)
        source, mountpoint = folder / "source", folder / "mount"
        source.mkdir()
        mountpoint.mkdir()
        _fill(source)
        shop = Shop(folder / "shop")
        publish_folder(source, shop)
        with mounted(shop, mountpoint):
            yield source, mountpoint


def _scan(root: Path) -> dict[bytes, tuple[object, ...]]:
    """Everything that can be seen, by path."""
    seen: dict[bytes, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in [*folders, *files]:
            path = os.path.join(folder, name)
            seen[os.path.relpath(path, os.fsencode(root))] = _look(path)
    return seen


def _look(path: bytes) -> tuple[object, ...]:
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return ("link", os.readlink(path))
    attributes = {name: os.getxattr(path, name) for name in os.listxattr(path) if name.startswith("user.")}
    if stat.S_ISDIR(status.st_mode):
        return ("folder", stat.S_IMODE(status.st_mode), status.st_mtime_ns, attributes)
    content = Path(os.fsdecode(path)).read_bytes()
    return (
        "file",
        stat.S_IMODE(status.st_mode),
        status.st_mtime_ns,
        status.st_size,
        status.st_nlink,
        attributes,
        content,
    )


def test_names_bytes_modes_times_links_and_attributes_are_equal(tree: tuple[Path, Path]) -> None:
    source, mount = tree
    assert _scan(mount) == _scan(source)


def test_hard_links_have_one_inode_number_in_stat_and_in_listings(tree: tuple[Path, Path]) -> None:
    _, mount = tree
    number = (mount / "sizes" / "4096").stat().st_ino
    assert (mount / "links" / "hard").stat().st_ino == number
    assert {entry.name: entry.inode() for entry in os.scandir(mount / "links")}["hard"] == number


def test_reads_at_any_offset_equal_the_source(tree: tuple[Path, Path]) -> None:
    source, mount = tree
    rng = random.Random(5)
    for size in SIZES:
        expected = (source / "sizes" / str(size)).read_bytes()
        file = os.open(mount / "sizes" / str(size), os.O_RDONLY)
        spans = [(0, 0), (size, 1), (size + 1, 100), (size + (1 << 40), 10), (max(0, size - 1), 4096), (0, size + 99)]
        spans += [(rng.randrange(size + 1), rng.choice([1, 511, 4096, 131_073, MIB])) for _ in range(20)]
        assert all(os.pread(file, length, offset) == expected[offset : offset + length] for offset, length in spans)
        os.close(file)


def test_maps_direct_reads_and_sendfile_equal_the_source(tree: tuple[Path, Path]) -> None:
    source, mount = tree
    for size in SIZES[1:]:
        expected = (source / "sizes" / str(size)).read_bytes()
        with (mount / "sizes" / str(size)).open("rb") as file, tempfile.TemporaryFile() as copy:
            with closing(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)) as mapped:
                assert mapped[:] == expected
            while os.sendfile(copy.fileno(), file.fileno(), None, size):  # copy_file_range: EXDEV between file systems
                pass
            copy.seek(0)
            assert copy.read() == expected
        direct = os.open(mount / "sizes" / str(size), os.O_RDONLY | os.O_DIRECT)
        with closing(mmap.mmap(-1, 2 * MIB)) as buffer:
            got = os.preadv(direct, [buffer], 0)
            assert buffer[:got] == expected[: 2 * MIB]
        os.close(direct)


def test_holes_can_be_sought_and_take_no_blocks(tree: tuple[Path, Path]) -> None:
    _, mount = tree
    file = os.open(mount / "sparse" / "mid", os.O_RDONLY)
    assert os.lseek(file, 0, os.SEEK_DATA) == 2 * MIB
    assert os.lseek(file, 2 * MIB, os.SEEK_HOLE) == 2 * MIB + 65536
    assert os.lseek(file, 0, os.SEEK_HOLE) == 0
    for offset in (2 * MIB + 65536, 5 * MIB):
        with pytest.raises(OSError) as caught:
            os.lseek(file, offset, os.SEEK_DATA)
        assert caught.value.errno == errno.ENXIO
    assert os.fstat(file).st_blocks == 65536 // 512
    os.close(file)
    assert (mount / "sparse" / "all").stat().st_blocks == 0


def test_every_mutating_call_is_refused_as_read_only(tree: tuple[Path, Path]) -> None:
    _, mount = tree
    file, folder = mount / "sizes" / "4", mount / "names"
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: os.open(mount / "new", os.O_CREAT | os.O_WRONLY),
        "write": lambda: os.open(file, os.O_WRONLY),
        "read and write": lambda: os.open(file, os.O_RDWR),
        "truncating open": lambda: os.open(file, os.O_WRONLY | os.O_TRUNC),
        "nameless file": lambda: os.open(mount, os.O_TMPFILE | os.O_RDWR),
        "truncate": lambda: os.truncate(file, 0),
        "mkdir": (mount / "new").mkdir,
        "rmdir": folder.rmdir,
        "unlink": file.unlink,
        "rename": lambda: file.rename(mount / "other"),
        "link": lambda: (mount / "hard").hardlink_to(file),
        "symlink": lambda: (mount / "soft").symlink_to("x"),
        "mkfifo": lambda: os.mkfifo(mount / "fifo"),
        "chmod": lambda: file.chmod(0o600),
        "chown": lambda: os.chown(file, 1, 1),
        "utime": lambda: os.utime(file, (0, 0)),
        "setxattr": lambda: os.setxattr(file, "user.z", b"1"),
        "removexattr": lambda: os.removexattr(mount / "deep" / "er" / "tool", "user.label"),
    }
    answers = {}
    for name, call in calls.items():
        with pytest.raises(OSError) as caught:
            call()
        answers[name] = errno.errorcode[caught.value.errno or 0]
    assert answers == dict.fromkeys(calls, "EROFS")


def test_locks_sync_and_statfs_work_on_a_reader(tree: tuple[Path, Path]) -> None:
    _, mount = tree
    with (mount / "sizes" / "4").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.fsync(file.fileno())
    shown = os.statvfs(mount)
    assert shown.f_flag & os.ST_RDONLY
    assert (shown.f_namemax, shown.f_bfree, shown.f_ffree) == (255, 0, 0)
    assert not os.access(mount / "sizes" / "4", os.W_OK)


def test_attribute_sizes_are_probed_and_absent_ones_named(tree: tuple[Path, Path]) -> None:
    _, mount = tree
    tool = mount / "deep" / "er" / "tool"
    assert (os.getxattr(tool, "user.label"), os.getxattr(tool, "user.empty")) == (b"\0binary\xff", b"")
    assert os.listxattr(mount / "sizes" / "4") == []
    with pytest.raises(OSError) as caught:
        os.getxattr(tool, "user.absent")
    assert caught.value.errno == errno.ENODATA


class _Entries:
    """opendir(3) and friends, which Python does not offer."""

    def __init__(self, path: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.opendir.restype = self._libc.readdir.restype = ctypes.c_void_p
        self._libc.telldir.restype = ctypes.c_long
        self._libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
        self._folder = ctypes.c_void_p(self._libc.opendir(os.fsencode(path)))

    def next(self) -> bytes | None:
        entry = self._libc.readdir(self._folder)
        return ctypes.string_at(entry + 19) if entry else None  # struct dirent: d_name is at 19

    def tell(self) -> int:
        return int(self._libc.telldir(self._folder))

    def seek(self, place: int) -> None:
        self._libc.seekdir(self._folder, place)

    def close(self) -> None:
        self._libc.closedir(self._folder)


def test_a_folder_of_five_thousand_entries_is_complete_and_can_be_resumed_anywhere(tree: tuple[Path, Path]) -> None:
    source, mount = tree
    names: list[bytes] = []
    places: list[int] = []
    with closing(_Entries(mount / "many")) as entries:
        places.append(entries.tell())
        while name := entries.next():
            names.append(name)
            places.append(entries.tell())
        assert sorted(names[2:]) == sorted(os.listdir(os.fsencode(source / "many")))
        for index in range(0, len(names), 97):
            entries.seek(places[index])
            assert entries.next() == names[index]


def test_an_absent_name_is_absent_every_time(tree: tuple[Path, Path]) -> None:
    _, mount = tree
    assert [(mount / "sizes" / "absent").exists() for _ in range(3)] == [False] * 3
    with pytest.raises(NotADirectoryError):
        (mount / "sizes" / "4" / "x").read_bytes()
