"""Laws of the catalog: what was built is read back, byte ranges map to the right chunks, and no catalog, however
damaged, gives anything but values or CatalogCorrupt."""

import io
import random
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoard_p2p.catalog.builder import CatalogBuilder, Meta, Totals
from hoard_p2p.catalog.reader import ABSENT, Catalog
from hoard_p2p.errors import CatalogCorrupt, PathNotFound
from hoard_p2p.ids import HOLE, ChunkId, chunk_id

MIB = 1 << 20


@dataclass
class Entry:
    """One entry of a tree: a directory if it has `children`, a symlink if it has a `target`, else a file."""

    meta: Meta
    children: dict[bytes, "Entry"] | None = None
    target: bytes | None = None
    parts: list[bytes] = field(default_factory=list)  # of a file: its runs' bytes, zeros are holes
    link_of: "Entry | None" = None
    inode: int = -1

    @property
    def content(self) -> bytes:
        return b"".join(self.parts)

    @property
    def runs(self) -> list[tuple[ChunkId, int]]:
        return [(chunk_id(part) if any(part) else HOLE, len(part)) for part in self.parts]


NAMES = st.binary(min_size=1, max_size=6).filter(lambda name: not {0, 47} & set(name) and name not in (b".", b".."))
TIMES = st.integers(-(1 << 63), (1 << 63) - 1)
XATTRS = st.dictionaries(
    st.binary(min_size=1, max_size=4).filter(lambda n: 0 not in n), st.binary(max_size=9), max_size=2
)
METAS = st.builds(
    lambda mode, mtime, uid, gid, xattrs: Meta(mode, mtime, uid, gid, tuple(xattrs.items())),
    st.integers(0, 0o7777),
    TIMES,
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 32) - 1),
    st.one_of(st.just({}), XATTRS),
)
PARTS = st.lists(
    st.one_of(st.integers(1, 30).map(bytes), st.binary(min_size=1, max_size=30), st.just(b"again")), max_size=6
)
FILES = st.builds(lambda meta, parts: Entry(meta, parts=parts), METAS, PARTS)
SYMLINKS = st.builds(
    lambda meta, target: Entry(meta, target=target),
    METAS,
    st.binary(min_size=1, max_size=9).filter(lambda t: 0 not in t),
)
TREES = st.builds(
    lambda meta, children: Entry(meta, children=children),
    METAS,
    st.dictionaries(
        NAMES,
        st.recursive(
            FILES | SYMLINKS,
            lambda inner: st.builds(
                lambda meta, children: Entry(meta, children=children), METAS, st.dictionaries(NAMES, inner, max_size=5)
            ),
            max_leaves=25,
        ),
        max_size=6,
    ),
)


def build(root: Entry, *, keep_owner: bool, linked: bool) -> tuple[bytes, Totals]:
    """The catalog of a tree; `linked`: files of equal content are hard links. Sets `inode` and `link_of`."""
    out = io.BytesIO()
    first: dict[bytes, Entry] = {}
    with CatalogBuilder(spill=tempfile.TemporaryFile, keep_owner=keep_owner) as builder:
        builder.add_root(root.meta)
        root.inode = 0
        queue = [root]
        for directory in queue:
            builder.next_directory()
            assert directory.children is not None
            for name, entry in sorted(directory.children.items()):
                if entry.children is not None:
                    entry.inode = builder.add_directory(name, entry.meta)
                    queue.append(entry)
                elif entry.target is not None:
                    entry.inode = builder.add_symlink(name, entry.meta, entry.target)
                elif linked and entry.content in first:
                    entry.link_of = first[entry.content]
                    entry.inode = builder.add_hard_link(name, entry.link_of.inode)
                else:
                    first[entry.content] = entry
                    entry.inode = builder.add_file(name, entry.meta, len(entry.content), entry.runs)
        totals = builder.finish(out)
    return out.getvalue(), totals


def walk(entry: Entry, path: bytes = b"") -> list[tuple[bytes, Entry]]:
    found = [(path, entry)]
    for name, child in (entry.children or {}).items():
        found += walk(child, path + b"/" + name if path else name)
    return found


def bytes_of_runs(catalog: Catalog, root: Entry) -> dict[int, bytes]:
    """The content of each run, from the tree that the catalog was built of."""
    found: dict[int, bytes] = {}
    for _, entry in walk(root):
        if entry.link_of is None and entry.children is None and entry.target is None:
            found.update(zip(catalog.runs(entry.inode), entry.parts, strict=True))
    return found


