"""Listings made by the block are those made entry by entry, of sound catalogs and of damaged ones."""

import functools
import io
import random
import stat
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoard_p2p.catalog.builder import CatalogBuilder, Meta
from hoard_p2p.catalog.layout import Column, sections
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import CatalogCorrupt
from hoard_p2p.ids import HOLE, chunk_id
from hoard_p2p.mount.kernel import DIRENT_HEAD, ENTRY_OUT, FOREVER, READ_IN
from hoard_p2p.mount.listing import Form
from hoard_p2p.mount.operations import Operations


@dataclass
class UsedFor:
    stats: bool


OWNER = (500, 600)
ROOT, FOLDER = 0, 1
READ_COLUMNS = (
    Column.MODE, Column.SIZE, Column.MTIME, Column.NLINK, Column.PARENT, Column.NAME, Column.NAME_HEAP,
    Column.FIRST, Column.COUNT, Column.CHUNK_END,
)  # fmt: skip


@functools.cache
def tree(seed: int) -> bytes:
    """A catalog of two directories with a few dozen entries. By the seed's lowest bits: with hard links, with holes,
    with owners, with short names only."""
    rng, out = random.Random(seed), io.BytesIO()
    longest = 3 if seed & 8 else 255

    def names(count: int) -> list[bytes]:
        made = {bytes(rng.choice(b"ab.-\xff\x01") for _ in range(rng.randint(1, longest))) for _ in range(count)}
        return sorted(made - {b".", b".."})

    def meta(kind: int) -> Meta:
        return Meta(
            kind | rng.randrange(0o10000),
            rng.randint(-(1 << 62), 1 << 62),
            rng.randrange(1 << 32),
            rng.randrange(1 << 32),
        )

    with CatalogBuilder(spill=io.BytesIO, keep_owner=bool(seed & 4)) as builder:
        builder.add_root(meta(stat.S_IFDIR))
        for last in (False, True):
            builder.next_directory()
            file = -1
            listed = names(40)
            for at, name in enumerate(listed):
                kind = rng.randrange(8)
                if not last and at == 0:
                    builder.add_directory(name, meta(stat.S_IFDIR))
                elif kind == 0:
                    builder.add_symlink(name, meta(stat.S_IFLNK), b"target")
                elif kind == 1 and file >= 0 and seed & 1:
                    builder.add_hard_link(name, file)
                else:
                    length = rng.randint(1, 1 << 20)
                    holes = [(HOLE, 1 << 20)] if seed & 2 and kind == 2 else []
                    runs = [(chunk_id(bytes([at])), length), *holes]
                    file = builder.add_file(name, meta(stat.S_IFREG), sum(size for _, size in runs), runs)
        builder.finish(out)
    return out.getvalue()


def entry_by_entry(catalog: Catalog, directory: int, offset: int, form: Form) -> Iterator[bytes]:
    """The entries of a listing as the kernel's header has them, each asked for alone."""
    if offset < 2:
        dots = ((1, b".", directory), (2, b"..", catalog.parent(directory)))
        yield from [_entry(catalog, at, number, stat.S_IFDIR, name, form, bare=True) for number, name, at in dots][
            offset:
        ]
    children = catalog.children(directory)
    for child in children[max(0, offset - 2) :]:
        if catalog.parent(child) != directory:
            raise CatalogCorrupt("another parent")
        target = catalog.resolve(child)
        yield _entry(catalog, target, child - children.start + 3, catalog.mode(target), catalog.name(child), form)


def _entry(
    catalog: Catalog, inode: int, ordinal: int, mode: int, name: bytes, form: Form, *, bare: bool = False
) -> bytes:
    dirent = DIRENT_HEAD.pack(inode + 1, ordinal, len(name), mode >> 12) + name + bytes(-len(name) % 8)
    if form is Form.NAMES:
        return dirent
    if bare or (form is Form.FOLDERS and not catalog.is_dir(inode)):
        return bytes(ENTRY_OUT.size) + dirent
    seconds, nanoseconds = divmod(catalog.mtime(inode), 10**9)
    size = catalog.size(inode)
    data = catalog.data_size(inode) if catalog.has_holes else size
    attributes = (
        inode + 1, size, (data + 511) // 512, *[seconds] * 3, *[nanoseconds] * 3, mode, catalog.nlink(inode),
        *(catalog.uid_gid(inode) or OWNER), 0, 1 << 17 if catalog.is_dir(inode) else 4096, 0,
    )  # fmt: skip
    return ENTRY_OUT.pack(inode + 1, 0, FOREVER, FOREVER, 0, 0, *attributes) + dirent


