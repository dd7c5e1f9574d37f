"""Rows of placement worked out in a thread or a process of its own, and kept up as the view changes."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from hoard_p2p.ids import ChunkId
from hoard_p2p.node.share_worker import answer_of, decode_rows, encode_task
from hoard_p2p.node.sharing import Sharing, full_rows
from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.placement import rows
from tests.unit.node_cluster import run, running
from tests.unit.test_node_retention import a_tree, published


@pytest.fixture
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def peers(count: int, seed: int = 1) -> list[Peer]:
    random = Random(seed)
    return [
        Peer(NodeId(random.randbytes(16)), 1, f"n{n}", f"r{n % 3}", "10.0.0.1", 1, random.choice((0, 50, 100)))
        for n in range(count)
    ]


def keys(count: int) -> list[ChunkId]:
    random = Random(9)
    return [ChunkId(random.randbytes(32)) for _ in range(count)]


def test_the_process_answers_what_a_full_plan_gives() -> None:
    members, placed = peers(7), keys(50)
    found = asyncio.run(full_rows(members, placed, 4))
    assert found == rows(members, placed, 4)


def test_fewer_nodes_than_a_row_is_long_are_no_trouble() -> None:
    for count in (0, 1, 2):
        members, placed = peers(count), keys(3)
        assert decode_rows(answer_of(encode_task(members, placed, 5)), members, 5) == rows(members, placed, 5)


def test_what_is_kept_follows_the_view_and_the_number_of_replicas(tmp_path: Path, executor: Executor) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as node:
            snapshot = await published(node, a_tree(tmp_path / "a", 1, 30 << 20), replicas=1)
            opened = await node.open(snapshot)
            sharing = Sharing(executor)
            for members, replicas in ((peers(5), 2), (peers(6), 2), (peers(6), 3), (peers(9, seed=2), 3)):
                placed = await sharing.placed(opened, members, replicas)
                found = [opened.catalog.placement_key(segment) for segment in placed.segments]
                assert list(placed.rows) == rows(members, [key for key in found if key is not None], replicas + 2)
                mine = placed.of(members[0].node_id, {placed.segments[0]})
                assert placed.segments[0] in mine
                assert all(segment == placed.segments[0] or members[0].node_id in row for segment, row in mine.items())

    run(main)
