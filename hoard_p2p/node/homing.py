"""Being a home: what this node does when a publisher asks it to keep segments (`POST /v1/adopt`).

Believes nothing: it pulls from a node of its own view only, keeps what its own view gives it, and reads an origin that
it was told of only if a local user or the operator allowed it here (CLUSTER 4, 6).
"""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from hoard_p2p.config import DEFAULT_REPLICAS
from hoard_p2p.errors import Corrupt, NotFound, StoreFailed, Unavailable
from hoard_p2p.ids import SnapshotId
from hoard_p2p.node.names import DEFAULT_KEEP
from hoard_p2p.node.names_wire import MAX_ORIGIN, fits_line
from hoard_p2p.peer import Peer
from hoard_p2p.storage.records import SnapshotRecord
from hoard_p2p.transfer.wire import AdoptReply, AdoptRequest

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

LOOK_SECONDS = 10.0
"""An origin is looked at for so long before this node goes on without it."""


async def adopt(node: "Node", request: AdoptRequest) -> AdoptReply:
    """Pull what is asked for; what is durable here then, and why the rest is not."""
    source = node.agent.view().by_id.get(request.source)
    if source is None:
        return AdoptReply((), error=f"node {request.source.hex()} is not in the view of {node.me.name}")
    try:
        await _take_in(node, request, source)
        stored = await node.pull(request.snapshot, request.segments, source if not request.origin else None)
    except StoreFailed as error:
        return AdoptReply((), full=True, error=str(error))
    except (NotFound, Unavailable, Corrupt) as error:
        return AdoptReply((), error=str(error))
    missing = len(request.segments) - len(stored)
    return AdoptReply(tuple(stored), error=f"{missing} segments could not be had" if missing else "")


async def _take_in(node: "Node", request: AdoptRequest, source: Peer) -> None:
    """Keep the root of a snapshot that was removed, and is being published again, or that comes from an origin which is
    not known here: not shown, until its publisher tells that it is there. Raises NotFound, Unavailable, Corrupt."""
    known = node.names.snapshot(request.snapshot)
    origin = request.origin if fits_line(request.origin) and len(request.origin.encode()) <= MAX_ORIGIN else ""
    if known is not None and not known.removed and (not origin or known.origin or known.shown):
        return
    if known is None and not origin:
        return
    root = await node.control.root(source, request.snapshot)
    if root is None:
        return
    await node.blocking(node.names.add_snapshot, root, _hidden(node, request.snapshot, origin))
    if origin:
        await node.open(request.snapshot, first=source)
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await node.known_origins.look()


def _hidden(node: "Node", snapshot: SnapshotId, origin: str) -> SnapshotRecord:
    now = node.names.creation_time(snapshot)
    return SnapshotRecord(snapshot, now, now, DEFAULT_REPLICAS, False, DEFAULT_KEEP, False, "", 0, origin=origin)
