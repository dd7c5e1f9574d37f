"""When nodes tell each other of snapshots and refs: news at once and from one to the next, and everything else by
comparing with one random peer every few seconds. What it costs a node does not grow with the cluster."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import TypeAlias, TypeVar

from hoard_p2p.cluster.agent import Greeting
from hoard_p2p.errors import HoardError, Unavailable
from hoard_p2p.node.names import Names
from hoard_p2p.node.names_exchange import NameExchange
from hoard_p2p.node.presence import Presence
from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.transfer.control import PeerControl
from hoard_p2p.transfer.wire import Announcement, Hello
from hoard_p2p.transfer.wire_names import Comparison, Differences

log = logging.getLogger(__name__)

AT_ONCE = 16
"""Peers that are asked or told at the same time."""

QUEUED = 64
ASK_SECONDS = 5.0
"""Who asks for a name waits so long for peers that do not answer."""

ASKED = 8
"""Peers that are asked before a name is said to be unknown."""

SYNC_SECONDS = 5.0
TOLD_FIRST, TOLD_ON = 16, 6
"""Peers that are told by who has news, and by each that learns them so: 1 in 400 is left out then (the part r that
learns it solves r = 1 - exp(-6 r)), and asks later."""

AGAIN_SECONDS = 60.0
"""What brought nothing new is asked for again then, though both digests are as before: what was ahead of our clock may
not be by now."""

MOST_IN_VAIN = 8192

T = TypeVar("T")

_Told: TypeAlias = "tuple[bytes, bytes] | Differences"
_Seen: TypeAlias = tuple[_Told, tuple[bytes, bytes]]


class Gossip:
    """For the event loop."""

    def __init__(
        self,
        names: Names,
        control: PeerControl,
        executor: Executor,
        me: NodeId,
        others: Callable[[], Sequence[Peer]],
        *,
        presence: Presence,
        random: Random | None = None,
    ) -> None:
        """`names` is written in `executor`; `others`: the peers of the view."""
        self.exchange = NameExchange(names, control, executor, me, presence)
        self._presence = presence
        self._names = names
        self._control = control
        self._me = me
        self._others = others
        self._random = random or Random()
        self._to_sync: asyncio.Queue[tuple[Peer, bool]] = asyncio.Queue(QUEUED)
        self._queued: set[NodeId] = set()
        self._to_pass_on: asyncio.Queue[Announcement] = asyncio.Queue(QUEUED)
        self._in_vain: dict[NodeId, tuple[_Seen, float]] = {}
        """Peers that told nothing new: what differed, our digests, and when."""

    # --- learning

    def greeted(self, greeting: Greeting, peer: Peer) -> None:
        """`peer` answered: what it knows and we do not is fetched by `run`."""
        if isinstance(greeting, Hello):
            theirs = greeting.snapshots_digest, greeting.refs_digest
            if theirs != self._names.digests() and not self._was_in_vain(theirs, peer):
                self._sync_soon(peer, again=False)

    def compared(self, comparison: Comparison) -> None:
        """A peer asked what differs: what it knows and we do not is fetched, too."""
        if not comparison.again and (comparison.snapshots_digest, comparison.refs_digest) != self._names.digests():
            for peer in self._others():
                if peer.node_id == comparison.node:
                    self._sync_soon(peer, again=True)

    def _sync_soon(self, peer: Peer, *, again: bool) -> None:
        if peer.node_id not in self._queued and not self._to_sync.full():
            self._queued.add(peer.node_id)
            self._to_sync.put_nowait((peer, again))

    def _was_in_vain(self, theirs: _Told, peer: Peer) -> bool:
        seen, when = self._in_vain.get(peer.node_id, (None, 0.0))
        return seen == (theirs, self._names.digests()) and self._now() - when < AGAIN_SECONDS

    def _note_vain(self, theirs: _Told, peer: Peer) -> None:
        self._in_vain[peer.node_id] = ((theirs, self._names.digests()), self._now())
        if len(self._in_vain) > MOST_IN_VAIN:
            del self._in_vain[next(iter(self._in_vain))]

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Runs until cancelled: takes over names from peers that know other ones, and passes news on."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sync())
            group.create_task(self._sync_at_random())
            group.create_task(self._pass_on())
            group.create_task(self._presence.run())

    async def _sync(self) -> None:
        while True:
            peer, again = await self._to_sync.get()
            self._queued.discard(peer.node_id)
            await self._learn(peer, again=again)

    async def _sync_at_random(self) -> None:
        """Anti-entropy: with one random peer every few seconds, however many there are."""
        while True:
            await asyncio.sleep(SYNC_SECONDS * self._random.uniform(0.5, 1.5))
            for peer in self._drawn(1):
                self._sync_soon(peer, again=False)

    def _drawn(self, most: int) -> list[Peer]:
        others = self._others()
        return self._random.sample(others, min(most, len(others)))

    async def ask_some(self) -> None:
        """Take over the names of a few peers now, before saying that a name is unknown. Peers that do not answer in
        `ASK_SECONDS` are not waited for."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ASK_SECONDS), asyncio.TaskGroup() as group:
                for peer in self._drawn(ASKED):
                    group.create_task(self._learn(peer, again=False))

    async def first_answer(self, ask: Callable[[Peer], Awaitable[T | None]], most: int) -> T | None:
        """Ask at most so many random peers, a few at a time, until one has an answer; None if none has."""
        drawn = self._drawn(most)
        for start in range(0, len(drawn), ASKED):
            answers: list[T] = []

            async def one(peer: Peer, answers: list[T] = answers) -> None:
                answer = await ask(peer)
                if answer is not None:
                    answers.append(answer)

            async with asyncio.TaskGroup() as group:
                for peer in drawn[start : start + ASKED]:
                    group.create_task(one(peer))
            if answers:
                return answers[0]
        return None

    async def _learn(self, peer: Peer, *, again: bool) -> None:
        """Take over what the peer knows. Whatever it tells, it ends in a log line at worst."""
        try:
            await self._exchange_with(peer, again=again)
        except Unavailable as error:
            log.info("peer %s did not tell its names: %s", peer.name, error)
        except HoardError as error:
            log.warning("what peer %s told could not be kept: %s", peer.name, error)
        except Exception:  # the door: what strangers send must not end the node
            log.exception("what peer %s told could not be handled", peer.node_id.hex())

    async def _exchange_with(self, peer: Peer, *, again: bool) -> None:
        before = self._names.digests()
        theirs = await self.exchange.differences(peer, again=again)
        if theirs is None:
            await self._exchange_lists(peer)
            return
        if (theirs.snapshots or theirs.refs) and not self._was_in_vain(theirs, peer):
            await self.exchange.take(peer, theirs)
            if self._names.digests() == before:
                self._note_vain(theirs, peer)
        await self._presence.met(peer, theirs, self.exchange)

    async def _exchange_lists(self, peer: Peer) -> None:
        """With a peer of an older version."""
        greeting = await self._control.hello(peer.host, peer.port)
        theirs, before = (greeting.snapshots_digest, greeting.refs_digest), self._names.digests()
        if theirs != before and not self._was_in_vain(theirs, peer):
            await self.exchange.lists(peer, snapshots=theirs[0] != before[0], refs=theirs[1] != before[1])
            if self._names.digests() == before:
                self._note_vain(theirs, peer)

    # --- telling

    async def announce(self, announcement: Announcement) -> None:
        """Tell some random peers of the view, who pass it on; who is not reached learns of it by anti-entropy."""
        await self._tell(announcement, TOLD_FIRST)

    def heard(self, announcement: Announcement) -> None:
        """Something in an announcement was new here: others may not know it either."""
        if announcement.pass_on and not self._to_pass_on.full():
            self._to_pass_on.put_nowait(announcement)

    async def _pass_on(self) -> None:
        while True:
            await self._tell(await self._to_pass_on.get(), TOLD_ON)

    async def _tell(self, announcement: Announcement, most: int) -> None:
        chosen = self._drawn(most)
        told = replace(announcement, node=self._me, pass_on=len(chosen) < len(self._others()))

        async def tell(peer: Peer) -> None:
            try:
                await self._control.announce(peer, told)
            except Unavailable as error:
                log.info("peer %s was not told: %s", peer.name, error)

        async with asyncio.TaskGroup() as group:
            for peer in chosen:
                group.create_task(tell(peer))

    async def say_goodbye(self, me: Peer) -> None:
        """Tell some random peers that this node leaves; the others hear it from them."""

        async def leave(peer: Peer) -> None:
            try:
                await self._control.leave(peer, me.node_id, me.incarnation)
            except Unavailable:
                log.info("peer %s was not told that this node leaves", peer.name)

        async with asyncio.TaskGroup() as group:
            for peer in self._drawn(TOLD_FIRST):
                group.create_task(leave(peer))
