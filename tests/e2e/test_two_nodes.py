"""Two nodes on one data directory: the second is told who is there, however it looks at the directory."""

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system import Machine, machines, wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]
NewDirectory = Callable[[str], Path]
UP = ("up", "--listen", "127.0.0.1:0", "--discovery", "none")


@pytest.fixture
def node(new_directory: NewDirectory) -> Iterator[Machine]:
    machine = Machine(new_directory("n"), f"test-{secrets.token_hex(4)}", "one", discovery="none", listen="127.0.0.1:0")
    with machines([machine]):
        yield machine


def test_a_second_node_through_a_bind_mount_or_without_the_lock_file_is_refused_with_the_firsts_pid(
    node: Machine, new_directory: NewDirectory
) -> None:
    path = new_directory("bind")
    subprocess.run(["mount", "--bind", node.data_dir, path], check=True)
    try:
        refused = Machine(path, "", "two").hoard(*UP, check=False)
        assert (refused.returncode, f"pid {node.pid})" in refused.stderr) == (1, True)
    finally:
        subprocess.run(["umount", path], check=False)
    (node.data_dir / "node-lock").unlink()
    refused = node.hoard(*UP, check=False)
    assert (refused.returncode, f"pid {node.pid})" in refused.stderr) == (1, True)


def test_a_second_node_in_another_pid_namespace_is_told_that_the_first_cannot_be_seen(node: Machine) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare (package util-linux)")
    other = Machine(node.data_dir, "", "two", prefix=("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"))
    refused = other.hoard(*UP, check=False)
    if "unshare failed" in refused.stderr:
        pytest.skip(f"no pid namespaces: {refused.stderr.strip()}")
    assert refused.returncode == 1
    assert "cannot be seen from here: it is in another container" in refused.stderr


def test_a_stopped_node_still_holds_its_directory(node: Machine) -> None:
    pid = node.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        refused = node.hoard(*UP, check=False)
        assert (refused.returncode, f"pid {pid})" in refused.stderr) == (1, True)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_copy_of_a_data_directory_runs_beside_the_first_until_they_meet_and_then_stops(
    node: Machine, new_directory: NewDirectory
) -> None:
    copied = new_directory("c") / "copy"
    subprocess.run(["cp", "-a", node.data_dir, copied], check=True)
    address = node.json("status")["node"]["url"].removeprefix("http://").rstrip("/")
    clone = Machine(copied, node.cluster, "two", listen="127.0.0.1:0", discovery=f"static:{address}")
    clone.hoard(
        "up", "--detach", "--cluster", node.cluster, "--listen", clone.listen, "--discovery", clone.discovery,
        check=False,
    )  # fmt: skip
    wait_until(lambda: clone.hoard("status", check=False).returncode == 4, "the clone's end")
    assert "two nodes with one id" in clone.log()
    assert node.hoard("status").returncode == 0
