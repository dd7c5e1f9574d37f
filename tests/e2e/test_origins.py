"""Real nodes that start cold on a directory which all of them see: its bytes are read once, whoever dies."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random

import pytest

from hoard_p2p.cli.answers import Fields
from hoard_p2p.cli.localcluster import LocalCluster, LocalNode, wait_for
from hoard_p2p.errors import HoardError
from hoard_p2p.node.client import NodeClient

pytestmark = pytest.mark.timeout(240)

MIB = 1 << 20


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster("hoard-origins") as cluster:
        yield cluster


def a_source(cluster: LocalCluster, large: int = 4, small: int = 400) -> tuple[Path, int]:
    """A set of data, and its bytes."""
    source, draw = cluster.root / "set", Random(4)
    source.mkdir()
    for number in range(large):
        (source / f"shard-{number}").write_bytes(draw.randbytes(20 * MIB))
    for number in range(small):
        (source / f"{number:04d}").write_bytes(draw.randbytes(50_000))
    return source, large * 20 * MIB + small * 50_000


def cold(cluster: LocalCluster, source: Path, nodes: int) -> str:
    """Nodes in two racks that know a snapshot of `source`, and have nothing of it."""
    for number in range(nodes):
        cluster.start(f"n{number}", rack=f"r{number % 2}", options=["--allow-origin", str(cluster.root)])
    cluster.wait_met()
    first = cluster.nodes[0]
    snapshot = cluster.hoard(first, "publish", str(source), "--shared-origin", "--chunker", "fastcdc").split()[-1]
    cluster.hoard(first, "evict", snapshot)
    for node in cluster.nodes:
        wait_for(f"{node.name} to know who reads", partial(knows, node, nodes), 60)
    assert sum(origin(node).number("read") for node in cluster.nodes) == 0
    return snapshot


def knows(node: LocalNode, readers: int) -> bool:
    return origin(node).number("nodes") == readers


def origin(node: LocalNode) -> Fields:
    """What a node tells of the origin; nothing if it knows none yet."""
    with NodeClient.connect(node.data_dir) as client:
        return next(iter(Fields(client.call("origins", {}).body).rows("origins")), Fields({}))


def read(cluster: LocalCluster) -> int:
    """Bytes of the origin that living nodes read."""
    return sum(origin(node).number("read") for node in cluster.nodes if node.process.poll() is None)


def warm(cluster: LocalCluster, snapshot: str, nodes: list[LocalNode]) -> None:
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(lambda node: cluster.hoard(node, "warm", snapshot), nodes))


def same(mounted: Path, source: Path) -> bool:
    return all((mounted / name).read_bytes() == (source / name).read_bytes() for name in os.listdir(source))


def test_four_cold_nodes_read_each_byte_of_the_origin_once(cluster: LocalCluster) -> None:
    source, size = a_source(cluster)
    snapshot = cold(cluster, source, 4)
    warm(cluster, snapshot, cluster.nodes)
    assert read(cluster) <= 1.01 * size
    point, _ = cluster.mount(cluster.nodes[3], snapshot)
    assert same(point, source)
    assert read(cluster) <= 1.01 * size


def test_readers_of_cold_mounts_read_each_byte_of_the_origin_once(cluster: LocalCluster) -> None:
    source, size = a_source(cluster)
    snapshot = cold(cluster, source, 2)
    points = [cluster.mount(node, snapshot)[0] for node in cluster.nodes]
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(lambda point: same(point, source), points))
    assert read(cluster) <= 1.01 * size


def test_a_node_that_dies_half_way_costs_no_reader_an_error_and_little_of_the_origin(cluster: LocalCluster) -> None:
    source, size = a_source(cluster, large=10)
    snapshot = cold(cluster, source, 3)
    victim, others = cluster.nodes[0], cluster.nodes[1:]
    with ThreadPoolExecutor(3) as pool:
        warming = [pool.submit(cluster.hoard, node, "warm", snapshot) for node in others]
        doomed = pool.submit(cluster.hoard, victim, "warm", snapshot)
        wait_for("a part to be read", lambda: read(cluster) > size // 5, 60)
        before = origin(victim).number("read")
        cluster.kill(victim)
        for one in warming:
            one.result(120)
        with pytest.raises(HoardError):
            doomed.result(120)
    assert read(cluster) + before <= 1.10 * size
    point, _ = cluster.mount(others[0], snapshot)
    assert same(point, source)


def test_a_node_that_may_not_read_gets_all_from_one_that_may(cluster: LocalCluster) -> None:
    source, size = a_source(cluster, large=1, small=50)
    reader = cluster.start("reader")
    other = cluster.start("other")
    cluster.wait_met()
    snapshot = cluster.hoard(reader, "publish", str(source), "--shared-origin", "--chunker", "fastcdc").split()[-1]
    cluster.hoard(reader, "evict", snapshot)
    wait_for("the other node to know who reads", partial(knows, other, 1), 60)
    assert not origin(other).body["readable"]
    point, _ = cluster.mount(other, snapshot)
    assert same(point, source)
    assert origin(other).number("read") == 0
    assert origin(reader).number("read") <= 1.01 * size
