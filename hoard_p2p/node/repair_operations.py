"""Copies: how many, where, and how a node leaves: operations of the unix socket (`node.operations`)."""

from collections.abc import Mapping

from hoard_p2p.errors import BadRequest
from hoard_p2p.node.app import Node
from hoard_p2p.node.asking import Operation, number_of, text_of
from hoard_p2p.node.draining import Drain
from hoard_p2p.node.local import LocalReply, LocalRequest
from hoard_p2p.node.names_wire import MAX_REPLICAS
from hoard_p2p.node.status import racks_body
from hoard_p2p.node.where import where
from hoard_p2p.transfer.wire import Announcement


async def _replicas(node: Node, request: LocalRequest) -> LocalReply:
    snapshot = await node.resolve(text_of(request.args, "snapshot"))
    replicas = number_of(request.args, "replicas")
    if not 1 <= replicas <= MAX_REPLICAS:
        raise BadRequest(f"there can be 1 - {MAX_REPLICAS} copies, not {replicas}")
    await node.open(snapshot)  # known, and living
    changed = await node.blocking(node.names.set_replicas, snapshot, replicas)
    told = await node.blocking(node.names.snapshot_record, snapshot)
    if changed and told is not None:
        await node.announce(Announcement(snapshots=(told,)))
    nodes = len(node.agent.view().peers)
    return LocalReply({"snapshot": snapshot.hex(), "replicas": replicas, "changed": changed, "nodes": nodes})


async def _drain(node: Node, request: LocalRequest) -> LocalReply:
    """Answered when it is safe to remove this node. It drains until the client hangs up, or the node ends."""
    drain = Drain(node)
    request.stay.callback(drain.end)
    drain.start()
    stall = request.args.get("stall")
    body = await drain.wait(request.report, stall=float(stall) if isinstance(stall, int | float) else 120.0)
    return LocalReply(body)


async def _where(node: Node, request: LocalRequest) -> LocalReply:
    return LocalReply(await where(node, await node.resolve(text_of(request.args, "snapshot")), request.report))


async def _racks(node: Node, request: LocalRequest) -> LocalReply:
    return LocalReply({"racks": await node.blocking(racks_body, node)})


OPERATIONS: Mapping[str, Operation] = {"replicas": _replicas, "drain": _drain, "where": _where, "racks": _racks}
