"""Who is of this cluster, and which discoveries work: said once in the log if not."""

import asyncio
import logging

from hoard_p2p.cluster.addresses import Address, Discovery, Found
from hoard_p2p.cluster.dialling import MAX_ADDRESSES
from hoard_p2p.cluster.questions import Greeting
from hoard_p2p.errors import HoardError, PeerStrange
from hoard_p2p.peer import WIRE_VERSION, Peer, is_loopback, is_wildcard

log = logging.getLogger(__name__)

DISCOVERY_RETRY_MOST = 60.0


class Strangers:
    """Nodes that are left alone."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._told: set[Address] = set()

    def is_of_us(self, greeting: Greeting, address: Address) -> bool:
        """Whether a node is of this cluster and speaks a version that we do; said once for each address if not."""
        is_ours = greeting.cluster == self._cluster
        if is_ours and greeting.peer.wire_version >= WIRE_VERSION - 1:
            self._told.discard(address)
            return True
        if address not in self._told and len(self._told) < MAX_ADDRESSES:
            self._told.add(address)
            why = f"speaks version {greeting.peer.wire_version}" if is_ours else f"is of cluster {greeting.cluster!r}"
            log.info("the node at %s port %d %s and is left alone", address.host, address.port, why)
        return False

    def cannot_talk(self, address: Address, why: PeerStrange) -> None:
        """What answers at an address and is no node that one can talk to; said once for each address."""
        if address not in self._told and len(self._told) < MAX_ADDRESSES:
            self._told.add(address)
            log.info("the node at %s port %d is left alone: %s", address.host, address.port, why)


def is_sayable(peer: Peer, *, by: Peer) -> bool:
    """Whether the address of a third node can be what it means to who says it: what is on this machine (services that
    listen nowhere else, maybe) can be named by its own nodes alone."""
    is_here = is_loopback(peer.host) or is_wildcard(peer.host)
    return not is_here or is_loopback(by.host) or peer.node_id == by.node_id


async def discover(discovery: Discovery, found: Found) -> None:
    """Run one discovery for ever; when it fails, warn and start it again later."""
    delay, warned = 1.0, ""
    while True:
        try:
            await discovery.run(found)
            return
        except (OSError, HoardError) as error:
            if str(error) != warned:
                log.warning("discovery %s does not work now, it is tried again: %s", discovery.name, error)
            warned = str(error)
        await asyncio.sleep(delay)
        delay = min(2 * delay, DISCOVERY_RETRY_MOST)
