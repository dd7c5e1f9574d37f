"""The rows of `make bench-cluster` about `hoard warm` on several nodes at once, whose origin is behind a link.

The origin is a directory that each node sees through sshfs, which talks plainly (no ssh) to sftp servers on a machine
of its own: so all bytes of the origin cross its link, and that of the node that reads them. sshfs is mounted over the
directory itself, in a mount namespace of the node: commands and nodes call it by the same path.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.coldstart import Host
from benchmarks.figures import make_shards
from benchmarks.links import GBIT, Machine, links
from benchmarks.sheet import OURS, Line, Target
from hoard_p2p.cli.localcluster import LocalNode, wait_for

NODES, SHARDS = 4, 4
SFTP = "/usr/lib/openssh/sftp-server"
SFTP_PORT = 7441
RATES = {"fill": GBIT, "fill-slow": GBIT // 4}
LINES = (
    Line("fill-alone", "warm, one node, all links 1 Gbit/s: rate", "GB/s"),
    Line("fill", "warm, 4 nodes at once / one alone", "x", Target(most=1.15)),
    Line("fill-origin", "the same: bytes of the origin / set", "x", Target(most=1.01)),
    Line("fill-slow-alone", "warm, one node, all links 250 Mbit/s: rate", "GB/s"),
    Line("fill-slow", "warm, 4 nodes at once / one alone", "x", Target(most=1.15)),
    Line("fill-slow-origin", "the same: bytes of the origin / set", "x", Target(most=1.01)),
)


def filled(host: Host) -> None:
    source = host.cluster.root / "filled"
    make_shards(source, SHARDS)
    for key, rate in RATES.items():
        with links([NODES], rate=rate) as net, _served(net.core):
            _measure(host, key, net.machines, net.core, source)


@contextmanager
def _served(at: Machine) -> Iterator[None]:
    listen = f"tcp-listen:{SFTP_PORT},bind={at.address},fork,reuseaddr,nodelay"
    server = subprocess.Popen([*at.inside, "socat", listen, f"exec:{SFTP}"], start_new_session=True)
    try:
        yield
    finally:
        os.killpg(server.pid, signal.SIGTERM)  # it has a process for each connection
        server.wait(10)


def _measure(host: Host, key: str, machines: Sequence[Machine], core: Machine, source: Path) -> None:
    size = sum(path.stat().st_size for path in source.iterdir())
    nodes = [_node(host, machines[0], machines, core, source)]
    try:
        snapshot = _publish(nodes[0], source)
        alone = _warm(host, nodes, snapshot)
        nodes += [_node(host, machine, machines, core, source) for machine in machines[1:]]
        host.cluster.wait_met()
        for node in nodes:
            wait_for("all nodes to be known as readers", lambda node=node: _readers(host, node) == NODES, 60)  # type: ignore[misc]
        before = _read(host, nodes)
        together = _warm(host, nodes, snapshot)
        host.sheet.add(OURS, f"{key}-alone", size / alone / 1e9)
        host.sheet.add(OURS, key, together / alone)
        host.sheet.add(OURS, f"{key}-origin", (_read(host, nodes) - before) / size)
    finally:
        for node in nodes:
            host.cluster.discard(node)


def _node(host: Host, at: Machine, machines: Sequence[Machine], core: Machine, source: Path) -> LocalNode:
    """A node that sees `source` over the network, and knows `machines`."""
    mount = f"sshfs -o directport={SFTP_PORT},ro,allow_other {core.address}:{source} {source}"
    inside = ("unshare", "--mount", "--propagation", "private", "sh", "-c", f'{mount} && exec "$@"', "sh")
    others = (one for one in machines if one != at)
    return host.node(at, *others, options=("--allow-origin", str(source)), inside=inside)


def _publish(node: LocalNode, source: Path) -> str:
    """Where the node sees the directory as it does."""
    command = ("nsenter", f"--mount=/proc/{node.process.pid}/ns/mnt", sys.executable, "-m", "hoard_p2p.cli.main")
    options = ("--data-dir", str(node.data_dir), "--shared-origin", str(source))
    done = subprocess.run([*command, "publish", *options], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.split()[-1]


def _readers(host: Host, node: LocalNode) -> int:
    return max((origin["nodes"] for origin in _origins(host, node)), default=0)


def _read(host: Host, nodes: Sequence[LocalNode]) -> int:
    """Bytes that they have read of the origin."""
    return sum(origin["read"] for node in nodes for origin in _origins(host, node))


def _origins(host: Host, node: LocalNode) -> list[dict[str, int]]:
    told: list[dict[str, int]] = json.loads(host.cluster.hoard(node, "status", "--json"))["origins"]
    return told


def _warm(host: Host, nodes: Sequence[LocalNode], snapshot: str) -> float:
    """Seconds until the last of `nodes`, none of which has anything, says that it has all."""
    for node in nodes:
        host.cluster.hoard(node, "evict", snapshot)
    began = time.perf_counter()
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(lambda node: host.cluster.hoard(node, "warm", snapshot), nodes))
    return time.perf_counter() - began
