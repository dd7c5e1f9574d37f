"""From a listing to a lazy snapshot."""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hoard_p2p.catalog import root as roots
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import BadRequest, Refused, SourceUnmappable
from hoard_p2p.ids import Bytes, ChunkId, chunk_id, is_origin_key, origin_key
from hoard_p2p.interfaces import FileSink
from hoard_p2p.objects import Kind, Listed, ObjectRange
from hoard_p2p.publish.lazy import LazyOptions, LazyProgress, LazyResult, build_lazy
from hoard_p2p.publish.sealing import seal_catalog

MIB = 1 << 20


class ListedOrigin:
    """An origin that is only a listing."""

    def __init__(self, entries: Sequence[Listed], where: bytes = b"s3://bucket/set") -> None:
        self._entries = entries
        self._where = where
        self.url = where.decode()

    def identity(self, path: bytes) -> bytes:
        return self._where + b"/" + path

    def check(self) -> None: ...

    def listing(self) -> Iterator[Listed]:
        yield from self._entries

    def read(self, wanted: ObjectRange, into: memoryview, moved: Callable[[int], None]) -> None:
        raise AssertionError("a listing reads no data")

    def close(self) -> None: ...


class KeptChunks:
    """A sink in memory."""

    def __init__(self) -> None:
        self.chunks: dict[ChunkId, bytes] = {}

    def has(self, ids: Sequence[ChunkId]) -> list[bool]:
        return [identifier in self.chunks for identifier in ids]

    def put(self, chunk_id: ChunkId, data: Bytes) -> None:
        self.put_many([(chunk_id, data)])

    def put_many(self, chunks: Sequence[tuple[ChunkId, Bytes]]) -> list[bool]:
        new = [identifier not in self.chunks for identifier, _ in chunks]
        self.chunks.update((identifier, bytes(data)) for identifier, data in chunks)
        return new

    def open_file(self, size: int) -> FileSink:
        raise AssertionError("catalogs have no slab of their own")

    def flush(self) -> None: ...

    def catalog(self, root: bytes) -> Catalog:
        record = roots.decode(root)
        catalog = Catalog(memoryview(b"".join(self.chunks[run.chunk_id] for run in record.catalog_runs)))
        roots.check(record, catalog)
        catalog.validate()
        return catalog


def entry(path: str, size: int = 10, *, mtime: int = 5, version: bytes = b"v1", kind: Kind = Kind.FILE) -> Listed:
    return Listed(path.encode(), kind, size, mtime, 0o644, version)


def build(entries: Sequence[Listed], tmp_path: Path, sink: KeptChunks | None = None, **options: Any) -> LazyResult:
    chosen = LazyOptions(tmp_path, **options)
    return build_lazy(ListedOrigin(entries), chosen, sink or KeptChunks(), report=lambda _: None, stop=lambda: False)


def tree(entries: Sequence[Listed], tmp_path: Path, **options: Any) -> dict[str, int]:
    """The mode of each path in the catalog made of `entries`."""
    sink = KeptChunks()
    catalog = sink.catalog(build(entries, tmp_path, sink, **options).root)
    return {catalog.path_of(inode).decode(): catalog.mode(inode) for inode in range(1, catalog.inodes)}


def test_a_listing_in_any_order_gives_the_same_snapshot(tmp_path: Path) -> None:
    entries = [entry(f"{a}/{b}{c}", size) for a in "ab" for b in ("", "x/", "x/y/") for c, size in (("f", 0), ("g", 9))]
    first = build(entries, tmp_path)
    rng = random.Random(3)
    for _ in range(5):
        rng.shuffle(entries)
        assert build(entries, tmp_path) == first


def test_entries_of_a_directory_are_sorted_by_name_and_not_by_path(tmp_path: Path) -> None:
    paths = ["a/z", "a-b", "a.b/c", "a", "b/c/d"]
    made = tree([entry(path) for path in paths if path != "a"], tmp_path)
    assert list(made) == ["a", "a-b", "a.b", "b", "a/z", "a.b/c", "b/c", "b/c/d"]


def test_pieces_have_origin_keys_and_files_have_versions(tmp_path: Path) -> None:
    sink = KeptChunks()
    catalog = sink.catalog(build([entry("d/big", 9 * MIB, version=b"etag"), entry("small")], tmp_path, sink).root)
    big = catalog.find(b"d/big")
    assert catalog.is_lazy and catalog.is_placed and catalog.version(big) == b"etag"
    name = b"s3://bucket/set/d/big"
    expected = [(0, 4 * MIB), (4 * MIB, 4 * MIB), (8 * MIB, MIB)]
    assert [catalog.chunk_id(run) for run in catalog.runs(big)] == [
        origin_key(name, b"etag", offset, length) for offset, length in expected
    ]


