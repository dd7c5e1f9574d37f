"""Publishing on this node, from the open directory to a snapshot that the cluster sees (I11)."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.config import DEFAULT_REPLICAS, Json
from hoard_p2p.errors import BadRequest, HoardError, Refused, StoreFailed, Unavailable
from hoard_p2p.ids import ChunkId, SnapshotId, short, snapshot_id
from hoard_p2p.node.app import Node
from hoard_p2p.node.blocking import in_executor
from hoard_p2p.node.descriptors import explained
from hoard_p2p.node.handover import Copies, hand_over
from hoard_p2p.node.names import DEFAULT_KEEP, new_ref_name
from hoard_p2p.node.names_wire import MAX_REPLICAS
from hoard_p2p.node.readback import read_back
from hoard_p2p.node.staying import while_member
from hoard_p2p.node.unchanged import Taken, take_in
from hoard_p2p.peer import Peer
from hoard_p2p.publish.stampfs import is_remote
from hoard_p2p.storage.failures import store_failure
from hoard_p2p.storage.records import SnapshotRecord
from hoard_p2p.transfer.wire import AdoptRequest, Announcement

log = logging.getLogger(__name__)

Body = dict[str, Json]
Report = Callable[[Body], Awaitable[None]]

ADOPT_TIMEOUT = 600.0
MAX_KEEP = 1000 * 365 * 24 * 3600


@dataclass(frozen=True, slots=True)
class _Wish:
    """What the user asked for besides the ingest options."""

    source: str
    name: str | None
    replicas: int
    pin: bool
    keep: int
    shared: bool | None
    """Whether SOURCE is an origin that other nodes read, too; None: they may, if it looks like one."""


def _wish(options: Body) -> _Wish:
    replicas, name = options.get("replicas", DEFAULT_REPLICAS), options.get("name")
    if not isinstance(replicas, int) or isinstance(replicas, bool) or not 1 <= replicas <= MAX_REPLICAS:
        raise BadRequest(f"there can be 1 - {MAX_REPLICAS} copies, not {str(replicas)[:80]}")
    return _Wish(
        source=str(options.get("source", "")),
        name=new_ref_name(str(name)) if name else None,
        replicas=replicas,
        pin=options.get("pin") is True,
        keep=_keep(options.get("keep")),
        shared=shared if isinstance(shared := options.get("shared_origin"), bool) else None,
    )


def _keep(value: Json) -> int:
    """Seconds that the snapshot is kept for after its last use."""
    if value is None:
        return DEFAULT_KEEP
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_KEEP:
        raise BadRequest(f"a snapshot is kept for 0 - {MAX_KEEP} seconds, not {str(value)[:80]}")
    return value


async def publish(node: Node, dir_fd: int, options: Body, report: Report) -> Body:
    """Publish the open directory; the figures for the user. Cancelling leaves nothing shown.

    Raises SourceUnreadable, SourceChanging, StoreFailed, BadRequest, Refused.
    """
    try:
        with node.retention.storing(), ExitStack() as held:
            return await _publish(node, dir_fd, options, report, held)
    except OSError as error:  # of the data directory: the source is read by another process
        if (limit := explained(error, "publish")) is not None:
            raise limit from error
        raise store_failure(f"nothing was published, {node.settings.data_dir} could not be written", error) from error


async def _publish(node: Node, dir_fd: int, options: Body, report: Report, held: ExitStack) -> Body:
    wish = _wish(options)
    await _warn_of_taken_name(node, wish.name, report)
    origin = await _origin(node, wish, dir_fd, report)
    claims = held.enter_context(node.store.reclaimer.new_claims())  # until it is shown: then its record says it all
    taken = await take_in(node, dir_fd, options, claims=claims, report=report, held=held)
    snapshot = snapshot_id(taken.root)
    with node.retention.publishing(snapshot):
        return await _show(node, wish, snapshot, taken, report, origin=origin)


async def _origin(node: Node, wish: _Wish, dir_fd: int, report: Report) -> str:
    """The origin that the snapshot gets, allowed here from now; empty for none."""
    if wish.shared:
        return await node.known_origins.name(wish.source, dir_fd)
    if wish.shared is False or not await node.blocking(is_remote, dir_fd):
        return ""
    try:
        origin = await node.known_origins.name(wish.source, dir_fd)
    except (BadRequest, Refused, Unavailable) as error:
        log.info("%s is not named as an origin: %s", wish.source, error)
        return ""
    note = (
        f"{wish.source} is on a network file system, so it is named as the snapshot's origin: nodes that were started "
        "with --allow-origin may read it there. Copies are made as usual; --shared-origin makes none, "
        "--no-shared-origin names none"
    )
    await report({"note": note})
    return origin


async def _show(node: Node, wish: _Wish, snapshot: SnapshotId, taken: Taken, report: Report, *, origin: str) -> Body:
    """Make the copies of what was taken in, and let users see it."""
    now = node.names.creation_time(snapshot)
    record = SnapshotRecord(snapshot, now, now, wish.replicas, wish.pin, wish.keep, False, wish.source, origin=origin)
    opened = await node.keep_published(taken.root, record)
    if wish.shared:  # I11: all can read it where it is
        short_of: Sequence[int] = []
        await _hold_mine(node, opened.catalog, snapshot, wish.replicas)
    else:
        short_of = await _spread(node, opened.catalog, snapshot, wish.replicas, report)
    await node.blocking(node.names.show, taken.root, record)
    await node.blocking(taken.remember)
    named = None if wish.name is None else node.names.ref(wish.name)
    refused = await _name(node, snapshot, wish.name)
    await _tell(node, snapshot)
    if refused is not None:
        raise refused
    if named is not None and named.snapshot == snapshot:
        await report({"note": f"{wish.name} names it already"})
    totals = taken.summary.pop("totals")
    files, size = (totals["files"], totals["size"]) if isinstance(totals, dict) else (0, 0)
    return {
        "snapshot": snapshot.hex(),
        "name": wish.name,
        "files": files,
        "bytes": size,
        "totals": totals,
        **taken.summary,
        "under_replicated": len(short_of),
        "origin": origin,
    }


async def _hold_mine(node: Node, catalog: Catalog, snapshot: SnapshotId, replicas: int) -> None:
    """Hold the segments that this node is a home of."""
    keys = await node.blocking(_placement_keys, catalog)
    await node.settled()
    copies = await node.blocking(Copies, node.agent.view(), keys, replicas)
    await node.blocking(node.store.add_holds, snapshot, copies.mine())


async def _spread(node: Node, catalog: Catalog, snapshot: SnapshotId, replicas: int, report: Report) -> Sequence[int]:
    """Hand every segment to its homes; the segments that have too few copies."""
    keys = await node.blocking(_placement_keys, catalog)
    await node.settled()
    view = node.agent.view()
    copies = await node.blocking(Copies, view, keys, replicas)

    async def adopt(peer: Peer, segments: Sequence[int]) -> Sequence[int]:
        request = AdoptRequest(snapshot, tuple(segments), node.me.node_id)
        asked = node.control.adopt(peer, request, timeout=ADOPT_TIMEOUT)
        reply = await while_member(node.group, node.agent.view, peer, asked)
        if reply.full or (reply.error and not reply.stored):
            raise Unavailable(reply.error or f"{peer.name} has no room")
        await in_executor(node.fetchers, read_back, node.bulk, peer, catalog, reply.stored)
        return reply.stored

    async def tell(settled: int) -> None:
        await report({"phase": "replicating", "segments": len(keys), "segments_done": settled})

    short_of = await hand_over(copies, adopt, tell, executor=node.executor)
    await node.blocking(node.store.add_holds, snapshot, copies.mine())
    missing_nodes = replicas > len(view.peers)
    if missing_nodes and keys:
        log.warning(
            "snapshot %s has fewer copies than %d: the cluster has %d nodes", short(snapshot), replicas, len(view.peers)
        )
        return list(keys)
    return short_of


def _placement_keys(catalog: Catalog) -> dict[int, ChunkId]:
    keys = ((segment, catalog.placement_key(segment)) for segment in range(catalog.segments))
    return {segment: key for segment, key in keys if key is not None}


async def _warn_of_taken_name(node: Node, name: str | None, report: Report) -> None:
    """Say at once that the name is another snapshot's, unless the content turns out to be that very snapshot's: only
    the end of the ingest tells."""
    taken = None if name is None else node.names.ref(name)
    if taken is not None and taken.snapshot is not None:
        log.info("%s names %s already", name, short(taken.snapshot))
        note = f"{name} names {taken.snapshot.hex()[:12]} already, and stays so: other content gets no name"
        await report({"note": note})


async def _name(node: Node, snapshot: SnapshotId, name: str | None) -> HoardError | None:
    """Tag the snapshot; the reason if that cannot be: what was published stays."""
    if name is None:
        return None
    command = f"hoard tag {snapshot.hex()[:12]} {name}"
    try:
        await node.naming.tag(snapshot, name, move=False)
    except Refused as error:
        return Refused(f"published {snapshot.hex()}, but {error}: {command} --move")
    except Unavailable as error:
        return Unavailable(f"published {snapshot.hex()}, but {error}; later: {command}")
    return None


async def _tell(node: Node, snapshot: SnapshotId) -> None:
    mine = await node.blocking(node.names.snapshot_record, snapshot)
    if mine is None:
        raise StoreFailed(f"snapshot {short(snapshot)} vanished while it was shown")
    refs = tuple(record for record in node.names.ref_records() if record["snapshot"] == snapshot.hex())
    await node.announce(Announcement(snapshots=(mine,), refs=refs))
