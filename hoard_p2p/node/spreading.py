"""Handing the segments of a new snapshot to their homes, which pull them: from this node, or from its origin (I11)."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.config import Json
from hoard_p2p.errors import Unavailable
from hoard_p2p.ids import ChunkId, SnapshotId, short
from hoard_p2p.node.blocking import in_executor
from hoard_p2p.node.handover import Copies, hand_over
from hoard_p2p.node.readback import read_back
from hoard_p2p.node.staying import while_member
from hoard_p2p.peer import Peer
from hoard_p2p.transfer.wire import AdoptRequest

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

log = logging.getLogger(__name__)

Report = Callable[[dict[str, Json]], Awaitable[None]]

ADOPT_TIMEOUT = 600.0


async def hold_mine(node: "Node", catalog: Catalog, snapshot: SnapshotId, replicas: int) -> None:
    """Hold the segments that this node, which has them all, is a home of."""
    keys = await node.blocking(placement_keys, catalog)
    await node.settled()
    copies = await node.blocking(Copies, node.agent.view(), keys, replicas)
    await node.blocking(node.store.add_holds, snapshot, copies.mine())


async def spread(node: "Node", catalog: Catalog, snapshot: SnapshotId, replicas: int, report: Report) -> Sequence[int]:
    """Hand every segment of what this node has whole to its homes; the segments that have too few copies."""
    keys = await node.blocking(placement_keys, catalog)
    await node.settled()
    view = node.agent.view()
    copies = await node.blocking(Copies, view, keys, replicas)

    async def adopt(peer: Peer, segments: Sequence[int]) -> Sequence[int]:
        return await ask_to_adopt(node, peer, catalog, AdoptRequest(snapshot, tuple(segments), node.me.node_id))

    async def tell(settled: int) -> None:
        await report({"phase": "replicating", "segments": len(keys), "segments_done": settled})

    short_of = await hand_over(copies, adopt, tell, executor=node.executor)
    await node.blocking(node.store.add_holds, snapshot, copies.mine())
    return list(keys) if has_few_nodes(node, snapshot, replicas) and keys else short_of


async def ask_to_adopt(node: "Node", peer: Peer, catalog: Catalog, request: AdoptRequest) -> Sequence[int]:
    """Ask a home to pull segments; those that it has on its disk then, some of which were read back. Raises
    Unavailable."""
    asked = node.control.adopt(peer, request, timeout=ADOPT_TIMEOUT)
    reply = await while_member(node.group, node.agent.view, peer, asked)
    if reply.full or (reply.error and not reply.stored):
        raise Unavailable(reply.error or f"{peer.name} has no room")
    await in_executor(node.fetchers, read_back, node.bulk, peer, catalog, reply.stored)
    return reply.stored


def has_few_nodes(node: "Node", snapshot: SnapshotId, replicas: int) -> bool:
    """Whether there cannot be so many copies; said in the log."""
    nodes = len(node.agent.view().peers)
    if replicas > nodes:
        log.warning("snapshot %s has fewer copies than %d: the cluster has %d nodes", short(snapshot), replicas, nodes)
    return replicas > nodes


def placement_keys(catalog: Catalog) -> dict[int, ChunkId]:
    """Of the segments that hold data. Blocking, where there are many."""
    keys = ((segment, catalog.placement_key(segment)) for segment in range(catalog.segments))
    return {segment: key for segment, key in keys if key is not None}
