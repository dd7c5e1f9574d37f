"""Copies that others keep: asking for them before one's own go, and keeping those that were promised (I4).

The rule is `repair.lastcopy`. Whoever promised drops nothing of that segment while the promise lasts; both are decided
under one lock, so of two nodes that ask each other one keeps its copy.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hoard_p2p.errors import Unavailable
from hoard_p2p.ids import ChunkId, SnapshotId
from hoard_p2p.peer import ClusterView, Peer
from hoard_p2p.repair.lastcopy import PROMISED_SECONDS, enough, whom_to_ask


class Promises:
    """What this node promised to keep. In memory: a node that starts again asks others before it drops anything, and
    those that relied on it dropped their copies before. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.deciding = threading.RLock()
        """Held while it is looked what is here and promised, and while what was not promised is dropped."""
        self._clock = clock
        self._until: dict[SnapshotId, dict[int, float]] = {}

    def promise(self, snapshot: SnapshotId, segments: Iterable[int]) -> None:
        with self.deciding:
            until = self._clock() + PROMISED_SECONDS
            self._until.setdefault(snapshot, {}).update(dict.fromkeys(segments, until))

    def kept(self, snapshot: SnapshotId) -> set[int]:
        """Segments that must stay now."""
        with self.deciding:
            now, known = self._clock(), self._until.get(snapshot, {})
            left = {segment: until for segment, until in known.items() if until > now}
            if left:
                self._until[snapshot] = left
            else:
                self._until.pop(snapshot, None)
            return set(left)


@dataclass(frozen=True, slots=True)
class Vouched:
    """Segments that enough others keep, as they said when they were `asked` (of the monotonic clock)."""

    segments: frozenset[int]
    asked: float


Ask = Callable[[Peer, Sequence[int]], Awaitable[Sequence[int]]]
"""Ask a node to vouch for segments of a snapshot; those that it does, and that it has as far as can be told. Raises
Unavailable."""


async def vouched(ask_one: Ask, view: ClusterView, keys: Mapping[int, ChunkId], replicas: int) -> Vouched:
    """Ask others to vouch for segments, at most `wire_life.MAX_VOUCHED`. Who does not answer in time does not vouch."""
    asked = time.monotonic()
    answers: list[Sequence[int]] = []

    async def ask(peer: Peer, segments: Sequence[int]) -> None:
        try:
            answers.append(await ask_one(peer, segments))
        except Unavailable:
            return

    plan = await asyncio.to_thread(whom_to_ask, view, keys, replicas)
    async with asyncio.TaskGroup() as group:
        for node, segments in plan.items():
            group.create_task(ask(view.by_id[node], segments))
    return Vouched(enough(answers, replicas), asked)