@settings(derandomize=True, deadline=None, max_examples=80)
@given(TREES, st.booleans(), st.booleans())
def test_what_was_built_is_read_back(root: Entry, keep_owner: bool, linked: bool) -> None:
    data, totals = build(root, keep_owner=keep_owner, linked=linked)
    catalog = Catalog(memoryview(data))
    catalog.validate()
    entries = walk(root)
    assert catalog.inodes == totals.inodes == len(entries)
    for path, entry in entries:
        inode = catalog.find(path)
        assert (inode, catalog.path_of(inode)) == (entry.inode, path)
        source = entry.link_of or entry
        assert catalog.mode(inode) & 0o7777 == source.meta.mode
        assert catalog.mtime(inode) == source.meta.mtime
        assert catalog.xattrs(inode) == dict(source.meta.xattrs)
        assert catalog.uid_gid(inode) == ((source.meta.uid, source.meta.gid) if keep_owner else None)
        assert catalog.is_dir(inode) is (entry.children is not None)
        assert catalog.is_symlink(inode) is (entry.target is not None)
        assert catalog.target(inode) == (entry.target or b"")
        assert catalog.size(inode) == (len(entry.target) if entry.target else len(entry.content))
        assert [(catalog.chunk_id(run), catalog.length(run)) for run in catalog.runs(inode)] == source.runs


@settings(derandomize=True, deadline=None, max_examples=80)
@given(TREES, NAMES)
def test_lookup_is_a_dictionary(root: Entry, other: bytes) -> None:
    data, _ = build(root, keep_owner=False, linked=True)
    catalog = Catalog(memoryview(data))
    for path, entry in walk(root):
        children = entry.children or {}
        listed = [catalog.name(child) for child in catalog.children(entry.inode)]
        assert listed == sorted(children)
        for name in {*children, other, b".", b"..", b"", b"a/b"}:
            assert catalog.lookup(entry.inode, name) == (children[name].inode if name in children else ABSENT)
        if other not in children:
            with pytest.raises(PathNotFound):
                catalog.find(path + b"/" + other)


@settings(derandomize=True, deadline=None, max_examples=80)
@given(TREES, st.booleans(), st.integers(-3, 200), st.integers(0, 200))
def test_every_byte_range_maps_to_the_right_chunks(root: Entry, linked: bool, offset: int, size: int) -> None:
    data, _ = build(root, keep_owner=False, linked=linked)
    catalog = Catalog(memoryview(data))
    content = bytes_of_runs(catalog, root)
    for _, entry in walk(root):
        spans = catalog.span(entry.inode, offset, size)
        read = b"".join(content[span.run][span.start : span.start + span.length] for span in spans)
        assert read == entry.content[max(offset, 0) : max(offset + size, 0)]
        assert all(span.length > 0 for span in spans)
        for run in catalog.runs(entry.inode):
            start = catalog.run_offset(entry.inode, run)
            assert entry.content[start : start + catalog.length(run)] == content[run]


@settings(derandomize=True, deadline=None, max_examples=80)
@given(TREES)
def test_holes_are_where_the_file_has_them(root: Entry) -> None:
    data, totals = build(root, keep_owner=False, linked=False)
    catalog = Catalog(memoryview(data))
    in_holes = 0
    for _, entry in walk(root):
        kinds = [not any(part) for part in entry.parts for _ in part]
        in_holes += sum(kinds)
        assert catalog.data_size(entry.inode) == len(kinds) - sum(kinds)
        for offset in range(-1, len(kinds) + 2):
            inside = range(offset, len(kinds)) if 0 <= offset < len(kinds) else range(0)
            data_at = next((place for place in inside if not kinds[place]), ABSENT)
            hole_at = next((place for place in inside if kinds[place]), len(kinds)) if inside else ABSENT
            assert catalog.next_data(entry.inode, offset) == data_at
            assert catalog.next_hole(entry.inode, offset) == hole_at
    assert catalog.has_holes is (in_holes > 0)
    assert totals.size - totals.data == in_holes


@settings(derandomize=True, deadline=None, max_examples=80)
@given(TREES)
def test_each_distinct_chunk_belongs_to_one_segment(root: Entry) -> None:
    data, totals = build(root, keep_owner=False, linked=False)
    catalog = Catalog(memoryview(data))
    chunks = [chunk for segment in range(catalog.segments) for chunk in catalog.segment_chunks(segment)]
    expected = {run for _, entry in walk(root) for run in entry.runs if run[0] != HOLE}
    assert len(chunks) == len(expected)
    assert {(chunk.chunk_id, chunk.length) for chunk in chunks} == expected
    assert sum(chunk.length for chunk in chunks) == totals.unique
    for run in range(catalog.chunks):
        assert catalog.segment_of(run) == catalog.segment_of(catalog.canonical(run))
        assert catalog.canonical(run) in catalog.segment_runs(catalog.segment_of(run))


# --- damage


