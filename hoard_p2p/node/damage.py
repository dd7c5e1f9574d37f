"""Chunks that no place of this disk has any more: fetched again from peers, and named by the files that want them."""

import asyncio
import logging
import os
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.catalog.root import Root
from hoard_p2p.catalog.root import decode as decode_root
from hoard_p2p.errors import Corrupt, HoardError
from hoard_p2p.fetch.segment import Segment, Wanted
from hoard_p2p.ids import HOLE, ChunkId, SnapshotId, short
from hoard_p2p.node.catalogs import CATALOG_SEGMENT, OpenSnapshot

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

log = logging.getLogger(__name__)

FETCHES_AT_ONCE = 8
FETCH_SECONDS = 30.0
CATALOG = ""
"""Stands for the catalog of a snapshot among its files; no file has an empty path."""


class Use(NamedTuple):
    """A file that wants a missing chunk. `path` as `os.fsdecode` gives it; empty for the catalog itself."""

    snapshot: SnapshotId
    path: str
    chunk_id: ChunkId


async def living(node: "Node") -> list[SnapshotId]:
    return [record.id for record in await node.blocking(node.store.snapshots) if not record.removed]


async def refetch(node: "Node", missing: Collection[ChunkId]) -> set[ChunkId]:
    """Bring chunks here again, each to where it was if it can be; those that could not be had."""
    left = set(missing)
    keys = await node.blocking(node.store.keybook.keys_of, frozenset(left))
    for snapshot in await living(node):
        if not left:
            break
        root = await _root(node, snapshot)
        if root is not None:
            left -= await _restore_catalog(node, snapshot, root, left)
            fetched = await _refetch_files(node, snapshot, _with_keys(left, keys))
            left -= {keys.get(chunk_id, chunk_id) for chunk_id in fetched}
    mark = node.writer.mark()
    await node.blocking(node.writer.flush, mark)
    return left


def _with_keys(missing: Collection[ChunkId], keys: Mapping[ChunkId, ChunkId]) -> frozenset[ChunkId]:
    """What catalogs call these chunks: lazy ones by their keys."""
    return frozenset(missing) | {key for key, content in keys.items() if content in missing}


async def _root(node: "Node", snapshot: SnapshotId) -> Root | None:
    encoded = await node.blocking(node.names.root, snapshot)
    try:
        return None if encoded is None else decode_root(encoded)
    except Corrupt as error:
        log.warning("the root of snapshot %s cannot be read: %s", short(snapshot), error)
        return None


def _catalog_chunks(root: Root) -> list[Wanted]:
    runs = root.catalog_runs if root.catalog_list is None else (root.catalog_list,)
    return [Wanted(at, run.chunk_id, run.length) for at, run in enumerate(runs) if run.chunk_id != HOLE]


async def _restore_catalog(
    node: "Node", snapshot: SnapshotId, root: Root, missing: Collection[ChunkId]
) -> set[ChunkId]:
    """Catalog chunks: from the catalog in memory if it is open, else from peers."""
    lost = [chunk for chunk in _catalog_chunks(root) if chunk.chunk_id in missing]
    if not lost:
        return set()
    opened = node.catalogs.peek(snapshot)
    if opened is not None and root.catalog_list is None:
        return await node.blocking(_store_from_memory, node, opened, lost)
    chunks = tuple(_catalog_chunks(root))
    segment = Segment(snapshot, CATALOG_SEGMENT, chunks, chunks[-1].chunk_id)
    return await _fetch(node, [(segment, chunk) for chunk in lost])


def _store_from_memory(node: "Node", opened: OpenSnapshot, lost: Sequence[Wanted]) -> set[ChunkId]:
    ends = list(accumulate(run.length for run in opened.root.catalog_runs))
    for chunk in lost:
        data = os.pread(opened.fd, chunk.length, ends[chunk.run] - chunk.length)
        if node.store.heal(chunk.chunk_id, data) is None:
            node.writer.put(chunk.chunk_id, data)
    return {chunk.chunk_id for chunk in lost}


async def _refetch_files(node: "Node", snapshot: SnapshotId, missing: Collection[ChunkId]) -> set[ChunkId]:
    opened = await _open(node, snapshot) if missing and node.agent.view().others else None
    if opened is None:
        return set()
    catalog = opened.catalog
    runs = await node.blocking(_first_runs, catalog, frozenset(missing))
    asked = []
    for run in runs:
        segment = node.demand.segment(opened, catalog.segment_of(run))
        asked.append((segment, Wanted(run, catalog.chunk_id(run), catalog.length(run))))
    return await _fetch(node, asked)


async def _fetch(node: "Node", asked: Sequence[tuple[Segment, Wanted]]) -> set[ChunkId]:
    """Those that are stored here now."""
    if not node.agent.view().others:
        return set()
    limit = asyncio.Semaphore(FETCHES_AT_ONCE)
    stored: set[ChunkId] = set()

    async def one(segment: Segment, chunk: Wanted) -> None:
        async with limit:
            try:
                landed = await node.fetcher.chunk(segment, chunk, timeout=FETCH_SECONDS, fill=False)
            except HoardError as error:
                log.info("chunk %s is not to be had: %s", short(chunk.chunk_id), error)
                return
            if landed.place is not None:
                stored.add(chunk.chunk_id)

    async with asyncio.TaskGroup() as group:
        for segment, chunk in asked:
            group.create_task(one(segment, chunk))
    return stored


async def _open(node: "Node", snapshot: SnapshotId) -> OpenSnapshot | None:
    """The snapshot if its catalog is here, or is open."""
    try:
        return node.catalogs.peek(snapshot) or await node.open_local(snapshot)
    except HoardError as error:
        log.info("the catalog of %s cannot be opened: %s", short(snapshot), error)
        return None


async def uses(node: "Node", missing: Collection[ChunkId]) -> list[Use]:
    """Every file that wants a missing chunk, of living snapshots whose catalogs are here; once for each chunk."""
    found: list[Use] = []
    keys = await node.blocking(node.store.keybook.keys_of, frozenset(missing)) if missing else {}
    named = _with_keys(missing, keys)
    for snapshot in await living(node) if missing else ():
        root = await _root(node, snapshot)
        if root is None:
            continue
        lost = (chunk.chunk_id for chunk in _catalog_chunks(root) if chunk.chunk_id in missing)
        found += [Use(snapshot, CATALOG, chunk_id) for chunk_id in lost]
        opened = await _open(node, snapshot)
        if opened is not None:
            files = await node.blocking(_files, snapshot, opened.catalog, named)
            found += [use._replace(chunk_id=keys.get(use.chunk_id, use.chunk_id)) for use in files]
    return found


def _runs(catalog: Catalog, missing: frozenset[ChunkId]) -> Iterator[int]:
    return (run for run in range(catalog.chunks) if catalog.chunk_id(run) in missing)


def _first_runs(catalog: Catalog, missing: frozenset[ChunkId]) -> list[int]:
    return sorted({catalog.canonical(run) for run in _runs(catalog, missing)})


def _files(snapshot: SnapshotId, catalog: Catalog, missing: frozenset[ChunkId]) -> list[Use]:
    bad = list(_runs(catalog, missing))
    found: list[Use] = []
    for inode in range(catalog.inodes) if bad else ():
        runs = catalog.runs(inode)
        at = bisect_left(bad, runs.start)
        ids = {catalog.chunk_id(run) for run in bad[at : bisect_left(bad, runs.stop)]}
        if ids:
            path = os.fsdecode(catalog.path_of(inode))
            found += [Use(snapshot, path, chunk_id) for chunk_id in ids]
    return found
