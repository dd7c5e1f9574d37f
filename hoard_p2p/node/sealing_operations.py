"""`hoard seal`: the operation of the unix socket (`node.operations`)."""

from collections.abc import Mapping

from hoard_p2p.errors import Refused
from hoard_p2p.node.app import Node
from hoard_p2p.node.asking import Operation, text_of
from hoard_p2p.node.contents import Contents
from hoard_p2p.node.lazily import fetch_all
from hoard_p2p.node.local import LocalReply, LocalRequest
from hoard_p2p.node.sealing import replace_lazy, seal


async def _seal(node: Node, request: LocalRequest) -> LocalReply:
    """Have all of a lazy snapshot read, and seal it; answered when users see the sealed one."""
    snapshot = await node.resolve(text_of(request.args, "snapshot"))
    opened, record = await node.open(snapshot), node.names.snapshot(snapshot)
    if not opened.root.lazy:
        return LocalReply({"snapshot": snapshot.hex(), "lazy": None, "names": [], "under_replicated": 0})
    if record is None or not record.origin:
        raise Refused(f"of {snapshot.hex()} nothing but the root is known here: ask a node that shows it (hoard ls)")
    with node.retention.storing():
        request.stay.enter_context(node.leases.held(snapshot, f"being sealed for pid {request.pid}"))
        contents = Contents(opened.catalog)
        _, spread = await fetch_all(node, opened, record, contents, request.report)
        sealed = await seal(node, opened, record, contents, request.report)
        names = await replace_lazy(node, record, sealed.snapshot)
    return LocalReply(
        {
            "snapshot": sealed.snapshot.hex(),
            "lazy": snapshot.hex(),
            "names": [*names],
            "under_replicated": len({*spread.short_of, *sealed.short_of}),
        }
    )


OPERATIONS: Mapping[str, Operation] = {"seal": _seal}
