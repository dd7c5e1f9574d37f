"""How much is asked of one peer at a time, and how soon one that did not answer is asked again. For the event loop.

Without it a peer that is away would hold every fetch thread until each has timed out: a thousand misses that only it
could answer would stop those that others can.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from hoard_p2p.peer import NodeId

AT_ONCE = 8
"""Requests to one peer; half the fetch threads, so that others get theirs."""

FIRST_SILENCE, LONGEST_SILENCE = 0.25, 2.0
"""Seconds for which a peer that failed is left alone; doubled each time."""


@dataclass(slots=True)
class _Peer:
    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    trial: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    until: float = 0.0
    silence: float = 0.0
    reason: str = ""


class Turns:
    """Time is handed in."""

    def __init__(self) -> None:
        self._peers: dict[NodeId, _Peer] = {}

    @asynccontextmanager
    async def turn(self, node: NodeId) -> AsyncIterator[None]:
        """Hold it while the peer is asked. One that failed is asked one thing at a time until it answers: it may take
        its time to fail again, and a thread with it."""
        peer = self._peer(node)
        async with peer.turn:
            if not peer.silence:
                yield
                return
            async with peer.trial:
                yield

    def silent(self, node: NodeId, now: float) -> str:
        """Why the peer is left alone for now; empty if it is not."""
        peer = self._peers.get(node)
        return peer.reason if peer is not None and now < peer.until else ""

    def failed(self, node: NodeId, now: float, reason: str) -> None:
        """It did not answer. Several requests that fail at the same time count once."""
        peer = self._peer(node)
        if now >= peer.until:
            peer.silence = min(2 * peer.silence or FIRST_SILENCE, LONGEST_SILENCE)
            peer.until = now + peer.silence
            peer.reason = reason

    def answered(self, node: NodeId) -> None:
        peer = self._peer(node)
        peer.until = peer.silence = 0.0

    def _peer(self, node: NodeId) -> _Peer:
        return self._peers.setdefault(node, _Peer())
