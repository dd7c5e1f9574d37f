"""Real nodes that start cold on one set, for the simulator to be compared with (`python -m simulations check`).

Nodes in network namespaces with shaped links (root), the origin a directory that each of them reads from its own disk:
so only what nodes pass on crosses links. Run: `python -m benchmarks.coldcheck FILE.json [--size BYTES]`.
"""

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from benchmarks.links import GBIT, HEADERS, Links, links
from hoard_p2p.cli.answers import Fields
from hoard_p2p.cli.localcluster import LocalCluster, LocalNode, Where, wait_for
from hoard_p2p.node.client import NodeClient

MIB = 1 << 20
PORT = 7440


def measure(racks: Sequence[int], size: int, gbit: float) -> dict[str, object]:
    """One cold start: all nodes warm the set at the same time."""
    with links(racks, rate=int(gbit * GBIT)) as net, LocalCluster("hoard-coldcheck", discovery=()) as cluster:
        start(cluster, net)
        snapshot = publish(cluster, size)
        before = [rack.received() for rack in net.racks]
        began = time.perf_counter()
        with ThreadPoolExecutor(len(cluster.nodes)) as pool:
            list(pool.map(lambda node: cluster.hoard(node, "warm", snapshot), cluster.nodes))
        seconds = time.perf_counter() - began
        came = [rack.received() - bytes_before for rack, bytes_before in zip(net.racks, before)]
        read = sum(origin(node).number("read") for node in cluster.nodes)
    return {
        "racks": list(racks),
        "size": size,
        "seconds": seconds,
        "origin": read / size,
        "into_racks": [one * HEADERS / size for one in came],
        "node_rate": gbit * GBIT / 8 * HEADERS,
        "uplink_rate": gbit * GBIT / 8 * HEADERS,
        "origin_rate": 2e9,
        "local_origin": 1,
    }


def start(cluster: LocalCluster, net: Links) -> None:
    seeds = "static:" + ",".join(f"{machine.address}:{PORT}" for machine in net.machines)
    for number, machine in enumerate(net.machines):
        options = ("--discovery", seeds, "--allow-origin", str(cluster.root))
        where = Where(f"{machine.address}:{PORT}", options, machine.inside)
        cluster.start(f"n{number}", rack=machine.rack, where=where)
    cluster.wait_met()


def publish(cluster: LocalCluster, size: int) -> str:
    """A set that all know and nobody has."""
    source, draw = cluster.root / "set", Random(1)
    source.mkdir()
    for number in range(4):
        with (source / f"shard-{number}").open("wb") as file:
            for _ in range(size // 4 // MIB):
                file.write(draw.randbytes(MIB))
    first = cluster.nodes[0]
    snapshot = cluster.hoard(first, "publish", str(source), "--shared-origin").split()[-1]
    cluster.hoard(first, "evict", snapshot)
    for node in cluster.nodes:
        wait_for("all nodes to be known as readers", lambda node=node: knows(node, len(cluster.nodes)), 60)  # type: ignore[misc]
    return snapshot


def knows(node: LocalNode, readers: int) -> bool:
    return origin(node).number("nodes") == readers


def origin(node: LocalNode) -> Fields:
    with NodeClient.connect(node.data_dir) as client:
        return next(iter(Fields(client.call("origins", {}).body).rows("origins")), Fields({}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--size", type=int, default=256 * MIB, help="bytes of the set [256 MiB]")
    parser.add_argument("--gbit", type=float, default=1.0, help="of each link [1]")
    parser.add_argument("--nodes", default="3;2,2", help="nodes of each rack, for each case [3;2,2]")
    options = parser.parse_args()
    cases = [[int(one) for one in case.split(",")] for case in options.nodes.split(";")]
    options.file.write_text(json.dumps([measure(case, options.size, options.gbit) for case in cases], indent=1))


if __name__ == "__main__":
    main()
