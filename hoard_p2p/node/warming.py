"""`hoard warm`: the operation of the unix socket (`node.operations`)."""

import time
from collections.abc import Mapping

from hoard_p2p.node.app import Node
from hoard_p2p.node.asking import Operation, text_of
from hoard_p2p.node.filling import Fill
from hoard_p2p.node.local import LocalReply, LocalRequest


async def _warm(node: Node, request: LocalRequest) -> LocalReply:
    """Bring a snapshot here; answered when all of it is on this disk."""
    snapshot = await node.resolve(text_of(request.args, "snapshot"))

    async def told(fill: Fill) -> None:
        await request.report({"phase": "warm", "done": fill.done, "total": fill.total})

    request.stay.enter_context(node.leases.held(snapshot, f"being warmed for pid {request.pid}"))
    await node.retention.let_in()
    began, before = time.monotonic(), node.fetcher.received
    fill = await node.fills.warm(await node.open(snapshot), told)
    return LocalReply(
        {
            "snapshot": snapshot.hex(),
            "segments": fill.segments,
            "bytes": fill.done,
            "received": node.fetcher.received - before,
            "seconds": round(time.monotonic() - began, 3),
        }
    )


OPERATIONS: Mapping[str, Operation] = {"warm": _warm}
