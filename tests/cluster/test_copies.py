"""Copies that are made when a machine is gone, and a machine that leaves for good: real nodes in network namespaces."""

import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.netns import network
from tests.system import HOARD, Machine, exported, machines, make_tree, tree, wait_until

pytestmark = [pytest.mark.netns, pytest.mark.timeout(240)]
NewDirectory = Callable[[str], Path]


@pytest.fixture
def three(new_directory: NewDirectory) -> Iterator[list[Machine]]:
    """Three nodes that make copies of who is away for two seconds."""
    cluster = f"test-{secrets.token_hex(4)}"
    with network(3) as hosts:
        made = [
            Machine(
                data_dir=new_directory("n"),
                cluster=cluster,
                name=f"m{number}",
                rack=f"r{number}",
                prefix=("nsenter", f"--net=/run/netns/{host.namespace}"),
                options=("--repair-grace", "2", "--repair-limit", "0"),
            )
            for number, host in enumerate(hosts)
        ]
        with machines(made):
            yield made


def copies(machine: Machine, snapshot: str) -> dict[str, int]:
    """Bytes held by each node that answers."""
    told = machine.json("where", snapshot)
    return {node["name"]: node["held"] for node in told["nodes"] if node["answers"]}


def lacking(machine: Machine) -> int | None:
    size: int | None = machine.json("status")["under_replicated_bytes"]
    return size


def same_on(machine: Machine, snapshot: str, source: Path, target: Path) -> None:
    machine.hoard("export", snapshot, os.fspath(target / "tree"))
    assert tree(target / "tree") == exported(tree(source))


def test_what_a_killed_node_held_is_copied_from_who_is_left_and_is_whole(
    three: list[Machine], new_directory: NewDirectory
) -> None:
    source = make_tree(new_directory("s"), large=40 << 20)
    snapshot = three[0].publish(source, "--replicas", "2")
    total = three[1].json("where", snapshot)["bytes"]
    three[0].kill()
    for machine in three[1:]:
        wait_until(
            lambda machine=machine: copies(machine, snapshot) == {"m1": total, "m2": total},  # type: ignore[misc]
            "both have all of it",
            60,
        )
        assert lacking(machine) == 0
    same_on(three[2], snapshot, source, new_directory("e"))


def test_more_replicas_are_made_and_a_rejoined_empty_node_gets_its_share_again(
    three: list[Machine], new_directory: NewDirectory
) -> None:
    source = make_tree(new_directory("s"), large=20 << 20)
    snapshot = three[0].publish(source, "--replicas", "1")
    total = three[0].json("where", snapshot)["bytes"]
    assert three[1].hoard("replicas", snapshot, "3").stdout.strip() == snapshot
    for machine in three:
        wait_until(lambda: copies(three[0], snapshot) == {f"m{n}": total for n in range(3)}, "three copies", 60)
        wait_until(lambda machine=machine: lacking(machine) == 0, "nothing is lacking", 20)  # type: ignore[misc]
    three[2].kill()
    three[2].data_dir = new_directory("again")
    three[2].up()
    wait_until(lambda: copies(three[2], snapshot).get("m2") == total, "the empty node has its copies", 60)
    same_on(three[2], snapshot, source, new_directory("e"))


def test_a_drained_node_can_be_wiped_and_nothing_is_lost(three: list[Machine], new_directory: NewDirectory) -> None:
    source = make_tree(new_directory("s"), large=40 << 20)
    snapshot = three[0].publish(source, "--replicas", "1")
    told = three[0].json("down", "--drain")
    assert (told["drained"], told["running"]) == (True, True)
    total = three[1].json("where", snapshot)["bytes"]
    kept = three[1].json("where", snapshot)
    assert kept["held_anywhere"] == total
    same_on(three[1], snapshot, source, new_directory("e"))


def test_a_drain_that_is_interrupted_leaves_the_node_as_it_was(
    three: list[Machine], new_directory: NewDirectory
) -> None:
    source = make_tree(new_directory("s"), large=40 << 20)
    three[0].publish(source, "--replicas", "1")
    others = [machine.pid for machine in three[1:]]
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    environment = {**os.environ, "HOARD_DATA_DIR": os.fspath(three[0].data_dir)}
    drain = subprocess.Popen([*three[0].prefix, *HOARD, "down", "--drain"], env=environment)
    try:
        wait_until(lambda: "the node drains" in three[0].log(), "it drains")
        drain.send_signal(signal.SIGINT)
        assert drain.wait(20) == 130
        wait_until(lambda: "does not drain any more" in three[0].log(), "it goes on as before")
        assert three[0].hoard("status").returncode == 0
    finally:
        drain.kill()
        drain.wait()
        for pid in others:
            os.kill(pid, signal.SIGCONT)