def sample() -> bytes:
    """A catalog that has everything: nested directories, links, attributes, owners, holes, several segments."""
    source = random.Random(11)

    def part(size: int) -> tuple[ChunkId, int]:
        return ChunkId(source.randbytes(32)), size

    shared = part(MIB)
    out = io.BytesIO()
    meta = Meta(0o755, 5, 1000, 1000, ((b"user.a", b"1"), (b"user.b", b"")))
    with CatalogBuilder(spill=tempfile.TemporaryFile, keep_owner=True) as builder:
        builder.add_root(meta)
        builder.next_directory()
        builder.add_directory(b"d", meta)
        file = builder.add_file(b"f", meta, 9 * MIB, [shared, *(part(4 * MIB) for _ in range(2))])
        builder.add_hard_link(b"g", file)
        builder.add_symlink(b"s", meta, b"d/deep")
        builder.add_directory(b"z", meta)
        builder.next_directory()
        builder.add_directory(b"deep", meta)
        builder.add_file(b"sparse", meta, 6 * MIB, [(HOLE, 5 * MIB), part(MIB)])
        builder.next_directory()
        builder.add_file(b"x", meta, MIB, [shared])
        builder.next_directory()
        builder.add_file(b"bottom", meta, 0, [])
        builder.add_hard_link(b"more", file)
        builder.finish(out)
    return out.getvalue()


SAMPLE = sample()
INODE_ACCESSORS: tuple[Callable[[Catalog, int], object], ...] = (
    Catalog.mode,
    Catalog.size,
    Catalog.mtime,
    Catalog.nlink,
    Catalog.uid_gid,
    Catalog.parent,
    Catalog.name,
    Catalog.resolve,
    Catalog.is_dir,
    Catalog.is_file,
    Catalog.is_symlink,
    Catalog.children,
    Catalog.path_of,
    Catalog.target,
    Catalog.xattrs,
    Catalog.runs,
    Catalog.data_size,
    lambda catalog, inode: catalog.lookup(inode, b"f"),
    lambda catalog, inode: catalog.span(inode, MIB - 5, 6 * MIB),
    lambda catalog, inode: catalog.next_data(inode, 100),
    lambda catalog, inode: catalog.next_hole(inode, 100),
    lambda catalog, inode: [catalog.run_offset(inode, run) for run in catalog.runs(inode)],
)
RUN_ACCESSORS: tuple[Callable[[Catalog, int], object], ...] = (
    Catalog.chunk_id,
    Catalog.length,
    Catalog.canonical,
    Catalog.is_hole,
    Catalog.segment_of,
)
SEGMENT_ACCESSORS: tuple[Callable[[Catalog, int], object], ...] = (
    Catalog.segment_runs,
    Catalog.segment_file,
    Catalog.segment_chunks,
    Catalog.placement_key,
)


def use_everything(data: bytes) -> bool:
    """Call every accessor; whether all gave values. Anything but a value or CatalogCorrupt fails the test."""
    try:
        catalog = Catalog(memoryview(data))
    except CatalogCorrupt:
        return False
    calls = [
        *((call, number) for call in INODE_ACCESSORS for number in range(catalog.inodes)),
        *((call, number) for call in RUN_ACCESSORS for number in range(catalog.chunks)),
        *((call, number) for call in SEGMENT_ACCESSORS for number in range(catalog.segments)),
        (lambda catalog, _: catalog.validate(), 0),
    ]
    sound = True
    for call, number in calls:
        try:
            call(catalog, number)
        except CatalogCorrupt:
            sound = False
    return sound


def section_places() -> list[tuple[int, int, int]]:
    """(element size, offset, length) of each section of the sample."""
    count = struct.unpack_from("<I", SAMPLE, 12)[0]
    table = [struct.unpack_from("<IIQQ", SAMPLE, 32 + 24 * number) for number in range(count)]
    return [(min(element, 8), offset, length) for _, element, offset, length in table]


def test_the_sample_is_sound() -> None:
    assert use_everything(SAMPLE)


