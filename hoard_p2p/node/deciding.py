"""How it is decided what a piece of a lazy snapshot is, about which nodes disagree: it is read from the origin."""

import logging
from typing import TYPE_CHECKING

from hoard_p2p.catalog.layout import Column
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import HoardError
from hoard_p2p.fetch.segment import Wanted, segment_of
from hoard_p2p.ids import ID_SIZE, ChunkId, chunk_id, short
from hoard_p2p.node.catalogs import OpenSnapshot
from hoard_p2p.node.namings import Disputes, Namings
from hoard_p2p.peer import NodeId

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

log = logging.getLogger(__name__)

STEP = 32_768
"""Ids that are looked through at a time."""


def make_namings(node: "Node") -> Namings:
    """The `Namings` of a node whose keeper and origins are there."""

    def shun(liar: NodeId) -> None:
        node.favour.shun(liar, node.loop.time())

    async def decide(key: ChunkId) -> ChunkId | None:
        opened = [node.catalogs.peek(record.id) for record in node.names.snapshots()]
        lazy = [one for one in opened if one is not None and one.catalog.is_lazy]
        return await node.blocking(_decide, node, key, lazy)

    return Namings(node.me.name, node.keeper.content, Disputes(node.group, shun, decide).note)


def _decide(node: "Node", key: ChunkId, lazy: list[OpenSnapshot]) -> ChunkId | None:
    """Blocking. What the piece is by the origin of any of these snapshots, and is kept as from now on."""
    for opened in lazy:
        run = run_of(opened.catalog, key)
        if run is None:
            continue
        try:
            return _read(node, opened, run)
        except HoardError as error:
            log.info("what piece %s is cannot be decided here: %s", short(key), error)
    return None


def _read(node: "Node", opened: OpenSnapshot, run: int) -> ChunkId:
    catalog = opened.catalog
    chunk = Wanted(run, catalog.chunk_id(run), catalog.length(run))
    segment = segment_of(catalog, opened.id, catalog.segment_of(run))
    data = node.origins.read_range(segment, chunk, 0, chunk.length)
    truth = chunk_id(data)
    if node.keeper.content(chunk.chunk_id) != truth:
        node.writer.flush()
        node.store.unknow([chunk.chunk_id])
        node.namings.forget(chunk.chunk_id)
        node.keeper.keep(segment, chunk, memoryview(data))
    return truth


def run_of(catalog: Catalog, wanted: ChunkId) -> int | None:
    """The first run with that id; None if there is none. A look at the whole chunk table."""
    column = catalog.columns[Column.CHUNK_ID].cast("B")
    for start in range(0, len(column), STEP * ID_SIZE):
        part = bytes(column[start : start + STEP * ID_SIZE])
        at = part.find(wanted)
        while at >= 0 and at % ID_SIZE:
            at = part.find(wanted, at + 1)
        if at >= 0:
            return (start + at) // ID_SIZE
    return None
