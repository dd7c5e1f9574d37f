"""What becomes of entries that change between the listing and the reading, or while they are read."""

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest

from hoard_p2p.catalog.builder import CatalogBuilder
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.chunking import FASTCDC, MIB, SMALL_FILE
from hoard_p2p.errors import SourceChanging, SourceUnreadable
from hoard_p2p.ids import HOLE, ChunkId, chunk_id
from hoard_p2p.publish.assembly import Assembly
from hoard_p2p.publish.attributes import NONE
from hoard_p2p.publish.deposit import Deposit
from hoard_p2p.publish.entries import ARENA, Content, EntryReader, FileRead, HardLink, LinkRead, SmallFiles
from hoard_p2p.publish.exclude import Rules
from hoard_p2p.publish.source import TICK_NS
from hoard_p2p.publish.spill import LinkMap, spill_into
from hoard_p2p.publish.tally import Tally, TreeCount
from hoard_p2p.publish.walk import Begin, Directory, Found, LeftOut, Reason
from hoard_p2p.testing.memory import MemorySink
from tests.unit.publish_trees import options


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    opened = Directory(b"d", os.open(tmp_path, os.O_RDONLY))
    yield opened
    opened.release()


class Bench:
    """An `EntryReader` over a sink in memory; large files are only noted."""

    def __init__(self) -> None:
        self.sink = MemorySink()
        self.large: list[bytes] = []
        self.moved = 0
        self._deposit = Deposit(self.sink)
        self.reader = EntryReader(self.small, self._large, lambda _: None)

    def small(self, arena: memoryview) -> SmallFiles:
        return SmallFiles(arena, FASTCDC, self._deposit, self._count)

    def _count(self, size: int) -> None:
        self.moved += size

    def _large(self, found: Found) -> Future[Content]:
        self.large.append(found.name)
        return Future()


def found(directory: Directory, name: str) -> Found:
    encoded = os.fsencode(name)
    return Found(encoded, os.stat(encoded, dir_fd=directory.fd, follow_symlinks=False), directory)


def old(path: Path) -> Path:
    """Make sure that the last change lies in the past."""
    while path.lstat().st_ctime_ns + 25_000_000 > _now_ns(path):
        pass
    return path


def _now_ns(path: Path) -> int:
    probe = path.with_name("clock")
    probe.touch()
    return probe.stat().st_mtime_ns


# --- changes between the listing and the reading


def test_what_was_replaced_is_read_as_what_it_is_now(tmp_path: Path, directory: Directory) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("y")
    listed = [found(directory, "file"), found(directory, "link")]
    (tmp_path / "file").unlink()
    (tmp_path / "link").unlink()
    (tmp_path / "file").symlink_to("target")
    (tmp_path / "link").write_bytes(b"content")
    old(tmp_path / "link")
    link, file = Bench().reader.read_batch(listed)
    assert isinstance(link, LinkRead)
    assert link.target == b"target"
    assert isinstance(file, FileRead)
    assert file.runs == [(chunk_id(b"content"), 7)]


def test_what_vanished_is_told(tmp_path: Path, directory: Directory) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("y")
    listed = [found(directory, "file"), found(directory, "link")]
    (tmp_path / "file").unlink()
    (tmp_path / "link").unlink()
    assert Bench().reader.read_batch(listed) == [
        LeftOut(Reason.VANISHED, b"d/file", ""),
        LeftOut(Reason.VANISHED, b"d/link", ""),
    ]


def test_a_file_that_became_a_pipe_is_left_out_and_one_that_became_a_directory_is_an_error(
    tmp_path: Path, directory: Directory
) -> None:
    for name in ("pipe", "directory"):
        (tmp_path / name).write_bytes(b"x")
    listed = [found(directory, "pipe"), found(directory, "directory")]
    for name in ("pipe", "directory"):
        (tmp_path / name).unlink()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    reader = Bench().reader
    assert reader.read_batch(listed[:1]) == [LeftOut(Reason.SPECIAL, b"d/pipe", "a named pipe")]
    with pytest.raises(SourceChanging, match="d/directory"):
        reader.read_batch(listed[1:])


