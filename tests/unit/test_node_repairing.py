"""Nodes that pull the copies they should hold, over real sockets."""

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from hoard_p2p.ids import SnapshotId
from hoard_p2p.node.app import Node
from tests.unit.node_cluster import run, running, until
from tests.unit.test_node_retention import a_tree, published, segments_here


async def all_segments(node: Node, snapshot: SnapshotId) -> set[int]:
    return set(range((await node.open(snapshot)).catalog.segments))


async def known_by(node: Node, snapshot: SnapshotId) -> None:
    await until(lambda: any(record.id == snapshot for record in node.names.snapshots()))


@pytest.mark.expect_warnings
def test_a_node_that_joins_pulls_the_copies_that_were_missing(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one:
            snapshot = await published(one, a_tree(tmp_path / "a", 1), replicas=2)
            async with running(tmp_path / "m", one) as two:
                await known_by(two, snapshot)
                await two.repairing.look()
                everything = await all_segments(one, snapshot)
                assert await segments_here(two, snapshot) == everything
                assert await two.blocking(two.store.holds, snapshot) == everything
                assert two.repairing.body()["waiting_bytes"] == 0
                pulled = two.repairing.body()["pulled_bytes"]
                assert isinstance(pulled, int) and pulled > 12 << 20
                await two.repairing.look()
                assert two.repairing.body()["pulled_bytes"] == pulled, "nothing is pulled twice"

    run(main)


def test_copies_of_a_node_that_is_gone_are_made_elsewhere_after_the_grace_time_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n", grace=0) as one, running(tmp_path / "o", one) as patient:
            async with running(tmp_path / "m", one, patient) as two:
                snapshot = await published(two, a_tree(tmp_path / "a", 2), replicas=2)
                everything = await all_segments(two, snapshot)
                gone = two.me
            for node in (one, patient):
                node.agent.left(gone.node_id, gone.incarnation)
                await until(lambda node=node: gone.node_id not in node.agent.view().by_id)  # type: ignore[misc]
                await known_by(node, snapshot)
            before = await segments_here(patient, snapshot)
            await patient.repairing.look()
            assert await segments_here(patient, snapshot) == before, "it may come back"
            await one.repairing.look()
            assert await segments_here(one, snapshot) == everything, "one and patient are homes of everything now"

    run(main)


def test_what_is_due_at_others_and_whole_there_is_kept_as_an_ordinary_copy(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one:
            snapshot = await published(one, a_tree(tmp_path / "a", 3, 30 << 20), replicas=1)
            async with AsyncExitStack() as stack:
                others: list[Node] = []
                for name in ("m", "o"):
                    others.append(await stack.enter_async_context(running(tmp_path / name, one, *others)))
                everything = await all_segments(one, snapshot)
                for node in others:
                    await known_by(node, snapshot)
                    await node.repairing.look()
                assert await one.blocking(one.store.holds, snapshot) == everything
                await one.repairing.look()
                held = [await node.blocking(node.store.holds, snapshot) for node in (one, *others)]
                assert set().union(*held) == everything and sum(map(len, held)) == len(everything)
                assert await segments_here(one, snapshot) == everything

    run(main)


@pytest.mark.expect_warnings
def test_a_node_without_room_says_so_and_the_next_in_order_takes_its_copies(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(tmp_path / "n") as one,
            running(tmp_path / "m", one) as small,
            running(tmp_path / "o", one, small) as third,
        ):
            small.store.set_capacity(8 << 20)
            snapshot = await published(one, a_tree(tmp_path / "a", 4, 30 << 20), replicas=3)
            for node in (small, third):
                await known_by(node, snapshot)
                await node.repairing.look()
            everything = await all_segments(one, snapshot)
            assert await segments_here(third, snapshot) == everything
            assert await segments_here(small, snapshot) < everything
            told = await one.control.residency(small.me, snapshot)
            assert told is not None and told.full

    run(main)


@pytest.mark.expect_warnings
def test_what_has_an_origin_is_not_copied_while_nobody_uses_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "n") as one:
            snapshot = await published(one, a_tree(tmp_path / "a", 5), replicas=2)
            record = one.names.snapshot(snapshot)
            assert record is not None
            root = one.store.root(snapshot)
            assert root is not None
            again = replace(record, origin="dir:/data", created=record.created + 1)
            await one.blocking(one.names.show, root, again)
            async with running(tmp_path / "m", one) as two:
                await known_by(two, snapshot)
                await two.repairing.look()
                assert await segments_here_or_none(two, snapshot) == set()

    run(main)


async def segments_here_or_none(node: Node, snapshot: SnapshotId) -> set[int]:
    return await segments_here(node, snapshot) if await node.open_local(snapshot) is not None else set()
