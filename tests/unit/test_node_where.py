"""What `hoard where` tells of nodes and racks, and what a byte that is near counts."""

from pathlib import Path

from hoard_p2p.config import Json
from hoard_p2p.ids import SnapshotId
from hoard_p2p.interfaces import Residency
from hoard_p2p.node.where import Spot, spots_of, where, where_body
from hoard_p2p.peer import NodeId, Peer
from tests.unit.node_cluster import run, running
from tests.unit.test_node_retention import a_tree, published

SIZES = [10, 20, 30, 40]


def peer(name: str, rack: str) -> Peer:
    return Peer(NodeId(name.encode() * 16), 1, name, rack, "10.0.0.1", 1, 1)


def listed(body: dict[str, Json]) -> list[dict[str, Json]]:
    nodes = body["nodes"]
    assert isinstance(nodes, list)
    return [node for node in nodes if isinstance(node, dict)]


def test_a_node_scores_by_what_it_has_and_then_by_what_its_rack_has() -> None:
    spots = [
        Spot(peer("a", "r1"), 0b0111),
        Spot(peer("b", "r1"), 0b1000),
        Spot(peer("c", "r2"), 0b0000),
        Spot(peer("d", "r2"), None),
    ]
    body = where_body(spots, SIZES)
    nodes = {node["name"]: node for node in listed(body)}
    assert [body["bytes"], body["held_anywhere"]] == [100, 100]
    assert nodes["a"] == {
        "id": "61" * 16, "name": "a", "rack": "r1", "answers": True, "held": 60, "missing": 40, "score": 80,
    }  # fmt: skip
    assert (nodes["b"]["held"], nodes["b"]["score"]) == (40, 70)
    assert (nodes["c"]["held"], nodes["c"]["score"]) == (0, 10)
    assert not nodes["d"]["answers"]
    assert [node["name"] for node in listed(body)] == ["a", "b", "c", "d"]
    assert body["racks"] == [
        {"rack": "r1", "nodes": 2, "held": 100, "missing": 0},
        {"rack": "r2", "nodes": 2, "held": 0, "missing": 100},
    ]


def test_who_knows_nothing_holds_nothing_and_who_does_not_answer_is_told_apart() -> None:
    peers = [peer("a", ""), peer("b", ""), peer("c", "")]
    record = Residency(SnapshotId(b"s" * 32), peers[0].node_id, 1, b"\x05")
    spots = spots_of(peers, {peers[0].node_id: record, peers[1].node_id: None})
    assert [spot.bits for spot in spots] == [5, 0, None]


def test_an_empty_snapshot_is_everywhere() -> None:
    body = where_body([Spot(peer("a", ""), 0)], [])
    assert listed(body)[0]["score"] == 100


def test_it_counts_what_is_on_the_disks_of_real_nodes(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one, running(tmp_path / "m", one) as two:
            snapshot = await published(one, a_tree(tmp_path / "a", 1), replicas=2)
            told: list[dict[str, Json]] = []

            async def report(body: dict[str, Json]) -> None:
                told.append(body)

            body = await where(one, snapshot, report)
            assert told[0] == {"phase": "asking nodes", "done": 0, "total": 1}
            assert {(node["name"], node["missing"]) for node in listed(body)} == {("n", 0), ("m", 0)}
            assert two.me.name == "m" and body["held_anywhere"] == body["bytes"]

    run(main)
