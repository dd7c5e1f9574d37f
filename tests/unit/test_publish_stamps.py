"""What a publish remembers of its source, and when it may rely on that."""

import os
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import pytest

from hoard_p2p.ids import ChunkId
from hoard_p2p.publish import stampscan
from hoard_p2p.publish.stampfs import FileSystems, Trust
from hoard_p2p.publish.stamps import Meta, Moment, StampFile, is_racy
from hoard_p2p.testing.memory import MemorySink
from tests.unit.publish_stamps import Again
from tests.unit.publish_trees import can_have_xattrs, options, publish

SECOND = 1_000_000_000
AT = 1_700_000_000 * SECOND


@pytest.fixture
def source(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "d" / "e").mkdir(parents=True)
    for number in range(6):
        (tree / "d" / f"f{number}").write_bytes(b"%d" % number * 1000)
    (tree / "d" / "e" / "last").write_bytes(b"last")
    (tree / "d" / "z").mkdir()
    (tree / "large").write_bytes(os.urandom(3 << 20))
    (tree / "d" / "link").symlink_to("f1")
    os.link(tree / "d" / "f2", tree / "again")
    os.mkfifo(tree / "d" / "a pipe")
    return tree


@pytest.fixture
def again(source: Path) -> Iterator[Again]:
    made = Again(source)
    yield made
    made.close()


def rewritten(path: Path) -> None:
    """Other bytes; size and mtime as before."""
    before = path.stat()
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_nothing_is_read_if_nothing_changed(again: Again) -> None:
    first = again.publish()
    assert (first.unchanged, first.totals.files) == (0, 8)
    assert again.looks_equal()
    second = again.publish()
    assert (second.snapshot, second.unchanged, second.stored) == (first.snapshot, 8, 0)
    assert second.deduplicated == again.publish(rehash=True).deduplicated
    assert second.skipped == first.skipped


def test_only_the_file_that_changed_is_read(again: Again, source: Path) -> None:
    again.publish()
    rewritten(source / "d" / "f3")
    assert not again.looks_equal()
    assert again.publish().unchanged == 7
    assert again.publish().snapshot == again.full().snapshot


def test_a_tree_that_was_written_just_before_is_read_again(again: Again) -> None:
    again.later = 0
    again.publish()
    assert not again.file.is_quick
    assert again.publish().unchanged == 0


def test_a_file_whose_chunk_the_store_lost_is_read_again(again: Again, source: Path) -> None:
    class Forgetful(MemorySink):
        def has(self, ids: list[ChunkId]) -> list[bool]:  # type: ignore[override]
            return [known and chunk != lost for known, chunk in zip(super().has(ids), ids, strict=True)]

    catalog = publish(source).catalog
    lost = catalog.chunk_id(catalog.runs(catalog.find(b"d/f4")).start)
    again.sink = Forgetful()
    first = again.publish()
    second = again.publish()
    assert (second.snapshot, second.unchanged) == (first.snapshot, 7)


@pytest.mark.parametrize(
    ("mtime", "ctime", "racy"),
    [
        (AT - 2 * SECOND - 1, AT - 2 * SECOND - 1, False),
        (AT - 2 * SECOND, AT - 2 * SECOND - 1, True),
        (AT - 2 * SECOND - 1, AT - 2 * SECOND, True),
        (0, AT, True),
        (0, AT + 3600 * SECOND, True),
        (AT + 9 * SECOND, 0, True),
        (AT + 12 * SECOND + 1, 0, False),
        (-1, 0, False),
    ],
)
def test_stamps_younger_than_the_reading_are_not_relied_on(mtime: int, ctime: int, racy: bool) -> None:
    assert is_racy(mtime, ctime, AT, AT + 10 * SECOND, Trust.LOCAL) is racy


def test_another_machines_clock_may_differ_by_minutes() -> None:
    assert is_racy(0, AT - 300 * SECOND, AT, AT, Trust.REMOTE)
    assert not is_racy(0, AT - 601 * SECOND, AT, AT, Trust.REMOTE)


def test_a_clock_that_was_set_back_is_noticed() -> None:
    then = Moment(AT, "boot", 1000 * SECOND)
    assert then.set_back_until(Moment(AT - 1, "boot", 1000 * SECOND))
    assert then.set_back_until(Moment(AT + 10 * SECOND, "boot", 1012 * SECOND)), "it went back 2 s and passed AT again"
    assert not then.set_back_until(Moment(AT + 10 * SECOND, "boot", 1010 * SECOND))
    assert not then.set_back_until(Moment(AT + 60 * SECOND, "boot", 1010 * SECOND)), "forward does no harm"
    assert not then.set_back_until(Moment(AT + 10 * SECOND, "another", 5 * SECOND))


def test_file_systems_that_are_not_known_are_not_trusted(tmp_path: Path) -> None:
    known = FileSystems()
    for path, expected in ((Path("/proc"), Trust.NONE), (tmp_path, Trust.LOCAL)):
        fd = os.open(path, os.O_RDONLY)
        try:
            known.look_at(fd)
            assert known.trust(os.fstat(fd).st_dev) is expected
        finally:
            os.close(fd)
    assert known.trust(1 << 60) is Trust.NONE, "a file of a device that no directory is on"


