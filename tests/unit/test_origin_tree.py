"""Directories as origins: what is listed, and which bytes are read."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from hoard_p2p.errors import ObjectChanged, OriginFailed, OriginRefused
from hoard_p2p.objects import Kind, Listed, ObjectRange
from hoard_p2p.origin.directory import DirectoryOrigin, Rights
from hoard_p2p.origin.settling import SETTLED, Settling
from hoard_p2p.origin.tree import OPEN_LEVELS, version_of

OLD = 1_000_000_000 * 10**9


def no_rest(_: float) -> None:
    return


def opened(path: Path, rights: Rights | None = None, rest: Callable[[float], None] = no_rest) -> DirectoryOrigin:
    return DirectoryOrigin(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY), rights, rest=rest)


def listed(origin: DirectoryOrigin) -> dict[bytes, Listed]:
    return {entry.path: entry for entry in origin.listing()}


def read(origin: DirectoryOrigin, entry: Listed, start: int = 0, stop: int | None = None) -> bytes:
    wanted = ObjectRange(entry.path, entry.size, entry.version, start, entry.size if stop is None else stop)
    into = bytearray(wanted.stop - wanted.start)
    origin.read(wanted, memoryview(into), lambda _: None)
    return bytes(into)


def test_a_listing_tells_kinds_modes_times_targets_links_and_attributes(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir(mode=0o750)
    (tmp_path / "sub/file").write_bytes(b"data")
    (tmp_path / "sub/file").chmod(0o640)
    os.utime(tmp_path / "sub/file", ns=(OLD, OLD + 5))
    os.link(tmp_path / "sub/file", tmp_path / "other")
    os.symlink("../elsewhere", tmp_path / "sub/link")
    os.mkfifo(tmp_path / "fifo")
    entries = listed(opened(tmp_path))
    assert set(entries) == {b"", b"sub", b"sub/file", b"other", b"sub/link", b"fifo"}
    file = entries[b"sub/file"]
    assert (file.kind, file.size, file.mtime, file.mode, file.uid) == (Kind.FILE, 4, OLD + 5, 0o640, os.getuid())
    assert file.link == entries[b"other"].link != b""
    assert file.version == version_of((tmp_path / "other").stat())
    assert (entries[b"sub"].kind, entries[b"sub"].mode) == (Kind.DIRECTORY, 0o750)
    assert (entries[b"sub/link"].kind, entries[b"sub/link"].target) == (Kind.SYMLINK, b"../elsewhere")
    assert (entries[b"fifo"].kind, entries[b"fifo"].target) == (Kind.SPECIAL, b"a named pipe")


def test_a_link_to_a_directory_is_a_link_and_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").write_bytes(b"x")
    (tmp_path / "root/up").symlink_to(tmp_path)
    entries = listed(opened(tmp_path / "root"))
    assert {path: entry.kind for path, entry in entries.items()} == {b"": Kind.DIRECTORY, b"up": Kind.SYMLINK}


def test_a_tree_deeper_than_any_path_may_be_is_listed_with_few_open_directories(tmp_path: Path) -> None:
    depth, name, before = 2 * OPEN_LEVELS + 9, "d" * 60, len(os.listdir("/proc/self/fd"))
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    most, count, last = 0, 0, b""
    for entry in opened(tmp_path).listing():
        count += 1
        last = max(last, entry.path, key=len)
        if count % 16 == 0:
            most = max(most, len(os.listdir("/proc/self/fd")) - before)
    assert count == depth + 2
    assert last == f"{name}/".encode() * depth + b"file"
    assert most < 2 * OPEN_LEVELS + 10
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_listing_that_is_given_up_closes_what_it_opened(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    origin = opened(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    listing = origin.listing()
    for _ in range(3):
        next(listing)
    listing.close()  # type: ignore[attr-defined]
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_the_owner_of_the_origin_could_not_read_is_named_and_its_inside_is_not(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "mine/inside").write_bytes(b"x")
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "file").chmod(0o600)
    (tmp_path / "all").write_bytes(b"x")
    origin = opened(tmp_path, Rights(os.getuid() + 1, frozenset()))
    entries = listed(origin)
    assert {path for path, entry in entries.items() if entry.kind is Kind.UNREADABLE} == {b"mine", b"file"}
    assert entries[b"file"].target == b"Permission denied"
    assert b"mine/inside" not in entries
    with pytest.raises(OriginRefused, match="not readable by the owner"):
        read(origin, entries[b"all"]._replace(path=b"file", version=b""))


def test_exact_ranges_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(256)) * 40_000)
    (tmp_path / "empty").touch()
    origin = opened(tmp_path)
    entries, data = listed(origin), (tmp_path / "file").read_bytes()
    assert read(origin, entries[b"file"]) == data
    assert read(origin, entries[b"file"], 5, 7) == data[5:7]
    assert read(origin, entries[b"empty"]) == b""


@pytest.mark.parametrize("change", ["grow", "same length", "touch", "mode", "replace", "gone", "link", "directory"])
def test_a_file_that_is_not_the_one_that_was_listed_is_not_read(tmp_path: Path, change: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"bytes")
    os.utime(file, ns=(OLD, OLD))
    origin = opened(tmp_path)
    entry = listed(origin)[b"file"]
    if change == "grow":
        file.write_bytes(b"longer")
    elif change == "same length":
        file.write_bytes(b"other")
    elif change == "touch":
        os.utime(file)
    elif change == "mode":
        file.chmod(0o611)
    else:
        file.unlink()
    if change == "replace":
        file.write_bytes(b"bytes")
        os.utime(file, ns=(OLD, OLD))
    elif change == "link":
        (tmp_path / "x").write_bytes(b"bytes")
        file.symlink_to("x")
    elif change == "directory":
        file.mkdir()
    with pytest.raises(ObjectChanged, match=r"file.* since it was listed.*publish again"):
        read(origin, entry)


def test_a_file_that_changes_while_it_is_read_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(10))
    origin = opened(tmp_path)
    entry = listed(origin)[b"file"]
    into = memoryview(bytearray(10))
    wanted = ObjectRange(b"file", 10, entry.version, 0, 10)
    with pytest.raises(ObjectChanged):
        origin.read(wanted, into, lambda _: os.utime(file, ns=(OLD, OLD)))


def test_without_a_version_only_the_length_counts(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    origin = opened(tmp_path)
    entry = listed(origin)[b"file"]._replace(version=b"")
    (tmp_path / "file").write_bytes(b"other")
    assert read(origin, entry) == b"other"
    (tmp_path / "file").write_bytes(b"longer")
    with pytest.raises(ObjectChanged, match="6 bytes now, 5 then"):
        read(origin, entry)


@pytest.mark.parametrize("path", [b"../outside", b"/etc/hostname", b"out/secret", b"sub/../../outside"])
def test_no_path_leads_out(tmp_path: Path, path: bytes) -> None:
    (tmp_path / "outside").write_bytes(b"secret")
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "out").symlink_to(tmp_path)
    with pytest.raises(OriginFailed):
        opened(root).read(ObjectRange(path, 6, b"", 0, 6), memoryview(bytearray(6)), lambda _: None)


def test_when_the_whole_directory_is_gone_no_file_counts_as_changed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(b"x")
    origin = opened(root)
    entry = listed(origin)[b"file"]
    (root / "file").rename(tmp_path / "kept")
    root.rename(tmp_path / "away")
    with pytest.raises(OriginFailed, match="is away") as caught:
        read(origin, entry)
    assert not isinstance(caught.value, ObjectChanged)


def test_a_young_file_is_read_once_it_has_settled(tmp_path: Path) -> None:
    file, rests = tmp_path / "file", list[float]()
    file.write_bytes(b"first")
    origin = opened(tmp_path, rest=rests.append)
    entry = listed(origin)[b"file"]
    assert read(origin, entry) == b"first"
    assert len(rests) == 1
    assert 0 < rests[0] <= SETTLED


def test_how_long_a_file_is_waited_for() -> None:
    now, rests = 1000.0, list[float]()
    settling = Settling(rests.append, lambda: now)

    def version(changed: float) -> bytes:
        return struct.pack("<QqqQ", 5, 7, round(changed * 1e9), 1)

    settling.wait(version(998))
    settling.wait(b"")
    assert rests == [], "old, or nothing to compare"
    settling.wait(version(999))
    assert rests == [1.0]
    settling.wait(version(5000))
    settling.wait(version(4999.5))
    settling.wait(version(4000))
    assert rests == [1.0, 2.0, 1.5], "a clock that is ahead is learned from what it stamped"
    now += 2
    for number in range(100):
        settling.wait(version(4999 + number / 100))
    assert rests == [1.0, 2.0, 1.5], "and holds up nobody else"


def test_a_file_whose_mtime_was_set_to_the_future_is_read_at_once() -> None:
    rests = list[float]()
    settling = Settling(rests.append, lambda: 1000.0)
    settling.wait(struct.pack("<QqqQ", 5, 5000 * 10**9, 900 * 10**9, 1))
    assert rests == []
