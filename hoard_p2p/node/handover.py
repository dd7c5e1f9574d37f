"""Handing a new snapshot's segments to their homes before it is shown (I11).

The homes pull: this node only tells each which segments are its own and where they are. A home that fails or is full
is replaced by the next node in the segment's order. Planning is pure (`Copies`), `hand_over` carries it out.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor

from hoard_p2p.errors import Unavailable
from hoard_p2p.ids import ChunkId
from hoard_p2p.peer import ClusterView, NodeId, Peer
from hoard_p2p.placement import homes, rows

log = logging.getLogger(__name__)

BATCH_SEGMENTS = 16
"""Segments asked of a home in one request: 128 MiB on average, so that progress shows and a failure costs little."""

SPARE = 2
"""Nodes that are remembered per segment after its homes; the whole order of a large cluster takes too much memory."""

Adopt = Callable[[Peer, Sequence[int]], Awaitable[Sequence[int]]]
"""Ask a home to pull segments; the ones that are durable there. Raises Unavailable."""


class Copies:
    """Which homes hold which segments by now, and whom to ask next. Pure.

    `keys`: segment -> placement key, for segments that hold data. The publisher holds everything, and counts for the
    segments that it is a home of; without `publisher_has_all` it is a node like any other. Construction and
    `next_round` take about a second for a million pairs of segment and node; the rest is cheap. One caller at a time.
    """

    def __init__(
        self, view: ClusterView, keys: Mapping[int, ChunkId], replicas: int, *, publisher_has_all: bool = True
    ) -> None:
        self._view = view
        self._never = {view.me} if publisher_has_all else set[NodeId]()
        self._wanted = min(replicas, len(view.peers))
        self._keys = keys
        found = rows(view.peers, list(keys.values()), replicas + SPARE)
        self._orders = {
            segment: tuple(view.by_id[node] for node in row) for segment, row in zip(keys, found, strict=True)
        }
        self._asked: dict[int, set[NodeId]] = defaultdict(set)
        self._mine = [
            segment
            for segment, order in self._orders.items()
            if publisher_has_all and any(peer.node_id == view.me for peer in order[:replicas])
        ]
        self._holders = dict.fromkeys(keys, 0) | dict.fromkeys(self._mine, 1)
        self._open = {segment for segment, count in self._holders.items() if count < self._wanted}
        self._settled = len(keys) - len(self._open)

    def next_round(self) -> dict[Peer, list[int]]:
        """For each peer the segments to ask it for; empty when every segment has its copies or nobody is left."""
        plan: dict[Peer, list[int]] = defaultdict(list)
        for segment in sorted(self._open):
            chosen = self._next_homes(segment)
            for peer in chosen:
                plan[peer].append(segment)
            if not chosen:
                self._open.discard(segment)
        return plan

    def _next_homes(self, segment: int) -> list[Peer]:
        """The best nodes that were not asked yet, as many as copies are missing."""
        needed = self._wanted - self._holders[segment]
        left = self._not_asked(segment)
        if len(left) < needed and len(self._orders[segment]) < len(self._view.peers):
            self._orders[segment] = homes(self._view.peers, self._keys[segment], len(self._view.peers))
            left = self._not_asked(segment)
        return left[:needed]

    def _not_asked(self, segment: int) -> list[Peer]:
        asked = self._asked.get(segment, set()) | self._never
        return [peer for peer in self._orders[segment] if peer.node_id not in asked]

    def answered(self, peer: Peer, asked: Sequence[int], stored: Sequence[int]) -> None:
        """`peer` holds `stored` of the segments it was asked for; it will not be asked for any of them again."""
        kept = set(stored)
        for segment in asked:
            if peer.node_id in self._asked[segment]:
                continue
            self._asked[segment].add(peer.node_id)
            self._holders[segment] += segment in kept
            if segment in self._open and self._holders[segment] >= self._wanted:
                self._open.discard(segment)
                self._settled += 1

    def mine(self) -> list[int]:
        """Segments that the publisher itself is a home of."""
        return self._mine

    def settled(self) -> int:
        """Segments that have all their copies."""
        return self._settled

    def under_replicated(self) -> list[int]:
        """Segments with fewer copies than min(replicas, nodes in the view)."""
        return [segment for segment, count in self._holders.items() if count < self._wanted]

    def nowhere(self) -> list[int]:
        """Segments that nobody holds."""
        return [segment for segment, count in self._holders.items() if not count]


async def hand_over(
    copies: Copies,
    adopt: Adopt,
    report: Callable[[int], Awaitable[None]],
    *,
    executor: Executor | None = None,
    lanes: int = 1,
    over: Callable[[], bool] = lambda: False,
) -> list[int]:
    """Ask homes until every segment has its copies, or it is `over`; the segments that could not have them all.

    `report` is called with the number of settled segments. All homes pull at the same time, `lanes` batches each.
    Rounds are planned in `executor`, while nobody is being asked.
    """
    loop = asyncio.get_running_loop()
    while not over() and (plan := await loop.run_in_executor(executor, copies.next_round)):
        async with asyncio.TaskGroup() as group:
            for peer, segments in plan.items():
                batches = _batches(segments, over)
                for _ in range(lanes):
                    group.create_task(_hand_to(peer, batches, copies, adopt, report))
    return copies.under_replicated()


def _batches(segments: Sequence[int], over: Callable[[], bool]) -> Iterator[Sequence[int]]:
    for start in range(0, len(segments), BATCH_SEGMENTS):
        if over():
            return
        yield segments[start : start + BATCH_SEGMENTS]


async def _hand_to(
    peer: Peer,
    batches: Iterator[Sequence[int]],
    copies: Copies,
    adopt: Adopt,
    report: Callable[[int], Awaitable[None]],
) -> None:
    for batch in batches:
        try:
            stored = await adopt(peer, batch)
        except Unavailable as error:
            left = [*batch, *(segment for later in batches for segment in later)]
            log.warning("home %s did not take %d segments: %s", peer.name, len(left), error)
            copies.answered(peer, left, ())
            return
        copies.answered(peer, batch, stored)
        await report(copies.settled())
