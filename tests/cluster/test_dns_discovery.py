"""Nodes find each other by the addresses of one name, as of a headless service: a real DNS server, real namespaces."""

import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.cluster.bare import PROGRAM, Bare, port_of
from tests.cluster.netns import Host, network

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(shutil.which("dnsmasq") is None, reason="no dnsmasq here (Debian: dnsmasq-base)"),
]

NAME = "hoard.service.test"


def start(host: Host, number: int, resolv: Path, discovery: str) -> Bare:
    """A node whose machine asks the DNS server of `resolv`: only its own mount namespace sees that file."""
    node = f"{sys.executable} {PROGRAM} {number} c 0.0.0.0:7440 {discovery}"
    command = f"mount --bind {resolv} /etc/resolv.conf && exec {node}"
    return Bare(host.start(["unshare", "--mount", "sh", "-c", command]))


def test_nodes_meet_by_the_addresses_of_a_name(tmp_path: Path) -> None:
    resolv, records = tmp_path / "resolv.conf", tmp_path / "hosts"
    resolv.write_text("nameserver 10.77.0.1\noptions timeout:1 attempts:1\n")
    records.write_text("")
    with network(3) as hosts:
        argv = ["dnsmasq", "--keep-in-foreground", "--no-resolv", "--no-hosts", f"--addn-hosts={records}"]
        argv += ["--listen-address=10.77.0.1", "--bind-interfaces", "--user=root", "--local-ttl=0", "--local=/test/"]
        argv += [f"--pid-file={tmp_path / 'pid'}"]
        server = hosts[0].start(argv)
        first = start(hosts[1], 1, resolv, f"dns:{NAME}:7440")
        port_of(first)
        records.write_text("".join(f"{host.address} {NAME}\n" for host in hosts[1:]))
        server.send_signal(signal.SIGHUP)
        second = start(hosts[2], 2, resolv, f"dns:{NAME}:7440")
        port_of(second)
        assert first.sees({"n2"}, 20) == {"n2": "10.77.0.3:7440"}
        assert second.sees({"n1"}, 20) == {"n1": "10.77.0.2:7440"}
