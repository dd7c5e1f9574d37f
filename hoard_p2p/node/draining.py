"""Leaving for good: a node gives up its shares and waits until enough others vouch for what it holds (CLUSTER 3).

While it drains its weight is 0: it is home of nothing, others plan without it and copy from it what is theirs now. It
is safe to remove once each segment of which it has anything is vouched for by as many nodes as the snapshot has
replicas (as many as there are, where there are fewer).
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.config import Json
from hoard_p2p.errors import Unavailable
from hoard_p2p.ids import SnapshotId, short
from hoard_p2p.node import vouching
from hoard_p2p.node.course import Report
from hoard_p2p.node.evicting import BATCH, look
from hoard_p2p.node.meeting import weight_here
from hoard_p2p.peer import ClusterView
from hoard_p2p.printing import size_text
from hoard_p2p.repair.lastcopy import PROMISED_SECONDS
from hoard_p2p.storage.records import SnapshotRecord

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
RELIED_SECONDS = PROMISED_SECONDS / 2
"""For so long a promise is relied on while the rest is waited for; then it is asked for anew."""
LISTED = 8


@dataclass(slots=True)
class _Set:
    """A snapshot of which something is here: its segments with their bytes here, and until when others vouched for
    each."""

    record: SnapshotRecord
    catalog: Catalog
    sizes: dict[int, int]
    vouched: dict[int, float] = field(default_factory=dict)

    def unsafe(self, now: float) -> list[int]:
        return [segment for segment in self.sizes if self.vouched.get(segment, 0.0) <= now]


class Drain:
    """One drain, from `start` until the node ends, or `end`."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._sets: dict[SnapshotId, _Set] = {}

    def start(self) -> None:
        """This node is home of nothing from now on, and copies nothing any more."""
        log.info("the node drains: it gives up its shares")
        self._node.repairing.paused = True
        self._set_weight(0)

    def end(self) -> None:
        """Back to normal, unless the node ends anyway."""
        if not self._node.stop.is_set():
            log.info("the node does not drain any more: it takes its shares again")
            self._set_weight(weight_here(self._node.store))
            self._node.repairing.paused = False

    def _set_weight(self, weight: int) -> None:
        self._node.me = replace(self._node.me, weight=weight)
        self._node.agent.renew(self._node.me)

    async def wait(self, report: Report, *, stall: float) -> dict[str, Json]:
        """Until it is safe to remove this node; what was handed over then. Raises Unavailable if it cannot be: this
        node is alone, or nothing moved for `stall` seconds."""
        await self._list()
        least, moved = self._total() + 1, time.monotonic()
        while True:
            await self._ask_all()
            left = self._left()
            await report({"phase": "draining", "bytes": self._total(), "bytes_done": self._total() - left})
            if not left:
                await self._list()  # what was published meanwhile is here, too
                if not self._left():
                    return {"safe": True, "bytes": self._total(), "snapshots": len(self._sets)}
                least = self._total() + 1
            now = time.monotonic()
            if left < least:
                least, moved = left, now
            if now - moved > stall:
                raise Unavailable(self._why_not(left, stall))
            await asyncio.sleep(POLL_SECONDS)

    def _total(self) -> int:
        return sum(sum(one.sizes.values()) for one in self._sets.values())

    def _left(self) -> int:
        now = time.monotonic()
        return sum(one.sizes[segment] for one in self._sets.values() for segment in one.unsafe(now))

    async def _list(self) -> None:
        """What is here of snapshots that others must keep: not of those that others can read from their origin."""
        node, sets = self._node, dict[SnapshotId, _Set]()
        for record in node.names.snapshots():
            catalog = None if node.origins.stays(record.id) else await node.retention.evictions.catalog(record.id)
            if catalog is not None:
                sizes = await node.blocking(self._sizes, catalog)
                known = self._sets.get(record.id)
                vouched = {} if known is None or known.record.replicas != record.replicas else known.vouched
                if sizes:
                    sets[record.id] = _Set(record, catalog, sizes, vouched)
        self._sets = sets

    def _sizes(self, catalog: Catalog) -> dict[int, int]:
        """Blocking. Segments of which chunks are here, and the bytes of those."""
        sizes: dict[int, int] = {}
        for at in range(0, catalog.segments, BATCH):
            batch = look(self._node.reader, catalog, range(at, min(at + BATCH, catalog.segments)))
            sizes.update({segment: batch.size([segment]) for segment in batch.chunks})
        return sizes

    async def _ask_all(self) -> None:
        view = self._node.agent.view()
        able = sum(peer.weight > 0 for peer in view.others)
        if not able:
            if self._left():
                raise Unavailable(
                    "this node holds data and no other node takes any: stop it without --drain (its data is not to be "
                    "had then), or start others first"
                )
            return
        for one in self._sets.values():
            unsafe = one.unsafe(time.monotonic())
            for at in range(0, len(unsafe), BATCH):
                await self._ask(view, one, unsafe[at : at + BATCH], min(one.record.replicas, able))

    async def _ask(self, view: ClusterView, one: _Set, segments: Iterable[int], replicas: int) -> None:
        keys = {segment: key for segment in segments if (key := one.catalog.placement_key(segment)) is not None}
        ask = self._node.retention.evictions.asker(one.record.id, one.catalog)
        vouched = await vouching.vouched(ask, view, keys, replicas)
        one.vouched.update(dict.fromkeys(vouched.segments, vouched.asked + RELIED_SECONDS))

    def _why_not(self, left: int, stall: float) -> str:
        now = time.monotonic()
        sets = [
            f"{len(unsafe)} segments of {short(key)}" for key, one in self._sets.items() if (unsafe := one.unsafe(now))
        ]
        more = f" and {len(sets) - LISTED} other snapshots" if len(sets) > LISTED else ""
        return (
            f"it is not safe to remove this node: {size_text(left)} are not held by enough others, and nothing moved "
            f"for {stall:.0f} s: {', '.join(sets[:LISTED])}{more}. Are others full, or away? (hoard peers, hoard "
            "status there.) This node goes on as before"
        )
