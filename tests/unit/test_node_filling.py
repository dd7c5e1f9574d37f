"""Whole snapshots brought to nodes that want them. Real nodes on loopback."""

import asyncio
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from hoard_p2p.errors import StoreFull, Unavailable
from hoard_p2p.ids import SnapshotId, parse_snapshot_id
from hoard_p2p.interfaces import AskMode, SegmentAsk
from hoard_p2p.node.app import Node
from hoard_p2p.node.feeding import LAST_PLACE, MOST_HOPS
from hoard_p2p.node.filling import Fill
from hoard_p2p.node.publishing import publish
from hoard_p2p.node.service import NodeService
from hoard_p2p.placement import homes
from hoard_p2p.transfer.service import Fed, FeedEnd
from tests.unit.node_cluster import run, running, until

MIB = 1 << 20
RNG = random.Random(23)


async def published(node: Node, source: Path) -> SnapshotId:
    async def report(body: object) -> None:
        return

    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    try:
        answer = await publish(node, fd, {"source": os.fspath(source), "replicas": 1}, report)
    finally:
        os.close(fd)
    return parse_snapshot_id(str(answer["snapshot"]))


def a_source(path: Path) -> Path:
    path.mkdir()
    for number in range(50):
        (path / f"{number:04d}").write_bytes(RNG.randbytes(60_000))
    for number in range(6):
        (path / f"shard{number}").write_bytes(RNG.randbytes(9 * MIB))
    return path


@asynccontextmanager
async def cluster(tmp_path: Path, count: int) -> AsyncIterator[tuple[list[Node], SnapshotId]]:
    """Nodes that have met, of which the first has published; each has its homes' share of one copy."""
    async with AsyncExitStack() as stack:
        nodes: list[Node] = []
        for number in range(count):
            nodes.append(await stack.enter_async_context(running(tmp_path / f"n{number}", *nodes)))
        yield nodes, await published(nodes[0], a_source(tmp_path / "source"))


async def untold(_: Fill) -> None:
    return


async def warmed(node: Node, snapshot: SnapshotId) -> Fill:
    return await node.fills.warm(await node.open(snapshot), untold)


async def size_here(node: Node, snapshot: SnapshotId) -> int:
    """Bytes of the segments that are whole on the node's disk."""
    opened = await node.open(snapshot)
    residency = node.held.residency(snapshot, opened.catalog)
    numbers = range(opened.catalog.segments)
    return sum(opened.catalog.segment_size(number) for number in numbers if residency.holds(number))


def test_four_nodes_warm_a_set_and_each_chunk_comes_to_each_of_them_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, 4) as (nodes, snapshot):
            here = [await size_here(node, snapshot) for node in nodes]
            received = [node.fetcher.received for node in nodes]
            async with asyncio.TaskGroup() as group:
                fills = [group.create_task(warmed(node, snapshot)) for node in nodes]
            total = here[0]
            assert all(fill.result().done == fill.result().total == total for fill in fills)
            for node, before, share in zip(nodes, received, here, strict=True):
                assert await size_here(node, snapshot) == total
                catalog = (await node.open(snapshot)).root.catalog_length
                assert total - share <= node.fetcher.received - before <= total - share + catalog

    run(main)


def test_a_node_that_is_home_of_what_it_filled_holds_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, 2) as (nodes, snapshot), running(tmp_path / "late", *nodes) as late:
            await warmed(late, snapshot)
            catalog = (await late.open(snapshot)).catalog
            view = late.agent.view().peers
            mine = {
                number
                for number in range(catalog.segments)
                if (key := catalog.placement_key(number)) and late.me in homes(view, key, 1)
            }
            await until(lambda: late.store.holds(snapshot) == mine)

    run(main)


def test_what_cannot_be_had_ends_a_warm_and_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "b") as node:
            async with running(tmp_path / "a", node) as other:
                snapshot = await published(other, a_source(tmp_path / "source"))
                opened = await node.open(snapshot)
            node.fills.away_seconds = 1.0
            with pytest.raises(Unavailable, match=r"\d+ of \d+ segments of .* could not be had"):
                await node.fills.warm(opened, untold)

    run(main)


def test_a_warm_waits_for_a_member_that_is_away_for_a_while(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "b") as node:
            async with running(tmp_path / "a", node) as other:
                snapshot = await published(other, a_source(tmp_path / "source"))
                opened = await node.open(snapshot)
            async with asyncio.TaskGroup() as group:
                warm = group.create_task(node.fills.warm(opened, untold))
                await until(lambda: bool(node.agent.suspects()) or len(node.agent.view().peers) == 1)
                async with running(tmp_path / "a", node):
                    fill = await warm
            assert fill.whole == fill.segments

    run(main)


