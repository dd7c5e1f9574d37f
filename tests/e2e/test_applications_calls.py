"""System calls on a mounted snapshot answer what they answer on a local read-only disk."""

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import random
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.disks import Disks, answer, two_disks
from tests.system import IO_KINDS, make_tree

pytestmark = [pytest.mark.root, pytest.mark.fuse, pytest.mark.timeout(180)]

MIB = 1 << 20
SHARD = 12 * MIB
TAIL = 9 * MIB + 777
ENTRIES = 3000
LONGEST = 255
DEEP = 15
"""Directories with names of 255 bytes inside each other; a path may have 4095 bytes."""
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def opened(path: str | Path, flags: int = os.O_RDONLY, dir_fd: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, flags, dir_fd=dir_fd)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def libc(name: str, *arguments: object) -> int:
    """A function of the C library. Raises OSError where it returns -1."""
    value = int(getattr(_libc, name)(*arguments))
    if value == -1:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return value


def _fill(source: Path) -> None:
    make_tree(source / "tree", files=80, large=SHARD)
    (source / "tail").write_bytes(random.Random(4).randbytes(TAIL))
    (source / "many").mkdir()
    for number in range(ENTRIES):
        (source / "many" / f"{number}{'n' * (number % 200)}").touch()
    with opened(source, os.O_RDONLY | os.O_DIRECTORY) as top:
        folder = os.dup(top)
        for _ in range(DEEP):
            os.mkdir("d" * LONGEST, dir_fd=folder)
            inner = os.open("d" * LONGEST, os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
            os.close(folder)
            folder = inner
        with opened("f" * LONGEST, os.O_WRONLY | os.O_CREAT, dir_fd=folder) as file:
            os.write(file, b"at the bottom")
        os.close(folder)


@pytest.fixture(scope="module", params=IO_KINDS)
def disks(request: pytest.FixtureRequest) -> Iterator[Disks]:
    with two_disks(_fill, request.param, large="tail") as made:
        yield made


# --- opening


OPENS: dict[str, tuple[str, int]] = {
    "for writing": ("tail", os.O_WRONLY),
    "for both": ("tail", os.O_RDWR),
    "for appending": ("tail", os.O_WRONLY | os.O_APPEND),
    "truncating": ("tail", os.O_RDONLY | os.O_TRUNC),
    "creating what is there": ("tail", os.O_RDONLY | os.O_CREAT),
    "creating alone": ("tail", os.O_RDONLY | os.O_CREAT | os.O_EXCL),
    "creating": ("new", os.O_RDWR | os.O_CREAT),
    "creating in what is absent": ("new/new", os.O_RDWR | os.O_CREAT),
    "nameless": ("many", os.O_RDWR | os.O_TMPFILE),
    "absent": ("new", os.O_RDONLY),
    "below a file": ("tail/x", os.O_RDONLY),
    "a file as directory": ("tail", os.O_RDONLY | os.O_DIRECTORY),
    "a directory for writing": ("many", os.O_RDWR),
    "a link itself": ("tree/good", os.O_RDONLY | os.O_NOFOLLOW),
    "a link's target": ("tree/good", os.O_RDWR),
    "a broken link": ("tree/deep/broken", os.O_RDONLY),
    "no access time": ("tail", os.O_RDONLY | os.O_NOATIME),
    "as a path": ("tail", os.O_PATH),
    "synchronous": ("tail", os.O_RDONLY | os.O_SYNC | os.O_NONBLOCK),
    "name too long": ("n" * 256, os.O_RDONLY),
    "with a slash": ("tail/", os.O_RDONLY),
    "empty": ("", os.O_RDONLY),
}


def test_opens_are_granted_and_refused_alike(disks: Disks) -> None:
    def opens(disk: Path) -> dict[str, object]:
        seen: dict[str, object] = {}
        with opened(disk, os.O_RDONLY | os.O_DIRECTORY) as top:
            for name, (path, flags) in OPENS.items():
                descriptor = answer(lambda path=path, flags=flags: os.open(path, flags, 0o600, dir_fd=top))  # type: ignore[misc]  # bound now
                if isinstance(descriptor, int):
                    os.close(descriptor)
                seen[name] = descriptor if isinstance(descriptor, str) else "open"
        return seen

    seen = disks.same(opens)
    assert (seen["for both"], seen["creating"], seen["creating what is there"]) == ("EROFS", "EROFS", "open")


def test_writing_calls_on_a_reader_are_refused_alike(disks: Disks) -> None:
    def tries(disk: Path) -> dict[str, object]:
        with opened(disk / "tail") as file, opened(disk / "many", os.O_DIRECTORY) as folder:
            attempts: dict[str, Callable[[], object]] = {
                "write": lambda: os.write(file, b"x"),
                "ftruncate": lambda: os.ftruncate(file, 1),
                "fallocate": lambda: os.posix_fallocate(file, 0, 1),
                "fchmod": lambda: os.fchmod(file, 0o777),
                "fchown": lambda: os.fchown(file, 1, 1),
                "futimens": lambda: os.utime(file),
                "fsetxattr": lambda: os.setxattr(file, "user.x", b"1"),
                "fsync": lambda: os.fsync(file),
                "fdatasync": lambda: os.fdatasync(file),
                "fsync of a directory": lambda: os.fsync(folder),
                "read of a directory": lambda: os.read(folder, 10),
                "negative offset": lambda: os.pread(file, 1, -1),
                "linkat": lambda: os.link("0", "new", src_dir_fd=folder, dst_dir_fd=folder),
                "access for writing": lambda: os.access(f"/proc/self/fd/{file}", os.W_OK),
                "access for executing": lambda: os.access(f"/proc/self/fd/{file}", os.X_OK),
                "select": lambda: [len(ready) for ready in select.select([file], [file], [], 0)],
                "sync_file_range": lambda: libc("sync_file_range", file, ctypes.c_long(0), ctypes.c_long(0), 2),
                "syncfs": lambda: libc("syncfs", file),
            }
            return {name: answer(attempt) for name, attempt in attempts.items()}

    assert disks.same(tries)["futimens"] == "EROFS"


# --- locks


def _flock(kind: int) -> bytes:
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0)


