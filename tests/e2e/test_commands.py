"""Commands against a real node: what only shows with real processes, sockets and stores."""

import os
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hoard_p2p.errors import DeadlineExceeded
from hoard_p2p.node.client import NodeClient, Patience
from tests.system import Machine, machines, make_tree

pytestmark = pytest.mark.timeout(120)
NewDirectory = Callable[[str], Path]


def a_machine(data_dir: Path, *, listen: str = "127.0.0.1:0") -> Machine:
    return Machine(data_dir, f"test-{secrets.token_hex(4)}", "one", discovery="none", listen=listen)


@pytest.fixture
def node(new_directory: NewDirectory) -> Iterator[Machine]:
    machine = a_machine(new_directory("n"))
    with machines([machine]):
        yield machine


def test_two_snapshots_are_compared_also_where_it_takes_their_bytes(node: Machine, new_directory: NewDirectory) -> None:
    source = make_tree(new_directory("s"), files=5, large=3 << 20)
    old = node.publish(source)
    cut_otherwise = node.publish(source, "--chunker", "fixed")
    assert node.hoard("diff", old, cut_otherwise).stdout == ""
    (source / "deep" / "0000.bin").write_bytes(b"other content")
    (source / "empty" / "added").touch()
    (source / "good").unlink()
    new = node.publish(source, "--chunker", "fixed", "--name", "set:2")
    lines = node.hoard("diff", old, "set:2").stdout.splitlines()
    assert {"M deep/0000.bin", "A empty/added", "D good"} <= set(lines)
    assert all(not line.endswith("shard") for line in lines), "equal bytes are equal, however they were cut"
    assert node.json("diff", new, new)["changes"] == []


def test_a_stopped_node_is_named_by_what_asks_it_and_works_again_when_it_is_woken(node: Machine) -> None:
    pid = node.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with (
            NodeClient.connect(node.data_dir, Patience(quick=0.5, silence=0.5)) as client,
            pytest.raises(DeadlineExceeded, match=f"pid {pid}.*kill -9 {pid}"),
        ):
            client.call("status", {})
    finally:
        os.kill(pid, signal.SIGCONT)
    assert node.pid == pid


@pytest.mark.parametrize(("listen", "loud"), [("127.0.0.1:0", False), ("0.0.0.0:0", True)])
def test_a_node_that_others_can_reach_says_so_on_the_terminal(
    new_directory: NewDirectory, listen: str, loud: bool
) -> None:
    machine = a_machine(new_directory("n"))
    try:
        done = machine.hoard("up", "--detach", "--discovery", "none", "--listen", listen)
    finally:
        machine.close()
    warned = [line for line in done.stderr.splitlines() if "open mode" in line]
    assert len(warned) == int(loud)
    assert not loud or "private addresses" in warned[0]


def test_what_a_killed_publish_left_is_gone_when_the_node_is_back(new_directory: NewDirectory) -> None:
    machine = a_machine(new_directory("n"))
    left = machine.data_dir / "tmp" / "ingest-x" / "spill"
    try:
        machine.up()
        machine.hoard("down")
        left.parent.mkdir(parents=True)
        left.write_bytes(b"left")
        machine.up()
        assert os.listdir(machine.data_dir / "tmp") == []
    finally:
        machine.close()
