"""In which order the participants of a snapshot pass a segment on: the chain, and the gateways of racks. Pure.

Each node must receive the whole set over one link, so there is no slack: home 1 streams to the next participant, which
passes each chunk on as it lands, and so forth. Racks are kept together, so that each segment enters a rack once;
positions differ from segment to segment, so that every node sends about as much as it receives (CLUSTER 3, "Fill").
"""

from collections.abc import Container, Iterable
from itertools import pairwise

from hoard_p2p.ids import ChunkId
from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.placement import draw, homes


def chain(peers: Iterable[Peer], wants: Container[NodeId], key: ChunkId, replicas: int) -> tuple[Peer, ...]:
    """The participants of the segment that `key` places, in the order in which they pass it on: its homes among `peers`
    (a view), and those of `wants`, which mount or warm its snapshot.

    Racks come in the order of their first home, racks without a home behind them; in a rack the homes come first.
    Everything else goes by rendezvous with equal weights: passing on is the same work for a small node as for a large.
    """
    peers = tuple(peers)
    at_home = homes(peers, key, replicas)
    homely = {peer.node_id for peer in at_home}
    others = draw((peer for peer in peers if peer.node_id in wants and peer.node_id not in homely), key)
    racks: dict[str, list[Peer]] = {}
    for peer in (*at_home, *others):
        racks.setdefault(peer.rack, []).append(peer)
    return tuple(peer for rack in racks.values() for peer in rack)


def predecessor(order: tuple[Peer, ...], me: NodeId) -> Peer | None:
    """Who passes the segment on to this node; None for the first, and for who is not in the chain."""
    for before, peer in pairwise(order):
        if peer.node_id == me:
            return before
    return None


def gateway(order: tuple[Peer, ...], me: NodeId) -> Peer | None:
    """Whom this node asks first: the first of the chain in its rack. None if that is this node itself, if it is not in
    the chain, or if racks are not told apart."""
    mine = next((peer for peer in order if peer.node_id == me), None)
    if mine is None or all(peer.rack == mine.rack for peer in order):
        return None
    first = next(peer for peer in order if peer.rack == mine.rack)
    return None if first.node_id == me else first
