"""A node and its mounts at the limits of a process: open files, address space."""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hoard_p2p.node import framing
from hoard_p2p.node.descriptors import NODE_FILES
from tests.system import Machine, machines, wait_until

pytestmark = [pytest.mark.root, pytest.mark.fuse, pytest.mark.timeout(120)]
NewDirectory = Callable[[str], Path]


@pytest.fixture
def limited() -> Callable[[Machine, str], Machine]:
    """The same node, reached by commands that have a limit (`prlimit` has its name)."""
    if shutil.which("prlimit") is None:
        pytest.skip("no prlimit (package util-linux)")

    def make(machine: Machine, limit: str) -> Machine:
        return Machine(machine.data_dir, machine.cluster, machine.name, prefix=("prlimit", f"--{limit}"))

    return make


@pytest.fixture
def node(new_directory: NewDirectory) -> Iterator[Machine]:
    """A node that may have as few files open as a node may."""
    if shutil.which("prlimit") is None:
        pytest.skip("no prlimit (package util-linux)")
    machine = Machine(
        new_directory("n"), f"test-{secrets.token_hex(4)}", "one", discovery="none", listen="127.0.0.1:0",
        prefix=("prlimit", f"--nofile={NODE_FILES}"),
    )  # fmt: skip
    with machines([machine]):
        yield machine


def test_a_node_without_a_free_descriptor_says_so_and_recovers_while_mounts_read_on(
    node: Machine, limited: Callable[[Machine, str], Machine], new_directory: NewDirectory
) -> None:
    source, point = new_directory("s"), new_directory("m")
    (source / "file").write_bytes(secrets.token_bytes(3 << 20))
    user = limited(node, "nofile=1024")
    snapshot = user.publish(source)
    (source / "more").write_bytes(secrets.token_bytes(1 << 20))
    opened = Path(f"/proc/{node.pid}/fd")
    user.mount(snapshot, point)
    with ExitStack() as hogs:
        hogs.callback(user.umount, point)

        def crowd() -> bool:
            hogs.enter_context(framing.connect(node.data_dir))
            return len(os.listdir(opened)) >= NODE_FILES - 4

        wait_until(crowd, "a node with four descriptors left")
        refused = user.hoard("publish", os.fspath(source), check=False)
        assert refused.returncode == 1
        assert f"no file descriptor is left (this process may have {NODE_FILES})" in refused.stderr
        assert (point / "file").read_bytes() == (source / "file").read_bytes()
    user.publish(source)


@pytest.mark.parametrize("command", ["up", "mount"])
def test_too_few_open_files_are_an_error_at_the_start_that_names_how_many_it_takes(
    node: Machine, limited: Callable[[Machine, str], Machine], new_directory: NewDirectory, command: str
) -> None:
    poor, source, point = limited(node, "nofile=18"), new_directory("s"), new_directory("m")
    arguments = ("mount", node.publish(source), os.fspath(point)) if command == "mount" else ("up", "--detach")
    refused = poor.hoard(*arguments, check=False)
    assert refused.returncode == 1
    assert "needs at least" in refused.stderr and "may have 18" in refused.stderr


def test_with_little_address_space_a_mount_reads_through_its_node_and_a_node_says_what_it_takes(
    node: Machine, limited: Callable[[Machine, str], Machine], new_directory: NewDirectory
) -> None:
    source, point = new_directory("s"), new_directory("m")
    (source / "file").write_bytes(secrets.token_bytes(3 << 20))
    poor = limited(node, f"as={900 << 20}")
    poor.mount(node.publish(source), point)
    try:
        assert (point / "file").read_bytes() == (source / "file").read_bytes()
        (mount,) = node.json("status")["mounts"]
        assert mount["reads"] == "through the node" and "ulimit -v" in mount["reads_reason"]
    finally:
        poor.umount(point)
    poor.data_dir = new_directory("another")
    refused = poor.hoard("up", "--listen", "127.0.0.1:0", "--discovery", "none", check=False)
    assert refused.returncode == 1
    assert "in a node at least 1,024 MiB" in refused.stderr