@settings(derandomize=True, deadline=None, max_examples=400)
@given(st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bits_give_values_or_corrupt(flips: list[tuple[int, int]]) -> None:
    data = bytearray(SAMPLE)
    for place, mask in flips:
        data[place] ^= mask
    use_everything(bytes(data))


@settings(derandomize=True, deadline=None, max_examples=600)
@given(
    st.data(),
    st.sampled_from([0, 1, 2, 3, 0x7FFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]),
)
def test_hostile_numbers_in_any_column_give_values_or_corrupt(data: st.DataObject, number: int) -> None:
    element, offset, length = data.draw(st.sampled_from([place for place in section_places() if place[2]]))
    place = offset + data.draw(st.integers(0, length // element - 1)) * element
    damaged = bytearray(SAMPLE)
    damaged[place : place + element] = (number % (1 << 8 * element)).to_bytes(element, "little")
    use_everything(bytes(damaged))


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(0, 1 << 64) | st.integers(0, 4096), st.data())
def test_a_hostile_header_or_section_table_is_corrupt_or_harmless(number: int, data: st.DataObject) -> None:
    end = 32 + 24 * len(section_places())
    width = data.draw(st.sampled_from([4, 8]))
    place = data.draw(st.integers(0, end // width - 1)) * width
    damaged = bytearray(SAMPLE)
    damaged[place : place + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
    use_everything(bytes(damaged))


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.integers(0, len(SAMPLE) - 1))
def test_a_truncated_catalog_is_refused_at_opening(length: int) -> None:
    with pytest.raises(CatalogCorrupt):
        Catalog(memoryview(SAMPLE[:length]))


def test_an_extended_catalog_is_refused_at_opening() -> None:
    with pytest.raises(CatalogCorrupt):
        Catalog(memoryview(SAMPLE + b"\0"))


def test_every_single_byte_of_the_columns_is_guarded_by_validate_or_is_a_free_value() -> None:
    """What validate lets pass after a byte has changed is a catalog of another tree: every accessor gives values."""
    for element, offset, length in section_places():
        for place in range(offset, offset + length, max(1, element // 2)):
            damaged = bytearray(SAMPLE)
            damaged[place] ^= 0x41
            data = bytes(damaged)
            try:
                Catalog(memoryview(data)).validate()
            except CatalogCorrupt:
                continue
            assert use_everything(data)


def test_parents_that_form_a_loop_are_corrupt() -> None:
    _, offset, length = section_places()[4]
    parents = list(struct.unpack_from(f"<{length // 4}I", SAMPLE, offset))
    parents[1], parents[6] = 6, 1
    damaged = bytearray(SAMPLE)
    damaged[offset : offset + length] = struct.pack(f"<{length // 4}I", *parents)
    catalog = Catalog(memoryview(bytes(damaged)))
    for inode in (1, 6):
        with pytest.raises(CatalogCorrupt):
            catalog.path_of(inode)


def test_sections_of_unknown_type_are_skipped() -> None:
    content = b"from a later version"
    count = struct.unpack_from("<I", SAMPLE, 12)[0]
    table = [struct.unpack_from("<IIQQ", SAMPLE, 32 + 24 * number) for number in range(count)]
    bodies = [(kind, element, SAMPLE[offset : offset + length]) for kind, element, offset, length in table]
    data = assemble([*bodies, (999, 5, content)])
    catalog = Catalog(memoryview(data))
    catalog.validate()
    assert catalog.inodes == Catalog(memoryview(SAMPLE)).inodes


@pytest.mark.parametrize("missing", range(14))
def test_a_catalog_without_a_required_section_is_refused(missing: int) -> None:
    table = [struct.unpack_from("<IIQQ", SAMPLE, 32 + 24 * number) for number in range(19)]
    bodies = [(kind, element, SAMPLE[offset : offset + length]) for kind, element, offset, length in table]
    with pytest.raises(CatalogCorrupt, match="without section"):
        Catalog(memoryview(assemble(bodies[:missing] + bodies[missing + 1 :])))


@pytest.mark.parametrize("kinds", [(32,), (33,), (34,), (40,), (41,), (32, 33)])
def test_half_of_an_optional_group_of_sections_is_refused(kinds: tuple[int, ...]) -> None:
    table = [struct.unpack_from("<IIQQ", SAMPLE, 32 + 24 * number) for number in range(19)]
    bodies = [(kind, element, SAMPLE[offset : offset + length]) for kind, element, offset, length in table]
    with pytest.raises(CatalogCorrupt, match="are missing"):
        Catalog(memoryview(assemble([body for body in bodies if body[0] not in kinds])))


def assemble(bodies: list[tuple[int, int, bytes]]) -> bytes:
    """A catalog of these (type, element size, content)."""
    start = 32 + 24 * len(bodies)
    table = body = b""
    for kind, element, content in bodies:
        body += bytes(-(start + len(body)) % 64)
        table += struct.pack("<IIQQ", kind, element, start + len(body), len(content))
        body += content
    return struct.pack("<8sIIQII", b"hoardcat", 1, len(bodies), start + len(body), 1, 0) + table + body


def test_sections_that_overlap_or_go_backwards_are_refused() -> None:
    table = [struct.unpack_from("<IIQQ", SAMPLE, 32 + 24 * number) for number in range(19)]
    for number, (kind, element, offset, length) in enumerate(table):
        for hostile in (offset - 64, offset + 1, 0, 1 << 62):
            damaged = bytearray(SAMPLE)
            struct.pack_into("<IIQQ", damaged, 32 + 24 * number, kind, element, hostile, length)
            with pytest.raises(CatalogCorrupt):
                Catalog(memoryview(bytes(damaged)))
