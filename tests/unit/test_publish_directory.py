"""A whole publish into memory: what is in the snapshot, its id, and what is told."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from threading import enumerate as enumerate_threads

import pytest

from hoard_p2p.catalog.layout import file_key
from hoard_p2p.catalog.root import MAX_INLINE_RUNS, decode
from hoard_p2p.chunking import FASTCDC, FIXED, MIB, Chunker
from hoard_p2p.errors import BadRequest, Refused
from hoard_p2p.ids import HOLE, ChunkId, chunk_id, snapshot_id
from hoard_p2p.publish import Phase, Progress, publish_directory
from hoard_p2p.publish.attributes import read_attributes
from hoard_p2p.testing.memory import MemorySink
from tests.unit.publish_trees import can_have_xattrs, options, publish, tree_in, tree_on

AT = 1_600_000_000_123_456_789


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    directory = tmp_path / "tree"
    directory.mkdir()
    return directory


def write(path: Path, content: bytes, *, mtime: int = AT) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, ns=(mtime, mtime))


def settle(tree: Path) -> None:
    """Give every directory the same time stamp, so that a copy of the tree is equal to it."""
    for parent, _, _ in os.walk(tree, topdown=False):
        os.utime(parent, ns=(AT, AT))


def mixed(tree: Path) -> None:
    """Small, medium and large files, directories, links."""
    rng = random.Random(5)
    for number in range(150):
        write(tree / f"d{number % 7}" / f"sub{number % 3}" / f"f{number:03d}", rng.randbytes(rng.randrange(20_000)))
    write(tree / "empty", b"")
    write(tree / "d1" / "medium", rng.randbytes(3 * MIB + 17))
    write(tree / "d2" / "large", rng.randbytes(21 * MIB + 1))
    write(tree / "zeros", bytes(300_000))
    (tree / "no files here").mkdir()
    (tree / "link").symlink_to("d1/medium")
    os.utime(tree / "link", ns=(AT, AT), follow_symlinks=False)
    settle(tree)


@pytest.mark.parametrize("chunker", [FASTCDC, FIXED])
def test_a_published_tree_equals_its_source(tree: Path, chunker: Chunker) -> None:
    mixed(tree)
    published = publish(tree, replace(options(tree.parent), chunker=chunker))
    assert tree_in(published) == tree_on(tree)
    totals = published.result.totals
    assert (totals.files, totals.directories, totals.symlinks) == (154, 30, 1)
    assert published.result.snapshot == snapshot_id(published.result.root)


def test_the_id_depends_on_neither_threads_nor_the_order_of_creation(tree: Path) -> None:
    mixed(tree)
    copy = tree.parent / "copy"
    paths = sorted(tree_on(tree), key=lambda path: (path != b"", path.count(b"/"), random.Random(path).random()))
    for path in paths:
        source, target = tree / os.fsdecode(path), copy / os.fsdecode(path)
        if source.is_symlink():
            target.symlink_to(source.readlink())
            os.utime(target, ns=(AT, AT), follow_symlinks=False)
        elif source.is_dir():
            target.mkdir()
        else:
            write(target, source.read_bytes())
    settle(copy)
    ids = {publish(which, replace(options(tree.parent), threads=n)).id for which in (tree, copy) for n in (1, 2, 5)}
    assert len(ids) == 1


def test_the_id_does_not_depend_on_the_locale(tree: Path) -> None:
    for name in (b"\xc3\xa9", b"e\xcc\x81", b"\xff", b"Z", b"a", b"\xf0\x9f\x98\x80"):
        write(tree / os.fsdecode(name), name)
    settle(tree)
    script = (
        "import sys; from pathlib import Path; from tests.unit.publish_trees import publish; "
        "print(publish(Path(sys.argv[1])).id)"
    )
    ids = {publish(tree).id}
    for locale in ({"LC_ALL": "C", "PYTHONUTF8": "0"}, {"LC_ALL": "C.UTF-8"}, {"LC_ALL": "en_US.ISO-8859-1"}):
        command = [sys.executable, "-c", script, str(tree)]
        environment = {**os.environ, **locale}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        ids.add(done.stdout.strip())
    assert len(ids) == 1


def test_names_modes_and_times_of_all_kinds_are_kept(tree: Path) -> None:
    names = [b"\xff\xfe", b"new\nline", b"\x01\x7f", b"caf\xe9", b"...", b"-rf", b"x" * 255, b"a\\b", b" "]
    for number, name in enumerate(names):
        write(tree / os.fsdecode(name), name, mtime=(number - 4) * 10**18 + number)
        (tree / os.fsdecode(name)).chmod([0o644, 0o4755, 0o2711, 0o1777, 0o000, 0o600][number % 6])
    (tree / "sticky").mkdir()
    (tree / "sticky").chmod(0o3770)
    tree.chmod(0o2751)
    os.utime(tree, ns=(AT, AT))
    published = publish(tree)
    if os.geteuid() != 0:  # to read the file of mode 0 again
        (tree / os.fsdecode(names[4])).chmod(0o400)
    assert tree_in(published) == tree_on(tree)


def test_reproducible_drops_times_and_nothing_else(tree: Path) -> None:
    mixed(tree)
    published = publish(tree, replace(options(tree.parent), reproducible=True))
    assert tree_in(published) == {path: node._replace(mtime=0) for path, node in tree_on(tree).items()}
    (tree / "empty").touch()
    assert publish(tree, replace(options(tree.parent), reproducible=True)).id == published.id
    assert not decode(published.result.root).keep_mtimes


def test_the_owner_is_kept_only_if_asked_for(tree: Path) -> None:
    write(tree / "f", b"x")
    assert publish(tree).catalog.uid_gid(1) is None
    kept = publish(tree, replace(options(tree.parent), preserve_owner=True))
    assert kept.catalog.uid_gid(1) == (os.getuid(), (tree / "f").stat().st_gid)
    assert kept.id != publish(tree).id


# --- hard links


def test_hard_links_are_one_file_of_which_the_first_name_is_the_target(tree: Path) -> None:
    for name in ("b/second", "z"):
        write(tree / name, b"linked")
    os.link(tree / "b" / "second", tree / "b" / "third")
    os.link(tree / "b" / "second", tree / "first")
    os.link(tree / "z", tree / "b" / "zz")
    published = publish(tree)
    assert tree_in(published) == tree_on(tree)
    catalog = published.catalog
    assert catalog.path_of(catalog.resolve(catalog.find(b"b/third"))) == b"first"
    assert catalog.nlink(catalog.find(b"first")) == 3
    assert published.result.totals.hard_links == 3
    assert published.result.totals.files == 2


def test_links_from_outside_the_tree_do_not_show(tree: Path) -> None:
    write(tree / "f", b"x")
    settle(tree)
    before = publish(tree).id
    os.link(tree / "f", tree.parent / "outside")
    assert publish(tree).id == before


def test_large_hard_links_are_read_once(tree: Path) -> None:
    write(tree / "a", random.Random(6).randbytes(9 * MIB))
    for number in range(5):
        os.link(tree / "a", tree / f"b{number}")
    published = publish(tree)
    assert tree_in(published) == tree_on(tree)
    assert published.result.deduplicated == 0
    assert published.told[-1].bytes == 6 * 9 * MIB


# --- holes and large files


def sparse_and_dense(tree: Path, layout: dict[int, bytes], size: int) -> tuple[Path, Path]:
    """The same content twice: with holes, and every zero written."""
    roots = tree / "sparse", tree / "dense"
    for root in roots:
        root.mkdir()
        with (root / "f").open("wb") as file:
            file.truncate(size)
            if root.name == "dense":
                for _ in range(0, size, MIB):
                    file.write(bytes(min(MIB, size - file.tell())))
            for offset, data in layout.items():
                file.seek(offset)
                file.write(data)
        os.utime(root / "f", ns=(AT, AT))
        os.utime(root, ns=(AT, AT))
    return roots


@pytest.mark.parametrize("chunker", [FASTCDC, FIXED])
@pytest.mark.parametrize(
    ("marks", "size"),
    [
        ((), 700_001),
        ((0,), 700_001),
        ((300_000,), MIB),
        ((), 40 * MIB + 5),
        ((0,), 40 * MIB + 5),
        ((40 * MIB + 4,), 40 * MIB + 5),
        ((5_000_001, 5_900_000, 17 * MIB - 1, 17 * MIB, 33 * MIB + 65_536), 40 * MIB + 5),
        (tuple(range(12_345, 30 * MIB, 131_072)), 30 * MIB),
    ],
)
def test_holes_are_found_by_content(tree: Path, chunker: Chunker, marks: tuple[int, ...], size: int) -> None:
    sparse, dense = sparse_and_dense(tree, dict.fromkeys(marks, b"X"), size)
    chosen = replace(options(tree), chunker=chunker)
    published = publish(sparse, chosen)
    assert publish(dense, chosen).id == published.id
    assert published.content(b"f") == (dense / "f").read_bytes()
    if not marks:
        assert published.result.totals.data == 0
        assert published.catalog.runs(1) == range(1)


def test_a_hole_of_terabytes_costs_nothing(tree: Path) -> None:
    with (tree / "f").open("wb") as file:
        file.truncate(4 << 40)
        file.seek(1 << 40)
        file.write(b"in the middle")
    published = publish(tree)
    catalog = published.catalog
    assert catalog.size(1) == 4 << 40
    assert [catalog.is_hole(run) for run in catalog.runs(1)] == [True, False, True]
    assert published.result.stored < MIB
    assert published.told[-1].bytes == 4 << 40
    assert published.sink.files == {}


def test_a_large_file_is_recorded_under_its_key_and_smaller_ones_are_not(tree: Path) -> None:
    rng = random.Random(7)
    write(tree / "large", rng.randbytes(8 * MIB + 1))
    write(tree / "not large", rng.randbytes(8 * MIB))
    published = publish(tree)
    catalog = published.catalog
    runs = [(catalog.chunk_id(run), catalog.length(run)) for run in catalog.runs(catalog.find(b"large"))]
    assert list(published.sink.files) == [file_key(runs)]
    assert published.sink.files[file_key(runs)][1]


def test_equal_files_are_stored_once_also_when_read_at_once(tree: Path) -> None:
    data = random.Random(8).randbytes(10 * MIB)
    for name in "abcd":
        write(tree / name, data)
    for number in range(100):
        write(tree / f"small{number}", b"the same in each")
    published = publish(tree, replace(options(tree.parent), threads=4))
    unique = published.result.totals.unique
    assert unique == len(data) + 16
    assert published.result.deduplicated == published.result.totals.data - unique
    assert published.told[-1].deduplicated == published.result.deduplicated


def test_a_second_publish_stores_nothing_new(tree: Path) -> None:
    mixed(tree)
    sink = MemorySink()
    first = publish(tree, sink=sink)
    assert first.result.stored == sink.stored
    second = publish(tree, sink=sink)
    assert second.id == first.id
    assert second.result.stored == 0
    assert second.result.deduplicated == second.result.totals.data


def test_a_catalog_of_many_chunks_has_a_list_chunk(tree: Path) -> None:
    tiny = Chunker(FIXED.kind, 4096, 4096, 4096, 4096)
    for number in range(4000):
        (tree / f"{number:05d}{'n' * 240}").touch()
    published = publish(tree, replace(options(tree.parent), chunker=tiny))
    root = decode(published.result.root)
    assert root.catalog_list is not None
    assert root.catalog_length > MAX_INLINE_RUNS * 4096
    assert len(published.paths()) == 4000


def test_chunks_carry_their_own_hash_and_no_hole_is_stored(tree: Path) -> None:
    mixed(tree)
    chunks = publish(tree).sink.chunks
    assert all(chunk_id(chunks.get(chunk)) == chunk for chunk in chunks.ids())
    assert HOLE not in chunks.ids()


# --- attributes


@pytest.fixture
def tree_with_xattrs(tree: Path) -> Iterator[Path]:
    if not can_have_xattrs(tree):
        pytest.skip("the file system of the temporary directory keeps no user attributes")
    yield tree


def test_user_attributes_of_files_and_directories_are_kept(tree_with_xattrs: Path) -> None:
    tree = tree_with_xattrs
    write(tree / "d" / "f", b"x")
    write(tree / "large", bytes(range(256)) * 5000)
    for path, name, value in (
        (tree / "d" / "f", "user.b", b"\0\xff"),
        (tree / "d" / "f", "user.a", b""),
        (tree / "large", "user.l", b"1"),
        (tree / "d", "user.d", b"v" * 2000),
        (tree, "user.root", b"r"),
    ):
        os.setxattr(path, name, value)
    (tree / "link").symlink_to("d/f")
    published = publish(tree)
    assert tree_in(published) == tree_on(tree)
    assert published.catalog.xattrs(published.catalog.find(b"d/f")) == {b"user.a": b"", b"user.b": b"\0\xff"}


@pytest.mark.root
def test_other_attributes_are_counted_with_an_example(tree_with_xattrs: Path) -> None:
    tree = tree_with_xattrs
    for name in ("a", "b"):
        write(tree / name, b"x")
        try:
            os.setxattr(tree / name, "trusted.note", b"y")
        except OSError:
            pytest.skip("trusted attributes cannot be set here")
    os.setxattr(tree / "b", "user.kept", b"z")
    (not_kept,) = publish(tree).result.not_kept
    assert (not_kept.name, not_kept.count, not_kept.example) == ("trusted.note", 2, "a")


def test_a_file_without_attributes_has_none(tree: Path) -> None:
    write(tree / "f", b"x")
    fd = os.open(tree / "f", os.O_RDONLY)
    try:
        assert read_attributes(fd).kept == ()
    finally:
        os.close(fd)


# --- what is left out


def test_special_files_are_left_out_and_named(tree: Path) -> None:
    write(tree / "f", b"x")
    os.mkfifo(tree / "pipe\n")
    published = publish(tree)
    assert published.paths() == [b"f"]
    assert published.result.skipped.special.count == 1
    assert published.result.skipped.special.first == ("pipe\\x0a (a named pipe)",)


def test_excluded_things_are_not_in_the_snapshot(tree: Path) -> None:
    for name in ("a/x.tmp", "a/x", "b/x", "cache/y"):
        write(tree / name, b"x")
    published = publish(tree, replace(options(tree.parent), exclude=(b"*.tmp", b"/b", b"cache/")))
    assert published.paths() == [b"a", b"a/x"]


def test_a_pattern_that_matched_nothing_is_told(tree: Path) -> None:
    write(tree / "train" / "x.tmp", b"x")
    published = publish(tree, replace(options(tree.parent), exclude=(b"*.tmp", b"TRAIN/")))
    assert published.result.unmatched_excludes == (b"TRAIN/",)


@pytest.mark.parametrize("kept", [True, False])
def test_a_time_beyond_64_bits_of_nanoseconds_is_told(tree: Path, kept: bool) -> None:
    write(tree / "f", b"x")
    far = (1 << 63) // 10**9 + 1000
    os.utime(tree / "f", (0, 1 if kept else far))
    if (tree / "f").stat().st_mtime_ns not in (10**9, far * 10**9):
        pytest.skip("this file system keeps no such times")
    told = [(each.name, each.count, each.example) for each in publish(tree).result.not_kept]
    assert told == ([] if kept else [("mtime", 1, "f")])


def test_a_bad_pattern_is_refused_before_anything_is_read(tree: Path) -> None:
    with pytest.raises(BadRequest):
        publish(tree, replace(options(tree.parent), exclude=(b"/",)))


def test_the_data_directory_of_a_node_is_refused_as_a_whole_and_left_out_inside(tree: Path) -> None:
    write(tree / "store" / "slab", b"x")
    write(tree / "f", b"x")
    status, inner = tree.stat(), (tree / "store").stat()
    with pytest.raises(Refused, match="data directory"):
        publish(tree, replace(options(tree.parent), own_data=(status.st_dev, status.st_ino)))
    published = publish(tree, replace(options(tree.parent), own_data=(inner.st_dev, inner.st_ino)))
    assert published.paths() == [b"f"]
    assert published.result.skipped.own_data.first == ("store",)
    assert published.result.skipped.special.count == 0


def test_an_empty_directory_is_a_snapshot(tree: Path) -> None:
    published = publish(tree)
    assert published.result.totals.inodes == 1
    assert tree_in(published) == tree_on(tree)


# --- progress and ends


def test_progress_ends_with_everything(tree: Path) -> None:
    mixed(tree)
    published = publish(tree)
    last = published.told[-1]
    size = published.result.totals.size
    assert (last.phase, last.files, last.bytes) == (Phase.SYNC, 154, size)
    assert [told.phase for told in published.told] == sorted(
        (told.phase for told in published.told), key=list(Phase).index
    )
    assert all(told.total_bytes in (None, size) and told.total_files in (None, 154) for told in published.told)


class WaitingSink(MemorySink):
    """Takes nothing before somebody wants the publish to stop."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted = Event()

    def has(self, ids: Sequence[ChunkId]) -> list[bool]:
        assert self.wanted.wait(30)
        return super().has(ids)