def _locks(file: int, other: int) -> dict[str, object]:
    attempts: dict[str, Callable[[], object]] = {
        "shared": lambda: fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB),
        "shared with it": lambda: fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB),
        "exclusive against it": lambda: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB),
        "given up": lambda: fcntl.flock(file, fcntl.LOCK_UN),
        "exclusive": lambda: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB),
        "shared against it": lambda: fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB),
        "record shared": lambda: fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 10),
        "record exclusive": lambda: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10),
        "description's": lambda: fcntl.fcntl(file, fcntl.F_OFD_SETLK, _flock(fcntl.F_RDLCK))[:2],
        "who has it": lambda: fcntl.fcntl(other, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK))[:2],
    }
    return {name: answer(attempt) for name, attempt in attempts.items()}


def test_locks_are_granted_and_refused_alike(disks: Disks) -> None:
    def locks(disk: Path) -> dict[str, object]:
        with opened(disk / "tail") as file, opened(disk / "tail") as other:
            return _locks(file, other)

    seen = disks.same(locks)
    assert (seen["shared with it"], seen["exclusive against it"], seen["exclusive"]) == (None, "EAGAIN", None)
    assert (seen["record shared"], seen["record exclusive"]) == (None, "EBADF")


def test_a_lock_ends_with_its_process(disks: Disks) -> None:
    holder = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, disks.mount / "tail"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process, opened(disks.mount / "tail") as file:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        assert answer(lambda: fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)) == "EAGAIN"
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        fcntl.flock(file, fcntl.LOCK_EX)


# --- maps


def test_maps_show_the_file_and_zeros_behind_it(disks: Disks) -> None:
    def looks(disk: Path) -> list[object]:
        seen: list[object] = []
        with opened(disk / "tail") as file:
            for flags, protection in (
                (mmap.MAP_SHARED, mmap.PROT_READ), (mmap.MAP_PRIVATE, mmap.PROT_READ),
                (mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE),
                (mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC),
                (mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ),
            ):  # fmt: skip
                with closing(mmap.mmap(file, TAIL, flags=flags, prot=protection)) as view:
                    view.madvise(mmap.MADV_WILLNEED)
                    if protection & mmap.PROT_WRITE:
                        view[5:9] = b"mine"
                    seen.append(hashlib.sha256(view).hexdigest())
                    view.madvise(mmap.MADV_DONTNEED)
                    seen.append(hashlib.sha256(view).hexdigest())
            seen.append(answer(lambda: mmap.mmap(file, 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_WRITE)))
        return seen

    assert "EACCES" in disks.same(looks)


MAPPED = """
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
file = os.open(sys.argv[1], os.O_RDONLY)
size = os.fstat(file).st_size
end = -(-size // 4096) * 4096
at = libc.mmap(None, end + 4096, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
os.close(file)
print(libc.mlock(ctypes.c_void_p(at), 4096), ctypes.string_at(at + size, end - size).strip(b"\\0"), flush=True)
if os.fork() == 0:
    os._exit(ctypes.string_at(at + size - 1, 1)[0])
print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
ctypes.string_at(at + end, 1)
"""


