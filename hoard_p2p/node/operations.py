"""What local clients may ask of the node over its unix socket: one function an operation, and the table of them."""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence

from hoard_p2p.config import DEFAULT_TIMEOUT, Json
from hoard_p2p.errors import BadRequest, StoreFailed
from hoard_p2p.ids import SnapshotId, parse_snapshot_id, short
from hoard_p2p.interfaces import Place
from hoard_p2p.node import (
    framing,
    origin_operations,
    repair_operations,
    retention_operations,
    room_operations,
    scrub_operations,
    sealing_operations,
    through_operations,
    warming,
)
from hoard_p2p.node.app import Node
from hoard_p2p.node.asking import Operation, number_of, text_of
from hoard_p2p.node.autosealing import is_lazy
from hoard_p2p.node.local import Body, LocalReply, LocalRequest
from hoard_p2p.node.metrics import Metrics
from hoard_p2p.node.publishing import publish
from hoard_p2p.node.status import full_status, peers_body, snapshot_body
from hoard_p2p.node.through import pid_namespace
from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.storage.records import RefRecord
from hoard_p2p.transfer.wire import Announcement

log = logging.getLogger(__name__)


async def _ping(node: Node, request: LocalRequest) -> LocalReply:
    return LocalReply(
        {
            "pid": os.getpid(),
            "pidns": pid_namespace(),
            "node": node.me.node_id.hex(),
            "url": node.security.url(node.me),
            "key": node.security.fingerprints[0],
            "encrypted": node.security.tls is not None,
        }
    )


async def _down(node: Node, request: LocalRequest) -> LocalReply:
    log.info("asked to stop by pid %d", request.pid)
    node.stop.set()
    return LocalReply()


async def _status(node: Node, request: LocalRequest) -> LocalReply:
    return LocalReply(await full_status(node))


async def _metrics(node: Node, request: LocalRequest) -> LocalReply:
    """For who scrapes a node whose key it does not have."""
    return LocalReply({"text": Metrics(node).text().decode()})


async def _peers(node: Node, request: LocalRequest) -> LocalReply:
    return LocalReply({"peers": peers_body(node)})


async def _publish(node: Node, request: LocalRequest) -> LocalReply:
    directory = request.fds[0] if request.fds else None
    return LocalReply(await publish(node, directory, request.args, request.report))


async def _open(node: Node, request: LocalRequest) -> LocalReply:
    """The snapshot's figures and its catalog, as a sealed memfd."""
    snapshot = await node.resolve(text_of(request.args, "snapshot"))
    if request.args.get("mount") is True:
        await node.retention.expect_mount(snapshot)
        if request.args.get("fill") is not False:
            node.fills.expect_mount(snapshot)
    request.stay.enter_context(node.leases.held(snapshot, f"open in pid {request.pid}"))
    opened = await node.open(snapshot)
    await node.blocking(node.reader.forget_dead)  # the asker may be about to enter itself
    node.group.create_task(_note_use(node, snapshot))  # behind the answer: it waits for the disk
    totals = opened.root.totals
    body: Body = {
        "snapshot": snapshot.hex(),
        "files": totals.files,
        "bytes": totals.size,
        "chunks": totals.chunks,
        "segments": totals.segments,
        "inodes": opened.catalog.inodes,
        "pid": os.getpid(),
        "pidns": pid_namespace(),
    }
    return LocalReply(body, (os.dup(opened.fd),))


async def _note_use(node: Node, snapshot: SnapshotId) -> None:
    try:
        await node.blocking(node.names.touch, snapshot)
    except StoreFailed as error:
        log.warning("that snapshot %s was used now is not noted: %s", short(snapshot), error)


async def _attach(node: Node, request: LocalRequest) -> LocalReply:
    """A mount's supervisor is there, with copies of the mount's descriptors; answered never: it ends with the
    connection."""
    snapshot = parse_snapshot_id(text_of(request.args, "snapshot"))
    try:
        with node.mounts.attached(request.args, request.fds) as mount:
            node.attached(snapshot)
            await node.retention.mounted(mount)
            await asyncio.Event().wait()
    finally:
        node.detached(snapshot)
    return LocalReply()


async def _release_mount(node: Node, request: LocalRequest) -> LocalReply:
    """Somebody ends the mount with that MAJOR:MINOR by force: nothing here may keep its readers waiting."""
    device = text_of(request.args, "device")
    node.retention.mounts.forced(device)
    return LocalReply({"released": node.mounts.release(device)})


async def _need(node: Node, request: LocalRequest) -> LocalReply:
    """A chunk run that a reader waits for: its place, or its bytes in a memfd if it could not be stored. With a span,
    just those bytes of it may be there then (`part`), or in the memfd."""
    args = request.args
    if "span" in args:
        return await _need_part(node, args)
    wrong = args.get("wrong")
    place = Place(*(int(str(value)) for value in wrong)) if isinstance(wrong, list) and len(wrong) == 4 else None
    timeout = args.get("timeout", DEFAULT_TIMEOUT)
    snapshot, run = parse_snapshot_id(text_of(args, "snapshot")), number_of(args, "run")
    landed = await node.need(
        snapshot,
        run,
        wrong=place,
        timeout=float(timeout) if isinstance(timeout, int | float) else DEFAULT_TIMEOUT,
        fill=args.get("fill") is not False,
    )
    if landed.place is not None:
        return LocalReply({"place": list(landed.place), **_content(node, snapshot, run)})
    return LocalReply({"place": None, **_content(node, snapshot, run)}, (framing.memfd_of(landed.data),))


