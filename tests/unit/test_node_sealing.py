"""Sealing: which lazy snapshots are sealed by themselves, and what becomes of a piece that was found to be another."""

import asyncio
import os
from pathlib import Path

import pytest

from hoard_p2p.config import Json
from hoard_p2p.ids import ChunkId, SnapshotId, chunk_id, parse_snapshot_id
from hoard_p2p.node.app import Node
from hoard_p2p.node.autosealing import AutoSealing
from hoard_p2p.node.contents import Contents, all_known
from hoard_p2p.node.publishing import publish
from hoard_p2p.node.sealing import SealedWrong, check_sample
from tests.unit.node_cluster import run, running

FILES = 5


def a_source(path: Path) -> Path:
    path.mkdir()
    for number in range(FILES):
        (path / f"s{number}").write_bytes(b"%d" % number * 50_000)
    return path


async def lazily(node: Node, source: Path, **options: Json) -> SnapshotId:
    async def report(body: dict[str, Json]) -> None:
        return

    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    try:
        told: dict[str, Json] = {"source": os.fspath(source), "shared_origin": True, "lazy": True, "replicas": 1}
        return parse_snapshot_id(str((await publish(node, fd, {**told, **options}, report))["snapshot"]))
    finally:
        os.close(fd)


async def read_all(node: Node, snapshot: SnapshotId) -> None:
    for run_number in range((await node.open(snapshot)).catalog.chunks):
        await node.need(snapshot, run_number, wrong=None, timeout=20)
    await node.blocking(node.writer.flush)


@pytest.mark.parametrize("keep", [3599, 3600, 86_400])
def test_a_lazy_snapshot_is_sealed_by_itself_however_long_it_is_to_be_kept(tmp_path: Path, keep: int) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node:
            snapshot = await lazily(node, source, keep=keep, name="set:1")
            await read_all(node, snapshot)
            while len(node.names.snapshots()) < 2:  # what has just come is counted a moment later
                await AutoSealing(node).look()
                await asyncio.sleep(0.05)
            (sealed,) = [record for record in node.names.snapshots() if record.id != snapshot]
            assert node.names.names_of(sealed.id) == ["set:1"]
            assert not (await node.open(sealed.id)).root.lazy
            await AutoSealing(node).look()
            assert len(node.names.snapshots()) == 2, "and but once"

    run(main)


@pytest.mark.expect_warnings
def test_a_piece_that_the_sample_finds_wrong_is_named_and_forgotten_and_read_again(tmp_path: Path) -> None:
    async def main() -> None:
        source = a_source(tmp_path / "source")
        async with running(tmp_path / "n") as node:
            snapshot = await lazily(node, source)
            await read_all(node, snapshot)
            opened, record = await node.open(snapshot), node.names.snapshot(snapshot)
            assert record is not None
            key, other = (ChunkId(opened.catalog.chunk_id(number)) for number in (0, 1))
            right, wrong = await node.blocking(node.store.contents, [key, other])
            assert right is not None and wrong is not None
            await node.blocking(node.store.unknow, [key])
            await node.blocking(node.writer.know, key, wrong)
            await node.blocking(node.writer.flush)
            contents = Contents(opened.catalog)
            assert await all_known(node, opened, contents)
            with pytest.raises(SealedWrong, match=r"s\d at 0 has other bytes.*this node found"):
                await node.blocking(check_sample, node, opened, record.origin, contents)
            assert await node.blocking(node.store.contents, [key]) == [None]
            await node.need(snapshot, 0, wrong=None, timeout=20)
            await node.blocking(node.writer.flush)
            assert await node.blocking(node.store.contents, [key]) == [right]
            assert right in {chunk_id((source / f"s{number}").read_bytes()) for number in range(FILES)}

    run(main)
