"""Nodes find each other by multicast DNS on real (virtual) networks."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.netns import Host, network

pytestmark = pytest.mark.netns

PROGRAM = Path(__file__).with_name("bare_node.py")
DEADLINE = 10.0


@dataclass
class Bare:
    """A running bare node and what it printed last."""

    process: "subprocess.Popen[str]"
    buffer: bytes = b""

    def line(self, deadline: float) -> dict[str, object]:
        """Its next line. Fails at the deadline."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no news before the deadline, last was {self.buffer!r}"
            data = os.read(fd, 65536)
            assert data, "the node ended"
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    def sees(self, names: set[str], seconds: float = DEADLINE) -> dict[str, object]:
        """Its first view from now on with exactly these peers: name to address."""
        deadline = time.monotonic() + seconds
        while set(view := self.line(deadline)) != names:
            pass
        return view

    def is_quiet_for(self, seconds: float) -> bool:
        """Whether it says nothing new for so long."""
        assert self.process.stdout is not None
        return not self.buffer and not select.select([self.process.stdout.fileno()], [], [], seconds)[0]


def start(host: Host, number: int, *, cluster: str = "c", listen: str = "0.0.0.0:0", discovery: str = "mdns") -> Bare:
    argv = [sys.executable, str(PROGRAM), str(number), cluster, listen, discovery]
    # the process id seen by select and kill is the node's own: `ip netns exec` replaces itself
    return Bare(host.start(argv))


def port_of(node: Bare) -> int:
    port = node.line(time.monotonic() + DEADLINE)["port"]
    assert isinstance(port, int)
    return port


def test_three_nodes_on_one_network_see_each_other() -> None:
    with network(3) as hosts:
        nodes = [start(host, number) for number, host in enumerate(hosts, 1)]
        ports = [port_of(node) for node in nodes]
        for index, node in enumerate(nodes):
            others = {f"n{n + 1}": f"10.77.0.{n + 1}:{ports[n]}" for n in range(3) if n != index}
            assert node.sees(set(others)) == others


def test_nodes_of_one_machine_see_each_other_when_only_loopback_is_up() -> None:
    with network(1, plugged=False) as (host,):
        nodes = [start(host, 1), start(host, 2)]
        ports = [port_of(node) for node in nodes]
        assert nodes[0].sees({"n2"}) == {"n2": f"127.0.0.1:{ports[1]}"}
        assert nodes[1].sees({"n1"}) == {"n1": f"127.0.0.1:{ports[0]}"}


def test_a_node_that_listens_on_loopback_only_meets_the_others_of_its_machine() -> None:
    with network(1) as (host,):
        nodes = [start(host, 1, listen="127.0.0.1:0"), start(host, 2)]
        ports = [port_of(node) for node in nodes]
        assert set(nodes[0].sees({"n2"}).values()) <= {f"127.0.0.1:{ports[1]}", f"10.77.0.1:{ports[1]}"}
        assert nodes[1].sees({"n1"}) == {"n1": f"127.0.0.1:{ports[0]}"}


def test_clusters_of_two_names_stay_apart() -> None:
    with network(2) as hosts:
        red = [start(host, number, cluster="red") for number, host in enumerate(hosts, 1)]
        blue = start(hosts[0], 3, cluster="blue")
        port_of(blue)
        for node in red:
            port_of(node)
        red[0].sees({"n2"})
        red[1].sees({"n1"})
        assert blue.is_quiet_for(1.0)
        assert red[0].is_quiet_for(0.0)


def test_a_cloned_node_is_told_apart_by_a_third() -> None:
    with network(3) as hosts:
        watcher = start(hosts[0], 1)
        port_of(watcher)
        for host in hosts[1:]:
            port_of(start(host, 2))
        deadline = time.monotonic() + DEADLINE
        while "conflict" not in (line := watcher.line(deadline)):
            pass
        assert line == {"conflict": ["10.77.0.2", "10.77.0.3"]}


def test_a_network_that_comes_up_later_is_used() -> None:
    with network(2, plugged=False) as hosts:
        nodes = [start(host, number) for number, host in enumerate(hosts, 1)]
        for node in nodes:
            port_of(node)
        for host in hosts:
            host.link(True)
        assert set(nodes[0].sees({"n2"})) == {"n2"}
        assert set(nodes[1].sees({"n1"})) == {"n1"}


def test_a_killed_node_leaves_the_view_and_a_restarted_one_comes_back() -> None:
    with network(2) as hosts:
        watcher, victim = start(hosts[0], 1), start(hosts[1], 2)
        port_of(watcher)
        watcher.sees({"n2"})
        victim.process.send_signal(signal.SIGKILL)
        watcher.sees(set(), 15.0)
        again = start(hosts[1], 2)
        port = port_of(again)
        assert watcher.sees({"n2"}) == {"n2": f"10.77.0.2:{port}"}


def test_a_node_that_is_told_of_one_other_learns_of_all_without_multicast() -> None:
    with network(3) as hosts:
        first = start(hosts[0], 1, discovery="none", listen="0.0.0.0:7001")
        port_of(first)
        others = [start(host, n, discovery="static:10.77.0.1:7001") for n, host in enumerate(hosts[1:], 2)]
        for node in others:
            port_of(node)
        first.sees({"n2", "n3"})
        others[0].sees({"n1", "n3"})
        others[1].sees({"n1", "n2"})


def test_sigterm_ends_a_node_promptly_and_with_success() -> None:
    with network(1) as (host,):
        node = start(host, 1)
        port_of(node)
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(5) == 0