def test_a_file_that_has_grown_large_is_read_elsewhere(tmp_path: Path, directory: Directory) -> None:
    (tmp_path / "f").write_bytes(b"x")
    listed = found(directory, "f")
    (tmp_path / "f").write_bytes(bytes(SMALL_FILE + 1))
    old(tmp_path / "f")
    bench = Bench()
    (outcome,) = bench.reader.read_batch([listed])
    assert isinstance(outcome, Future)
    assert bench.large == [b"f"]


def test_files_that_grew_beyond_the_buffer_are_read_all_the_same(tmp_path: Path, directory: Directory) -> None:
    rng = random.Random(1)
    contents = [rng.randbytes(MIB - number) for number in range(2 * ARENA // MIB)]
    for number, content in enumerate(contents):
        (tmp_path / f"f{number}").write_bytes(content)
    old(tmp_path / "f0")
    listed = [found(directory, f"f{number}") for number in range(len(contents))]
    bench = Bench()
    outcomes = bench.reader.read_batch(listed)
    assert [file.runs for file in outcomes if isinstance(file, FileRead)] == [
        [(chunk_id(content), len(content))] for content in contents
    ]
    assert [bench.sink.chunks.get(chunk_id(content)) for content in contents] == contents
    assert bench.moved == sum(map(len, contents))


def test_a_file_shorter_than_it_says_cannot_be_read(directory: Directory) -> None:
    odd = Path("/sys/kernel/uevent_seqnum")  # says 4096, gives a few digits
    if not odd.exists() or odd.stat().st_size != 4096:
        pytest.skip("no sysfs here")
    while time.time_ns() - odd.stat().st_ctime_ns < TICK_NS:  # it appears in memory when it is first looked at
        pass
    parent = Directory(b"kernel", os.open(odd.parent, os.O_RDONLY))
    try:
        (outcome,) = Bench().reader.read_batch([found(parent, odd.name)])
    finally:
        parent.release()
    assert outcome == LeftOut(Reason.UNREADABLE, b"kernel/uevent_seqnum", "it ends before its size of 4096 bytes")


# --- changes while a file is read


class Disturbed:
    """An intake during whose first readings the file is changed."""

    def __init__(self, inner: SmallFiles, change: Callable[[], object], times: int) -> None:
        self._inner = inner
        self._change = change
        self._left = times
        self.rejected = 0

    def takes(self, size: int) -> bool:
        return self._inner.takes(size)

    def read(self, fd: int, size: int) -> Sequence[tuple[ChunkId, int]] | None:
        runs = self._inner.read(fd, size)
        if self._left:
            self._left -= 1
            self._change()
        return runs

    def accept(self, runs: Sequence[tuple[ChunkId, int]]) -> None:
        self._inner.accept(runs)

    def reject(self) -> None:
        self.rejected += 1
        self._inner.reject()


def disturbed(bench: Bench, directory: Directory, path: Path, change: Callable[[], object], times: int) -> Content:
    arena = bench.small(memoryview(bytearray(ARENA)))
    intake = Disturbed(arena, change, times)
    old(path)
    reader = EntryReader(bench.small, lambda _: Future(), lambda _: wait_until_old(path))
    content = reader.read_alone(found(directory, path.name), intake)
    assert intake.rejected == times
    arena.keep()
    return content


def wait_until_old(path: Path) -> None:
    old(path)


def rewrite(path: Path) -> None:
    status = path.stat()
    path.write_bytes(bytes(reversed(path.read_bytes())))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("times", [1, 4])
def test_a_file_changed_while_it_is_read_is_read_again(tmp_path: Path, directory: Directory, times: int) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    bench = Bench()
    content = disturbed(bench, directory, path, lambda: rewrite(path), times)
    assert isinstance(content, FileRead)
    assert content.runs == [(chunk_id(path.read_bytes()), 10)]
    assert bench.sink.chunks.ids() == {chunk_id(path.read_bytes())}  # nothing of the torn readings


def test_a_truncated_file_is_read_again(tmp_path: Path, directory: Directory) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    content = disturbed(Bench(), directory, path, lambda: os.truncate(path, 3), 1)
    assert isinstance(content, FileRead)
    assert content.runs == [(chunk_id(b"012"), 3)]
    assert content.status.st_size == 3


def test_a_file_removed_while_it_is_read_has_vanished(tmp_path: Path, directory: Directory) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    bench = Bench()
    intake = Disturbed(bench.small(memoryview(bytearray(ARENA))), path.unlink, 1)
    old(path)
    content = bench.reader.read_alone(found(directory, "f"), intake)
    assert content == LeftOut(Reason.VANISHED, b"d/f", "")


def test_a_file_that_does_not_settle_is_named(tmp_path: Path, directory: Directory) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    with pytest.raises(SourceChanging, match="d/f"):
        disturbed(Bench(), directory, path, lambda: rewrite(path), 5)


# --- the order of outcomes becomes a catalog


class Assembled:
    """An `Assembly` with what it needs, over files that are described instead of read."""

    def __init__(self, tmp_path: Path, tree_fd: int, read_now: Callable[[Found], Content]) -> None:
        chosen = options(tmp_path)
        spill = spill_into(tmp_path)
        count = TreeCount(tree_fd, Rules([]), spill, None)
        self.builder = CatalogBuilder(spill=spill, keep_owner=False)
        self.links = LinkMap(tmp_path)
        self.out = spill()
        tally = Tally(Deposit(MemorySink()), count)
        self.assembly = Assembly(self.builder, self.links, tally, chosen, read_now)
        self.assembly.add_root(os.fstat(tree_fd), NONE)
        self.assembly.add(Begin(None))

    def catalog(self) -> Catalog:
        self.assembly.finish(self.out)
        self.out.seek(0)
        return Catalog(memoryview(self.out.read()))

    def close(self) -> None:
        for each in (self.builder, self.links, self.out):
            each.close()


def test_a_hard_link_whose_first_name_vanished_is_read_itself(tmp_path: Path, directory: Directory) -> None:
    (tmp_path / "a").write_bytes(b"x")
    for name in ("b", "c"):
        os.link(tmp_path / "a", tmp_path / name)
    a, b, c = (found(directory, name) for name in "abc")

    def read_now(file: Found) -> Content:
        assert file.name == b"b"
        return FileRead(file.name, file.status, NONE, [(HOLE, 1)])

    with closing(Assembled(tmp_path, directory.fd, read_now)) as assembled:
        assert [assembled.assembly.seen(file) for file in (a, b, c)] == [False, True, True]
        assembled.assembly.add(LeftOut(Reason.VANISHED, b"a", ""))
        assembled.assembly.add(HardLink(b))
        assembled.assembly.add(HardLink(c))
        catalog = assembled.catalog()
        assert (catalog.name(1), catalog.name(2), catalog.resolve(2)) == (b"b", b"c", 1)
        assert assembled.assembly.skipped().vanished.first == ("a",)


def test_lists_of_what_was_left_out_are_bounded_and_still_counted(tmp_path: Path, directory: Directory) -> None:
    def read_now(file: Found) -> Content:
        raise AssertionError(file)

    with closing(Assembled(tmp_path, directory.fd, read_now)) as assembled:
        for number in range(12_000):
            assembled.assembly.add(LeftOut(Reason.VANISHED, b"v%d" % number, ""))
            assembled.assembly.add(LeftOut(Reason.UNREADABLE, b"u%d" % number, "Permission denied"))
        vanished = assembled.assembly.skipped().vanished
        assert (vanished.count, len(vanished.first), vanished.first[-1]) == (12_000, 1000, "v999")
        with pytest.raises(SourceUnreadable, match="and 2000 more") as caught:
            assembled.catalog()
        assert caught.value.failures[0] == "u0: Permission denied"
        assert caught.value.failures[-1] == "and 2000 more"
        assert len(caught.value.failures) == 10_001
