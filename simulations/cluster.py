"""Made-up clusters and data sets: peers with racks and weights, and the keys that place segments. All from a seed."""

from collections.abc import Sequence
from random import Random

from hoard_p2p.ids import ChunkId
from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.placement import weight_of

GIB = 1 << 30


def peers(racks: Sequence[int], seed: int, capacity: int = 512 * GIB) -> tuple[Peer, ...]:
    """One peer for each entry of `racks`, which names its rack."""
    random = Random(f"peers {seed}")
    weight = weight_of(capacity)
    return tuple(
        Peer(NodeId(random.randbytes(16)), 1, f"n{n}", f"rack{rack}", "10.0.0.1", 1 + n, weight)
        for n, rack in enumerate(racks)
    )


def keys(count: int, seed: int) -> tuple[ChunkId, ...]:
    """The placement keys of a set with `count` segments."""
    random = Random(f"keys {seed}")
    return tuple(ChunkId(random.randbytes(32)) for _ in range(count))


def in_racks(nodes: int, rack_size: int) -> tuple[int, ...]:
    """The racks of `nodes` nodes, filled one after the other."""
    return tuple(n // rack_size for n in range(nodes))
