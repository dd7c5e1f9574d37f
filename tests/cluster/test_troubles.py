"""Real nodes that come, go, stop, move, and are cut off from each other: whoever is left gets the right bytes."""

import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cluster.netns import Host, network
from tests.system import Machine, exported, machines, make_tree, tree, wait_until

pytestmark = [pytest.mark.netns, pytest.mark.fuse, pytest.mark.timeout(240)]

LONG = 60.0
SOURCE_BYTES = 24 << 20


@dataclass
class Town:
    """Four machines in two racks on one Ethernet. All see each other when a test begins."""

    hosts: list[Host]
    machines: list[Machine]
    directory: Path
    sources: dict[str, Path] = field(default_factory=dict)

    def place(self, name: str) -> Path:
        """A new directory."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.directory))

    def publish(self, machine: Machine, *options: str) -> str:
        """A new set from that machine."""
        source = make_tree(self.place("s"), large=SOURCE_BYTES, seed=len(self.sources) + 1)
        snapshot = machine.publish(source, *options)
        self.sources[snapshot] = source
        return snapshot

    def check_read(self, machine: Machine, snapshot: str) -> None:
        """The set reads there as it was published."""
        target = self.place("e") / "tree"
        machine.hoard("export", snapshot, os.fspath(target))
        assert tree(target) == exported(tree(self.sources[snapshot]))

    def all_see_all(self) -> None:
        for machine in self.machines:
            wait_until(lambda machine=machine: alive(machine) == self.names - {machine.name}, "all see all", LONG)  # type: ignore[misc]  # bound now

    @property
    def names(self) -> set[str]:
        return {machine.name for machine in self.machines}


def alive(machine: Machine) -> set[str]:
    return {peer["name"] for peer in machine.json("peers")["peers"] if peer["state"] == "alive"}


def on(host: Host) -> tuple[str, ...]:
    return ("nsenter", f"--net=/run/netns/{host.namespace}")


@pytest.fixture(scope="module")
def running() -> Iterator[Town]:
    cluster, directory = f"test-{secrets.token_hex(4)}", Path(tempfile.mkdtemp(prefix="troubles-"))
    try:
        with network(4) as hosts:
            made = [
                Machine(directory / f"n{n}", cluster, f"m{n}", f"r{n % 2}", on(host)) for n, host in enumerate(hosts)
            ]
            for machine in made:
                machine.data_dir.mkdir()
            with machines(made):
                yield Town(hosts, made, directory)
        assert os.fspath(directory) not in Path("/proc/self/mountinfo").read_text()
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def town(running: Town) -> Town:
    running.all_see_all()
    return running


def test_halves_that_were_apart_go_on_alone_and_know_everything_of_each_other_afterwards(town: Town) -> None:
    first, second, third, fourth = town.machines
    before = town.publish(first)
    mounted = third.mount(before, town.place("m"))  # its rack and the other one are torn apart
    for host in town.hosts[2:]:
        host.join("br1")
    for machine, others in ((first, {"m1"}), (second, {"m0"}), (third, {"m3"}), (fourth, {"m2"})):
        wait_until(lambda machine=machine, others=others: alive(machine) == others, "the others are gone", LONG)  # type: ignore[misc]  # bound now
    here, there = town.publish(first, "--name", "here"), town.publish(third, "--name", "there")
    town.check_read(second, here)
    town.check_read(fourth, there)
    for host in town.hosts[2:]:
        host.join("br0")
    town.all_see_all()
    wait_until(lambda: "there:latest" in first.hoard("refs").stdout, "the name comes over", LONG)
    wait_until(lambda: "here:latest" in fourth.hoard("refs").stdout, "the name comes over", LONG)
    town.check_read(second, there)
    town.check_read(fourth, here)
    assert tree(mounted) == tree(town.sources[before])
    third.umount(mounted)


def test_a_holder_that_is_stopped_while_others_read_costs_no_error_and_is_back_when_it_goes_on(town: Town) -> None:
    publisher, stopped, reader, _ = town.machines
    snapshot = town.publish(publisher)
    pid = stopped.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        mounted = reader.mount(snapshot, town.place("m"))
        assert tree(mounted) == tree(town.sources[snapshot])
        reader.umount(mounted)
        wait_until(lambda: "m1" not in alive(reader), "it counts as gone", LONG)
    finally:
        os.kill(pid, signal.SIGCONT)
    town.all_see_all()
    town.check_read(stopped, snapshot)


def test_a_machine_that_gets_another_address_is_read_from_there(town: Town) -> None:
    publisher, moved, _, reader = town.machines
    snapshot = town.publish(moved)
    old, new = town.hosts[1].address, "10.77.0.99"
    for command in (["del", old], ["add", new]):
        town.hosts[1].run(["ip", "addr", command[0], f"{command[1]}/24", "dev", "eth0"])
    town.hosts[1].address = new

    def is_there(machine: Machine) -> bool:
        urls = [peer["url"] for peer in machine.json("peers")["peers"] if peer["name"] == "m1"]
        return len(urls) == 1 and new in urls[0]

    for machine in (publisher, reader):
        wait_until(lambda machine=machine: is_there(machine), "it is known at its new address", LONG)  # type: ignore[misc]  # bound now
    town.check_read(reader, snapshot)
    town.check_read(moved, town.publish(publisher))


def test_two_machines_of_one_name_are_two_nodes(town: Town) -> None:
    double = Machine(town.place("n"), town.machines[0].cluster, "m0", "r0", on(town.hosts[3]))
    with machines([double], others=4):
        snapshot = town.publish(double)
        reader = town.machines[2]
        names = [peer["name"] for peer in reader.json("peers")["peers"]]
        assert names.count("m0") == 2
        town.check_read(reader, snapshot)
    wait_until(lambda: town.machines[2].sees(3), "the one that left is gone", LONG)
    town.check_read(town.machines[1], snapshot)


def test_one_that_leaves_is_gone_at_once_and_one_that_is_killed_soon_and_both_may_come_back(town: Town) -> None:
    publisher, leaving, killed, reader = town.machines
    snapshot = town.publish(publisher, "--replicas", "4")
    leaving.hoard("down")
    wait_until(lambda: "m1" not in alive(reader), "it has left", LONG)
    killed.kill()
    town.check_read(reader, snapshot)
    wait_until(lambda: alive(reader) == {"m0"}, "it counts as gone", LONG)
    killed.data_dir = town.place("n")  # its disk was replaced
    for machine in (leaving, killed):
        machine.up()
    town.all_see_all()
    for machine in (leaving, killed):
        town.check_read(machine, snapshot)
