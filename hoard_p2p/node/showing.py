"""The end of a publish: a snapshot is named, and the cluster told."""

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from hoard_p2p.config import Json
from hoard_p2p.errors import HoardError, Refused, StoreFailed, Unavailable
from hoard_p2p.ids import SnapshotId, short
from hoard_p2p.transfer.wire import Announcement

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

log = logging.getLogger(__name__)

Body = dict[str, Json]
Report = Callable[[Body], Awaitable[None]]


async def warn_of_taken_name(node: "Node", name: str | None, report: Report) -> None:
    """Say at once that the name is another snapshot's, unless the content turns out to be that very snapshot's: only
    the end of the ingest tells."""
    taken = None if name is None else node.names.ref(name)
    if taken is not None and taken.snapshot is not None:
        log.info("%s names %s already", name, short(taken.snapshot))
        note = f"{name} names {taken.snapshot.hex()[:12]} already, and stays so: other content gets no name"
        await report({"note": note})


async def introduce(node: "Node", snapshot: SnapshotId, name: str | None, report: Report) -> None:
    """Name a snapshot that is shown here, and tell the cluster. Raises Refused, Unavailable if it cannot have the name:
    it stays all the same."""
    named = None if name is None else node.names.ref(name)
    refused = await _name(node, snapshot, name)
    await tell(node, snapshot)
    if refused is not None:
        raise refused
    if named is not None and named.snapshot == snapshot:
        await report({"note": f"{name} names it already"})


async def _name(node: "Node", snapshot: SnapshotId, name: str | None) -> HoardError | None:
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


async def tell(node: "Node", *snapshots: SnapshotId) -> None:
    """Tell the cluster of snapshots and of the names that they have."""
    records = [await node.blocking(node.names.snapshot_record, snapshot) for snapshot in snapshots]
    told = tuple(record for record in records if record is not None)
    if len(told) < len(snapshots):
        raise StoreFailed(f"snapshot {short(snapshots[0])} vanished while it was shown")
    named = {snapshot.hex() for snapshot in snapshots}
    refs = tuple(record for record in node.names.ref_records() if record["snapshot"] in named)
    await node.announce(Announcement(snapshots=told, refs=refs))
