"""Reading the files of a directory origin: where chunks lie, what is read, and what is not."""

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import ObjectChanged, OriginFailed, OriginRefused, Unavailable
from hoard_p2p.ids import chunk_id
from hoard_p2p.origin.beneath import open_beneath
from hoard_p2p.origin.directory import DirectoryOrigin, Rights
from hoard_p2p.origin.files import FileRead, Piece, file_of, reads
from hoard_p2p.testing.memory import MemorySink
from tests.unit.publish_trees import Published, options
from tests.unit.publish_trees import run as publish

MIB = 1 << 20


class Got:
    """What a reading came to."""

    def __init__(self) -> None:
        self.data: dict[int, bytes] = {}
        self.failed: dict[int, OriginFailed] = {}


def a_tree(path: Path) -> Path:
    draw = Random(5)
    for name in ("a", "b/one", "b/two", "c"):
        (path / name).mkdir(parents=True)
        for number in range(5):
            (path / name / f"{number}").write_bytes(draw.randbytes(number * 1000))
    (path / "b/large").write_bytes(draw.randbytes(9 * MIB) + bytes(MIB) + draw.randbytes(MIB))
    (path / "b/same").write_bytes((path / "a/3").read_bytes())
    os.link(path / "a/4", path / "c/linked")
    os.symlink("a", path / "zlink")
    return path


def catalog_of(source: Path, temp: Path) -> Catalog:
    temp.mkdir()
    sink = MemorySink()
    return Published(publish(source, options(temp), sink), sink).catalog


def data_runs(catalog: Catalog) -> list[int]:
    return [run for run in range(catalog.chunks) if catalog.canonical(run) == run and not catalog.is_hole(run)]


def read(origin: DirectoryOrigin, plan: Sequence[FileRead]) -> Got:
    got = Got()
    for file in plan:
        for piece in file.pieces:
            into = bytearray(piece.length)
            try:
                origin.read(file.range_of(piece), memoryview(into), lambda _: None)
                got.data[piece.number] = bytes(into)
            except OriginFailed as error:
                got.failed[piece.number] = error
    return got


def one(path: bytes, size: int) -> list[FileRead]:
    return [FileRead(path, size, (Piece(0, 0, size),))]


def test_every_chunk_of_a_snapshot_is_read_from_the_file_that_it_was_cut_from(tmp_path: Path) -> None:
    source = a_tree(tmp_path / "source")
    catalog = catalog_of(source, tmp_path / "temp")
    runs = data_runs(catalog)
    Random(1).shuffle(runs)
    origin = DirectoryOrigin.open(source)
    got = read(origin, reads(catalog, runs))
    assert not got.failed
    assert [chunk_id(got.data[index]) for index in range(len(runs))] == [catalog.chunk_id(run) for run in runs]


def test_the_file_of_a_run_is_the_one_whose_runs_hold_it(tmp_path: Path) -> None:
    catalog = catalog_of(a_tree(tmp_path / "source"), tmp_path / "temp")
    for run in range(catalog.chunks):
        inode = file_of(catalog, run)
        assert run in catalog.runs(inode)
        assert catalog.resolve(inode) == inode


def test_neighbouring_pieces_are_read_in_one_go_up_to_a_bound() -> None:
    pieces = [Piece(number, number * 3 * MIB, 3 * MIB) for number in range(4)] + [Piece(9, 20 * MIB, 5)]
    spans = FileRead(b"x", 30 * MIB, tuple(pieces)).spans()
    assert [[piece.number for piece in span] for span in spans] == [[0, 1], [2, 3], [9]]


@pytest.mark.parametrize("path", [b"../outside", b"/etc/hostname", b"out", b"sub/../../outside", b"inner"])
def test_no_path_leads_out_of_the_origin_or_over_a_link(tmp_path: Path, path: bytes) -> None:
    (tmp_path / "outside").write_bytes(b"secret")
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "file").write_bytes(b"secret")
    (root / "inner").symlink_to("file")
    got = read(DirectoryOrigin.open(root), one(path, 6))
    assert not got.data
    assert list(got.failed) == [0]


def test_a_path_over_proc_leads_nowhere(tmp_path: Path) -> None:
    base = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(OSError, match="symbolic links"):
            open_beneath(base, b"proc/self/cwd", os.O_RDONLY)
    finally:
        os.close(base)


def test_what_is_no_regular_file_now_is_not_read_and_stops_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dir").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(tmp_path / "socket"))
        for name in (b"fifo", b"dir", b"socket"):
            assert list(read(DirectoryOrigin.open(tmp_path), one(name, 1)).failed) == [0]


def test_a_file_of_another_length_is_told_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"longer")
    got = read(DirectoryOrigin.open(tmp_path), one(b"file", 3))
    assert isinstance(got.failed[0], ObjectChanged)
    assert f"{tmp_path}/file: changed since it was listed: 6 bytes now, 3 then" in str(got.failed[0])


def test_a_file_that_is_gone_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"yes")
    plan = [FileRead(b"gone", 3, (Piece(0, 0, 3),)), FileRead(b"there", 3, (Piece(1, 0, 3),))]
    got = read(DirectoryOrigin.open(tmp_path), plan)
    assert got.data == {1: b"yes"}
    assert isinstance(got.failed[0], ObjectChanged)


def test_the_superusers_node_reads_what_the_owner_could_read(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"x")
    (tmp_path / "mine").chmod(0o600)
    (tmp_path / "all").write_bytes(b"x")
    (tmp_path / "all").chmod(0o604)
    stranger = Rights(os.getuid() + 1, frozenset())
    root = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    got = read(DirectoryOrigin(tmp_path, root, stranger), [*one(b"mine", 1), FileRead(b"all", 1, (Piece(1, 0, 1),))])
    assert got.data == {1: b"x"}
    assert isinstance(got.failed[0], OriginRefused)


@pytest.mark.parametrize(
    ("mode", "owner", "group", "readable"),
    [(0o400, 7, 0, True), (0o044, 7, 0, False), (0o040, 1, 8, True), (0o004, 1, 8, False), (0o004, 1, 1, True)],
)
def test_rights_are_decided_by_the_first_class_that_fits(mode: int, owner: int, group: int, readable: bool) -> None:
    status = os.stat_result((0o100000 | mode, 1, 1, 1, owner, group, 0, 0, 0, 0))
    assert Rights(7, frozenset([8])).may_read(status) is readable
    assert Rights(0, frozenset()).may_read(status)


def test_a_directory_that_was_replaced_is_away(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    origin = DirectoryOrigin.open(root)
    origin.check()
    root.rename(tmp_path / "old")
    with pytest.raises(Unavailable, match="is away"):
        origin.check()
    root.mkdir()
    with pytest.raises(Unavailable, match="another directory"):
        origin.check()


def test_a_root_that_is_a_link_or_not_there_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("link", "gone"):
        with pytest.raises(Unavailable, match=name):
            DirectoryOrigin.open(tmp_path / name)