def _content(node: Node, snapshot: SnapshotId, run: int) -> Body:
    """What a piece of a lazy snapshot was found to be, for who reads it before the index tells."""
    opened = node.catalogs.peek(snapshot)
    if opened is None or not opened.catalog.is_lazy or not 0 <= run < opened.catalog.chunks:
        return {}
    content = node.keeper.content(opened.catalog.chunk_id(opened.catalog.canonical(run)))
    return {} if content is None else {"content": content.hex()}


async def _need_part(node: Node, args: Body) -> LocalReply:
    span, timeout = args["span"], args.get("timeout", DEFAULT_TIMEOUT)
    if not isinstance(span, list) or len(span) != 2:
        raise BadRequest("a span is two numbers")
    snapshot, run = parse_snapshot_id(text_of(args, "snapshot")), number_of(args, "run")
    part = await node.part(
        snapshot,
        run,
        (int(str(span[0])), int(str(span[1]))),
        timeout=float(timeout) if isinstance(timeout, int | float) else DEFAULT_TIMEOUT,
        fill=args.get("fill") is not False,
    )
    told: Body = {"part": part.partial, **({} if part.partial else _content(node, snapshot, run))}
    if part.place is not None:
        return LocalReply({"place": list(part.place), **told})
    return LocalReply({"place": None, **told}, (framing.memfd_of(part.data),))


async def _touch(node: Node, request: LocalRequest) -> LocalReply:
    """A reader of a mount is at a chunk run."""
    if request.args.get("fill") is False:
        return LocalReply()
    await node.touched(parse_snapshot_id(text_of(request.args, "snapshot")), number_of(request.args, "run"))
    return LocalReply()


def _ref_body(node: Node, ref: RefRecord) -> Body:
    known = (node.me, *(member.peer for member in node.agent.members()))
    return {
        "name": ref.name,
        "snapshot": None if ref.snapshot is None else ref.snapshot.hex(),
        "when": ref.stamp.wall_ms,
        "node": ref.stamp.node.hex(),
        "node_name": _name_of(known, ref.stamp.node),
        "history": [value.snapshot.hex() for value in ref.history],
        "past": [
            {
                "snapshot": value.snapshot.hex(),
                "when": value.stamp.wall_ms,
                "node": value.stamp.node.hex(),
                "node_name": _name_of(known, value.stamp.node),
            }
            for value in ref.history
        ],
    }


def _name_of(known: Sequence[Peer], node_id: NodeId) -> str:
    return next((peer.name for peer in known if peer.node_id == node_id), "")


async def _refs(node: Node, request: LocalRequest) -> LocalReply:
    await node.ask_names()
    listed: list[Json] = []
    for ref in node.names.refs():
        root = None if ref.snapshot is None else await node.blocking(node.names.root, ref.snapshot)
        listed.append({**_ref_body(node, ref), "lazy": root is not None and is_lazy(root)})
    return LocalReply({"refs": listed})


async def _snapshots(node: Node, request: LocalRequest) -> LocalReply:
    await node.ask_names()
    listed: list[Json] = []
    for record in node.names.snapshots():
        listed.append(snapshot_body(node, record, await node.blocking(node.names.root, record.id)))
    return LocalReply({"snapshots": listed})


async def _announce_ref(node: Node, ref: RefRecord) -> None:
    told = tuple(record for record in node.names.ref_records() if record["name"] == ref.name)
    await node.announce(Announcement(refs=told))


async def _tag(node: Node, request: LocalRequest) -> LocalReply:
    args = request.args
    snapshot = await node.resolve(text_of(args, "snapshot"))
    await node.open(snapshot)
    name, move = text_of(args, "name"), args.get("move") is True
    ref = await node.naming.tag(snapshot, name, move=move)
    await _announce_ref(node, ref)
    return LocalReply({"name": ref.name, "snapshot": snapshot.hex()})


async def _untag(node: Node, request: LocalRequest) -> LocalReply:
    await node.ask_names()
    ref = await node.naming.untag(text_of(request.args, "name"))
    await _announce_ref(node, ref)
    return LocalReply({"name": ref.name})


OPERATIONS: Mapping[str, Operation] = {
    "ping": _ping,
    "down": _down,
    "status": _status,
    "metrics": _metrics,
    "peers": _peers,
    "publish": _publish,
    "open": _open,
    "attach": _attach,
    "release_mount": _release_mount,
    "need": _need,
    "touch": _touch,
    "refs": _refs,
    "snapshots": _snapshots,
    "tag": _tag,
    "untag": _untag,
    **repair_operations.OPERATIONS,
    **origin_operations.OPERATIONS,
    **retention_operations.OPERATIONS,
    **room_operations.OPERATIONS,
    **scrub_operations.OPERATIONS,
    **sealing_operations.OPERATIONS,
    **through_operations.OPERATIONS,
    **warming.OPERATIONS,
}


async def handle(node: Node, request: LocalRequest) -> LocalReply:
    """Run the operation that `request` names."""
    operation = OPERATIONS.get(request.op)
    if operation is None:
        raise BadRequest(f"this node knows no operation {request.op!r}; is it of another version than the command?")
    return await operation(node, request)
