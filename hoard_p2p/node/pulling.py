"""Copying one segment from nodes that have it, for repair: from their disks alone, never from an origin (CLUSTER 3)."""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hoard_p2p.errors import ChunkCorrupt, PeerUnavailable
from hoard_p2p.fetch.segment import Segment, Wanted, ids_of, segment_of
from hoard_p2p.node.blocking import in_executor
from hoard_p2p.node.catalogs import OpenSnapshot
from hoard_p2p.peer import Peer

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

log = logging.getLogger(__name__)

STALL_SECONDS = 10.0


class SegmentPull:
    """One segment on its way. It is held before its first chunk comes, so that no eviction takes it for an ordinary
    copy, and not any more if it did not become whole."""

    def __init__(self, node: "Node", opened: OpenSnapshot, number: int) -> None:
        self._node = node
        self._opened = opened
        self._number = number
        self.received = 0

    async def run(self, sources: Sequence[Peer]) -> bool:
        """Whether the segment is whole and durable here now. Raises StoreFailed, StoreFull among them."""
        node, number = self._node, self._number
        segment = await node.blocking(segment_of, self._opened.catalog, self._opened.id, number)
        missing = await node.blocking(node.keeper.missing, segment)
        await node.blocking(node.store.room.check, sum(chunk.length for chunk in missing))
        await node.blocking(node.store.add_holds, self._opened.id, [number])
        whole = False
        try:
            for peer in sources:
                if missing:
                    missing = await self._take(segment, peer, missing)
            await node.blocking(node.keeper.ended, segment, not missing)
            await node.blocking(node.writer.flush, node.writer.mark())
            whole = await node.blocking(node.held.whole, self._opened.catalog, number)
        finally:
            if not whole:
                await asyncio.shield(node.blocking(node.store.life.drop_holds, self._opened.id, [number]))
        return whole

    async def _take(self, segment: Segment, peer: Peer, missing: Sequence[Wanted]) -> list[Wanted]:
        """What is missing after `peer` gave what it has."""
        node = self._node
        try:
            await in_executor(node.fetchers, self._fetch, segment, peer, missing)
        except PeerUnavailable as error:
            log.info("peer %s gave no copies: %s", peer.name, error)
            node.agent.report_failure(peer.node_id)
        except ChunkCorrupt as error:
            log.warning("peer %s sent wrong bytes and is asked last for a while: %s", peer.name, error)
            node.favour.shun(peer.node_id, asyncio.get_running_loop().time())
        return await node.blocking(node.keeper.missing, segment)

    def _fetch(self, segment: Segment, peer: Peer, missing: Sequence[Wanted]) -> None:
        """In a thread."""

        def deliver(index: int, data: memoryview) -> None:
            self.received += len(data)
            self._node.keeper.keep(segment, missing[index], data)

        self._node.bulk.fetch(peer, ids_of(missing), deliver, timeout=STALL_SECONDS)
