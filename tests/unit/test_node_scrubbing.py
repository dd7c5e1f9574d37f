"""Scrubs of nodes that serve: by somebody, and by themselves; what is lost here comes from peers."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from hoard_p2p.errors import Refused
from hoard_p2p.ids import ChunkId, SnapshotId, chunk_id
from hoard_p2p.node.app import Node
from hoard_p2p.node.local import Body
from hoard_p2p.node.publishing import publish
from hoard_p2p.node.scrubbing import (
    DAY,
    DEFAULT_DAYS,
    LEAST_RATE,
    MOST_RATE,
    Standing,
    is_due,
    rate_of,
    set_days,
)
from tests.unit.node_cluster import run, running

pytestmark = [pytest.mark.timeout(120), pytest.mark.expect_warnings]
NewDirectory = Callable[[str], Path]
FILES = {f"f{number}": bytes([number + 1]) * 300_000 for number in range(4)}
LARGE = b"".join(bytes([number % 251]) * 4096 for number in range(1500))


async def quiet(body: Body) -> None:
    pass


async def published(node: Node, source: Path) -> SnapshotId:
    import os

    for name, data in FILES.items():
        (source / name).write_bytes(data)
    (source / "large").write_bytes(LARGE)
    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    try:
        result = await publish(node, fd, {"chunker": "fastcdc", "replicas": 2, "source": str(source)}, quiet)
    finally:
        os.close(fd)
    return SnapshotId(bytes.fromhex(str(result["snapshot"])))


def damage(node: Node, *ids: ChunkId) -> None:
    for identifier in ids:
        for place in node.reader.places_of(identifier):
            with node.reader.slab_path(place.slab).open("r+b") as slab:
                slab.seek(place.offset + place.length // 2)
                slab.write(b"damage")


def test_damage_is_healed_from_a_peer_and_what_nobody_has_is_named(new_directory: NewDirectory) -> None:
    async def main() -> None:
        async with running(new_directory("a")) as first, running(new_directory("b"), first) as second:
            snapshot = await published(first, new_directory("s"))
            sound = await first.scrubbing.scrub(None, quiet)
            assert (sound["damaged"], sound["unhealed"]) == (0, 0)
            one, two = (chunk_id(FILES[name]) for name in ("f1", "f2"))
            damage(first, one, two)
            damage(second, two)
            healed = await second.scrubbing.scrub(None, quiet)
            assert healed["unhealed"] == 1, "the other's is damaged too, which it finds out by sending"
            found = await first.scrubbing.scrub(snapshot, quiet)
            assert (found["damaged"], found["healed"], found["unhealed"]) == (2, 1, 1)
            assert found["files"] == [{"snapshot": snapshot.hex(), "path": "f2"}]
            assert first.reader.place(one) is not None
            assert first.reader.place(two) is None
            body = await first.scrubbing.body()
            assert body["damaged"] == 1

    run(main)


def test_a_damaged_catalog_is_restored_from_memory_or_named(new_directory: NewDirectory) -> None:
    async def main() -> None:
        async with running(new_directory("a")) as node:
            snapshot = await published(node, new_directory("s"))
            opened = await node.open(snapshot)
            damage(node, *(run.chunk_id for run in opened.root.catalog_runs))
            found = await node.scrubbing.scrub(snapshot, quiet)
            assert (found["damaged"], found["unhealed"]) == (1, 0)
            assert all(node.reader.place(run.chunk_id) for run in opened.root.catalog_runs)

    run(main)


def test_the_scrub_of_a_snapshot_says_what_is_not_here(new_directory: NewDirectory) -> None:
    async def main() -> None:
        async with running(new_directory("a")) as node:
            snapshot = await published(node, new_directory("s"))
            place = node.reader.place(chunk_id(FILES["f0"]))
            assert place is not None
            node.reader.slab_path(place.slab)
            node.store.reclaimer.drop([chunk_id(FILES["f0"])])
            found = await node.scrubbing.scrub(snapshot, quiet)
            assert (found["absent"], found["damaged"]) == (1, 0)

    run(main)


def test_one_scrub_at_a_time_and_a_cancelled_one_leaves_nothing_behind(new_directory: NewDirectory) -> None:
    async def main() -> None:
        async with running(new_directory("a")) as node:
            await published(node, new_directory("s"))
            begun = asyncio.Event()

            async def tell(body: Body) -> None:
                begun.set()
                await asyncio.Event().wait()

            async with asyncio.TaskGroup() as group:
                first = group.create_task(node.scrubbing.scrub(None, tell))
                await begun.wait()
                with pytest.raises(Refused):
                    await node.scrubbing.scrub(None, quiet)
                first.cancel()
            assert (await node.scrubbing.scrub(None, quiet))["damaged"] == 0

    run(main)


def test_the_background_scrub_goes_on_where_it_was_also_after_a_restart(new_directory: NewDirectory) -> None:
    data_dir = new_directory("a")

    async def begin() -> None:
        async with running(data_dir) as node:
            await published(node, new_directory("s"))
            assert await node.scrubbing.stint(1) > 0
            body = await node.scrubbing.body()
            assert body["slab"] and not body["last_pass"] and body["begun"]

    async def go_on() -> None:
        async with running(data_dir) as node:
            damage(node, chunk_id(FILES["f3"]))
            sizes = 0
            while (await node.scrubbing.body())["slab"]:
                sizes += await node.scrubbing.stint(1)
            body = await node.scrubbing.body()
            assert body["last_pass"]
            assert sizes < len(LARGE) + 4 * 300_000 + (1 << 20), "nothing is read twice"
            assert body["damaged"] == 1 and node.reader.place(chunk_id(FILES["f3"])) is None

    run(begin)
    run(go_on)


# --- pure


def test_the_rate_reads_all_within_the_period_and_has_bounds() -> None:
    assert rate_of(0, 7) == rate_of(100 << 30, 7) == LEAST_RATE
    assert rate_of(10 << 40, 7) == int((10 << 40) / (7 * DAY * 0.8))
    assert rate_of(1 << 60, 7) == MOST_RATE


def test_a_pass_is_due_once_in_a_period_and_until_it_ends() -> None:
    week = int(7 * DAY * 1e9)
    assert is_due(Standing(0, 0, 0, 0), 7, week)
    assert not is_due(Standing(week, week, 0, 0), 7, 2 * week - 1)
    assert is_due(Standing(week, week, 0, 0), 7, 2 * week)
    assert is_due(Standing(week, week, 3, 0), 7, week)


def test_the_period_is_kept(new_directory: NewDirectory) -> None:
    data_dir = new_directory("a")

    async def main() -> None:
        async with running(data_dir) as node:
            assert node.scrubbing.days() == DEFAULT_DAYS
            set_days(node.store, 0.5)
        async with running(data_dir) as node:
            set_days(node.store, None)
            assert node.scrubbing.days() == 0.5

    run(main)
