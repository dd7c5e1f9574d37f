"""How a segment is passed on, as this node sees it now: its chain, gateways, and whether the view has settled."""

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from hoard_p2p.fetch.segment import Segment
from hoard_p2p.fetch.sources import NO_COURSE, Course
from hoard_p2p.fill.chain import chain, gateways, predecessor
from hoard_p2p.fill.quiet import QUIET_SECONDS, Quiet
from hoard_p2p.ids import SnapshotId
from hoard_p2p.peer import ClusterView, NodeId, Peer

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

GATEWAYS = 2
"""Participants of its rack that a node asks before it asks homes: the gateway, and who takes over."""

KEPT_ORDERS = 512
"""Chains that are kept: at 1,000 nodes each takes milliseconds to reckon, and is asked for several times."""


class _Basis(NamedTuple):
    """What a chain is made from."""

    wants: frozenset[NodeId]
    replicas: int
    reader: Peer | None


@dataclass(frozen=True, slots=True)
class _Order:
    view: ClusterView
    basis: _Basis
    peers: tuple[Peer, ...]


class Courses:
    """For the event loop."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._quiet = Quiet()
        self._orders: OrderedDict[tuple[SnapshotId, int], _Order] = OrderedDict()

    def order(self, segment: Segment) -> tuple[Peer, ...]:
        """The chain of a segment in this node's view."""
        node, key = self._node, (segment.snapshot, segment.number)
        view, wants = node.agent.view(), node.agent.wanting(segment.snapshot)
        basis = _Basis(wants, node.replicas(segment.snapshot), node.origins.first_reader(segment))
        known = self._orders.pop(key, None)
        if known is None or known.view is not view or known.basis != basis:
            known = _Order(view, basis, chain(view.peers, wants, segment.key, basis.replicas, basis.reader))
        self._orders[key] = known
        if len(self._orders) > KEPT_ORDERS:
            self._orders.popitem(last=False)
        return known.peers

    def of(self, segment: Segment) -> Course:
        order, me = self.order(segment), self._node.me.node_id
        place = next((at for at, peer in enumerate(order) if peer.node_id == me), None)
        if place is None:
            return NO_COURSE
        nearer = gateways(order, me, self._node.agent.view().peers, GATEWAYS)
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
