"""Securities of test nodes: with a fixed key, and with encryption too."""

from functools import cache

from hoard_p2p.peer import NodeId
from hoard_p2p.transfer.keys import ClusterKey, KeyRing, Security
from hoard_p2p.transfer.tls import make_tls

KEY = ClusterKey(bytes(range(100, 132)))
OTHER_KEY = ClusterKey(bytes(range(32)))


def keyed(number: int, *keys: ClusterKey) -> Security:
    """Of `testing.network.a_peer(number)`; the first key signs, all are accepted."""
    return Security(KeyRing(NodeId(bytes([number]) * 16), keys or (KEY,)))


@cache
def encrypted(number: int, *keys: ClusterKey) -> Security:
    """The same, with TLS."""
    ring = KeyRing(NodeId(bytes([number]) * 16), keys or (KEY,))
    return Security(ring, make_tls(ring))
