"""Nodes as others see them: ids, membership records, and the immutable view that every plan is made from."""

import ipaddress
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NewType

from blake3 import blake3

from hoard_p2p.ids import SnapshotId, from_hex

NodeId = NewType("NodeId", bytes)
"""16 random bytes, made once per data directory."""

NODE_ID_SIZE = 16
WIRE_VERSION = 1
"""Version of the protocol between nodes; version N - 1 is supported."""


SHARED_SPACE = ipaddress.ip_network("100.64.0.0/10")
"""Carrier-grade and overlay networks (RFC 6598): not routed in public."""


def is_near(host: str) -> bool:
    """Whether an IP address is private, loopback or link-local: the only ones that nodes without a key talk to."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped.is_private or mapped.is_loopback or mapped.is_link_local or mapped in SHARED_SPACE


def is_loopback(host: str) -> bool:
    """Whether an IP address can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether a server that listens on `host` listens on every address of its machine."""
    return host in ("", "0.0.0.0", "::")


def parse_node_id(text: str) -> NodeId:
    """The id written as 32 hex digits. Raises ValueError for anything else."""
    return NodeId(from_hex(text, NODE_ID_SIZE, "a node id"))


@dataclass(frozen=True, slots=True)
class Peer:
    """The membership record of one node.

    `weight` is in units of 2**-16 GiB, rounded down to a power of sqrt(2) GiB (`placement.weight_of`); it decides the
    share of segments that the node is home of. `rack` may be empty: then all nodes share one rack.
    """

    node_id: NodeId
    incarnation: int
    name: str
    rack: str
    host: str
    port: int
    weight: int
    wire_version: int = WIRE_VERSION

    @property
    def place(self) -> str:
        """Host and port as in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The same, for messages. What scheme it speaks is not in its record: `Security.url` knows."""
        return self.place


OriginId = NewType("OriginId", bytes)
"""8 bytes that stand for an origin between nodes, which never tell each other URLs or paths."""


def origin_id(url: str) -> OriginId:
    """The id of the origin with this URL, written as in `SnapshotRecord.origin`."""
    return OriginId(blake3(url.encode(), derive_key_context="hoard 2026-11-30 origin id v1").digest(length=8))


@dataclass(frozen=True, slots=True)
class Standing:
    """What a node has to do with data now, told to all. Of two of one node the larger (incarnation, version) counts.

    `wants`: snapshots that it mounts or warms, so that it takes part in their fill; `reads`: origins that it may and
    can read.
    """

    node_id: NodeId
    incarnation: int
    version: int
    wants: frozenset[SnapshotId] = frozenset()
    reads: frozenset[OriginId] = frozenset()


class Said(Enum):
    """What nodes tell each other of a third."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Rumour:
    """What is told of a node. Never believed as such: it makes who hears it ask the node itself.

    `refutation` counts how often the node had to say, in this incarnation, that it is alive or has changed. Of two
    rumours of one node the larger (incarnation, refutation) counts; of equal ones the worse. `accusers` are nodes that
    got no answer from it.
    """

    peer: Peer
    said: Said
    refutation: int = 0
    accusers: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class News:
    """What travels with every probe and its answer. `refutation` is the sender's own; `digest` stands for the members
    and standings that it knows: equal ones need not be compared."""

    refutation: int = 0
    digest: bytes = b""
    rumours: tuple[Rumour, ...] = ()
    standings: tuple[Standing, ...] = ()


@dataclass(frozen=True)
class ClusterView:
    """Who is in the cluster, as one node sees it at one moment: itself and the peers it believes alive.

    Never changes; membership makes a new one. `peers` is sorted by node id and holds `me` too.
    """

    me: NodeId
    peers: tuple[Peer, ...]

    @cached_property
    def by_id(self) -> dict[NodeId, Peer]:
        return {peer.node_id: peer for peer in self.peers}

    @property
    def others(self) -> tuple[Peer, ...]:
        return tuple(peer for peer in self.peers if peer.node_id != self.me)
