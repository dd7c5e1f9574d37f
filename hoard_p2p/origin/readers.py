"""Which node reads which segment from its origin. Pure (CLUSTER 4, "Read once").

The reader set of an origin is as many of the nodes that can reach it as it takes streams; each segment has one reader
in it. All nodes with the same view agree, so a byte of the origin is read by one node at a time (I8).
"""

from collections.abc import Container, Iterable

from hoard_p2p.ids import ChunkId
from hoard_p2p.peer import NodeId, OriginId, Peer
from hoard_p2p.placement import draw


def reader_set(peers: Iterable[Peer], reads: Container[NodeId], origin: OriginId, streams: int) -> tuple[Peer, ...]:
    """The first `streams` of the peers that can read the origin, by rendezvous on the origin with equal weights."""
    key = ChunkId(origin * 4)
    return tuple(draw((peer for peer in peers if peer.node_id in reads), key)[:streams])


def readers(members: Iterable[Peer], key: ChunkId, without: Container[NodeId] = ()) -> tuple[Peer, ...]:
    """The members of a reader set for the segment that `key` places, best first: the first one reads it, the next takes
    over if that one is dead or cannot. `without`: nodes that said that they cannot."""
    return tuple(draw((peer for peer in members if peer.node_id not in without), key))
