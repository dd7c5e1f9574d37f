"""What peers say that the pieces of lazy snapshots are, held against what was heard before.

Promises: of two words on one piece that differ, the second is not taken, whoever said it; both nodes are named in the
log and asked last for a while; and where this node can read the origin, that decides (`Disputes`). A lie about a piece
of which nobody else spoke is found only there: by the sample that is read before a snapshot is sealed.
"""

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from hoard_p2p.errors import ChunkCorrupt
from hoard_p2p.ids import ChunkId, short
from hoard_p2p.peer import NodeId, Peer

log = logging.getLogger(__name__)

REMEMBERED = 16_384
"""Pieces of which it is known who said what they are: about 5 MB."""

WAITING = 64
"""Disputes that wait to be decided; more are dropped: a piece that is asked for again may be disputed again."""


class Said(NamedTuple):
    """Who named that content; `node` None: this node has it."""

    content: ChunkId
    node: NodeId | None
    name: str


class Dispute(NamedTuple):
    """Two words on one piece."""

    key: ChunkId
    first: Said
    second: Said


class Namings:
    """A `transfer.intake.Named`. Thread-safe."""

    def __init__(
        self, me: str, content: Callable[[ChunkId], ChunkId | None], disputed: Callable[[Dispute], None]
    ) -> None:
        """`me`: this node's name. `content`: what is known here of a key. `disputed` is told from any thread."""
        self._me = me
        self._content = content
        self._disputed = disputed
        self._lock = threading.Lock()
        self._said: OrderedDict[ChunkId, Said] = OrderedDict()
        self._warned: set[frozenset[str]] = set()
        self.disputes = 0
        """How often a peer contradicted what was known."""

    def __call__(self, peer: Peer, key: ChunkId, content: ChunkId) -> None:
        """Raises ChunkCorrupt if that contradicts what was said before."""
        known = self._content(key)
        told = Said(content, peer.node_id, peer.name)
        with self._lock:
            before = self._before(key, known)
            if before is None or before.content == content:
                self._said[key] = told if before is None else before
                self._said.move_to_end(key)
                if len(self._said) > REMEMBERED:
                    self._said.popitem(last=False)
                return
            self.disputes += 1
            pair = frozenset([before.name, told.name])
            level = logging.INFO if pair in self._warned else logging.WARNING
            self._warned.add(pair)
        log.log(
            level, "two nodes disagree about piece %s, so neither is believed: %s says that it is %s, %s that it is %s",
            short(key), before.name, short(before.content), told.name, short(told.content),
        )  # fmt: skip
        self._disputed(Dispute(key, before, told))
        raise ChunkCorrupt(f"piece {short(key)} is {short(before.content)} by {before.name}, not {short(content)}")

    def forget(self, key: ChunkId) -> None:
        """It is open again what this piece is."""
        with self._lock:
            self._said.pop(key, None)

    def _before(self, key: ChunkId, known: ChunkId | None) -> Said | None:
        """What was known of a piece, and of whom. With the lock held."""
        said = self._said.get(key)
        if known is None or (said is not None and said.content == known):
            return said
        return Said(known, None, self._me)


class Disputes:
    """Has the origin decide, one dispute at a time. For the event loop, but `note`."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        shun: Callable[[NodeId], None],
        decide: Callable[[ChunkId], Awaitable[ChunkId | None]],
    ) -> None:
        """`shun`: have a node asked last for a while. `decide`: read a piece from its origin and keep what it is; None
        if this node cannot."""
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._shun = shun
        self._decide = decide
        self._waiting: OrderedDict[ChunkId, Dispute] = OrderedDict()
        self._running = False

    def note(self, dispute: Dispute) -> None:
        """For any thread."""
        self._loop.call_soon_threadsafe(self._add, dispute)

    def _add(self, dispute: Dispute) -> None:
        for said in (dispute.first, dispute.second):
            if said.node is not None:
                self._shun(said.node)
        if len(self._waiting) < WAITING:
            self._waiting[dispute.key] = dispute
        if not self._running:
            self._running = True
            self._group.create_task(self._settle_all())

    async def _settle_all(self) -> None:
        while self._waiting:
            _, dispute = self._waiting.popitem(last=False)
            truth = await self._decide(dispute.key)
            if truth is not None:
                _tell(dispute, truth)
        self._running = False


def _tell(dispute: Dispute, truth: ChunkId) -> None:
    liars = [said.name for said in (dispute.first, dispute.second) if said.content != truth]
    log.warning(
        "the origin says that piece %s is %s: %s was wrong", short(dispute.key), short(truth), " and ".join(liars)
    )
