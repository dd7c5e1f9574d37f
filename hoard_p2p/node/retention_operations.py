"""What lives and what goes: pin, unpin, evict, gc, rm: operations of the unix socket (`node.operations`)."""

from collections.abc import Mapping

from hoard_p2p.config import Json
from hoard_p2p.errors import Refused
from hoard_p2p.ids import SnapshotId
from hoard_p2p.node import removal
from hoard_p2p.node.app import Node
from hoard_p2p.node.asking import Operation, text_of
from hoard_p2p.node.course import Course
from hoard_p2p.node.evicting import Outcome
from hoard_p2p.node.local import Body, LocalReply, LocalRequest
from hoard_p2p.transfer.wire import Announcement


async def _set_pin(node: Node, request: LocalRequest, *, pinned: bool) -> LocalReply:
    snapshot = await node.resolve(text_of(request.args, "snapshot"))
    await node.open(snapshot)  # known, and living
    changed = await node.blocking(lambda: node.names.pin(snapshot, pinned=pinned))
    told = await node.blocking(node.names.snapshot_record, snapshot)
    if changed and told is not None:
        await node.announce(Announcement(snapshots=(told,)))
    return LocalReply({"snapshot": snapshot.hex(), "pinned": pinned, "changed": changed})


async def _pin(node: Node, request: LocalRequest) -> LocalReply:
    return await _set_pin(node, request, pinned=True)


async def _unpin(node: Node, request: LocalRequest) -> LocalReply:
    return await _set_pin(node, request, pinned=False)


async def _evict(node: Node, request: LocalRequest) -> LocalReply:
    snapshot = await node.resolve(text_of(request.args, "snapshot"))
    outcome = await node.retention.evict(snapshot, dry_run=_is_dry(request), report=request.report)
    return LocalReply({"snapshot": snapshot.hex(), **_body(request, outcome)})


async def _gc(node: Node, request: LocalRequest) -> LocalReply:
    outcome = await node.retention.gc(dry_run=_is_dry(request), course=Course(request.report))
    return LocalReply(_body(request, outcome))


async def _rm(node: Node, request: LocalRequest) -> LocalReply:
    snapshot = await node.resolve(text_of(request.args, "snapshot"))
    force = request.args.get("force") is True
    if not _is_dry(request):
        names = await node.remove(snapshot, force=force)
        return LocalReply({"snapshot": snapshot.hex(), "names": [*names], "dry_run": False})
    refusal = "" if force else await _refusal(node, snapshot)
    would = await node.retention.would_free(snapshot, Course(request.report))
    names = node.names.names_of(snapshot)
    return LocalReply({"snapshot": snapshot.hex(), "names": [*names], "refusal": refusal, **_body(request, would)})


async def _refusal(node: Node, snapshot: SnapshotId) -> str:
    """Why a snapshot would not be removed now; empty if it would be. Raises SnapshotUnknown."""
    try:
        await removal.check_unused(node, snapshot)
    except Refused as error:
        return str(error)
    return ""


def _is_dry(request: LocalRequest) -> bool:
    return request.args.get("dry_run") is True


def _body(request: LocalRequest, outcome: Outcome) -> Body:
    return {
        "dry_run": _is_dry(request),
        "chunks": outcome.chunks,
        "bytes": outcome.size,
        "reclaimed": outcome.reclaimed,
        "removed": _ids(outcome.removed),
        "kept": [*outcome.kept],
    }


def _ids(snapshots: list[SnapshotId]) -> list[Json]:
    return [snapshot.hex() for snapshot in snapshots]


OPERATIONS: Mapping[str, Operation] = {
    "pin": _pin,
    "unpin": _unpin,
    "evict": _evict,
    "gc": _gc,
    "rm": _rm,
}
