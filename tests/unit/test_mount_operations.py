"""Answers from the catalog alone, against the layouts of the kernel's header."""

import errno
import struct
from dataclasses import dataclass
from io import BytesIO
from stat import S_IFDIR, S_IFLNK, S_IFREG
from typing import BinaryIO

import pytest

from hoard_p2p.catalog.builder import CatalogBuilder, Meta
from hoard_p2p.catalog.layout import Column, sections
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import CatalogCorrupt
from hoard_p2p.ids import HOLE, chunk_id
from hoard_p2p.mount.kernel import ATTR_OUT, ENTRY_OUT, LSEEK_IN, READ_IN, STATFS_OUT, Op
from hoard_p2p.mount.operations import Operations

ROOT, FOLDER, FILE, LINK, HARD, INNER = range(6)
NOTHING = memoryview(b"")


def _spill() -> BinaryIO:
    return BytesIO()


def _content(*, owner: bool = False, plain: bool = False) -> bytes:
    out = BytesIO()
    attributes = () if plain else ((b"user.a", b"12345"), (b"user.b", b""))
    with CatalogBuilder(spill=_spill, keep_owner=owner) as builder:
        builder.add_root(Meta(S_IFDIR | 0o755, 0, 1, 2))
        builder.next_directory()
        builder.add_directory(b"a-folder", Meta(S_IFDIR | 0o700, 5, 1, 2))
        runs = [(chunk_id(b"x"), 1000)] if plain else [(chunk_id(b"x"), 1000), (HOLE, 65_536)]
        size = sum(length for _, length in runs)
        builder.add_file(b"b-file", Meta(S_IFREG | 0o640, -1, 7, 8, attributes), size, runs)
        builder.add_symlink(b"c-link", Meta(S_IFLNK | 0o777, 0, 1, 2), b"a-folder/inner")
        builder.add_hard_link(b"d-hard", FILE)
        builder.next_directory()
        builder.add_file(b"inner", Meta(S_IFREG | 0o600, 0, 1, 2), 0, [])
        builder.finish(out)
    return out.getvalue()


@dataclass
class _Habits:
    stats: bool


def _operations(content: bytes, stats: bool = True) -> Operations:
    return Operations(Catalog(memoryview(content)), uid=500, gid=600, size=8193, habits=_Habits(stats))


@pytest.fixture
def operations() -> Operations:
    return _operations(_content())


def _bytes(answer: bytes | int) -> bytes:
    assert isinstance(answer, bytes)
    return answer


def test_attributes_have_the_kernels_layout(operations: Operations) -> None:
    answer = _bytes(operations.getattr(FILE, NOTHING))
    assert len(answer) == 104  # sizeof(struct fuse_attr_out)
    _, _, _, ino, size, blocks, *times, mode, nlink, uid, gid, rdev, blksize, flags = ATTR_OUT.unpack(answer)
    assert (ino, size, blocks) == (FILE + 1, 66_536, 2)  # the hole takes no blocks
    assert times == [-1, -1, -1, 999_999_999, 999_999_999, 999_999_999]
    assert (mode, nlink, uid, gid, rdev, blksize, flags) == (S_IFREG | 0o640, 2, 500, 600, 0, 4096, 0)


def test_owners_are_shown_if_they_were_kept() -> None:
    answer = _bytes(_operations(_content(owner=True)).getattr(FILE, NOTHING))
    assert ATTR_OUT.unpack(answer)[14:16] == (7, 8)


def test_lookup_answers_an_entry_a_hard_link_its_target_and_absence_for_ever(operations: Operations) -> None:
    def node(directory: int, name: bytes) -> int:
        entry = _bytes(operations.lookup(directory, memoryview(name + b"\0")))
        assert len(entry) == 128  # sizeof(struct fuse_entry_out)
        assert ENTRY_OUT.unpack(entry)[2] > 1 << 30
        return int(ENTRY_OUT.unpack(entry)[0])

    assert (node(ROOT, b"b-file"), node(ROOT, b"d-hard"), node(ROOT, b"absent")) == (FILE + 1, FILE + 1, 0)
    assert (node(FOLDER, b"inner"), node(FOLDER, b"."), node(FOLDER, b"..")) == (INNER + 1, FOLDER + 1, ROOT + 1)
    assert node(FILE, b".") == FILE + 1
    assert operations.lookup(FILE, memoryview(b"x\0")) == errno.ENOTDIR


def _listing(operations: Operations, offset: int, room: int, plus: bool = False) -> list[tuple[int, int, bytes]]:
    """Inode numbers, offsets and names."""
    body = memoryview(READ_IN.pack(0, offset, room) + bytes(20))
    answer = _bytes(operations.readdirplus(ROOT, body) if plus else operations.readdir(ROOT, body))
    assert len(answer) <= room
    entries, at = [], 0
    while at < len(answer):
        at += 128 if plus else 0
        ino, off, length, _ = struct.unpack_from("<QQII", answer, at)
        entries.append((ino, off, answer[at + 24 : at + 24 + length]))
        at += (24 + length + 7) & ~7
    return entries


