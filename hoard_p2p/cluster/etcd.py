"""Discovery and membership by leases in an etcd: each node keeps a key under a lease alive, and watches the others'.

The lease is the membership: who has none leaves the view. While etcd cannot be reached the last view is kept, and
suspicion routes around those that died meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, suppress
from random import Random
from typing import TypeAlias

from hoard_p2p.cluster import interfaces
from hoard_p2p.cluster.addresses import Advert, Found
from hoard_p2p.cluster.leases import Roll, encode_leased
from hoard_p2p.cluster.mdns import advertised
from hoard_p2p.errors import Unavailable
from hoard_p2p.peer import NodeId
from hoard_p2p.registry import Registry, prefix_of

log = logging.getLogger(__name__)

LEASE_SECONDS = 10
"""After which a node that died is out of the view."""
ALIVE_EVERY = 3.0
RETRY = 1.0
GRACE = LEASE_SECONDS + 5.0
"""A node that is missing after an interruption has so long to enter itself again."""
GOODBYE_TIME = 1.0

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Registry]]
ByLease: TypeAlias = "Callable[[frozenset[NodeId] | None], None]"
"""Takes the nodes that have a lease; None while that is unknown."""


class EtcdDiscovery:
    """One node's part in a membership by leases. `advert.node_id` may be in the keys of one process only."""

    def __init__(
        self,
        name: str,
        connect: Connect,
        advert: Advert,
        by_lease: ByLease,
        *,
        clock: Callable[[], float],
        random: Random,
    ) -> None:
        self.name = name
        self._connect = connect
        self._advert = advert
        self._by_lease = by_lease
        self._clock = clock
        self._random = random
        self._prefix = prefix_of(advert.cluster, "nodes")
        self._roll = Roll(GRACE)
        self._follows = False
        """Whether what `_roll` knows is what etcd has."""
        self._following: asyncio.Timeout | None = None
        self._lost: set[str] = set()

    async def run(self, found: Found) -> None:
        """Until cancelled; ends the lease then. Goes on without etcd, with one warning each time that it is lost."""
        async with self._connect() as registry, asyncio.TaskGroup() as group:
            group.create_task(self._stay(registry))
            group.create_task(self._watch(registry, found))

    async def _stay(self, registry: Registry) -> None:
        """Keep this node's key there, whatever becomes of the lease."""
        key, lease, told = self._prefix + self._advert.node_id.hex(), 0, b""
        try:
            while True:
                with self._noting_loss("lease"):
                    record = encode_leased(self._advert, advertised(self._advert.host, interfaces.up_addresses()))
                    if not lease or not await registry.keep_alive(lease):
                        lease, told = await registry.grant(LEASE_SECONDS), b""
                    # a clone that had the same id took the key with it, or somebody deleted it
                    if record != told or (self._follows and not self._roll.has(key)):
                        await registry.put(key, record, lease=lease)
                        told = record
                    self._reached("lease")
                await asyncio.sleep(ALIVE_EVERY * self._random.uniform(0.8, 1.0))
        finally:
            if lease:
                await self._leave(registry, lease)

    async def _leave(self, registry: Registry, lease: int) -> None:
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(GOODBYE_TIME):
                await registry.revoke(lease)

    async def _watch(self, registry: Registry, found: Found) -> None:
        """Follow the keys of all nodes, for ever."""
        while True:
            with self._noting_loss("watch"), suppress(TimeoutError):
                async with asyncio.timeout(None) as self._following:
                    await self._follow(registry, found)
            self._follows = False
            await asyncio.sleep(RETRY * self._random.uniform(0.5, 1.5))

    async def _follow(self, registry: Registry, found: Found) -> None:
        """From a listing on, until the watch ends."""
        listing = await registry.list(self._prefix)
        for address in self._roll.listed(listing.entries, self._clock()):
            found(address)
        self._follows = True
        self._reached("watch")
        async with aclosing(registry.watch(self._prefix, listing.revision + 1)) as watched:
            async for changes in watched:
                for address in self._roll.changed(changes):
                    found(address)
                self._reached("watch")

    @contextmanager
    def _noting_loss(self, part: str) -> Iterator[None]:
        """What is unavailable is one warning for each interruption."""
        try:
            yield
        except Unavailable as error:
            if not self._lost:
                log.warning("the members known last are kept while etcd cannot be used: %s", error)
            self._lost.add(part)
            self._by_lease(None)

    def _reached(self, part: str) -> None:
        """etcd answered. A watch that seems to go on while the lease was not kept is begun anew: it may be dead."""
        if part in self._lost:
            self._lost.discard(part)
            if not self._lost:
                log.info("%s can be used again", self.name)
            if part == "lease" and self._follows and self._following is not None:
                self._follows = False
                self._following.reschedule(asyncio.get_running_loop().time())
        if self._follows and not self._lost:
            self._by_lease(self._roll.members(self._clock()))
