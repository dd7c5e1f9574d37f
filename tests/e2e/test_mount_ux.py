"""What a user is told who mounts or unmounts in a way that cannot work, and with --foreground."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hoard_p2p.mount.mountinfo import mounts
from tests.system import HOARD, Machine, machines, wait_until

pytestmark = [pytest.mark.root, pytest.mark.fuse, pytest.mark.timeout(120)]
NewDirectory = Callable[[str], Path]

BECOME = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=+dac_read_search")
REACH = "--ambient-caps=+dac_read_search"
"""For a Python that lies in root's home folder."""


@pytest.fixture
def node(new_directory: NewDirectory) -> Iterator[Machine]:
    machine = Machine(new_directory("n"), f"test-{secrets.token_hex(4)}", "one", discovery="none", listen="127.0.0.1:0")
    with machines([machine]):
        yield machine


@pytest.fixture
def mounted(node: Machine, new_directory: NewDirectory) -> Path:
    source = new_directory("s")
    (source / "file").write_bytes(b"content")
    return node.mount(node.publish(source, "--name", "set:1"), new_directory("m t"))


def _as_nobody(*arguments: str) -> "subprocess.CompletedProcess[str]":
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv (package util-linux)")
    done = subprocess.run([*BECOME, REACH, *arguments], capture_output=True, text=True, check=False)
    if done.returncode and ("setpriv" in done.stderr or "hoard" not in done.stderr):
        pytest.skip(f"an ordinary user cannot run this Python: {done.stderr}")
    return done


def test_a_mount_of_another_user_is_named_as_one(mounted: Path) -> None:
    done = _as_nobody(*HOARD, "umount", os.fspath(mounted))
    assert done.returncode == 1
    assert "was mounted by user 0; only they and root can unmount it" in done.stderr


def test_what_is_no_mount_of_ours_is_described(new_directory: NewDirectory) -> None:
    plain = new_directory("p")
    for point, told in ((plain, "nothing is mounted there"), (Path("/proc"), "what is mounted there is proc")):
        done = subprocess.run([*HOARD, "umount", os.fspath(point)], capture_output=True, text=True, check=False)
        assert done.returncode == 3
        assert told in done.stderr


def test_umount_from_within_names_the_shell_but_not_itself(mounted: Path) -> None:
    script = f"cd '{mounted}' && {sys.executable} -m hoard_p2p.cli.main umount . ; echo status $?"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert "status 1" in done.stdout
    assert done.stderr.count("works in it") == 1, done.stderr
    assert f"hoard umount --force '{mounted}'" in done.stderr
    script = f"cd '{mounted}' && exec {sys.executable} -m hoard_p2p.cli.main umount ."
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_foreground_says_when_it_answers_and_ctrl_c_unmounts(
    node: Machine, mounted: Path, new_directory: NewDirectory
) -> None:
    point = new_directory("f")
    command = [*HOARD, "mount", "set:1", os.fspath(point), "--foreground", "--data-dir", os.fspath(node.data_dir)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            assert f"on {point}; Ctrl-C unmounts" in line
            assert (point / "file").read_bytes() == b"content"
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()
    wait_until(lambda: point not in [each.mountpoint for each in mounts()], "the mount is gone")


def test_an_ordinary_user_is_told_to_mount_on_a_directory_of_their_own(new_directory: NewDirectory) -> None:
    script = "import sys, pathlib; from hoard_p2p.mount import attach as a; a.attach('x', pathlib.Path(sys.argv[1]))"
    done = _as_nobody(sys.executable, "-c", script, os.fspath(new_directory("r")))
    assert done.returncode == 1
    assert "of your own" in done.stderr or "/dev/fuse cannot be opened" in done.stderr, done.stderr


def test_up_on_a_directory_of_somebody_else_leaves_it_alone(new_directory: NewDirectory) -> None:
    home = new_directory("h")
    (home / "thesis").touch()
    for detach in ((), ("--detach",)):
        command = [*HOARD, "up", "--discovery", "none", "--listen", "127.0.0.1:0", "--data-dir", os.fspath(home)]
        done = subprocess.run([*command, *detach], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert "it holds other files ('thesis')" in done.stderr
        assert os.listdir(home) == ["thesis"]