def test_a_set_for_which_there_is_no_room_is_not_begun(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, 2) as (nodes, snapshot), running(tmp_path / "small", *nodes) as small:
            small.store.set_capacity(16 * MIB)
            opened = await small.open(snapshot)
            before = small.fetcher.received
            with pytest.raises(StoreFull):
                await small.fills.warm(opened, untold)
            assert small.fetcher.received == before

    run(main)


# --- what a node gives to who asks


async def fed(node: Node, ask: SegmentAsk) -> tuple[list[int], FeedEnd]:
    """Indexes of what came, given back at once, and the last word."""
    service = NodeService(node)
    came: list[int] = []
    feed: AsyncGenerator[Sequence[Fed] | FeedEnd, None] = service.feed(ask, 0.2)
    async for item in feed:
        if isinstance(item, FeedEnd):
            return came, item
        came += [one.asked for one in item]
        service.release([one.extent for one in item if one.extent is not None], 0)
    raise AssertionError("it has no end")


async def runs_of(node: Node, snapshot: SnapshotId, segment: int) -> tuple[int, ...]:
    return tuple(chunk.run for chunk in node.demand.segment(await node.open(snapshot), segment).chunks)


def test_a_node_gives_what_it_has_whoever_asks_and_however(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, 2) as (nodes, snapshot):
            runs = await runs_of(nodes[0], snapshot, 0)
            for mode in AskMode:
                came, end = await fed(nodes[0], SegmentAsk(snapshot, 0, mode, 0, runs))
                assert sorted(came) == list(range(len(runs)))
                assert end == FeedEnd(False)

    run(main)


def test_a_node_gets_nothing_for_others_that_is_not_its_part(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, 2) as (nodes, snapshot), running(tmp_path / "c", *nodes) as idle:
            opened = await idle.open(snapshot)
            place = [idle.courses.order(idle.demand.segment(opened, at)) for at in range(opened.catalog.segments)]
            other = next(at for at, order in enumerate(place) if idle.me not in order)
            mine = next((at for at, order in enumerate(place) if order[0] == idle.me), None)
            runs = await runs_of(idle, snapshot, other)
            for mode in (AskMode.GATE, AskMode.CHAIN):
                assert await fed(idle, SegmentAsk(snapshot, other, mode, LAST_PLACE, runs)) == (
                    [],
                    FeedEnd(False, f"{idle.me.name} does not take part"),
                )
            assert (await fed(idle, SegmentAsk(snapshot, other, AskMode.FETCH, MOST_HOPS, runs)))[1].pending is False
            if mine is not None:
                runs = await runs_of(idle, snapshot, mine)
                _, end = await fed(idle, SegmentAsk(snapshot, mine, AskMode.CHAIN, 0, runs))
                assert end == FeedEnd(False, f"{idle.me.name} comes later in the chain")

    run(main)


def test_runs_of_another_segment_and_segments_that_are_not_there_are_refused_in_words(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, 1) as (nodes, snapshot):
            runs = await runs_of(nodes[0], snapshot, 1)
            assert (await fed(nodes[0], SegmentAsk(snapshot, 0, AskMode.CHAIN, 1, runs)))[1].reason
            assert (await fed(nodes[0], SegmentAsk(snapshot, 1 << 20, AskMode.CHAIN, 1, runs)))[1].reason
            unknown = SnapshotId(b"u" * 32)
            assert (await fed(nodes[0], SegmentAsk(unknown, 0, AskMode.CHAIN, 1, runs)))[1].reason

    run(main)


def test_a_home_that_lacks_a_segment_fills_it_for_who_comes_after_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, 2) as (nodes, snapshot), running(tmp_path / "c", *nodes) as home:
            opened = await home.open(snapshot)
            orders = [home.courses.order(home.demand.segment(opened, at)) for at in range(opened.catalog.segments)]
            mine = [at for at, order in enumerate(orders) if order[0] == home.me]
            if not mine:
                pytest.skip("the new node is home of none of these segments")
            runs = await runs_of(home, snapshot, mine[0])
            came, end = await fed(home, SegmentAsk(snapshot, mine[0], AskMode.CHAIN, 1, runs))
            while end.pending:
                more, end = await fed(home, SegmentAsk(snapshot, mine[0], AskMode.CHAIN, 1, runs))
                came = sorted({*came, *more})
            assert sorted(came) == list(range(len(runs)))

    run(main)
