"""How nodes tell each other of snapshots and refs: digests with every hello, lists where they differ, news at once."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import TypeAlias

from hoard_p2p.cluster.agent import ClusterAgent, Greeting
from hoard_p2p.errors import HoardError, Unavailable
from hoard_p2p.node.names import Names
from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.transfer.control import PeerControl
from hoard_p2p.transfer.wire import Announcement, Hello

log = logging.getLogger(__name__)

AT_ONCE = 16
"""Peers that are asked or told at the same time."""

QUEUED = 64
ASK_SECONDS = 5.0
"""Who asks for a list waits so long for peers that do not answer."""

AGAIN_SECONDS = 60.0
"""Lists that brought nothing new are asked for again then, though both digests are as before: what was ahead of our
clock may not be by now."""

MOST_IN_VAIN = 8192

_Pair: TypeAlias = tuple[bytes, bytes]
_Digests: TypeAlias = tuple[_Pair, _Pair]


def _theirs(greeting: Hello) -> _Pair:
    return greeting.snapshots_digest, greeting.refs_digest


class Gossip:
    """For the event loop. `names` is written in `executor`."""

    def __init__(self, names: Names, control: PeerControl, executor: Executor) -> None:
        self._names = names
        self._control = control
        self._executor = executor
        self._to_sync: asyncio.Queue[tuple[Peer, Hello]] = asyncio.Queue(QUEUED)
        self._in_vain: dict[NodeId, tuple[_Digests, float]] = {}
        """Peers that told nothing new: their and our digests, and when."""

    def greeted(self, greeting: Greeting, peer: Peer) -> None:
        """`peer` answered: what it knows and we do not is fetched by `run`."""
        if not isinstance(greeting, Hello) or self._to_sync.full():
            return
        if _theirs(greeting) != self._names.digests() and not self._was_in_vain(greeting, peer):
            self._to_sync.put_nowait((peer, greeting))

    def _was_in_vain(self, greeting: Hello, peer: Peer) -> bool:
        digests, when = self._in_vain.get(peer.node_id, (None, 0.0))
        return digests == (_theirs(greeting), self._names.digests()) and self._now() - when < AGAIN_SECONDS

    async def run(self) -> None:
        """Runs until cancelled: takes over names from peers that know other ones."""
        while True:
            peer, greeting = await self._to_sync.get()
            await self._compare(peer, greeting)

    async def _compare(self, peer: Peer, greeting: Hello) -> None:
        """Take over what the peer's lists have, where its digests differ from ours."""
        theirs, before = _theirs(greeting), self._names.digests()
        heard = await self._learn(peer, snapshots=theirs[0] != before[0], refs=theirs[1] != before[1])
        if heard and self._names.digests() == before:
            self._in_vain[peer.node_id] = ((theirs, before), self._now())
            if len(self._in_vain) > MOST_IN_VAIN:
                del self._in_vain[next(iter(self._in_vain))]

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def ask_all(self, agent: ClusterAgent) -> None:
        """Take over the names of all peers now, before saying that a name is unknown. Peers that do not answer in
        `ASK_SECONDS` are not waited for."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ASK_SECONDS):
                await self.each_peer(agent, self._learn_all)

    async def _learn_all(self, peer: Peer) -> None:
        await self._learn(peer, snapshots=True, refs=True)

    async def _learn(self, peer: Peer, *, snapshots: bool, refs: bool) -> bool:
        """Whether the peer told its lists. Whatever it tells, it ends in a log line at worst."""
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
            return False
        except HoardError as error:
            log.warning("what peer %s told could not be kept: %s", peer.name, error)
        except Exception:  # the door: what strangers send must not end the node
            log.exception("what peer %s told could not be handled", peer.node_id.hex())
        return True

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
