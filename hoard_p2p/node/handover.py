"""Handing a new snapshot's segments to their homes before it is shown (I11).

The homes pull: this node only tells each which segments are its own and where they are. A home that fails or is full
is replaced by the next node in the segment's order. Planning is pure (`Copies`), `hand_over` carries it out.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence

from hoard_p2p.errors import Unavailable
from hoard_p2p.ids import ChunkId
from hoard_p2p.peer import ClusterView, NodeId, Peer
from hoard_p2p.placement import homes, rank

log = logging.getLogger(__name__)

BATCH_SEGMENTS = 16
"""Segments asked of a home in one request: 128 MiB on average, so that progress shows and a failure costs little."""

Adopt = Callable[[Peer, Sequence[int]], Awaitable[Sequence[int]]]
"""Ask a home to pull segments; the ones that are durable there. Raises Unavailable."""


class Copies:
    """Which homes hold which segments by now, and whom to ask next. Pure.

    `keys`: segment -> placement key, for segments that hold data. The publisher holds everything, and counts for the
    segments that it is a home of.
    """

    def __init__(self, view: ClusterView, keys: Mapping[int, ChunkId], replicas: int) -> None:
        self._view = view
        self._wanted = min(replicas, len(view.peers))
        self._replicas = replicas
        self._keys = keys
        self._holders: dict[int, int] = {}
        self._refused: dict[int, set[NodeId]] = defaultdict(set)
        self._open = set(keys)
        self._mine: list[int] = []
        for segment, key in keys.items():
            here = any(peer.node_id == view.me for peer in homes(view.peers, key, replicas))
            self._holders[segment] = int(here)
            if here:
                self._mine.append(segment)

    def next_round(self) -> dict[Peer, list[int]]:
        """For each peer the segments to ask it for; empty when every segment has its copies or nobody is left."""
        plan: dict[Peer, list[int]] = defaultdict(list)
        for segment in sorted(self._open):
            needed = self._wanted - self._holders[segment]
            chosen = [peer for peer in self._order(segment) if peer.node_id not in self._refused[segment]]
            for peer in chosen[: max(needed, 0)]:
                plan[peer].append(segment)
            if needed <= 0 or not chosen:
                self._open.discard(segment)
        return plan

    def _order(self, segment: int) -> list[Peer]:
        key = self._keys[segment]
        first = homes(self._view.peers, key, self._replicas)
        rest = [peer for peer in rank(self._view.peers, key) if peer not in first]
        return [peer for peer in (*first, *rest) if peer.node_id != self._view.me]

    def answered(self, peer: Peer, asked: Sequence[int], stored: Sequence[int]) -> None:
        """`peer` holds `stored` of the segments it was asked for; it will not be asked for any of them again."""
        kept = set(stored)
        for segment in asked:
            self._holders[segment] += segment in kept
            self._refused[segment].add(peer.node_id)

    def mine(self) -> list[int]:
        """Segments that the publisher itself is a home of."""
        return self._mine

    def settled(self) -> int:
        """Segments that have all their copies."""
        return sum(count >= self._wanted for count in self._holders.values())

    def under_replicated(self) -> list[int]:
        """Segments with fewer copies than min(replicas, nodes in the view)."""
        return [segment for segment, count in self._holders.items() if count < self._wanted]


async def hand_over(copies: Copies, adopt: Adopt, report: Callable[[int], Awaitable[None]]) -> list[int]:
    """Ask homes until every segment has its copies; the segments that could not have them all.

    `report` is called with the number of settled segments. All homes pull at the same time, one batch each.
    """
    while plan := copies.next_round():
        async with asyncio.TaskGroup() as group:
            for peer, segments in plan.items():
                group.create_task(_hand_to(peer, segments, copies, adopt, report))
    return copies.under_replicated()


async def _hand_to(
    peer: Peer, segments: Sequence[int], copies: Copies, adopt: Adopt, report: Callable[[int], Awaitable[None]]
) -> None:
    for start in range(0, len(segments), BATCH_SEGMENTS):
        batch = segments[start : start + BATCH_SEGMENTS]
        try:
            stored = await adopt(peer, batch)
        except Unavailable as error:
            log.warning("home %s did not take %d segments: %s", peer.name, len(segments) - start, error)
            copies.answered(peer, segments[start:], ())
            return
        copies.answered(peer, batch, stored)
        await report(copies.settled())
