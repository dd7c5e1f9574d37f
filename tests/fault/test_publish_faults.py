"""A publish whose source or store misbehaves: it ends with the right error, names what is wrong, and leaves nothing."""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from threading import enumerate as enumerate_threads

import pytest

from hoard_p2p.chunking import MIB
from hoard_p2p.errors import SourceChanging, SourceUnreadable, StoreFailed
from hoard_p2p.ids import Bytes, ChunkId
from hoard_p2p.publish import publish_directory
from hoard_p2p.testing.memory import MemoryFileSink, MemorySink
from tests.unit.publish_trees import options, publish, run

NOBODY = 65_534


@pytest.fixture
def tree(new_directory: Callable[[str], Path]) -> Path:
    """A tree that an ordinary user can get at, as can be the directory beside it for temporary files."""
    base = new_directory("p")
    base.chmod(0o777)
    (base / "tree").mkdir()
    return base / "tree"


@contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Without the rights of root, if we have them."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def nothing_left() -> Iterator[None]:
    """No descriptor or thread more than before. (Fewer there may be: those that a failed test left go at any time.)"""
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) <= before
    assert not [thread for thread in enumerate_threads() if thread.name.startswith("publish-")]


@pytest.fixture
def partly_unreadable(tree: Path) -> Iterator[Path]:
    for name in ("a/open", "a/shut", "shut/inside", "b/c/open", "b/shut\n"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(name.encode())
    (tree / "listed").mkdir()
    (tree / "listed" / "f").touch()
    shut = [tree / "a" / "shut", tree / "shut", tree / "b" / "shut\n"]
    for path in shut:
        path.chmod(0)
    (tree / "listed").chmod(0o444)  # its names can be seen, nothing more
    yield tree
    for path in (*shut, tree / "listed"):
        path.chmod(0o755)


def test_every_path_that_cannot_be_read_is_named(partly_unreadable: Path) -> None:
    with as_ordinary_user(), nothing_left(), pytest.raises(SourceUnreadable) as caught:
        publish(partly_unreadable)
    assert sorted(caught.value.failures) == [
        "a/shut: Permission denied",
        "b/shut\\x0a: Permission denied",
        "listed/f: Permission denied",
        "shut: Permission denied",
    ]


def test_nothing_more_is_stored_once_the_publish_is_bound_to_fail(tree: Path) -> None:
    for number in range(3000):
        (tree / f"f{number:04d}").write_bytes(b"%04d" % number)
    for number in (0, 2999):
        (tree / f"f{number:04d}").chmod(0)
    sink = MemorySink()
    with as_ordinary_user(), pytest.raises(SourceUnreadable) as caught:
        run(tree, options(tree.parent), sink)
    assert caught.value.failures == ("f0000: Permission denied", "f2999: Permission denied")
    assert sink.stored < 4 * 1000


def test_what_cannot_be_read_is_left_out_on_request(partly_unreadable: Path) -> None:
    with as_ordinary_user():
        published = publish(partly_unreadable, replace(options(partly_unreadable.parent), skip_unreadable=True))
    assert published.paths() == [b"a", b"b", b"listed", b"a/open", b"b/c", b"b/c/open"]
    assert published.result.skipped.unreadable.count == 4
    assert "shut: Permission denied" in published.result.skipped.unreadable.first


@pytest.mark.root
@pytest.mark.parametrize("skip", [False, True])
def test_an_unreadable_root_is_an_error_in_any_case(tree: Path, skip: bool) -> None:
    fd = os.open(tree, os.O_RDONLY)
    tree.chmod(0o300)
    chosen = replace(options(tree.parent), skip_unreadable=skip)
    try:
        with as_ordinary_user(), nothing_left(), pytest.raises(SourceUnreadable, match=r"\.: Permission denied"):
            publish_directory(fd, MemorySink(), chosen, report=lambda _: None, stop=lambda: False)
    finally:
        os.close(fd)


# --- the store


class DiskFull(MemorySink):
    """Takes so many bytes, and no more."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room
        self._guard = Lock()

    def take(self, size: int) -> None:
        with self._guard:
            self._room -= size
            if self._room < 0:
                raise StoreFailed("the disk is full; free some space")

    def put(self, chunk_id: ChunkId, data: Bytes) -> None:
        self.take(len(data))
        super().put(chunk_id, data)

    def open_file(self, size: int) -> "FullFile":
        return FullFile(self, size)


class FullFile(MemoryFileSink):
    def __init__(self, sink: DiskFull, size: int) -> None:
        super().__init__(sink, size)
        self._disk = sink

    def put(self, chunk_id: ChunkId, data: Bytes, offset: int) -> None:
        self._disk.take(len(data))
        super().put(chunk_id, data, offset)


class UnsyncedDisk(MemorySink):
    """Fails when it comes to making things durable."""

    def flush(self) -> None:
        raise StoreFailed("the disk is full; free some space")


@pytest.mark.parametrize("room", [0, 100_000, 3 * MIB, 20 * MIB, 41 * MIB])
def test_a_full_disk_ends_the_publish(tree: Path, room: int) -> None:
    rng = random.Random(1)
    for number in range(40):
        (tree / f"small{number:02d}").write_bytes(rng.randbytes(50_000))
    for number in range(4):
        (tree / f"large{number}").write_bytes(rng.randbytes(10 * MIB))
    with nothing_left(), pytest.raises(StoreFailed, match="full"):
        run(tree, options(tree.parent), DiskFull(room))


def test_a_failed_flush_ends_the_publish(tree: Path) -> None:
    (tree / "f").write_bytes(b"x")
    with nothing_left(), pytest.raises(StoreFailed, match="full"):
        run(tree, options(tree.parent), UnsyncedDisk())


def test_a_missing_directory_for_temporary_files_is_told(tree: Path) -> None:
    with nothing_left(), pytest.raises(StoreFailed, match="nowhere"):
        run(tree, options(tree.parent / "nowhere"), MemorySink())


# --- large files that change while they are read


class Meddler(MemorySink):
    """Lets somebody at the source while a large file is read: before the first chunk of each reading is put."""

    def __init__(self, meddle: Callable[[int], object]) -> None:
        super().__init__()
        self.readings = 0
        self.meddle = meddle

    def open_file(self, size: int) -> "MeddledFile":
        self.readings += 1
        return MeddledFile(self, size, self.readings)


class MeddledFile(MemoryFileSink):
    def __init__(self, sink: Meddler, size: int, reading: int) -> None:
        super().__init__(sink, size)
        self._meddler = sink
        self._reading = reading
        self._first = True
        self._guard = Lock()

    def put(self, chunk_id: ChunkId, data: Bytes, offset: int) -> None:
        with self._guard:
            if self._first:
                self._meddler.meddle(self._reading)
            self._first = False
        super().put(chunk_id, data, offset)


def test_a_large_file_rewritten_while_it_is_read_is_read_again(tree: Path) -> None:
    rng = random.Random(2)
    versions = [rng.randbytes(30 * MIB) for _ in range(2)]
    (tree / "f").write_bytes(versions[0])
    sink = Meddler(lambda reading: reading == 1 and (tree / "f").write_bytes(versions[1]))
    published = publish(tree, sink=sink)
    assert sink.readings == 2
    assert published.content(b"f") == versions[1]
    assert len(sink.files) == 1
    assert published.told[-1].bytes == 30 * MIB


def test_a_large_file_cut_short_while_it_is_read_is_read_again(tree: Path) -> None:
    data = random.Random(3).randbytes(40 * MIB)
    (tree / "f").write_bytes(data)

    def cut_short(reading: int) -> None:
        if reading == 1:
            os.truncate(tree / "f", 100)

    sink = Meddler(cut_short)
    with nothing_left():
        published = publish(tree, sink=sink)
    assert published.content(b"f") == data[:100]
    assert published.told[-1].bytes == 100


def test_a_large_file_that_is_replaced_is_one_version(tree: Path) -> None:
    rng = random.Random(4)
    versions = [rng.randbytes(9 * MIB) for _ in range(3)]
    (tree / "f").write_bytes(versions[0])

    def swap(reading: int) -> None:
        if reading < 3:
            (tree.parent / "next").write_bytes(versions[reading])
            (tree.parent / "next").rename(tree / "f")

    published = publish(tree, sink=Meddler(swap))
    assert published.content(b"f") == versions[2]


def test_a_large_file_that_never_settles_is_named(tree: Path) -> None:
    (tree / "growing").write_bytes(random.Random(5).randbytes(9 * MIB))
    (tree / "other").write_bytes(b"x")

    def append(reading: int) -> None:
        with (tree / "growing").open("ab") as file:
            file.write(random.Random(reading).randbytes(100_000))

    sink = Meddler(append)
    with nothing_left(), pytest.raises(SourceChanging, match="growing"):
        run(tree, options(tree.parent), sink)
    assert sink.readings == 5
    assert sink.files == {}


class Broken(MemorySink):
    """Cannot even tell what it has."""

    def has(self, ids: Sequence[ChunkId]) -> list[bool]:
        raise StoreFailed("index not readable")

    def open_file(self, size: int) -> MemoryFileSink:
        raise StoreFailed("index not readable")


def test_a_broken_store_ends_the_publish_of_many_files_at_once(tree: Path) -> None:
    for number in range(500):
        (tree / f"f{number}").write_bytes(b"%d" % number)
    (tree / "large").write_bytes(bytes(range(256)) * (40 * 1024))
    with nothing_left(), pytest.raises(StoreFailed, match="index"):
        run(tree, options(tree.parent), Broken())
