"""How a segment is passed on, as this node sees it now: its chain, gateways, and whether the view has settled."""

import time
from typing import TYPE_CHECKING

from hoard_p2p.fetch.segment import Segment
from hoard_p2p.fetch.sources import NO_COURSE, Course
from hoard_p2p.fill.chain import chain, gateway, predecessor
from hoard_p2p.fill.quiet import QUIET_SECONDS, Quiet
from hoard_p2p.ids import SnapshotId
from hoard_p2p.peer import Peer

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

GATEWAYS = 2
"""Participants of its rack that a node asks before it asks homes: the gateway, and who takes over."""


class Courses:
    """For the event loop."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._quiet = Quiet()

    def order(self, segment: Segment) -> tuple[Peer, ...]:
        """The chain of a segment in this node's view."""
        node = self._node
        wants = node.agent.wanting(segment.snapshot)
        return chain(node.agent.view().peers, wants, segment.key, node.replicas(segment.snapshot))

    def of(self, segment: Segment) -> Course:
        order, me = self.order(segment), self._node.me.node_id
        place = next((at for at, peer in enumerate(order) if peer.node_id == me), None)
        if place is None:
            return NO_COURSE
        nearer: tuple[Peer, ...] = ()
        if gateway(order, me) is not None:
            nearer = tuple(peer for peer in order[:place] if peer.rack == order[place].rack)[:GATEWAYS]
        return Course(predecessor(order, me), nearer, place)

    def begin(self, snapshot: SnapshotId) -> None:
        """This node wants the snapshot since just now."""
        self._quiet.begin(snapshot, self._node.agent.wanting(snapshot), time.monotonic())

    def unsettled(self, snapshot: SnapshotId) -> float:
        """Seconds until the snapshot may be filled, if nothing changes meanwhile; 0: it may. Counted since the last
        change of the view, or of who wants it."""
        node, now = self._node, time.monotonic()
        own = self._quiet.look(snapshot, node.agent.wanting(snapshot), now)
        return max(own, node.unsettled(QUIET_SECONDS))
