"""The shaped links that benchmarks run over: which bytes are counted where, and that nothing of them stays."""

import os
import subprocess
import sys

import pytest

from benchmarks.links import Links, Machine, links

pytestmark = [
    pytest.mark.root,
    pytest.mark.netns,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make network namespaces"),
]

SIZE = 100_000
SEND = "import socket, sys\nfor _ in range(100): socket.socket(2, 2).sendto(bytes(1000), (sys.argv[1], 9))"


def crossed(net: Links, here: Machine, there: Machine) -> list[int]:
    """Bytes over each rack's uplink while `here` sends `SIZE` bytes to `there`, who gets them."""
    before, had = [rack.received() + rack.sent() for rack in net.racks], there.received()
    subprocess.run([*here.inside, sys.executable, "-c", SEND, there.address], check=True, timeout=20)
    assert there.received() - had >= SIZE
    return [rack.received() + rack.sent() - size for rack, size in zip(net.racks, before, strict=True)]


def test_what_crosses_between_racks_is_counted_at_both_uplinks_and_what_stays_in_one_is_not() -> None:
    with links([2, 1], rate=1_000_000_000) as net:
        here, beside, beyond = net.machines
        assert max(crossed(net, here, beside)) < SIZE / 2
        assert min(crossed(net, here, beyond)) >= SIZE
    left = subprocess.run(["ip", "netns"], check=True, capture_output=True, text=True).stdout
    assert here.namespace not in left