def expected(catalog: Catalog, directory: int, offset: int, room: int, form: Form) -> bytes:
    answer = b""
    for entry in entry_by_entry(catalog, directory, offset, form):
        if len(answer) + len(entry) > room:
            break
        answer += entry
    return answer


def listed(catalog: Catalog, directory: int, offset: int, room: int, form: Form) -> bytes:
    operations = Operations(catalog, uid=OWNER[0], gid=OWNER[1], size=0, habits=UsedFor(form is Form.ATTRIBUTES))
    body = memoryview(READ_IN.pack(0, offset, room) + bytes(20))
    answer = operations.readdir(directory, body) if form is Form.NAMES else operations.readdirplus(directory, body)
    assert isinstance(answer, bytes)
    return answer


OFFSETS = st.one_of(st.integers(0, 50), st.just(1 << 62))
ROOMS = st.integers(0, 12_000)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.integers(0, 63), st.sampled_from((ROOT, FOLDER)), OFFSETS, ROOMS, st.sampled_from(Form))
def test_a_listing_is_the_same_by_the_block_and_entry_by_entry(
    seed: int, directory: int, offset: int, room: int, form: Form
) -> None:
    catalog = Catalog(memoryview(tree(seed)))
    assert listed(catalog, directory, offset, room, form) == expected(catalog, directory, offset, room, form)


@settings(derandomize=True, deadline=None, max_examples=250)
@given(st.data())
def test_a_damaged_listing_is_the_same_or_corrupt_by_the_block_and_entry_by_entry(data: st.DataObject) -> None:
    content = bytearray(tree(data.draw(st.integers(0, 15))))
    _, columns = sections(memoryview(content))
    column = columns[data.draw(st.sampled_from(READ_COLUMNS))]
    at = data.draw(st.integers(1, len(column) - 1))
    hostile = data.draw(st.one_of(st.integers(0, (1 << 64) - 1), st.sampled_from((0, 46, 47, (1 << 64) - 1, 0o120777))))
    column.cast("B")[at * column.itemsize : (at + 1) * column.itemsize] = hostile.to_bytes(8, "little")[
        : column.itemsize
    ]
    catalog = Catalog(memoryview(content))
    asked = (
        data.draw(st.sampled_from((ROOT, FOLDER))),
        data.draw(OFFSETS),
        data.draw(ROOMS),
        data.draw(st.sampled_from(Form)),
    )
    if not catalog.is_dir(asked[0]):
        return
    try:
        wanted = expected(catalog, *asked)
    except CatalogCorrupt:
        with pytest.raises(CatalogCorrupt):
            listed(catalog, *asked)
    else:
        assert listed(catalog, *asked) == wanted


@pytest.mark.parametrize("wrong", [b"/", b"\0", b"."])
def test_a_byte_that_no_name_may_hold_makes_its_listing_corrupt(wrong: bytes) -> None:
    sound = tree(8)
    _, columns = sections(memoryview(sound))
    for at in range(len(columns[Column.NAME_HEAP])):
        content = bytearray(sound)
        _, columns = sections(memoryview(content))
        columns[Column.NAME_HEAP][at] = wrong[0]
        catalog = Catalog(memoryview(content))
        for directory in (ROOT, FOLDER):
            try:
                wanted = expected(catalog, directory, 0, 4096, Form.NAMES)
            except CatalogCorrupt:
                with pytest.raises(CatalogCorrupt):
                    listed(catalog, directory, 0, 4096, Form.NAMES)
            else:
                assert listed(catalog, directory, 0, 4096, Form.NAMES) == wanted
