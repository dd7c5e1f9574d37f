"""Room for who waits for it: sets are evicted in the order of `storage.eviction` until there is enough."""

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hoard_p2p.catalog.root import decode as decode_root
from hoard_p2p.errors import HoardError, Refused, SnapshotUnknown
from hoard_p2p.ids import SnapshotId, short
from hoard_p2p.node import removal
from hoard_p2p.node.evicting import Evictions, Outcome
from hoard_p2p.printing import size_text
from hoard_p2p.storage.eviction import CachedSet, Part, order, to_free

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

log = logging.getLogger(__name__)

RELIEF_SECONDS = 5.0
VAIN_SECONDS = 10.0
"""Who asks for room again so soon after there was none to be had is refused at once."""


@dataclass(frozen=True, slots=True)
class Evictable:
    """What could go to make room. `action`: the command, for people; `size`: bytes at most, as far as is known;
    `by_itself`: it goes without being asked where room is needed."""

    snapshot: SnapshotId
    size: int
    action: str
    by_itself: bool


class Relief:
    """`relief`, `candidates` and `advice` are for any thread but the event loop's, the rest is for the loop."""

    def __init__(self, node: "Node", evictions: Evictions) -> None:
        self._node = node
        self._evictions = evictions
        self._loop = asyncio.get_running_loop()
        self._freeing = asyncio.Lock()
        self._vain_until = 0.0
        self._collected = 0

    @property
    def busy(self) -> bool:
        """Whether somebody waits for room."""
        return self._freeing.locked()

    def _is_vain(self) -> bool:
        """There was nothing to be had a moment ago, and nothing ended since."""
        return time.monotonic() < self._vain_until and self._node.retention.ended() == self._collected

    async def keep_headroom(self) -> None:
        """Evict if too little is left for what arrives."""
        room = self._node.store.room
        size = to_free(room.capacity, await self._available())
        if size > 0 and not self._is_vain():
            await self.free(size)

    def relief(self, size: int) -> bool:
        """Blocking, from any thread but the loop's: try for a few seconds to make `size` bytes available."""
        if self._is_vain():
            return False
        answer: Future[bool] = Future()
        try:
            self._loop.call_soon_threadsafe(self._start_relief, size, answer)
            return answer.result(RELIEF_SECONDS)
        except (TimeoutError, RuntimeError):  # it goes on; or the loop is closed
            return False

    def _start_relief(self, size: int, answer: "Future[bool]") -> None:
        async def free() -> None:
            try:
                freed = await self.free(size)
            except HoardError as error:
                log.warning("no room was made: %s", error)
                freed = False
            except Exception:  # the door of this task: a bug must not end the node
                log.exception("no room was made")
                freed = False
            answer.set_result(freed)

        self._node.group.create_task(free())

    async def free(self, size: int) -> bool:
        """Evict, set by set, until `size` bytes are available."""
        async with self._freeing:
            if await self._available() >= size:
                return True
            outcome = Outcome()
            await self._collect()
            for step in order(self._sets()):
                if await self._available() >= size:
                    break
                await self._step(step.snapshot, step.part, size, outcome)
            await self._node.retention.settle(outcome)
            enough = await self._available() >= size
            if not enough:
                self._vain_until = time.monotonic() + VAIN_SECONDS
            return enough

    async def _available(self) -> int:
        """Looks at the disk, in a thread that nobody who waits for room can hold."""
        return await self._evictions.thread(lambda: self._node.store.room.available)

    async def _collect(self) -> None:
        """What ended since the last time, and what nobody keeps alive any more."""
        ended = self._node.retention.ended()
        if ended != self._collected or any(one.expired for one in self._sets()):
            await self._node.retention.gc(thorough=False)
            self._collected = ended

    async def _step(self, snapshot: SnapshotId, part: Part, size: int, outcome: Outcome) -> None:
        record, before = self._node.names.snapshot(snapshot), outcome.size
        if record is None:
            return
        if record.replicas >= len(self._node.agent.view().peers) and not self._node.origins.readable(snapshot):
            return  # nobody could vouch
        catalog = await self._evictions.catalog(snapshot)
        if catalog is None:
            return
        missing = size - await self._available()
        evictor = await self._evictions.evictor(snapshot)
        with suppress(Refused, SnapshotUnknown):  # in use since just now
            await self._evictions.evict_part(
                record, catalog, evictor, part, outcome, enough=lambda: outcome.size - before >= missing
            )
        await self._node.retention.settle(outcome)
        if outcome.size > before:
            log.info("%s of %s were evicted to make room", size_text(outcome.size - before), short(snapshot))

    def _sets(self) -> list[CachedSet]:
        now = time.time_ns()
        return [
            CachedSet(
                record.id,
                record.last_used,
                needed=record.pinned or bool(self._node.leases.users(record.id)),
                expired=(until := removal.expires(self._node, record)) is not None and until < now,
            )
            for record in self._node.names.known()
        ]

    def candidates(self) -> Sequence[Evictable]:
        """What could be evicted or removed, largest first. Reads a few rows of the index for each snapshot."""
        found, nodes = [], len(self._node.agent.view().peers)
        for one in self._sets():
            record, encoded = self._node.names.snapshot(one.snapshot), self._node.store.root(one.snapshot)
            if one.needed or record is None or encoded is None or not record.shown:
                continue
            root = decode_root(encoded)
            if any(self._node.reader.place(run.chunk_id) for run in root.catalog_runs[:1]):
                verb = "evict" if nodes > record.replicas or self._node.origins.readable(one.snapshot) else "rm"
                action = f"hoard {verb} {short(one.snapshot)}"
                found.append(Evictable(one.snapshot, root.totals.unique, action, one.expired or verb == "evict"))
        return sorted(found, key=lambda one: -one.size)

    def could_fit(self, size: int) -> None:
        """Raises StoreFull if `size` new bytes cannot be stored, even if all went that goes by itself."""
        self._node.store.room.could_fit(size, sum(one.size for one in self.candidates() if one.by_itself))

    def advice(self, size: int) -> str:
        """What could be given up to have that many bytes more, in words; empty if nothing."""
        named = [f"{one.action} (up to {size_text(one.size)})" for one in self.candidates()[:3]]
        return ", ".join(named)
