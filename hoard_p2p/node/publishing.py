"""Publishing on this node, from the open directory to a snapshot that the cluster sees (I11)."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack

from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest, Refused, Unavailable
from hoard_p2p.ids import SnapshotId, snapshot_id
from hoard_p2p.node.app import Node
from hoard_p2p.node.descriptors import explained
from hoard_p2p.node.lazily import Source, publish_origin
from hoard_p2p.node.showing import introduce, warn_of_taken_name
from hoard_p2p.node.spreading import hold_mine, spread
from hoard_p2p.node.unchanged import Taken, take_in
from hoard_p2p.node.wishes import Wish, wish_of
from hoard_p2p.publish.stampfs import is_remote
from hoard_p2p.storage.failures import store_failure
from hoard_p2p.storage.records import SnapshotRecord

log = logging.getLogger(__name__)

Body = dict[str, Json]
Report = Callable[[Body], Awaitable[None]]

REMOTE_NOTE = (
    "{source} is on a network file system, so it is the snapshot's origin: every node that was started with "
    "--allow-origin reads its share there. --no-shared-origin reads all of it through this node, and names none"
)


async def publish(node: Node, dir_fd: int | None, options: Body, report: Report) -> Body:
    """Publish the open directory, or an origin; the figures for the user. Cancelling leaves nothing shown.

    Raises SourceUnreadable, SourceChanging, StoreFailed, BadRequest, Refused.
    """
    try:
        with node.retention.storing(), ExitStack() as held:
            return await _publish(node, dir_fd, options, report, held)
    except OSError as error:  # of the data directory: the source is read by another process
        if (limit := explained(error, "publish")) is not None:
            raise limit from error
        raise store_failure(f"nothing was published, {node.settings.data_dir} could not be written", error) from error


async def _publish(node: Node, dir_fd: int | None, options: Body, report: Report, held: ExitStack) -> Body:
    wish = wish_of(options)
    await warn_of_taken_name(node, wish.name, report)
    origin = await _origin(node, wish, dir_fd, report)
    if origin and not wish.chunker:
        return await publish_origin(node, Source(origin, dir_fd), wish, options, report=report, held=held)
    if dir_fd is None:
        raise BadRequest("publish needs the open directory")
    options = {**options, "chunker": wish.chunker or "fastcdc"}
    claims = held.enter_context(node.store.reclaimer.new_claims())  # until it is shown: then its record says it all
    taken = await take_in(node, dir_fd, options, claims=claims, report=report, held=held)
    snapshot = snapshot_id(taken.root)
    with node.retention.publishing(snapshot):
        return await _show(node, wish, snapshot, taken, report, origin=origin)


async def _origin(node: Node, wish: Wish, dir_fd: int | None, report: Report) -> str:
    """The origin that the snapshot gets, allowed here from now; empty for none."""
    if wish.is_url:
        return await node.known_origins.name(wish.source)
    if wish.shared or wish.lazy:
        return await node.known_origins.name(wish.source, dir_fd)
    if dir_fd is None or wish.shared is False or not await node.blocking(is_remote, dir_fd):
        return ""
    try:
        origin = await node.known_origins.name(wish.source, dir_fd)
    except (BadRequest, Refused, Unavailable) as error:
        log.info("%s is not named as an origin: %s", wish.source, error)
        return ""
    await report({"note": REMOTE_NOTE.format(source=wish.source)})
    return origin


async def _show(node: Node, wish: Wish, snapshot: SnapshotId, taken: Taken, report: Report, *, origin: str) -> Body:
    """Make the copies of what was taken in, and let users see it."""
    now = node.names.creation_time(snapshot)
    record = SnapshotRecord(snapshot, now, now, wish.replicas, wish.pin, wish.keep, False, wish.source, origin=origin)
    opened = await node.keep_published(taken.root, record)
    if wish.shared:  # I11: all can read it where it is
        short_of: Sequence[int] = []
        await hold_mine(node, opened.catalog, snapshot, wish.replicas)
    else:
        short_of = await spread(node, opened.catalog, snapshot, wish.replicas, report)
    await node.blocking(node.names.show, taken.root, record)
    await node.blocking(taken.remember)
    await introduce(node, snapshot, wish.name, report)
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
