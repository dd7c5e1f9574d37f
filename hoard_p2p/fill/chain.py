"""In which order the participants of a snapshot pass a segment on: the chain, and the gateways of racks. Pure.

Each node must receive the whole set over one link, so there is no slack: home 1 streams to the next participant, which
passes each chunk on as it lands, and so forth. Racks are kept together, so that each segment enters a rack once;
positions differ from segment to segment, so that every node sends about as much as it receives (CLUSTER 3, "Fill").
"""

from collections.abc import Container, Iterable
from itertools import pairwise

from hoard_p2p.ids import ChunkId
from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.placement import draw, first_homes


def chain(
    peers: Iterable[Peer], wants: Container[NodeId], key: ChunkId, replicas: int, reader: Peer | None = None
) -> tuple[Peer, ...]:
    """The participants of the segment that `key` places, in the order in which they pass it on: its homes among `peers`
    (a view), and those of `wants`, which mount or warm its snapshot.

    Racks come in the order of their first home, racks without a home behind them; in a rack the homes come first.
    Everything else goes by rendezvous with equal weights: passing on is the same work for a small node as for a large.

    `reader`: who reads the segment from its origin, if there is one. Its rack is the first, and it is the first there
    if it takes part: what it reads comes into its rack, and must not come there once more along the chain.
    """
    peers = tuple(peers)
    at_home = first_homes(peers, key, replicas)
    homely = {peer.node_id for peer in at_home}
    others = draw((peer for peer in peers if peer.node_id in wants and peer.node_id not in homely), key)
    racks: dict[str, list[Peer]] = {}
    for peer in _from_reader((*at_home, *others), reader):
        racks.setdefault(peer.rack, []).append(peer)
    return tuple(peer for rack in racks.values() for peer in rack)


def _from_reader(order: tuple[Peer, ...], reader: Peer | None) -> Iterable[Peer]:
    if reader is None:
        return order
    return sorted(order, key=lambda peer: (peer.rack != reader.rack, peer.node_id != reader.node_id))


def predecessor(order: tuple[Peer, ...], me: NodeId) -> Peer | None:
    """Who passes the segment on to this node; None for the first, and for who is not in the chain."""
    for before, peer in pairwise(order):
        if peer.node_id == me:
            return before
    return None


def gateways(order: tuple[Peer, ...], me: NodeId, peers: Iterable[Peer], most: int) -> tuple[Peer, ...]:
    """Whom this node asks first: the first of the chain in its rack, and who takes over from it, but nobody behind
    this node. Nobody if it is not in the chain, or if there is no other rack among `peers` (the view) that something
    would come from: it may be there although all of the chain is in one rack."""
    place = next((at for at, peer in enumerate(order) if peer.node_id == me), None)
    if place is None or all(peer.rack == order[place].rack for peer in peers):
        return ()
    return tuple(peer for peer in order[:place] if peer.rack == order[place].rack)[:most]
