"""What a node with a lazy snapshot finds out and mends, by what its pieces were found to be."""

import asyncio
from pathlib import Path

from hoard_p2p.catalog.layout import file_key
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.fetch.segment import segment_of
from hoard_p2p.ids import ChunkId, chunk_id
from hoard_p2p.node.app import Node
from hoard_p2p.node.catalogs import OpenSnapshot
from hoard_p2p.node.damage import refetch, uses
from hoard_p2p.node.keeping import file_runs
from hoard_p2p.node.rebuilding import rebuild_index
from hoard_p2p.objects import Kind, Listed
from hoard_p2p.publish.lazy import LazyOptions, build_lazy
from hoard_p2p.storage.records import SnapshotRecord
from hoard_p2p.storage.store import Store
from tests.unit.lazy_sets import BIG, OBJECTS, inode_of, pieces
from tests.unit.node_cluster import running
from tests.unit.test_publish_lazy import ListedOrigin


async def published(node: Node, scratch: Path) -> OpenSnapshot:
    """A lazy snapshot of OBJECTS that this node has all of."""
    entries = [Listed(name, Kind.FILE, len(data), 5, 0o644, b"v") for name, data in OBJECTS.items()]
    listed = build_lazy(
        ListedOrigin(entries), LazyOptions(scratch), node.writer, report=lambda _: None, stop=lambda: False
    )
    record = SnapshotRecord(listed.snapshot, 1, 1, 1, False, 1, False, "a test")
    opened = await node.keep_published(listed.root, record)
    await node.blocking(_bring, node, opened)
    return opened


def _bring(node: Node, opened: OpenSnapshot) -> None:
    data = pieces(opened.catalog)
    for number in range(opened.catalog.segments):
        segment = segment_of(opened.catalog, opened.id, number)
        for chunk in segment.chunks:
            node.keeper.keep(segment, chunk, memoryview(data[chunk.chunk_id]))
        node.keeper.ended(segment, True)
    node.writer.flush()


def first_piece(catalog: Catalog) -> ChunkId:
    return catalog.chunk_id(catalog.runs(inode_of(catalog, BIG)).start)


def test_damage_names_the_files_of_lazy_snapshots(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path / "node") as node:
            opened = await published(node, tmp_path)
            key = first_piece(opened.catalog)
            lost = chunk_id(pieces(opened.catalog)[key])
            found = await uses(node, {lost})
            assert [(use.snapshot, use.path, use.chunk_id) for use in found] == [(opened.id, BIG.decode(), lost)]
            assert await refetch(node, {lost}) == {lost}, "no peer has it"

    asyncio.run(scene())


def test_a_rebuilt_index_knows_pieces_and_large_files_of_lazy_snapshots(tmp_path: Path) -> None:
    async def scene() -> bytes:
        async with running(tmp_path / "node") as node:
            opened = await published(node, tmp_path)
            keys.extend(pieces(opened.catalog))
            return file_key(file_runs(opened.catalog, inode_of(opened.catalog, BIG)))

    keys: list[ChunkId] = []
    name = asyncio.run(scene())
    outcome = rebuild_index(tmp_path / "node", lambda *_: None)
    assert (outcome.catalogs, outcome.files, outcome.without) == (1, 1, [])
    with Store.open(tmp_path / "node") as store:
        assert None not in store.contents(keys)
        found = store.file_slab(name)
        assert found is not None and found.complete