def test_a_map_past_the_last_page_is_a_bus_error(disks: Disks) -> None:
    def maps(disk: Path) -> tuple[int, bytes]:
        done = subprocess.run(
            [sys.executable, "-c", MAPPED, disk / "tail"], capture_output=True, check=False, timeout=30
        )
        return done.returncode, done.stdout

    status, _ = disks.same(maps)
    assert status == -signal.SIGBUS


# --- moving bytes inside the kernel


def _sent(file: int, target: int) -> None:
    while os.sendfile(target, file, None, MIB):
        pass


def _copied(file: int, target: int) -> None:
    """As cp does it: between file systems of two kinds the kernel may not want to."""
    try:
        while os.copy_file_range(file, target, MIB):
            pass
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EOPNOTSUPP):
            raise
        _sent(file, target)


def _spliced(file: int, target: int) -> None:
    out, into = os.pipe()
    try:
        while count := os.splice(file, into, MIB):
            while count:
                count -= os.splice(out, target, count)
    finally:
        os.close(out)
        os.close(into)


@pytest.mark.parametrize("move", [_sent, _copied, _spliced], ids=["sendfile", "copy_file_range", "splice"])
def test_bytes_move_inside_the_kernel(disks: Disks, move: Callable[[int, int], None]) -> None:
    for name in ("tail", "tree/shard", "tree/deep/0001.bin"):
        target = disks.fresh() / "copy"
        with opened(disks.mount / name) as file, opened(target, os.O_RDWR | os.O_CREAT) as copy:
            move(file, copy)
        assert target.read_bytes() == (disks.local / name).read_bytes()


def test_sendfile_to_a_socket_from_any_offset(disks: Disks) -> None:
    import socket

    expected = (disks.local / "tail").read_bytes()
    for offset in (0, 1, 4095, 70_000, TAIL - 100, TAIL):
        ours, theirs = socket.socketpair()
        with ours, theirs, opened(disks.mount / "tail") as file:
            count = os.sendfile(ours.fileno(), file, offset, 50_000)
            ours.close()
            assert theirs.makefile("rb").read() == expected[offset : offset + count]
            assert count == min(50_000, TAIL - offset)


def test_advice_is_taken_and_changes_no_bytes(disks: Disks) -> None:
    def advises(disk: Path) -> list[object]:
        with opened(disk / "tail") as file:
            seen: list[object] = [answer(partial(os.posix_fadvise, file, 0, 0, advice)) for advice in range(6)]
            seen.append(answer(lambda: libc("readahead", file, ctypes.c_long(MIB), ctypes.c_size_t(2 * MIB))))
            for advice in (os.POSIX_FADV_RANDOM, os.POSIX_FADV_SEQUENTIAL, os.POSIX_FADV_NOREUSE):
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.posix_fadvise(file, 0, 0, advice)
                seen.append(hashlib.sha256(os.pread(file, TAIL, 0)).hexdigest())
        return seen

    assert disks.same(advises)[:7] == [None] * 6 + [0]


# --- reading


