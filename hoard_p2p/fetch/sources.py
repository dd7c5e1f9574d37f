"""Whom to ask for a segment, in which order (the demand path), and who is out of favour for a while."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from hoard_p2p.errors import Unavailable
from hoard_p2p.fetch.segment import Segment
from hoard_p2p.ids import SnapshotId
from hoard_p2p.interfaces import Residency
from hoard_p2p.peer import ClusterView, NodeId, Peer
from hoard_p2p.placement import rank

SHUN_SECONDS = 30.0
LAST_RESORT = 8
"""Peers asked though neither placement nor residency points at them: a part of a segment is in nobody's record."""

EVERYBODY = 1024
RESIDENCY_MAX_AGE = 5.0
RESIDENCY_TIMEOUT = 2.0
"""Seconds that all peers together get to tell what they hold: a reader waits meanwhile."""

ASKED_AT_ONCE = 64
KEPT_RECORDS = 4096


@dataclass
class Favour:
    """Which peers sent wrong bytes lately. Time is handed in."""

    _until: dict[NodeId, float] = field(default_factory=dict)
    counted: dict[NodeId, int] = field(default_factory=dict)

    def shun(self, node: NodeId, now: float) -> None:
        self._until[node] = now + SHUN_SECONDS
        self.counted[node] = self.counted.get(node, 0) + 1

    def shunned(self, node: NodeId, now: float) -> bool:
        return self._until.get(node, now) > now


class Sources:
    """Homes in placement order (those that failed lately last), then holders by residency record, then a few others,
    then those that sent wrong bytes lately: what they send is checked, and they may be the only ones."""

    def __init__(
        self,
        *,
        view: Callable[[], ClusterView],
        replicas: int,
        residency: Callable[[Peer, SnapshotId], Awaitable[Residency | None]],
        favour: Favour,
        suspects: Callable[[], Container[NodeId]],
        clock: Callable[[], float],
    ) -> None:
        self._view = view
        self._replicas = replicas
        self._ask_residency = residency
        self._favour = favour
        self._suspects = suspects
        self._clock = clock
        self._records: dict[tuple[NodeId, SnapshotId], tuple[float, Residency | None]] = {}

    async def of(self, segment: Segment, first: Peer | None = None) -> AsyncIterator[Peer]:
        """Peers to ask for `segment`, best first; `first` before all others."""
        now = self._clock()
        view = self._view()
        suspects = self._suspects()
        ranked = [peer for peer in rank(view.peers, segment.key) if peer.node_id != view.me]
        ranked.sort(key=lambda peer: peer.node_id in suspects)
        usable = [peer for peer in ranked if not self._favour.shunned(peer.node_id, now)]
        asked: set[NodeId] = set()
        head = ([first] if first is not None else []) + usable[: self._replicas]
        for peer in head:
            if peer.node_id not in asked:
                asked.add(peer.node_id)
                yield peer
        rest = [peer for peer in usable if peer.node_id not in asked]
        if segment.number >= 0:
            for peer in await self._holders(rest, segment):
                asked.add(peer.node_id)
                yield peer
        for peer in [peer for peer in rest if peer.node_id not in asked][: self._last_resort(segment)]:
            asked.add(peer.node_id)
            yield peer
        # A peer that sent a wrong chunk may be the only one with others: its disk is damaged, it need not be hostile.
        # Also one that did so in this very round: it was left at the first wrong byte.
        for peer in [peer for peer in ranked if self._favour.shunned(peer.node_id, now)][:LAST_RESORT]:
            yield peer

    @staticmethod
    def _last_resort(segment: Segment) -> int:
        """How many peers to try blindly. No record tells who has a catalog, so for its chunks it is all of them."""
        return LAST_RESORT if segment.number >= 0 else EVERYBODY

    async def _holders(self, peers: Sequence[Peer], segment: Segment) -> list[Peer]:
        """Those of `peers` whose record says that they hold the segment, asked at the same time, within a deadline."""
        records: dict[NodeId, Residency | None] = {}

        async def ask(peer: Peer) -> None:
            records[peer.node_id] = await self._residency(peer, segment.snapshot)

        with suppress(TimeoutError):
            async with asyncio.timeout(RESIDENCY_TIMEOUT), asyncio.TaskGroup() as group:
                for peer in peers[:ASKED_AT_ONCE]:
                    group.create_task(ask(peer))
        held = {node for node, record in records.items() if record is not None and record.holds(segment.number)}
        return [peer for peer in peers if peer.node_id in held]

    async def _residency(self, peer: Peer, snapshot: SnapshotId) -> Residency | None:
        key = (peer.node_id, snapshot)
        known = self._records.get(key)
        now = self._clock()
        if known is not None and now - known[0] < RESIDENCY_MAX_AGE:
            return known[1]
        try:
            record = await self._ask_residency(peer, snapshot)
        except Unavailable:
            record = None
        self._records[key] = (now, record)
        if len(self._records) > KEPT_RECORDS:
            self._records = {
                known: entry for known, entry in self._records.items() if now - entry[0] < RESIDENCY_MAX_AGE
            }
        return record
