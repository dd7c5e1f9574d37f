"""Bytes of an origin that were read past the node whose turn it was: that is told, and takes them from who read them.

What a peer tells is a hint: only a flight that is under way here asks for it, the peer is one of this node's own view,
and each chunk is checked as any other.
"""

import logging
from typing import TYPE_CHECKING

from hoard_p2p.errors import CatalogCorrupt, HoardError
from hoard_p2p.ids import short
from hoard_p2p.peer import Peer
from hoard_p2p.transfer.wire_life import Handed

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

log = logging.getLogger(__name__)


def hand_over(node: "Node", reader: Peer, handed: Handed) -> None:
    """Tell `reader`, in the background."""
    node.group.create_task(_tell(node, reader, handed))


async def _tell(node: "Node", reader: Peer, handed: Handed) -> None:
    try:
        await node.control.hand(reader, handed)
    except HoardError as error:
        log.info("%s reads %d chunks that are here: %s", reader.name, len(handed.runs), error)


def take(node: "Node", handed: Handed) -> None:
    """A peer tells what it has read in this node's place."""
    peer = node.agent.view().by_id.get(handed.node)
    opened = node.catalogs.peek(handed.snapshot)
    if peer is None or peer.node_id == node.me.node_id or opened is None or handed.segment >= opened.catalog.segments:
        return
    try:
        segment = node.demand.segment(opened, handed.segment)
    except CatalogCorrupt as error:
        log.warning("the catalog of %s is not sound: %s", short(handed.snapshot), error)
        return
    runs = set(handed.runs)
    node.fetcher.handed(segment, peer, [chunk for chunk in segment.chunks if chunk.run in runs])
