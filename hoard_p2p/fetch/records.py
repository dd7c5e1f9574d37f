"""What peers hold of a snapshot: their residency records, each asked for by one question at a time and kept a while.

For the event loop. Who waits for an answer has a patience of its own; the question goes on without it, and who never
answers costs no other segment its deadline.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from hoard_p2p.errors import HoardError
from hoard_p2p.fetch.segment import Segment
from hoard_p2p.ids import SnapshotId
from hoard_p2p.interfaces import Residency
from hoard_p2p.peer import NodeId, Peer

MAX_AGE = 5.0
ANSWER_SECONDS = 2.0
ASKED_AT_ONCE = 64
KEPT_RECORDS = 4096

AskResidency = Callable[[Peer, SnapshotId], Awaitable[Residency | None]]
_Key = tuple[NodeId, SnapshotId]


class Records:
    """See the module."""

    def __init__(self, ask: AskResidency, clock: Callable[[], float], group: asyncio.TaskGroup) -> None:
        """Questions run in `group`."""
        self._ask = ask
        self._clock = clock
        self._group = group
        self._known: dict[_Key, tuple[float, Residency | None]] = {}
        self._asking: dict[_Key, asyncio.Task[None]] = {}

    async def holders(self, peers: Sequence[Peer], segment: Segment, seconds: float) -> list[Peer]:
        """Those of the first `ASKED_AT_ONCE` of `peers` that hold the segment as far as is known after `seconds`."""
        asked, snapshot = peers[:ASKED_AT_ONCE], segment.snapshot
        asking = [self._begun(peer, snapshot) for peer in asked if not self._is_fresh((peer.node_id, snapshot))]
        if asking:
            await asyncio.wait(asking, timeout=seconds)
        return [peer for peer in asked if self._holds((peer.node_id, snapshot), segment.number)]

    def _is_fresh(self, key: _Key) -> bool:
        known = self._known.get(key)
        return known is not None and self._clock() - known[0] < MAX_AGE

    def _holds(self, key: _Key, number: int) -> bool:
        """By what it told last: what a node holds it seldom drops."""
        _, record = self._known.get(key, (0.0, None))
        return record is not None and record.holds(number)

    def _begun(self, peer: Peer, snapshot: SnapshotId) -> asyncio.Task[None]:
        key = (peer.node_id, snapshot)
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = self._group.create_task(self._learn(key, peer))
        return task

    async def _learn(self, key: _Key, peer: Peer) -> None:
        """Ask; who does not answer counts as it did."""
        _, record = self._known.get(key, (0.0, None))
        try:
            with suppress(HoardError, TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    record = await self._ask(peer, key[1])
        finally:
            del self._asking[key]
        now = self._clock()
        self._known[key] = (now, record)
        if len(self._known) > KEPT_RECORDS:
            self._known = {one: entry for one, entry in self._known.items() if now - entry[0] < MAX_AGE}
