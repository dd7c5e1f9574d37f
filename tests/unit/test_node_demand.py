"""What readers on this machine want of the node: damage healed from peers, files completed, no window without a reader.

Real nodes on loopback."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hoard_p2p.catalog.layout import file_key
from hoard_p2p.ids import SnapshotId, chunk_id, parse_snapshot_id
from hoard_p2p.interfaces import Place
from hoard_p2p.node.app import Node
from hoard_p2p.node.keeping import file_runs
from hoard_p2p.node.publishing import publish
from hoard_p2p.storage.records import FileSlab
from tests.unit.node_cluster import meet, run, running, until

MIB = 1 << 20
RNG = random.Random(21)


async def published(node: Node, source: Path) -> SnapshotId:
    async def report(body: object) -> None:
        return

    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    try:
        answer = await publish(node, fd, {"source": os.fspath(source), "replicas": 1}, report)
    finally:
        os.close(fd)
    return parse_snapshot_id(str(answer["snapshot"]))


def a_source(path: Path, *, small: int = 40, large: int = 20 * MIB) -> Path:
    path.mkdir()
    for number in range(small):
        (path / f"{number:04d}").write_bytes(RNG.randbytes(9000))
    if large:
        (path / "shard").write_bytes(RNG.randbytes(large))
    return path


@asynccontextmanager
async def sharing(tmp_path: Path, source: Path) -> AsyncIterator[tuple[Node, SnapshotId]]:
    """A node that has nothing of what another has published from `source`."""
    async with running(tmp_path / "a") as first:
        snapshot = await published(first, source)
        async with running(tmp_path / "b", first) as node:
            yield node, snapshot


async def chunk(node: Node, snapshot: SnapshotId, run_number: int, wrong: Place | None = None) -> Place:
    landed = await node.need(snapshot, run_number, wrong=wrong, timeout=20)
    assert landed.place is not None
    return landed.place


async def whole(node: Node, snapshot: SnapshotId) -> None:
    opened = await node.open(snapshot)
    for number in range(opened.catalog.chunks):
        await chunk(node, snapshot, number)
    node.writer.flush()


async def complete_shard(node: Node, snapshot: SnapshotId) -> Path:
    """The slab of the large file, once it is recorded complete."""
    catalog = (await node.open(snapshot)).catalog
    key = file_key(file_runs(catalog, catalog.find(b"shard")))

    def slab() -> FileSlab | None:
        found = node.store.file_slab(key)
        return found if found is not None and found.complete else None

    await until(lambda: slab() is not None)
    found = slab()
    assert found is not None
    return node.reader.slab_path(found.slab)


def flip(node: Node, place: Place) -> None:
    with node.reader.slab_path(place.slab).open("r+b") as slab:
        slab.seek(place.offset + place.length // 2)
        slab.write(b"damage")


@pytest.mark.expect_warnings
def test_damage_in_a_large_file_is_healed_from_a_peer_under_its_open_readers(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with sharing(tmp_path, source) as (node, snapshot):
            await whole(node, snapshot)
            found = await complete_shard(node, snapshot)
            catalog = (await node.open(snapshot)).catalog
            damaged = catalog.runs(catalog.find(b"shard"))[5]
            place = await chunk(node, snapshot, damaged)
            with found.open("rb", buffering=0) as reader:
                flip(node, place)
                healed = await chunk(node, snapshot, damaged, wrong=place)
                assert reader.read() == (source / "shard").read_bytes()
            assert healed[:3] == place[:3]
            assert await complete_shard(node, snapshot) == found

    run(main)


@pytest.mark.expect_warnings
@pytest.mark.parametrize("harm", ["truncate", "empty", "delete"])
def test_slabs_that_were_cut_or_deleted_under_a_running_node_are_replaced_by_what_peers_have(
    tmp_path: Path, harm: str
) -> None:
    async def main() -> None:
        async with sharing(tmp_path, a_source(tmp_path / "source", large=9 * MIB)) as (node, snapshot):
            await whole(node, snapshot)
            for path in (tmp_path / "b" / "slabs").glob("*.slab"):
                if harm == "delete":
                    path.unlink()
                else:
                    os.truncate(path, 0 if harm == "empty" else path.stat().st_size * 2 // 3)
            catalog = (await node.open(snapshot)).catalog
            for number in range(catalog.chunks):
                place = await chunk(node, snapshot, number)
                if not as_another_process_reads(node, place, catalog.chunk_id(number)):
                    place = await chunk(node, snapshot, number, wrong=place)
                    assert as_another_process_reads(node, place, catalog.chunk_id(number))

    run(main)


def as_another_process_reads(node: Node, place: Place, identifier: bytes) -> bool:
    try:
        with node.reader.slab_path(place.slab).open("rb") as slab:
            slab.seek(place.offset)
            return chunk_id(slab.read(place.length)) == identifier
    except FileNotFoundError:
        return False


def test_a_large_file_that_is_half_fetched_when_the_node_restarts_ends_in_one_slab_and_is_not_fetched_twice(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source", small=0, large=40 * MIB)
        async with running(tmp_path / "a") as first:
            snapshot = await published(first, source)
            catalog = (await first.open(snapshot)).catalog
            runs = list(catalog.runs(catalog.find(b"shard")))
            RNG.shuffle(runs)
            received = 0
            for part in (runs[: len(runs) // 2], runs[len(runs) // 2 :]):
                async with running(tmp_path / "b", first) as node:
                    for number in part:
                        await node.need(snapshot, number, wrong=None, timeout=20, fill=False)
                    if part[-1] == runs[-1]:
                        found = await complete_shard(node, snapshot)
                    received += node.fetcher.received
            assert found.read_bytes() == (source / "shard").read_bytes()
            assert received < 42 * MIB
            assert len(list((tmp_path / "b" / "slabs").glob("F-*.slab"))) == 1

    run(main)


def test_a_file_whose_record_a_crash_took_is_completed_when_a_mount_attaches(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "a") as node:
            snapshot = await published(node, a_source(tmp_path / "source"))
            catalog = (await node.open(snapshot)).catalog
            key = file_key(file_runs(catalog, catalog.find(b"shard")))
            found = node.store.file_slab(key)
            assert found is not None
            node.store.complete_file(key, found.slab, False)
            node.attached(snapshot)
            await until(lambda: node.store.file_slab(key) == found)
            node.detached(snapshot)

    run(main)


def test_a_reader_in_order_finds_the_next_segments_here_and_one_that_asks_for_no_fill_does_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with sharing(tmp_path, a_source(tmp_path / "source", large=100 * MIB)) as (node, snapshot):
            catalog = (await node.open(snapshot)).catalog
            runs = catalog.runs(catalog.find(b"shard"))
            await node.need(snapshot, runs[0], wrong=None, timeout=20, fill=False)
            node.writer.flush()
            assert sum(place is not None for place in node.reader.places([catalog.chunk_id(n) for n in runs])) == 1
            segments = sorted({catalog.segment_of(number) for number in runs})
            for segment in segments[:3]:
                await chunk(node, snapshot, catalog.segment_runs(segment)[0])
            await until(lambda: node.held.whole(catalog, segments[4]))

    run(main)


def test_a_miss_that_only_an_absent_peer_could_answer_leaves_the_node_answering_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with sharing(tmp_path, a_source(tmp_path / "here", large=0)) as (node, here):
            async with running(tmp_path / "c") as leaving:
                lost = await published(leaving, a_source(tmp_path / "lost", small=1200, large=0))
                await meet(node, leaving)
                assert (await node.open(lost)).catalog.chunks >= 1000
            async with asyncio.TaskGroup() as group:
                parked = [group.create_task(node.need(lost, number, wrong=None, timeout=60)) for number in range(1000)]
                await until(lambda: node.counters.misses == 1000)
                for number in range((await node.open(here)).catalog.chunks):
                    await chunk(node, here, number)
                assert not any(task.done() for task in parked)
                for task in parked:
                    task.cancel()

    run(main)