@pytest.mark.parametrize("plus", [False, True])
def test_a_listing_can_be_resumed_after_every_entry_in_any_room(operations: Operations, plus: bool) -> None:
    everything = _listing(operations, 0, 4096, plus)
    names = [b".", b"..", b"a-folder", b"b-file", b"c-link", b"d-hard"]
    assert [name for _, _, name in everything] == names
    assert [ino for ino, _, _ in everything] == [1, 1, FOLDER + 1, FILE + 1, LINK + 1, FILE + 1]
    assert [off for _, off, _ in everything] == [1, 2, 3, 4, 5, 6]
    for start in range(7):
        assert _listing(operations, start, 4096, not plus) == everything[start:]
        one = _listing(operations, start, 176 if plus else 48, plus)
        assert one == everything[start : start + max(1, len(one))]
    assert _listing(operations, 1 << 62, 4096, plus) == []


def test_links_are_read_and_nothing_else_is(operations: Operations) -> None:
    assert operations.readlink(LINK, NOTHING) == b"a-folder/inner"
    assert operations.readlink(FILE, NOTHING) == errno.EINVAL
    assert operations.readdir(FILE, memoryview(READ_IN.pack(0, 0, 100))) == errno.ENOTDIR


def test_attribute_values_are_sized_fetched_and_refused(operations: Operations) -> None:
    def get(name: bytes, room: int) -> bytes | int:
        return operations.getxattr(HARD, memoryview(struct.pack("<II", room, 0) + name + b"\0"))

    def names(index: int, room: int) -> bytes | int:
        return operations.listxattr(index, memoryview(struct.pack("<II", room, 0)))

    assert (get(b"user.a", 0), get(b"user.a", 5), get(b"user.a", 4)) == (b"\5" + bytes(7), b"12345", errno.ERANGE)
    assert (get(b"user.b", 9), get(b"user.c", 9)) == (b"", errno.ENODATA)
    assert (names(FILE, 0), names(FILE, 14)) == (b"\x0e" + bytes(7), b"user.a\0user.b\0")
    assert (names(FILE, 13), names(FOLDER, 100)) == (errno.ERANGE, b"")


def test_data_and_holes_are_sought(operations: Operations) -> None:
    def seek(offset: int, whence: int) -> bytes | int:
        return operations.lseek(FILE, memoryview(LSEEK_IN.pack(0, offset, whence, 0)))

    assert (seek(0, 4), seek(0, 3)) == (struct.pack("<Q", 1000), struct.pack("<Q", 0))
    assert (seek(1000, 3), seek(66_536, 4), seek(0, 7)) == (errno.ENXIO, errno.ENXIO, errno.EINVAL)


def test_without_attributes_or_holes_the_kernel_is_told_not_to_ask() -> None:
    operations = _operations(_content(plain=True))
    assert operations.getxattr(FILE, NOTHING) == errno.ENOSYS
    assert operations.listxattr(FILE, NOTHING) == errno.ENOSYS
    assert operations.lseek(FILE, NOTHING) == errno.ENOSYS


def test_statfs_shows_the_snapshots_size_and_no_room(operations: Operations) -> None:
    answer = _bytes(operations.statfs(ROOT, NOTHING))
    assert len(answer) == 80  # sizeof(struct fuse_kstatfs)
    assert STATFS_OUT.unpack(answer) == (3, 0, 0, 6, 0, 4096, 255, 4096)


@pytest.mark.parametrize("op", [Op.SETATTR, Op.WRITE, Op.CREATE, Op.UNLINK, Op.SETXATTR, Op.TMPFILE, Op.RENAME2])
def test_changes_are_refused(operations: Operations, op: Op) -> None:
    assert operations.table()[op](FILE, NOTHING) == errno.EROFS


@pytest.mark.parametrize("op", [Op.OPEN, Op.OPENDIR, Op.FLUSH, Op.ACCESS])
def test_what_the_kernel_can_do_itself_is_left_to_it(operations: Operations, op: Op) -> None:
    assert operations.table()[op](FILE, NOTHING) == errno.ENOSYS


def test_an_entry_of_another_parent_is_no_entry() -> None:
    content = bytearray(_content())
    _, columns = sections(memoryview(content))
    columns[Column.PARENT][LINK] = FOLDER
    with pytest.raises(CatalogCorrupt):
        _listing(_operations(bytes(content)), 0, 4096, plus=True)


def test_a_mount_lists_bare_names_until_files_are_looked_up_and_then_attributes_that_the_kernel_keeps() -> None:
    operations = _operations(_content(), stats=False)
    everything = memoryview(READ_IN.pack(0, 0, 4096) + bytes(20))

    def told() -> dict[bytes, bool]:
        """Whether each entry came with attributes."""
        answer, at, found = _bytes(operations.readdirplus(ROOT, everything)), 0, {}
        while at < len(answer):
            _, _, length, _ = struct.unpack_from("<QQII", answer, at + 128)
            found[answer[at + 152 : at + 152 + length]] = any(answer[at : at + 128])
            at += 128 + (24 + length + 7) & ~7
        return found

    bare = {b".": False, b"..": False, b"a-folder": True, b"b-file": False, b"c-link": False, b"d-hard": False}
    for _ in range(15):
        operations.lookup(ROOT, memoryview(b"b-file\0"))
        operations.lookup(ROOT, memoryview(b"a-folder\0"))
        operations.lookup(ROOT, memoryview(b"absent\0"))
    assert told() == bare
    assert _bytes(operations.opendir(ROOT, NOTHING)) == bytes(16)  # open, and nothing is to be cached
    operations.lookup(ROOT, memoryview(b"c-link\0"))
    assert told() == {**bare, b"b-file": True, b"c-link": True, b"d-hard": True}
    assert operations.opendir(ROOT, NOTHING) == errno.ENOSYS  # the kernel opens and caches from now on
