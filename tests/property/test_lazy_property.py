"""Laws of listings: their order does not matter, nothing is lost in silence, and a sealed snapshot depends on bytes,
names and times alone, in the segments and at the homes of its lazy twin."""

import tempfile
from pathlib import Path

from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from hoard_p2p.catalog import root as roots
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.ids import ChunkId, SnapshotId
from hoard_p2p.objects import Kind, Listed
from hoard_p2p.publish.lazy import LazyOptions, LazyResult, build_lazy
from hoard_p2p.publish.listing import Unmappable, decode, encode, key_length, mapped
from hoard_p2p.publish.sealing import seal_catalog
from tests.unit.test_publish_lazy import KeptChunks, ListedOrigin

MIB = 1 << 20
NAMES = st.sampled_from([b"a", b"b", b"out", b"-", b"a.b", b"\xff", b"", b".", b"..", b"\x01", "ä".encode()])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(b"/".join)
SIZES = st.sampled_from([0, 1, MIB, MIB + 1, 3 * MIB, 9 * MIB, 40 * MIB])
OBJECTS = st.builds(
    lambda path, size, mtime, version: Listed(path, Kind.FILE, size, mtime, 0o644, version),
    st.one_of(PATHS, PATHS.map(lambda path: path + b"/")),
    SIZES,
    st.integers(-5, 5),
    st.binary(min_size=1, max_size=3),
)
LISTINGS = st.lists(OBJECTS, max_size=12, unique_by=lambda entry: entry.path)


def listed(entries: list[Listed], sink: KeptChunks, where: bytes = b"s3://b") -> LazyResult:
    with tempfile.TemporaryDirectory() as scratch:
        options = LazyOptions(Path(scratch), skip_unmappable=True)
        return build_lazy(ListedOrigin(entries, where), options, sink, report=lambda _: None, stop=lambda: False)


@given(LISTINGS, st.randoms(use_true_random=False))
def test_every_object_is_a_file_a_directory_or_named_whatever_the_order(entries: list[Listed], rng: object) -> None:
    sink = KeptChunks()
    result = listed(entries, sink)
    catalog = sink.catalog(result.root)
    markers = sum(isinstance(one := mapped(entry), Listed) and one.kind is Kind.DIRECTORY for entry in entries)
    assert result.totals.files + result.unmappable.count + markers == len(entries)
    by_path = {entry.path: entry for entry in entries}
    for inode in range(catalog.inodes):
        if catalog.is_file(inode):
            entry = by_path[catalog.path_of(inode)]
            found = (catalog.size(inode), catalog.mtime(inode), catalog.version(inode))
            assert found == (entry.size, entry.mtime, entry.version)
    shuffled = list(entries)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert listed(shuffled, sink).snapshot == result.snapshot


def sealed(entries: list[Listed], where: bytes, sink: KeptChunks) -> tuple[Catalog, Catalog, SnapshotId]:
    """The bytes of each piece are told by path and place alone."""
    lazy = listed(entries, sink, where)
    twin = sink.catalog(lazy.root)
    known: dict[ChunkId, ChunkId] = {}
    for inode in range(twin.inodes):
        for place, run in enumerate(twin.runs(inode)):
            content = blake3(twin.path_of(inode)[:1] + bytes([place]) + twin.length(run).to_bytes(8, "little")).digest()
            known[twin.chunk_id(run)] = ChunkId(content)
    with tempfile.TemporaryDirectory() as scratch:
        result = seal_catalog(
            twin, roots.decode(lazy.root), lambda keys: [known[key] for key in keys], sink, Path(scratch)
        )
    return twin, sink.catalog(result.root), result.snapshot


@settings(deadline=None)
@given(LISTINGS, st.binary(min_size=1, max_size=4))
def test_sealed_snapshots_depend_on_bytes_names_and_times_alone(entries: list[Listed], version: bytes) -> None:
    sink = KeptChunks()
    twin, first, snapshot = sealed(entries, b"s3://one/prefix", sink)
    again = [entry._replace(version=version + entry.version) for entry in reversed(entries)]
    assert sealed(again, b"gs://other", sink)[2] == snapshot
    for segment in range(twin.segments):
        assert first.segment_runs(segment) == twin.segment_runs(segment)
        assert first.placement_key(segment) == twin.placement_key(segment)
        assert first.segment_file(segment) == twin.segment_file(segment)


@given(
    st.builds(
        Listed,
        path=PATHS,
        kind=st.sampled_from([Kind.FILE, Kind.DIRECTORY, Kind.SYMLINK]),
        size=SIZES,
        mtime=st.integers(-(2**63), 2**63 - 1),
        mode=st.integers(0, 0o7777),
        version=st.binary(min_size=1, max_size=255),
        uid=st.integers(0, 2**32 - 1),
        gid=st.integers(0, 2**32 - 1),
        link=st.just(b""),
        target=st.binary(min_size=1, max_size=50).filter(lambda target: b"\0" not in target),
        xattrs=st.dictionaries(
            st.binary(min_size=1, max_size=9).filter(lambda name: b"\0" not in name), st.binary(max_size=9)
        ).map(lambda found: tuple(sorted(found.items()))),
    )
)
def test_records_say_what_the_entry_said(entry: Listed) -> None:
    outcome = mapped(entry)
    if isinstance(outcome, Unmappable):
        return
    record = encode(outcome)
    assert decode(record, key_length(record)) == outcome


@given(st.lists(PATHS.filter(lambda path: isinstance(mapped(_file(path)), Listed)), unique=True))
def test_the_order_of_records_is_that_of_depth_then_names(paths: list[bytes]) -> None:
    records = sorted(encode(_file(path)) for path in paths)
    found = [decode(record, key_length(record)).path for record in records]
    assert found == sorted(paths, key=lambda path: (path.count(b"/"), path.split(b"/")))


def _file(path: bytes) -> Listed:
    return Listed(path, Kind.FILE, 1, 0, 0o644, b"v")
