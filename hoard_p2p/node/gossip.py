"""How nodes tell each other of snapshots and refs: digests with every hello, lists where they differ, news at once."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from hoard_p2p.cluster.agent import ClusterAgent, Greeting
from hoard_p2p.errors import HoardError, Unavailable
from hoard_p2p.node.names import Names
from hoard_p2p.peer import Peer
from hoard_p2p.transfer.control import PeerControl
from hoard_p2p.transfer.wire import Announcement, Hello

log = logging.getLogger(__name__)

AT_ONCE = 16
"""Peers that are asked or told at the same time."""

QUEUED = 64


class Gossip:
    """For the event loop. `names` is written in `executor`."""

    def __init__(self, names: Names, control: PeerControl, executor: Executor) -> None:
        self._names = names
        self._control = control
        self._executor = executor
        self._to_sync: asyncio.Queue[tuple[Peer, bool, bool]] = asyncio.Queue(QUEUED)

    def greeted(self, greeting: Greeting, peer: Peer) -> None:
        """`peer` answered: what it knows and we do not is fetched by `run`."""
        if not isinstance(greeting, Hello) or self._to_sync.full():
            return
        snapshots, refs = self._names.digests()
        differ = (greeting.snapshots_digest != snapshots, greeting.refs_digest != refs)
        if any(differ):
            self._to_sync.put_nowait((peer, *differ))

    async def run(self) -> None:
        """Runs until cancelled: takes over names from peers that know other ones."""
        while True:
            peer, snapshots, refs = await self._to_sync.get()
            await self._learn(peer, snapshots=snapshots, refs=refs)

    async def ask_all(self, agent: ClusterAgent) -> None:
        """Take over the names of all peers now, before saying that a name is unknown."""
        await self.each_peer(agent, self._learn_all)

    async def _learn_all(self, peer: Peer) -> None:
        await self._learn(peer, snapshots=True, refs=True)

    async def _learn(self, peer: Peer, *, snapshots: bool, refs: bool) -> None:
        loop = asyncio.get_running_loop()
        try:
            if snapshots:
                told = await self._control.snapshots(peer)
                await loop.run_in_executor(self._executor, self._names.merge_snapshots, told, peer.name)
            if refs:
                told = await self._control.refs(peer)
                await loop.run_in_executor(self._executor, self._names.merge_refs, told, peer.name)
        except Unavailable as error:
            log.info("peer %s did not tell its names: %s", peer.name, error)
        except HoardError as error:
            log.warning("what peer %s told could not be kept: %s", peer.name, error)

    async def announce(self, agent: ClusterAgent, announcement: Announcement) -> None:
        """Tell all peers of the view; who is not reached hears it with a later hello."""

        async def tell(peer: Peer) -> None:
            try:
                await self._control.announce(peer, announcement)
            except Unavailable as error:
                log.info("peer %s was not told: %s", peer.name, error)

        await self.each_peer(agent, tell)

    async def say_goodbye(self, agent: ClusterAgent, me: Peer) -> None:
        """Tell all peers that this node leaves."""

        async def leave(peer: Peer) -> None:
            try:
                await self._control.leave(peer, me.node_id, me.incarnation)
            except Unavailable:
                log.info("peer %s was not told that this node leaves", peer.name)

        await self.each_peer(agent, leave)

    @staticmethod
    async def each_peer(agent: ClusterAgent, visit: Callable[[Peer], Awaitable[None]]) -> None:
        """Visit all peers of the view, `AT_ONCE` at the same time."""
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(peer: Peer) -> None:
            async with limit:
                await visit(peer)

        async with asyncio.TaskGroup() as group:
            for peer in agent.view().others:
                group.create_task(one(peer))
