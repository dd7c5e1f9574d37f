"""Nodes on real (virtual) networks that go wrong: machines that stop, links that fail, addresses that change."""

import signal

import pytest

from tests.cluster.bare import Bare, port_of, start
from tests.cluster.netns import Host, network

pytestmark = [pytest.mark.netns, pytest.mark.timeout(240)]

LONG = 60.0


def started(hosts: list[Host], *, discovery: str = "mdns", listen: str = "0.0.0.0:0") -> list[Bare]:
    """A node on each host, that all see each other."""
    nodes = [start(host, number, discovery=discovery, listen=listen) for number, host in enumerate(hosts, 1)]
    for node in nodes:
        port_of(node)
    for number, node in enumerate(nodes, 1):
        node.sees({f"n{other}" for other in range(1, len(hosts) + 1) if other != number}, LONG)
    return nodes


def test_a_machine_that_is_switched_off_leaves_every_view_and_one_with_another_disk_takes_its_place() -> None:
    with network(4) as hosts:
        nodes = started(hosts)
        nodes[3].process.send_signal(signal.SIGKILL)
        for node, others in zip(nodes[:3], ({"n2", "n3"}, {"n1", "n3"}, {"n1", "n2"}), strict=True):
            node.sees(others, LONG)
        port_of(start(hosts[3], 9))
        for node, others in zip(nodes[:3], ({"n2", "n3"}, {"n1", "n3"}, {"n1", "n2"}), strict=True):
            node.sees(others | {"n9"}, LONG)


def test_a_node_that_is_stopped_leaves_and_is_back_when_it_goes_on() -> None:
    with network(3) as hosts:
        nodes = started(hosts)
        nodes[2].process.send_signal(signal.SIGSTOP)
        nodes[0].sees({"n2"}, LONG)
        nodes[1].sees({"n1"}, LONG)
        nodes[2].process.send_signal(signal.SIGCONT)
        nodes[0].sees({"n2", "n3"}, LONG)
        nodes[1].sees({"n1", "n3"}, LONG)


def test_a_machine_whose_cable_is_pulled_and_put_back_is_gone_and_back() -> None:
    with network(3) as hosts:
        nodes = started(hosts)
        hosts[2].link(False)
        nodes[0].sees({"n2"}, LONG)
        nodes[1].sees({"n1"}, LONG)
        nodes[2].sees(set(), 2 * LONG)
        hosts[2].link(True)
        for node, others in zip(nodes, ({"n2", "n3"}, {"n1", "n3"}, {"n1", "n2"}), strict=True):
            node.sees(others, LONG)


def test_a_machine_that_gets_another_address_is_used_there() -> None:
    with network(3) as hosts:
        nodes = started(hosts)
        hosts[2].run(["ip", "addr", "del", "10.77.0.3/24", "dev", "eth0"])
        hosts[2].run(["ip", "addr", "add", "10.77.0.99/24", "dev", "eth0"])
        for node, others in zip(nodes[:2], ({"n2", "n3"}, {"n1", "n3"}), strict=True):
            while host_of(node.sees(others, LONG)["n3"]) != "10.77.0.99":
                pass


def test_machines_that_have_ipv6_alone_find_each_other() -> None:
    with network(3) as hosts:
        for host in hosts:
            host.run(["ip", "-4", "addr", "flush", "dev", "eth0"])
        nodes = [start(host, number, listen="[::]:0") for number, host in enumerate(hosts, 1)]
        for node in nodes:
            port_of(node)
        for node, others in zip(nodes, ({"n2", "n3"}, {"n1", "n3"}, {"n1", "n2"}), strict=True):
            seen = node.sees(others, LONG)
            assert all(str(address).startswith("fe80:") for address in seen.values())


def test_without_multicast_a_list_of_addresses_is_enough(capfd: pytest.CaptureFixture[str]) -> None:
    with network(2) as hosts:
        for host in hosts:
            host.run(["ip", "link", "set", "eth0", "multicast", "off"])
        first = start(hosts[0], 1, discovery="mdns", listen="0.0.0.0:7001")
        second = start(hosts[1], 2, discovery="mdns+static:10.77.0.1:7001")
        for node in (first, second):
            port_of(node)
        first.sees({"n2"})
        second.sees({"n1"})
    assert "Traceback" not in capfd.readouterr().err


def test_a_machine_with_two_networks_is_used_over_the_one_that_works() -> None:
    with network(2) as hosts:
        hosts[0].run(["ip", "link", "add", "eth1", "type", "veth", "peer", "name", "eth1", "netns", hosts[1].namespace])
        for number, host in enumerate(hosts, 1):
            host.run(["ip", "addr", "add", f"10.78.0.{number}/24", "dev", "eth1"])
            host.link(True, "eth1")
        nodes = [start(host, number) for number, host in enumerate(hosts, 1)]
        for node in nodes:
            port_of(node)
        used = host_of(nodes[0].sees({"n2"}, LONG)["n2"])
        hosts[1].link(False, "eth0" if used.startswith("10.77.") else "eth1")
        while host_of(nodes[0].sees({"n2"}, LONG)["n2"]) == used:
            pass


def host_of(address: object) -> str:
    return str(address).rpartition(":")[0]