def test_markers_are_directories_with_their_own_times(tmp_path: Path) -> None:
    sink = KeptChunks()
    entries = [entry("d/", 0, mtime=77), entry("d/f"), entry("e/f")]
    catalog = sink.catalog(build(entries, tmp_path, sink).root)
    assert catalog.mtime(catalog.find(b"d")) == 77 and catalog.mode(catalog.find(b"d")) == 0o40755
    assert catalog.mtime(catalog.find(b"e")) == 0 and catalog.mode(catalog.find(b"d/f")) == 0o100644


@pytest.mark.parametrize(
    ("path", "size", "why"),
    [
        ("d/", 3, "ends in a slash"),
        ("a//b", 3, "empty name"),
        ("/a", 3, "empty name"),
        ("a//", 0, "empty name"),
        ("a/./b", 3, "name . or .."),
        ("..", 3, "name . or .."),
        ("a\0b", 3, "zero byte"),
        ("x" * 256, 3, "more than 255"),
        ("y/" * 2100 + "z", 3, "longer than"),
        ("f", 1 << 62, "more than"),
    ],
)
def test_what_cannot_be_a_file_is_named_and_nothing_is_put(tmp_path: Path, path: str, size: int, why: str) -> None:
    sink = KeptChunks()
    with pytest.raises(SourceUnmappable, match=why) as failure:
        build([entry("good"), entry(path, size)], tmp_path, sink)
    assert failure.value.count == 1 and not sink.chunks
    result = build([entry("good"), entry(path, size)], tmp_path, sink, skip_unmappable=True)
    assert result.unmappable.count == 1 and why in result.unmappable.first[0] and result.totals.files == 1


def test_a_key_that_is_also_a_prefix_gives_way_to_the_directory(tmp_path: Path) -> None:
    with pytest.raises(SourceUnmappable, match=r"out: there are entries below"):
        build([entry("out"), entry("out/x")], tmp_path)
    assert set(tree([entry("out/x"), entry("out")], tmp_path, skip_unmappable=True)) == {"out", "out/x"}
    assert set(tree([entry("out"), entry("out//x")], tmp_path, skip_unmappable=True)) == {"out"}


def test_an_entry_listed_twice_counts_once_if_it_is_the_same_and_is_told_if_not(tmp_path: Path) -> None:
    assert build([entry("f"), entry("f")], tmp_path).totals.files == 1
    with pytest.raises(SourceUnmappable, match="more than once"):
        build([entry("f"), entry("f", version=b"v2")], tmp_path)


def test_conflicts_are_named_beside_what_the_listing_showed(tmp_path: Path) -> None:
    with pytest.raises(SourceUnmappable) as failure:
        build([entry("out"), entry("out/x"), entry("a//b")], tmp_path)
    assert failure.value.count == 2


def test_an_object_without_a_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceUnmappable, match="has no version"):
        build([entry("f", version=b"")], tmp_path)


def test_patterns_leave_out_files_and_whole_directories(tmp_path: Path) -> None:
    entries = [entry("a.tmp"), entry("keep/a"), entry("cache/x/y"), entry("cache//odd"), entry("keep/b.tmp")]
    options: dict[str, Any] = {"exclude": (b"*.tmp", b"/cache", b"nothing")}
    result = build(entries, tmp_path, **options)
    assert (result.excluded, result.unmatched_excludes) == (4, (b"nothing",))
    assert set(tree(entries, tmp_path, **options)) == {"keep", "keep/a"}
    with pytest.raises(BadRequest, match="can match nothing"):
        build(entries, tmp_path, exclude=(b"/",))


def test_links_attributes_owners_and_modes_of_directories_are_kept(tmp_path: Path) -> None:
    sink = KeptChunks()
    entries = [
        Listed(b"d", Kind.DIRECTORY, 0, 8, 0o2750, b"", 7, 8, xattrs=((b"user.x", b"1"),)),
        Listed(b"d/one", Kind.FILE, 5, 9, 0o600, b"v", 7, 9, link=b"9:1"),
        Listed(b"two", Kind.FILE, 5, 9, 0o600, b"v", 7, 9, link=b"9:1"),
        Listed(b"sym", Kind.SYMLINK, 3, 9, 0o777, b"", 1, 2, target=b"two"),
    ]
    result = build(entries, tmp_path, sink, preserve_owner=True)
    catalog = sink.catalog(result.root)
    one, two, directory = (catalog.find(path) for path in (b"d/one", b"two", b"d"))
    assert catalog.resolve(one) == two and catalog.nlink(two) == 2 and result.totals.hard_links == 1
    assert catalog.uid_gid(directory) == (7, 8) and catalog.xattrs(directory) == {b"user.x": b"1"}
    assert catalog.mode(directory) == 0o42750 and catalog.target(catalog.find(b"sym")) == b"two"


