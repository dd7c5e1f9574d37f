"""The order of the walk, and what it makes of odd trees."""

import os
import random
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from hoard_p2p.publish.exclude import Rules
from hoard_p2p.publish.spill import spill_into
from hoard_p2p.publish.walk import Begin, Event, Found, FoundDirectory, LeftOut, Reason, Walk, path_text


@contextmanager
def walking(tree: Path, *patterns: bytes, own_data: tuple[int, int] | None = None) -> Iterator[Iterator[Event]]:
    fd = os.open(tree, os.O_RDONLY)
    try:
        with closing(Walk(fd, Rules(patterns), spill_into(tree.parent), own_data).events()) as events:
            yield events
    finally:
        os.close(fd)


def walked(tree: Path, *patterns: bytes, own_data: tuple[int, int] | None = None) -> list[tuple[str, bytes]]:
    """The events in short: what, and the path or name."""
    with walking(tree, *patterns, own_data=own_data) as events:
        return [in_short(event) for event in events]


def in_short(event: Event) -> tuple[str, bytes]:
    match event:
        case Begin(directory):
            return "begin", directory.path if directory else b"?"
        case Found(name, _, directory):
            return "found", directory.join(name)
        case FoundDirectory(name):
            return "directory", name
        case LeftOut(reason, path):
            return reason.value, path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    directory = tmp_path / "tree"
    directory.mkdir()
    return directory


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_the_walk_is_breadth_first_in_byte_order(tree: Path) -> None:
    for name in ("b", "a", "b/z", "b/y", "a/x"):
        (tree / name).mkdir()
    for name in ("c", "Z", "a/f", "b/y/g", "\u00e9", "a-file"):
        (tree / name).touch()
    assert walked(tree) == [
        ("begin", b""),
        ("found", b"Z"),
        ("directory", b"a"),
        ("found", b"a-file"),
        ("directory", b"b"),
        ("found", b"c"),
        ("found", b"\xc3\xa9"),
        ("begin", b"a"),
        ("found", b"a/f"),
        ("directory", b"x"),
        ("begin", b"b"),
        ("directory", b"y"),
        ("directory", b"z"),
        ("begin", b"a/x"),
        ("begin", b"b/y"),
        ("found", b"b/y/g"),
        ("begin", b"b/z"),
    ]


def test_names_are_bytes(tree: Path) -> None:
    names = [b"\xff\xfe", b"new\nline", b"\x01", b"caf\xe9", b"...", b"-rf", b"x" * 255]
    for name in names:
        (tree / os.fsdecode(name)).touch()
    assert walked(tree)[1:] == [("found", name) for name in sorted(names)]


def test_symbolic_links_are_found_and_not_followed(tree: Path) -> None:
    (tree / "dir").mkdir()
    for name, target in (("self", "."), ("loop", "loop"), ("up", ".."), ("todir", "dir"), ("gone", "nowhere")):
        (tree / name).symlink_to(target)
    assert [what for what, _ in walked(tree)] == ["begin", "directory", *["found"] * 5, "begin"]


def test_special_files_are_left_out_by_name_and_never_opened(tree: Path) -> None:
    os.mkfifo(tree / "fifo")  # opening it would wait for a writer
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(".", os.O_RDONLY)
        try:
            os.chdir(tree)  # the path would be too long for a socket
            server.bind("sock")
        finally:
            os.fchdir(here)
            os.close(here)
    with walking(tree) as events:
        left_out = [event for event in events if isinstance(event, LeftOut)]
    assert left_out == [
        LeftOut(Reason.SPECIAL, b"fifo", "a named pipe"),
        LeftOut(Reason.SPECIAL, b"sock", "a socket"),
    ]


def test_what_is_excluded_is_not_entered(tree: Path) -> None:
    for name in ("keep", "skip", "keep/skip", "keep/sub"):
        (tree / name).mkdir()
    for name in ("keep/a.tmp", "keep/a.txt", "skip/b.txt", "keep/skip/c", "keep/sub/top"):
        (tree / name).touch()
    assert walked(tree, b"skip/", b"*.tmp", b"/top") == [
        ("begin", b""),
        ("directory", b"keep"),
        ("begin", b"keep"),
        ("found", b"keep/a.txt"),
        ("directory", b"sub"),
        ("begin", b"keep/sub"),
        ("found", b"keep/sub/top"),
    ]


def test_the_nodes_own_data_is_left_out_by_name(tree: Path) -> None:
    (tree / "store").mkdir()
    (tree / "store" / "slab").touch()
    status = (tree / "store").stat()
    assert walked(tree, own_data=(status.st_dev, status.st_ino)) == [("begin", b""), ("own data", b"store")]


