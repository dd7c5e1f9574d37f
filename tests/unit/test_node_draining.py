"""Nodes that leave for good: when it is safe, and when it cannot be."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from hoard_p2p.config import Json
from hoard_p2p.errors import Unavailable
from hoard_p2p.ids import SnapshotId
from hoard_p2p.node import operations
from hoard_p2p.node.app import Node
from hoard_p2p.node.draining import Drain
from hoard_p2p.node.local import LocalRequest
from hoard_p2p.peer import origin_id
from tests.unit.node_cluster import run, running, until
from tests.unit.test_node_repairing import all_segments, known_by
from tests.unit.test_node_retention import a_tree, published, segments_here


def weight_seen(node: Node, other: Node) -> int:
    return node.agent.view().by_id[other.me.node_id].weight


async def drained(node: Node, others: list[Node], *, stall: float = 20) -> list[dict[str, Json]]:
    """Drain while the others repair; what was reported."""
    told: list[dict[str, Json]] = []

    async def report(body: dict[str, Json]) -> None:
        told.append(body)
        for other in others:
            await other.repairing.look()

    drain = Drain(node)
    drain.start()
    await until(lambda: all(weight_seen(other, node) == 0 for other in others))
    told.append(await drain.wait(report, stall=stall))
    return told


def test_it_is_safe_to_remove_a_node_once_others_have_what_only_it_had(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one, running(tmp_path / "m", one) as two:
            snapshot = await published(one, a_tree(tmp_path / "a", 1, 20 << 20), replicas=1)
            await known_by(two, snapshot)
            everything = await all_segments(one, snapshot)
            told = await drained(one, [two])
            assert told[-1]["safe"] is True
            assert told[0]["bytes_done"] != told[0]["bytes"], "some of it was nowhere else"
            assert await segments_here(two, snapshot) == everything
            assert await two.blocking(two.store.holds, snapshot) == everything

    run(main)


def test_a_node_that_is_alone_can_never_leave_safely_and_goes_on_as_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one:
            await published(one, a_tree(tmp_path / "a", 2), replicas=1)
            weight = one.me.weight
            drain = Drain(one)
            drain.start()
            with pytest.raises(Unavailable, match="no other node takes any"):
                await drain.wait(_silent, stall=5)
            drain.end()
            assert one.me.weight == weight > 0 and not one.repairing.paused

    run(main)


def test_another_capacity_gives_a_node_that_drains_no_share_and_counts_once_it_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one:
            weight, drain = one.me.weight, Drain(one)
            drain.start()
            await operations.handle(one, LocalRequest("capacity", {"size": 4 << 30}, [], 1, _silent))
            assert one.me.weight == 0
            drain.end()
            assert one.me.weight == 4 * weight

    run(main)


def test_a_node_with_nothing_may_leave_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one:
            drain = Drain(one)
            drain.start()
            assert (await drain.wait(_silent, stall=5))["bytes"] == 0

    run(main)


def test_where_others_take_nothing_it_is_said_what_is_left(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one, running(tmp_path / "m", one) as two:
            snapshot: SnapshotId = await published(one, a_tree(tmp_path / "a", 3, 30 << 20), replicas=1)
            two.store.set_capacity(2 << 20)
            await known_by(two, snapshot)
            with pytest.raises(Unavailable, match=r"not safe.*nothing moved"):
                await drained(one, [two], stall=0.5)

    run(main)


def test_what_is_published_here_meanwhile_is_handed_over_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one, running(tmp_path / "m", one) as two:
            first = await published(one, a_tree(tmp_path / "a", 4), replicas=1)
            await known_by(two, first)
            late: list[SnapshotId] = []

            async def report(body: dict[str, Json]) -> None:
                if not late:
                    late.append(await published(one, a_tree(tmp_path / "b", 5), replicas=1))
                await two.repairing.look()

            drain = Drain(one)
            drain.start()
            await until(lambda: weight_seen(two, one) == 0)
            told = await drain.wait(report, stall=20)
            assert told["snapshots"] == 2
            assert await segments_here(two, late[0]) == await all_segments(one, late[0])

    run(main)


@pytest.mark.parametrize("others_read", [True, False])
def test_what_has_an_origin_is_handed_over_where_nobody_else_can_read_that(tmp_path: Path, others_read: bool) -> None:
    tree = a_tree(tmp_path / "a", 6, 20 << 20)
    url = f"dir:{tree}"

    async def main() -> None:
        async with (
            running(tmp_path / "n", allow=[tree]) as one,
            running(tmp_path / "m", one, allow=[tree] if others_read else []) as two,
        ):
            snapshot = await published(one, tree, replicas=1)
            record, root = one.names.snapshot(snapshot), one.store.root(snapshot)
            assert record is not None
            assert root is not None
            await one.blocking(one.names.show, root, replace(record, origin=url, created=record.created + 1))
            await known_by(two, snapshot)
            await until(lambda: (there := two.names.snapshot(snapshot)) is not None and there.origin == url)
            for node in (one, two):
                node.known_origins.soon()
                await until(lambda: len(node.agent.reading(origin_id(url))) == 1 + others_read)  # noqa: B023
            before = await segments_here(two, snapshot)
            told = await drained(one, [two])
            assert told[-1]["safe"] is True
            assert (told[-1]["bytes"] == 0) is others_read
            after = await segments_here(two, snapshot)
            assert after == (before if others_read else await all_segments(one, snapshot))

    run(main)


def test_evictions_and_repair_beside_a_drain_leave_as_many_copies_as_were_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(tmp_path / "n") as one,
            running(tmp_path / "m", one) as two,
            running(tmp_path / "o", one, two) as three,
        ):
            snapshot = await published(one, a_tree(tmp_path / "a", 7, 40 << 20), replicas=2)
            for node in (two, three):
                await known_by(node, snapshot)
            everything = await all_segments(one, snapshot)
            over = asyncio.Event()

            async def evict(node: Node) -> None:
                while not over.is_set():
                    await node.retention.evict(snapshot)
                    await asyncio.sleep(0)

            async with asyncio.TaskGroup() as group:
                for node in (two, three):
                    group.create_task(evict(node))
                told = await drained(one, [two, three])
                over.set()
            assert told[-1]["safe"] is True
            assert await segments_here(two, snapshot) == await segments_here(three, snapshot) == everything

    run(main)


async def _silent(body: dict[str, Json]) -> None:
    await asyncio.sleep(0)
