"""Reading one file in one state, while others write to it."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hoard_p2p.errors import SourceChanging
from hoard_p2p.publish.source import ATTEMPTS, PAUSES, TICK_NS, attempts
from hoard_p2p.publish.walk import Directory


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    opened = Directory(b"", os.open(tmp_path, os.O_RDONLY))
    yield opened
    opened.release()


class Pauses:
    """Stands for waiting: notes for how long, and lets as much time pass as the file needs to look old."""

    def __init__(self, path: Path) -> None:
        self.taken: list[float] = []
        self._path = path

    def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        await_tick(self._path)


def await_tick(path: Path) -> None:
    """Return when the clock has left the tick of the file's last change behind."""
    while time.time_ns() - path.stat().st_ctime_ns < TICK_NS:
        pass


def test_a_file_at_rest_is_read_once(tmp_path: Path, directory: Directory) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"content")
    await_tick(path)
    pauses = Pauses(path)
    with closing(attempts(directory, b"f", pauses)) as tries:
        attempt = next(tries)
        assert os.read(attempt.fd, 100) == b"content"
        assert attempt.settled()
    assert pauses.taken == []


def test_a_file_changed_a_moment_ago_is_read_when_the_next_change_would_show(
    tmp_path: Path, directory: Directory
) -> None:
    path = tmp_path / "f"
    await_tick(tmp_path)
    path.write_bytes(b"content")
    os.utime(path)  # the change of a moment ago
    pauses = Pauses(path)
    with closing(attempts(directory, b"f", pauses)) as tries:
        assert next(tries).settled()
    assert pauses.taken in ([TICK_NS / 1e9], [])  # none if the machine was slower than a tick


def test_a_file_that_is_still_young_does_not_count_as_settled(tmp_path: Path, directory: Directory) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"content")
    for _ in range(100):  # in case the machine is slow
        os.utime(path)
        with closing(attempts(directory, b"f", lambda _: None)) as tries:
            settled = next(tries).settled()
        if time.time_ns() - path.stat().st_ctime_ns < TICK_NS:
            assert not settled
            return
    pytest.skip("this machine is too slow to see a young file")


def change_size(path: Path) -> None:
    path.write_bytes(b"longer than before")


def change_bytes_only(path: Path) -> None:
    status = path.stat()
    path.write_bytes(b"CONTENT")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def change_mode(path: Path) -> None:
    path.chmod(0o600)


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"CONTENT")
    other.rename(path)


@pytest.mark.parametrize("change", [change_size, change_bytes_only, change_mode, replace])
def test_a_change_while_reading_shows_and_the_next_attempt_sees_what_is_there_then(
    tmp_path: Path, directory: Directory, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"content")
    await_tick(path)
    with closing(attempts(directory, b"f", Pauses(path))) as tries:
        first = next(tries)
        os.read(first.fd, 100)
        change(path)
        assert not first.settled()
        second = next(tries)
        assert os.read(second.fd, 100) == path.read_bytes()
        assert second.settled()


def test_a_file_that_never_rests_is_named_after_the_last_attempt(tmp_path: Path, directory: Directory) -> None:
    path = tmp_path / "log\n"
    path.write_bytes(b"")
    pauses = Pauses(path)
    count = 0
    with closing(attempts(directory, b"log\n", pauses)) as tries, pytest.raises(SourceChanging, match=r"log\\x0a"):
        for attempt in tries:
            with path.open("ab") as file:
                file.write(b"more")
            assert not attempt.settled()
            count += 1
    assert count == ATTEMPTS
    assert [pause for pause in pauses.taken if pause != TICK_NS / 1e9] == list(PAUSES)
    assert sum(PAUSES) < 3


def test_a_special_file_is_opened_without_waiting(tmp_path: Path, directory: Directory) -> None:
    os.mkfifo(tmp_path / "fifo")
    with closing(attempts(directory, b"fifo", Pauses(tmp_path / "fifo"))) as tries:
        assert next(tries).status.st_size == 0


def test_a_symbolic_link_is_not_followed(tmp_path: Path, directory: Directory) -> None:
    (tmp_path / "l").symlink_to("f")
    (tmp_path / "f").touch()
    with closing(attempts(directory, b"l", Pauses(tmp_path / "f"))) as tries, pytest.raises(OSError, match="symbolic"):
        next(tries)


def test_no_descriptor_is_left_open(tmp_path: Path, directory: Directory) -> None:
    (tmp_path / "f").touch()
    before = set(os.listdir("/proc/self/fd"))
    with closing(attempts(directory, b"f", Pauses(tmp_path / "f"))) as tries:
        next(tries)
        next(tries)
        assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    assert set(os.listdir("/proc/self/fd")) == before
