"""A mount that was killed goes on, or can be made again at the same place: never an endless wait, never a stack."""

import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.crews import crew_of, holders, mounted_at
from tests.system import HOARD, IO_KINDS, Machine, io_options, machines, tree, wait_until

pytestmark = [pytest.mark.root, pytest.mark.fuse, pytest.mark.timeout(180)]

NewDirectory = Callable[[str], Path]
READ_ALL = """
for round in $(seq 1000000); do
    for file in "$0"/*; do dd "if=$file" of=/dev/null bs=1M iflag=direct status=none || exit 9; done
    echo "$round" >"$1"
done
"""
"""Past the page cache, which outlives the mount that filled it."""


@pytest.fixture
def node(new_directory: NewDirectory) -> Iterator[Machine]:
    machine = Machine(new_directory("n"), f"test-{secrets.token_hex(4)}", "one", discovery="none", listen="127.0.0.1:0")
    with machines([machine]):
        yield machine


@pytest.fixture
def source(new_directory: NewDirectory) -> Path:
    source = new_directory("s")
    for number in range(7):
        (source / str(number)).write_bytes(os.urandom(400_000))
    (source / "large").write_bytes(os.urandom(9 << 20))
    return source


class Rounds:
    """A shell that reads a whole mount, round after round."""

    def __init__(self, process: "subprocess.Popen[bytes]", count: Path) -> None:
        self._process = process
        self._count = count

    def _done(self) -> int:
        return int(self._count.read_text() or "0") if self._count.exists() else 0

    def goes_on(self) -> None:
        """Some more rounds without an error."""
        goal = self._done() + 3
        wait_until(lambda: self._done() >= goal or self.status is not None, "the reader goes on", 60)
        assert self.status is None, "the reader got an error"

    @property
    def status(self) -> int | None:
        """Of the shell; None while it reads."""
        return self._process.poll()


@contextmanager
def reading(mountpoint: Path, count: Path) -> Iterator[Rounds]:
    process = subprocess.Popen(
        ["bash", "-c", READ_ALL, mountpoint, count], stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield Rounds(process, count)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


@contextmanager
def foreground(node: Machine, snapshot: str, mountpoint: Path, io: str) -> Iterator["subprocess.Popen[bytes]"]:
    """`hoard mount --foreground` by itself, once it answers."""
    where = ("--data-dir", os.fspath(node.data_dir))
    command = [*HOARD, "mount", *where, "--foreground", *io_options(io), snapshot, os.fspath(mountpoint)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    node.mounts.append(mountpoint)
    try:
        wait_until(lambda: bool(os.listdir(mountpoint)), "the mount answers", 60)
        yield process
    finally:
        process.kill()
        process.wait(20)


@pytest.mark.parametrize("io", IO_KINDS)
def test_a_reader_goes_on_when_the_mount_command_is_killed(
    node: Machine, source: Path, new_directory: NewDirectory, io: str
) -> None:
    snapshot, mountpoint = node.publish(source), new_directory("m")
    with foreground(node, snapshot, mountpoint, io) as command, crew_of(mountpoint) as crew:
        with reading(mountpoint, new_directory("c") / "count") as reader:
            reader.goes_on()
            command.kill()
            reader.goes_on()
            wait_until(lambda: crew.supervisor != command.pid and crew.is_whole(), "another keeps the mount", 60)
            refused = node.hoard("mount", snapshot, os.fspath(mountpoint), check=False)
            assert refused.returncode == 1, "it lives: nothing is mounted over it"
            assert os.fspath(mountpoint) in refused.stderr
            reader.goes_on()
        assert mounted_at(mountpoint) == 1
        assert tree(mountpoint) == tree(source)
        node.umount(mountpoint)
        assert mounted_at(mountpoint) == 0
        wait_until(lambda: not holders(crew.memory), "nobody holds the mount")


@pytest.mark.parametrize("io", IO_KINDS)
def test_a_mount_of_which_everyone_and_the_node_died_is_made_again_at_its_place(
    node: Machine, source: Path, new_directory: NewDirectory, io: str
) -> None:
    snapshot, mountpoint = node.publish(source), new_directory("m")
    node.mount(snapshot, mountpoint, *io_options(io))
    with crew_of(mountpoint) as crew, reading(mountpoint, new_directory("c") / "count") as reader:
        reader.goes_on()
        crew.kill_everyone(node.pid)
        wait_until(lambda: reader.status == 9, "the reader gets an error, and does not hang")
        before = crew.memory
    node.up()
    node.hoard("mount", snapshot, os.fspath(mountpoint), *io_options(io))
    assert mounted_at(mountpoint) == 1
    assert tree(mountpoint) == tree(source)
    node.umount(mountpoint)
    assert mounted_at(mountpoint) == 0
    assert os.listdir(mountpoint) == []
    wait_until(lambda: not holders(before), "nobody holds what was killed")


def test_a_mount_that_is_made_while_another_is_ended_is_left_alone(
    node: Machine, source: Path, new_directory: NewDirectory
) -> None:
    """It gets the other one's device number at once."""
    snapshot, first, second = node.publish(source), new_directory("m"), new_directory("m")
    node.mount(snapshot, first)
    with crew_of(first) as crew:
        wait_until(lambda: crew.verifier() != 0, "the verifier, which is started last, is there")
        behind = [crew.supervisor, *crew.workers(), crew.verifier()]
        for pid in behind:
            os.kill(pid, signal.SIGSTOP)
        ending = subprocess.Popen([*HOARD, "umount", "--data-dir", os.fspath(node.data_dir), os.fspath(first)])
        try:
            wait_until(lambda: mounted_at(first) == 0, "it is detached", 60)
            node.mount(snapshot, second)
        finally:
            for pid in behind:
                os.kill(pid, signal.SIGCONT)
            assert ending.wait(60) == 0
        node.mounts.remove(first)
    with crew_of(second) as other:
        assert other.is_whole()
        assert not other.ending
    assert tree(second) == tree(source)
    node.umount(second)