def test_a_cancelled_publish_ends_and_leaves_nothing_open(tree: Path) -> None:
    mixed(tree)
    before = set(os.listdir("/proc/self/fd"))
    sink = WaitingSink()
    asked = []

    def stop() -> bool:
        asked.append(1)
        if len(asked) > 3:
            sink.wanted.set()
        return len(asked) > 3

    fd = os.open(tree, os.O_RDONLY)
    try:
        with pytest.raises(Refused, match="cancelled"):
            publish_directory(fd, sink, options(tree.parent), report=lambda _: None, stop=stop)
    finally:
        os.close(fd)
    assert set(os.listdir("/proc/self/fd")) == before
    assert not [thread for thread in enumerate_threads() if thread.name.startswith("publish-")]


def test_an_error_of_the_caller_ends_the_publish_and_its_threads(tree: Path) -> None:
    mixed(tree)
    before = set(os.listdir("/proc/self/fd"))

    def report(progress: Progress) -> None:
        if progress.phase is Phase.CATALOG:
            raise RuntimeError("the terminal is gone")

    fd = os.open(tree, os.O_RDONLY)
    try:
        with pytest.raises(RuntimeError, match="terminal"):
            publish_directory(fd, MemorySink(), options(tree.parent), report=report, stop=lambda: False)
    finally:
        os.close(fd)
    assert set(os.listdir("/proc/self/fd")) == before