def test_direct_reads_end_where_the_file_ends(disks: Disks) -> None:
    def reads(disk: Path) -> list[object]:
        seen: list[object] = []
        for name in ("tail", "tree/deep/0001.bin", "tree/deep/0002.bin", "tree/deep/0003.bin", "tree/sparse"):
            with opened(disk / name, os.O_RDONLY | os.O_DIRECT) as file, closing(mmap.mmap(-1, MIB)) as buffer:
                size = os.fstat(file).st_size
                last = size // 4096 * 4096
                for offset in {0, last, max(0, last - 4096), last + 4096, last // 8192 * 4096}:
                    for length in (4096, 65536, MIB):
                        got = os.preadv(file, [memoryview(buffer)[:length]], offset)
                        seen.append((name, offset, length, got, hashlib.sha256(buffer[:got]).hexdigest()))
        return sorted(seen, key=repr)

    disks.same(reads)


def test_reads_past_the_end_in_vectors_and_by_seeking(disks: Disks) -> None:
    def reads(disk: Path) -> list[object]:
        with opened(disk / "tail") as file:
            small = [bytearray(n) for n in (1, 0, 4096, 100_000, 3)]
            return [
                [os.pread(file, length, at) for at in (TAIL - 1, TAIL, TAIL + 1, 1 << 40) for length in (0, 1, 9)],
                os.preadv(file, small, TAIL - 50_000), [bytes(part) for part in small],
                os.lseek(file, -10, os.SEEK_END), os.read(file, 100), os.read(file, 100),
                os.lseek(file, 0, os.SEEK_CUR),
                answer(lambda: os.lseek(file, -1, os.SEEK_SET)), answer(lambda: os.lseek(file, TAIL, os.SEEK_DATA)),
            ]  # fmt: skip

    disks.same(reads)


def test_a_hundred_threads_read_at_random(disks: Disks) -> None:
    expected = (disks.local / "tree" / "shard").read_bytes()

    def reads(seed: int) -> int:
        rng, wrong = random.Random(seed), 0
        with opened(disks.mount / "tree" / "shard") as file:
            for _ in range(12):
                offset, length = rng.randrange(SHARD), rng.choice((1, 4096, 70_000))
                wrong += os.pread(file, length, offset) != expected[offset : offset + length]
                if rng.random() < 0.1:
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        return wrong

    with ThreadPoolExecutor(100) as threads:
        assert sum(threads.map(reads, range(100))) == 0


def _data(path: Path) -> list[tuple[int, int]]:
    """The spans of a file that are not holes."""
    spans, end = [], 0
    with opened(path) as file, suppress(OSError):  # ENXIO: no data behind `end`
        while True:
            start = os.lseek(file, end, os.SEEK_DATA)
            end = os.lseek(file, start, os.SEEK_HOLE)
            spans.append((start, end))
    return spans


def test_holes_are_where_they_were(disks: Disks) -> None:
    disks.same(lambda disk: [_data(disk / name) for name in ("tail", "tree/shard", "tree/deep/0000.bin")])
    (local,), (mounted,) = _data(disks.local / "tree" / "sparse"), _data(disks.mount / "tree" / "sparse")
    assert mounted[0] <= local[0] < local[1] <= mounted[1], "a hole that is shown has nothing in it"
    assert mounted[1] - mounted[0] <= 65536, "and small holes alone are not shown"


# --- what is known about files


def _statx(path: Path, flags: int) -> tuple[object, ...]:
    """Link count, owner, group, mode, size, and modification time, of linux/stat.h's struct statx, and what was asked
    for and is missing."""
    wanted, buffer = 0x7FF, ctypes.create_string_buffer(256)
    libc("statx", -100, os.fsencode(path), flags, wanted, buffer)
    mask, _, _, links, owner, group, mode, _, size = struct.unpack_from("<IIQIIIHHxxxxxxxxQ", buffer)
    return wanted & ~mask, links, owner, group, mode, size, buffer.raw[0x70:0x7C]


def test_statx_says_the_same(disks: Disks) -> None:
    names = ("tail", "tree/shard", "tree/deep/again", "tree/deep/0003.bin", "tree/deep/0004.bin", "tree/deep/0001.bin")
    ways = (0, 0x100, 0x2000, 0x4000)  # follow, do not, ask the server, do not
    disks.same(lambda disk: [_statx(disk / name, flags) for name in names for flags in ways])


def test_a_watch_sees_what_readers_do(disks: Disks) -> None:
    def watches(disk: Path) -> list[tuple[int, bytes]]:
        watch = libc("inotify_init1", os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            libc("inotify_add_watch", watch, os.fsencode(disk / "tree" / "deep"), 0xFFF)
            (disk / "tree" / "deep" / "0002.bin").read_bytes()
            os.listdir(disk / "tree" / "deep")
            with suppress(OSError):
                (disk / "tree" / "deep" / "new").touch()
            return _events(os.read(watch, 65536))
        finally:
            os.close(watch)

    assert disks.same(watches)


def _events(content: bytes) -> list[tuple[int, bytes]]:
    events, at = [], 0
    while at < len(content):
        _, mask, _, length = struct.unpack_from("iIII", content, at)
        events.append((mask, content[at + 16 : at + 16 + length].rstrip(b"\0")))
        at += 16 + length
    return events


# --- handles, as an NFS server uses them


class _Handle(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint), ("kind", ctypes.c_int), ("bytes", ctypes.c_char * 128)]


def _handle(path: Path) -> _Handle:
    handle, mount = _Handle(size=128), ctypes.c_int()
    libc("name_to_handle_at", -100, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount), 0)
    return handle


def _forget_names(disk: Path) -> None:
    """Have the kernel drop the unused names and inodes of that file system alone: a remount does."""
    read_only, no_set_id, no_devices, again = 1, 2, 4, 32
    libc("mount", None, os.fsencode(disk), None, read_only | no_set_id | no_devices | again, None)