def test_reproducible_publishes_have_no_times(tmp_path: Path) -> None:
    first, second = ([entry("f", mtime=time)] for time in (1, 2))
    assert build(first, tmp_path).snapshot != build(second, tmp_path).snapshot
    assert build(first, tmp_path, reproducible=True) == build(second, tmp_path, reproducible=True)


def test_a_listing_without_data_is_a_snapshot_that_can_be_sealed(tmp_path: Path) -> None:
    for entries in ([], [entry("f", 0)]):
        sink = KeptChunks()
        catalog = sink.catalog(build(entries, tmp_path, sink).root)
        assert catalog.inodes == 1 + len(entries) and catalog.is_placed
        assert not sealed(entries, tmp_path, where=b"s3://b", content={}).is_lazy


def test_a_listing_can_be_stopped_and_tells_where_it_stands(tmp_path: Path) -> None:
    told: list[LazyProgress] = []
    build_lazy(ListedOrigin([entry("f")]), LazyOptions(tmp_path), KeptChunks(), report=told.append, stop=lambda: False)
    assert [progress.phase.value for progress in told] == ["listing", "catalog", "sync"]
    assert (told[-1].entries, told[-1].bytes, told[-1].done) == (1, 10, 1)
    with pytest.raises(Refused, match="cancelled"):
        build_lazy(ListedOrigin([]), LazyOptions(tmp_path), KeptChunks(), report=told.append, stop=lambda: True)


def sealed(entries: Sequence[Listed], tmp_path: Path, *, where: bytes, content: dict[bytes, bytes]) -> Catalog:
    """`content`: the bytes that each path holds, repeated over its size."""
    sink = KeptChunks()
    lazy = build_lazy(
        ListedOrigin(entries, where), LazyOptions(tmp_path), sink, report=lambda _: None, stop=lambda: False
    )
    twin = sink.catalog(lazy.root)
    known = {
        twin.chunk_id(run): chunk_id(content[twin.path_of(inode)] + bytes([run - twin.runs(inode).start]))
        for inode in range(twin.inodes)
        for run in twin.runs(inode)
    }
    result = seal_catalog(twin, roots.decode(lazy.root), lambda keys: [known[key] for key in keys], sink, tmp_path)
    catalog = sink.catalog(result.root)
    assert [catalog.placement_key(segment) for segment in range(catalog.segments)] == [
        twin.placement_key(segment) for segment in range(twin.segments)
    ]
    assert [catalog.segment_runs(s) for s in range(catalog.segments)] == [
        twin.segment_runs(s) for s in range(twin.segments)
    ]
    return catalog


def test_sealing_keeps_segments_and_forgets_versions_and_places(tmp_path: Path) -> None:
    content = {b"a/big": b"1", b"b": b"2", b"c": b"2"}
    first = [entry("a/big", 21 * MIB), entry("b"), entry("c")]
    second = [entry("c", version=b"w"), entry("b", version=b"u"), entry("a/big", 21 * MIB, version=b"t")]
    one = sealed(first, tmp_path, where=b"s3://one", content=content)
    other = sealed(second, tmp_path, where=b"s3://other/prefix", content=content)
    assert not one.is_lazy and not any(is_origin_key(one.chunk_id(run)) for run in range(one.chunks))
    b, c = (one.runs(one.find(path)).start for path in (b"b", b"c"))
    assert one.canonical(c) == b
    assert [bytes(one.columns[column]) for column in one.columns] == [
        bytes(other.columns[column]) for column in other.columns
    ]


def test_sealing_refuses_answers_that_are_no_chunk_ids(tmp_path: Path) -> None:
    sink = KeptChunks()
    lazy = build([entry("f")], tmp_path, sink)
    catalog, root = sink.catalog(lazy.root), roots.decode(lazy.root)
    for answer in ([ChunkId(bytes(32))], [ChunkId(b"hoardkey" + bytes(24))], [], [ChunkId(b"short")]):
        with pytest.raises(BadRequest):
            seal_catalog(catalog, root, lambda _, answer=answer: answer, sink, tmp_path)  # type: ignore[misc]
