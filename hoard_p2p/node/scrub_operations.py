"""Scrub: operations of the unix socket (`node.operations`)."""

from collections.abc import Mapping

from hoard_p2p.node.app import Node
from hoard_p2p.node.asking import Operation, text_of
from hoard_p2p.node.local import LocalReply, LocalRequest


async def _scrub(node: Node, request: LocalRequest) -> LocalReply:
    """Of everything, or of one snapshot. Ends with the connection."""
    named = "snapshot" in request.args
    snapshot = await node.resolve(text_of(request.args, "snapshot")) if named else None
    return LocalReply(await node.scrubbing.scrub(snapshot, request.report))


OPERATIONS: Mapping[str, Operation] = {"scrub": _scrub}
