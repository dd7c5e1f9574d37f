"""The worker processes of a publish: real forks, which store in files of their own."""

import os
import select
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

from hoard_p2p.chunking import MIB
from hoard_p2p.publish import crew_wire
from hoard_p2p.publish.board import Board, Counts
from hoard_p2p.publish.entries import Content
from hoard_p2p.publish.walk import Directory, Found
from hoard_p2p.publish.worker import answer_of
from tests.unit.publish_trees import options, publish

PROGRAM = """
import os, sys
from contextlib import closing, contextmanager
from pathlib import Path
from hoard_p2p.errors import HoardError, StoreFull
from hoard_p2p.publish import Crew, PublishOptions, publish_directory
from hoard_p2p.chunking import FASTCDC
from hoard_p2p.testing.memory import MemorySink

tree, scratch, mode = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]

class Sink(MemorySink):
    def flush(self):
        super().flush()
        (scratch / f"flushed-{os.getpid()}").touch()

    def put_many(self, chunks):
        if mode == "full":
            raise StoreFull("no room for it")
        if mode == "die":
            os._exit(3)
        news = super().put_many(chunks)
        with open(scratch / f"put-{os.getpid()}", "a") as log:
            log.writelines(f"{name.hex()}\\n" for (name, _), new in zip(chunks, news) if new)
        return news

@contextmanager
def opened(number):
    yield Sink()

fd = os.open(tree, os.O_RDONLY)
options = PublishOptions(chunker=FASTCDC, temp_dir=scratch)
with closing(Crew(2, FASTCDC, opened)) as crew:
    try:
        result = publish_directory(
            fd, MemorySink(), options, report=lambda _: None, stop=lambda: mode == "stop", crew=crew
        )
    except HoardError as error:
        print(type(error).__name__, error)
    else:
        print(result.snapshot.hex(), result.stored, result.deduplicated, result.totals.files)
"""


def run(tree: Path, scratch: Path, mode: str = "") -> list[str]:
    """What a publish by two workers prints."""
    scratch.mkdir()
    command = [sys.executable, "-c", PROGRAM, os.fspath(tree), os.fspath(scratch), mode]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Small files in several directories, some equal, a large one, links, and one that is empty."""
    root = tmp_path / "tree"
    for number in range(300):
        directory = root / f"d{number % 7}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"f{number}").write_bytes(f"file {number % 200}".encode() * 400)
    large = os.urandom(9 * MIB + 77)
    (root / "large").write_bytes(large)
    (root / "large again").write_bytes(large)
    (root / "empty").touch()
    (root / "link").symlink_to("large")
    os.link(root / "large", root / "d1" / "hard")
    return root


def puts(scratch: Path) -> list[str]:
    return [line for path in scratch.glob("put-*") for line in path.read_text().split()]


def test_workers_give_the_snapshot_of_one_process_and_store_each_small_file_once(tree: Path, tmp_path: Path) -> None:
    alone = publish(tree, options(tmp_path)).result
    snapshot, _, _, files = run(tree, tmp_path / "scratch")
    assert (snapshot, int(files)) == (alone.snapshot.hex(), alone.totals.files)
    names = puts(tmp_path / "scratch")
    assert len(names) == len(set(names)) == 200, "equal files went to both workers"
    assert list((tmp_path / "scratch").glob("flushed-*")), "and were flushed"


def test_what_a_worker_fails_with_is_what_the_publish_fails_with(tree: Path, tmp_path: Path) -> None:
    assert run(tree, tmp_path / "scratch", "full") == ["StoreFull", "no", "room", "for", "it"]


def test_a_worker_that_dies_fails_the_publish(tree: Path, tmp_path: Path) -> None:
    assert run(tree, tmp_path / "scratch", "die")[0] == "StoreFailed"


def test_a_publish_that_is_cancelled_ends_its_workers(tree: Path, tmp_path: Path) -> None:
    assert run(tree, tmp_path / "scratch", "stop") == ["Refused", "publish", "cancelled"]


def found_in(directory: Path) -> Found:
    return Found(b"large", os.stat(directory), Directory(b"", -1))


def test_a_worker_that_ends_says_nothing_of_a_file_that_it_never_began(tmp_path: Path) -> None:
    never: Future[Content] = Future()
    never.cancel()
    assert answer_of(never, 7, found_in(tmp_path)) is None


@pytest.mark.expect_warnings
def test_whatever_a_worker_fails_with_is_told(tmp_path: Path) -> None:
    failed: Future[Content] = Future()
    failed.set_exception(RuntimeError("unforeseen"))
    answer = answer_of(failed, 7, found_in(tmp_path))
    assert answer is not None
    assert answer[:3] == (crew_wire.FAILED, -7, "StoreFailed")
    assert "unforeseen" in answer[3]


def test_workers_die_with_their_leader(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from hoard_p2p.chunking import FASTCDC
from hoard_p2p.publish import Crew
crew = Crew(2, FASTCDC, lambda number: None)
print(*crew.pids, flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as leader:
        try:
            assert leader.stdout is not None
            pidfds = [os.pidfd_open(int(pid)) for pid in leader.stdout.readline().split()]
        finally:
            leader.kill()
    assert len(pidfds) == 2
    for pidfd in pidfds:
        assert ended(pidfd)
        os.close(pidfd)


def ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 10)[0])


def test_a_chunk_is_seen_first_once_until_another_takes_its_place() -> None:
    board = Board(1)
    one, other = bytes(31) + b"1", bytes(31) + b"2"  # of one slot
    seen = board.sightings.first_sight
    assert [seen(one), seen(one), seen(other), seen(one)] == [True, False, True, True]  # type: ignore[arg-type]


def test_the_board_adds_up_what_workers_have_done() -> None:
    board = Board(3)
    board.tell(0, Counts(5, 2, 1))
    board.tell(2, Counts(-1, 7, 0))
    assert board.totals() == Counts(4, 9, 1)
