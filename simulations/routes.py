"""From whom each node gets each segment, by the production code for chains and readers, and who that is in numbers."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Protocol

from hoard_p2p.fill.chain import chain
from hoard_p2p.ids import ChunkId
from hoard_p2p.origin.readers import reader_set, readers
from hoard_p2p.peer import NodeId, OriginId, Peer

ORIGIN = -1
ORIGIN_ID = OriginId(b"origin 1")


class Routes(Protocol):
    """Whom a node asks for a segment that it fills."""

    def source(self, node: int, segment: int) -> int:
        """A node's number, or ORIGIN."""
        ...

    def without(self, node: int) -> None:
        """All know from now on that the node is dead."""
        ...


class ChainRoutes:
    """All nodes have the same view. The first of a chain is the segment's reader, or asks it if that takes no part;
    everybody else asks its predecessor. `wants`: who takes part, at first everybody."""

    def __init__(
        self,
        peers: Sequence[Peer],
        keys: Sequence[ChunkId],
        *,
        replicas: int,
        streams: int,
        fan_out: bool = False,
        warm: Sequence[int] = (),
    ) -> None:
        """`warm`: nodes that have the whole set, so that they are asked where the origin would be read. `fan_out`: not
        in the product: the first node of a rack passes a segment on to the next rack and to its own, so that a chunk
        makes as many hops as there are racks and nodes in a rack, not as many as there are nodes."""
        self.peers = tuple(peers)
        self.numbers = {peer.node_id: number for number, peer in enumerate(peers)}
        self.keys = keys
        self.replicas, self.streams, self.fan_out = replicas, streams, fan_out
        self.wants = set(self.numbers)
        self.warm = tuple(self.peers[node] for node in warm)
        self._alive = self.peers
        self._plan()

    def take_part(self, nodes: Iterable[int]) -> None:
        """These mount or warm the set, and nobody else."""
        self.wants = {self.peers[node].node_id for node in nodes}
        self._plan()

    def _plan(self) -> None:
        self._readers = self.warm or reader_set(self._alive, self.numbers, ORIGIN_ID, self.streams)
        self._sources: dict[int, array[int]] = {}

    def source(self, node: int, segment: int) -> int:
        known = self._sources.get(segment)
        if known is None:
            known = self._sources[segment] = self._of(segment)
        return known[node]

    def without(self, node: int) -> None:
        self._alive = tuple(peer for peer in self._alive if self.numbers[peer.node_id] != node)
        self._plan()

    def order(self, segment: int) -> list[int]:
        """The chain in numbers."""
        return numbered(self.chain(segment), self.numbers)

    def chain(self, segment: int) -> tuple[Peer, ...]:
        key = self.keys[segment]
        first = None if self.warm else readers(self._readers, key)[0]
        return chain(self._alive, self.wants, key, self.replicas, first)

    def reader(self, segment: int) -> int:
        return self.numbers[readers(self._readers, self.keys[segment])[0].node_id]

    def _of(self, segment: int) -> "array[int]":
        order, reader = self.order(segment), self.reader(segment)
        sources = array("i", [ORIGIN]) * len(self.peers)
        before = leader = reader
        rack = ""
        for node in order:
            if self.peers[node].rack != rack:
                rack = self.peers[node].rack
                before, leader = leader if self.fan_out else before, node
            sources[node], before = before, node
        sources[reader] = ORIGIN
        return sources


def numbered(order: Sequence[Peer], numbers: dict[NodeId, int]) -> list[int]:
    return [numbers[peer.node_id] for peer in order]


class OriginRoutes:
    """No cooperation: every node reads the origin."""

    def source(self, node: int, segment: int) -> int:
        return ORIGIN

    def without(self, node: int) -> None:
        """Nobody depends on anybody."""


class HomeRoutes(ChainRoutes):
    """For comparison: home 1 serves everybody, as in a cache that is only sharded."""

    def _of(self, segment: int) -> "array[int]":
        reader = self.reader(segment)
        home = self.order(segment)[0]
        sources = array("i", [home]) * len(self.peers)
        sources[home] = reader
        sources[reader] = ORIGIN
        return sources
