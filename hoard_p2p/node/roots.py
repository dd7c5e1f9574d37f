"""The root of a snapshot that is asked for by its id: known here, or at a peer."""

from typing import TYPE_CHECKING

from hoard_p2p.config import DEFAULT_REPLICAS
from hoard_p2p.errors import SnapshotUnknown, Unavailable
from hoard_p2p.ids import SnapshotId
from hoard_p2p.node.names import DEFAULT_KEEP
from hoard_p2p.peer import Peer
from hoard_p2p.storage.records import SnapshotRecord

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

MOST_ASKED = 64
"""Random peers that are asked: what a publisher told, nearly all of a cluster know, and they are asked few by few."""


async def find_root(node: "Node", snapshot: SnapshotId) -> bytes:
    """The encoded root, kept here from now on. Raises SnapshotUnknown."""
    root = await node.blocking(node.names.root, snapshot)
    if root is not None:
        return root
    await node.settled()

    async def ask(peer: Peer) -> bytes | None:
        try:
            return await node.control.root(peer, snapshot)
        except Unavailable:
            return None

    found = await node.gossip.first_answer(ask, MOST_ASKED)
    if (published := await node.blocking(node.names.root, snapshot)) is not None:  # here, meanwhile
        return published
    record = node.names.snapshot(snapshot)
    if found is None or (record is not None and record.removed):
        raise SnapshotUnknown(f"no snapshot {snapshot.hex()} is known here or at a peer; hoard ls lists them")
    await node.blocking(node.names.add_snapshot, found, _hearsay(snapshot))
    return found


def _hearsay(snapshot: SnapshotId) -> SnapshotRecord:
    """The record of a snapshot of which only the root is known: the oldest there can be, so that any other wins."""
    return SnapshotRecord(snapshot, 1, 1, DEFAULT_REPLICAS, False, DEFAULT_KEEP, False, "", 0)
