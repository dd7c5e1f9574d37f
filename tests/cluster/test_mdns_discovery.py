"""Nodes find each other by multicast DNS on real (virtual) networks."""

import signal
import time

import pytest

from tests.cluster.bare import DEADLINE, port_of, start
from tests.cluster.netns import network

pytestmark = pytest.mark.netns


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