def test_files_are_opened_by_their_handles_also_when_the_kernel_has_forgotten_them(disks: Disks) -> None:
    names = ("tail", "tree/deep/0001.bin", "tree/shard", "many/7nnnnnnn", "/".join(["d" * LONGEST] * 5), "tree", "")
    handles = [_handle(disks.mount / name) for name in names]
    inodes = [(disks.mount / name).stat().st_ino for name in names]
    for _ in range(2):
        with opened(disks.mount, os.O_RDONLY | os.O_DIRECTORY) as top:
            files = [libc("open_by_handle_at", top, ctypes.byref(handle), os.O_RDONLY) for handle in handles]
        try:
            assert [os.fstat(file).st_ino for file in files] == inodes
            for name, file in zip(names[:3], files, strict=False):
                assert os.pread(file, SHARD, 0) == (disks.local / name).read_bytes()
            for name, file in zip(names[4:], files[4:], strict=True):
                assert sorted(os.listdir(file)) == sorted(os.listdir(disks.local / name))
                assert os.readlink(f"/proc/self/fd/{file}") == os.fspath(disks.mount / name).rstrip("/")
        finally:
            for file in files:
                os.close(file)
        _forget_names(disks.mount)


# --- names and directories


def test_names_and_paths_may_be_as_long_as_anywhere(disks: Disks) -> None:
    bottom = "/".join(["d" * LONGEST] * DEEP) + "/" + "f" * LONGEST
    assert len(bottom) == 4095

    def looks(disk: Path) -> list[object]:
        with opened(disk, os.O_RDONLY | os.O_DIRECTORY) as top:
            seen: list[object] = [
                answer(lambda path=path: os.stat(path, dir_fd=top).st_size)  # type: ignore[misc]  # bound now
                for path in (bottom, "./" + bottom, bottom + "x", "n" * 256)
            ]
            with opened(bottom, dir_fd=top) as file:
                seen.append(os.read(file, 100))
            seen.append(sorted(len(names) for _, names, _, _ in os.fwalk(".", dir_fd=top)))
        return seen

    assert disks.same(looks)[4] == b"at the bottom"


def _entries(folder: int, room: int = 4096) -> list[tuple[int, bytes, int]]:
    """The next entries as getdents64(2) has them: offset of the one behind, name, type."""
    buffer = ctypes.create_string_buffer(room)
    got = libc("getdents64", folder, buffer, ctypes.c_size_t(room))
    found, at = [], 0
    while at < got:
        _, offset, length, kind = struct.unpack_from("<QqHB", buffer.raw, at)
        name = buffer.raw[at + 19 : at + length].partition(b"\0")[0]
        found.append((offset, name, kind))
        at += length
    return found


def _all_entries(folder: int, room: int = 4096) -> list[tuple[int, bytes, int]]:
    found: list[tuple[int, bytes, int]] = []
    while part := _entries(folder, room):
        found += part
    return found


def test_a_listing_goes_on_at_a_saved_offset_in_another_descriptor(disks: Disks) -> None:
    def listed(disk: Path) -> tuple[set[bytes], int]:
        with opened(disk / "many", os.O_DIRECTORY) as folder:
            whole = _all_entries(folder)
            assert _entries(folder) == [], "the end stays the end"
        for place in range(0, len(whole) - 1, 211):
            with opened(disk / "many", os.O_DIRECTORY) as another:
                os.lseek(another, whole[place][0], os.SEEK_SET)
                assert _entries(another, 2048)[0] == whole[place + 1]
        return {name for _, name, _ in whole}, len(whole)

    names, count = disks.same(listed)
    assert len(names) == count == ENTRIES + 2


def test_a_listing_can_be_rewound_and_read_in_small_pieces(disks: Disks) -> None:
    def listed(disk: Path) -> list[object]:
        with opened(disk / "many", os.O_DIRECTORY) as folder:
            first = _entries(folder, 300)
            os.lseek(folder, 0, os.SEEK_SET)
            small = _all_entries(folder, 300)
            os.lseek(folder, 0, os.SEEK_SET)
            assert _all_entries(folder, 1 << 17) == small
            return [first == small[: len(first)], sorted((name, kind) for _, name, kind in small)]

    assert disks.same(listed)[0] is True


def test_listings_at_the_same_time_are_all_complete(disks: Disks) -> None:
    expected = sorted(os.listdir(disks.local / "many"))

    def lists(seed: int) -> bool:
        if seed % 3 == 0:
            return sorted(os.listdir(disks.mount / "many")) == expected
        with os.scandir(disks.mount / "many") as entries:
            return sorted(entry.name for entry in entries if entry.stat().st_size == 0) == expected

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lists, range(12)))