def test_files_where_stamps_say_nothing_are_read(again: Again, monkeypatch: pytest.MonkeyPatch) -> None:
    first = again.publish()
    monkeypatch.setattr("hoard_p2p.publish.stampfs._KINDS", {})
    assert again.publish().unchanged == 0
    assert not again.file.is_quick
    monkeypatch.setattr("hoard_p2p.publish.stampfs._KINDS", {0xEF53: Trust.REMOTE, 0x01021994: Trust.REMOTE})
    again.later = 700 * SECOND
    again.publish()
    assert not again.file.is_quick, "a server is asked only by opening"
    assert (again.publish().unchanged, first.totals.files) == (8, 8)


def test_special_files_count_by_their_kind(again: Again, source: Path) -> None:
    again.publish()
    pipe = source / "d" / "a pipe"
    directory = pipe.parent.stat()
    os.utime(pipe, ns=(1, 1))
    pipe.chmod(0o777)
    assert again.looks_equal()
    pipe.unlink()
    pipe.write_bytes(b"")
    os.utime(pipe.parent, ns=(directory.st_atime_ns, directory.st_mtime_ns))
    assert not again.looks_equal()


def test_what_is_excluded_may_change(again: Again, source: Path) -> None:
    again.chosen = replace(options(source.parent), exclude=(b"f3", b"e/", b"z/"))
    again.publish()
    (source / "d" / "f3").write_bytes(b"other")
    assert again.looks_equal()
    (source / "d" / "f3").unlink()
    assert not again.looks_equal(), "its directory has another mtime"
    assert again.publish().snapshot == again.full().snapshot


def test_attributes_that_are_not_kept_are_counted_as_before(again: Again, source: Path) -> None:
    if os.geteuid() != 0 or not can_have_xattrs(source):
        pytest.skip("needs root and a file system with attributes")
    os.setxattr(source / "d" / "f1", "trusted.hoard-test", b"x")
    os.setxattr(source / "d" / "f1", "user.hoard-test", b"y")
    first = again.publish()
    second = again.publish()
    assert second.unchanged == 8
    assert (second.snapshot, second.not_kept) == (first.snapshot, first.not_kept)
    assert [kind.name for kind in first.not_kept] == ["trusted.hoard-test"]


@pytest.mark.expect_warnings
def test_a_catalog_of_another_tree_is_not_believed(again: Again, source: Path) -> None:
    first = again.publish()
    other = source.parent / "other"
    other.mkdir()
    for number in range(20):
        (other / f"x{number}").write_bytes(b"x")
    again.last = publish(other, sink=again.sink).result
    fd = os.open(source.parent / "forged", os.O_RDWR | os.O_CREAT)
    stamps = again.file
    meta = replace(stamps.meta, snapshot=again.last.snapshot.hex()).encode()
    rest = stamps.data[stamps.header.rows_at :]
    stamps.header.meta = len(meta)
    digest = stampscan.digest_of(stamps.header, [meta, rest])
    os.write(fd, stamps.header.pack(drops=0, digest=digest) + meta + rest)
    again.close()
    again.stamps = os.fdopen(fd, "r+b", buffering=0)
    second = again.publish()
    assert (second.snapshot, second.unchanged) == (first.snapshot, 0)


@pytest.mark.parametrize("place", [0, 8, 17, 100, -1])
def test_a_damaged_stamp_file_is_of_no_use(again: Again, place: int) -> None:
    again.publish()
    assert again.stamps is not None
    fd = again.stamps.fileno()
    data = bytearray(os.pread(fd, 1 << 20, 0))
    data[place] ^= 1
    os.pwrite(fd, data, 0)
    if place == 17:
        assert again.file.is_whole(), "the number of drops is written over in place"
        return
    try:
        assert not again.file.is_whole()
    except ValueError:
        assert stampscan.read_header(fd) is None or place == 100
    assert stampscan.main(fd, fd) == stampscan.BROKEN


def test_a_stamp_file_cut_short_is_of_no_use(again: Again) -> None:
    again.publish()
    assert again.stamps is not None
    os.ftruncate(again.stamps.fileno(), os.fstat(again.stamps.fileno()).st_size - 1)
    with pytest.raises(ValueError, match="no stamp file"):
        StampFile(again.stamps.fileno())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"end":[1],"snapshot":"","begin":0,"summary":{}}', b"\xff"])
def test_meta_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        Meta.decode(data)


def test_shares_cover_every_entry_once() -> None:
    for entries in (0, 1, 4095, 8192, 100_000):
        for processes in (1, 2, 3, 64):
            made = stampscan.shares(entries, processes)
            assert len(made) <= min(processes, stampscan.MOST_SHARES)
            assert [number for share in made for number in share] == list(range(entries + 1))


def test_a_change_shows_in_the_share_that_has_the_entry(again: Again, source: Path) -> None:
    again.publish()
    rewritten(source / "d" / "f5")
    (source / "d" / "z" / "new").touch()
    header = again.file.header
    root = os.open(source, os.O_RDONLY)
    try:
        with memoryview(again.file.data) as view, chdir("."):
            ranges = [range(at, at + 1) for at in range(header.entries + 1)]
            different = [at.start for at in ranges if not stampscan.scan(header, view, root, at)]
    finally:
        os.close(root)
    # again, d, large | a pipe, e, f0 - f5, link, z | last | (nothing in z)
    assert different == [10, 12, header.entries]
