"""Weights as plans are to see them."""

from collections.abc import Sequence
from dataclasses import replace

from hoard_p2p.peer import Peer

MOST_WEIGHT = 4


def bounded_weights(peers: Sequence[Peer]) -> tuple[Peer, ...]:
    """The peers as plans are to see them: none weighs more than `MOST_WEIGHT` times the (lower) median. Without a key
    a weight is only a claim, and one that is high enough would make its node the home of everything. The same on all
    nodes that see the same peers, so that they plan alike (I7)."""
    weights = sorted(peer.weight for peer in peers if peer.weight > 0) or [0]
    most = MOST_WEIGHT * weights[(len(weights) - 1) // 2]
    return tuple(replace(peer, weight=most) if peer.weight > most else peer for peer in peers)