@pytest.fixture
def deep(tree: Path) -> Iterator[list[bytes]]:
    """Paths of a chain of directories that is longer than PATH_MAX, with a file at its end."""
    names = [b"d%03d" % depth + b"x" * 60 for depth in range(120)]
    fd = os.open(tree, os.O_RDONLY)
    for name in names:
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open(b"bottom", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    yield [b"/".join(names[: depth + 1]) for depth in range(len(names))]
    shutil.rmtree(tree)


def test_paths_may_be_longer_than_the_kernel_takes(tree: Path, deep: list[bytes]) -> None:
    (tree / "other").mkdir()
    events = walked(tree)
    assert len(deep[-1]) > 4096
    assert [path for what, path in events if what == "begin"] == [b"", deep[0], b"other", *deep[1:]]
    assert events[-1] == ("found", deep[-1] + b"/bottom")


def test_a_directory_that_vanishes_after_its_listing_is_begun_empty_and_told(tree: Path) -> None:
    (tree / "a").mkdir()
    (tree / "b").mkdir()
    told = []
    with walking(tree) as events:
        for event in events:
            told.append(in_short(event))
            if told[-1] == ("directory", b"b"):
                (tree / "a").rmdir()
    assert told[3:] == [("begin", b"?"), ("vanished", b"a"), ("begin", b"b")]


def test_a_directory_swapped_for_a_link_leads_nowhere(tree: Path) -> None:
    (tree / "a" / "b").mkdir(parents=True)
    outside = tree.parent / "outside"
    (outside / "b").mkdir(parents=True)
    (outside / "b" / "secret").touch()
    told = []
    with walking(tree) as events:
        for event in events:
            told.append(in_short(event))
            if told[-1] == ("directory", b"b"):
                shutil.rmtree(tree / "a")
                (tree / "a").symlink_to(outside)
    assert told[-2:] == [("begin", b"?"), ("vanished", b"a/b")]


def test_entries_that_vanish_while_they_are_listed_are_told(tree: Path) -> None:
    for name in "abc":
        (tree / name).touch()
    told = []
    with walking(tree) as events:
        for event in events:
            told.append(in_short(event))
            if told[-1] == ("found", b"a"):
                (tree / "b").unlink()
    assert told == [("begin", b""), ("found", b"a"), ("vanished", b"b"), ("found", b"c")]


def test_directories_whose_names_begin_alike_are_told_apart(tree: Path) -> None:
    for path in ("a/b/1", "a/x/2", "ab/b/3", "ab/x/4", "a.b/x/5"):
        (tree / path).mkdir(parents=True)
    begun = [path for what, path in walked(tree) if what == "begin"]
    assert begun[-5:] == [b"a/b/1", b"a/x/2", b"a.b/x/5", b"ab/b/3", b"ab/x/4"]


def test_many_branches_come_in_order(tree: Path) -> None:
    rng = random.Random(3)
    paths = {""}
    while len(paths) < 300:
        paths.add(rng.choice(sorted(paths)) + f"/{rng.randrange(9)}")
    for path in paths:
        (tree / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    begun = [path for what, path in walked(tree) if what == "begin"]
    parts = [path.split(b"/") if path else [] for path in begun]
    assert parts == sorted(parts, key=lambda path: (len(path), path))
    assert len(begun) == len(set(begun)) == 300


def test_an_unfinished_walk_leaves_no_descriptor_open(tree: Path, deep: list[bytes]) -> None:
    before = open_files()
    for stop_after in (1, 2, 90):
        with ExitStack() as stack:
            events = stack.enter_context(walking(tree))
            for _ in range(stop_after):
                next(events)
        assert open_files() == before


def test_a_held_directory_stays_open_until_it_is_released(tree: Path) -> None:
    (tree / "file").write_bytes(b"content")
    with walking(tree) as events:
        found = next(event for event in events if isinstance(event, Found))
        directory = found.directory
        directory.hold()
        assert in_short(next(events, Begin(None))) == ("begin", b"?")
    os.close(os.open(found.name, os.O_RDONLY, dir_fd=directory.fd))
    directory.release()
    assert directory.fd == -1


@pytest.mark.parametrize(
    ("path", "shown"),
    [(b"a b/c", "a b/c"), (b"\xff", "\\xff"), (b"x\ny", "x\\x0ay"), (b"\xe2\x80\xae", "\\u202e"), (b"", ".")],
)
def test_paths_are_shown_so_that_they_can_be_printed(path: bytes, shown: str) -> None:
    assert path_text(path) == shown
    assert path_text(path).isprintable()
