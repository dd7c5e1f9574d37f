"""How long each peer takes to answer a reader, and so when it is slow. Time is handed in.

A reader that waits for a slow peer asks another one too, for what that *has*: a question that costs the second peer
nothing but the bytes, and never the origin's reader.
"""

from collections import deque
from statistics import median

from hoard_p2p.peer import NodeId

SLOWER = 3.0
"""Times its own median after which a peer is slow."""

LEAST, MOST, UNKNOWN = 0.2, 2.0, 0.5
"""Seconds: a whole chunk at a busy link's share of a tenth takes 0.3 s, and that is not slow."""

KEPT = 32
PEERS = 1024

DRAG_TIMES, DRAG_LEAST, DRAG_LONGEST = 10.0, 8.0, 120.0
"""A peer drags that takes so many times as long for a chunk as is usual here; seconds at least, and at most."""

DRAG_KEPT = 64
DRAG_DOUBLINGS = 2


class Pace:
    """For the event loop."""

    def __init__(self) -> None:
        self._waits: dict[NodeId, deque[float]] = {}

    def took(self, node: NodeId, seconds: float) -> None:
        """So long a question took that was answered without a halt."""
        waits = self._waits.pop(node, None) or deque(maxlen=KEPT)
        self._waits[node] = waits
        waits.append(seconds)
        if len(self._waits) > PEERS:
            del self._waits[next(iter(self._waits))]

    def patience(self, node: NodeId) -> float:
        """Seconds without a chunk after which the peer is slow."""
        waits = self._waits.get(node)
        return UNKNOWN if not waits else min(MOST, max(LEAST, SLOWER * median(waits)))


class Drag:
    """When a peer brings so little that the question is better broken off: it holds a thread, and a turn. Only by
    comparison, so that nothing is broken off where all are slow; each time that was done, and nothing came, the peer
    gets twice as long: it may be the only one. For the event loop."""

    def __init__(self) -> None:
        self._chunks: deque[float] = deque(maxlen=DRAG_KEPT)
        self._broken: dict[NodeId, tuple[int, float]] = {}

    def came(self, node: NodeId, seconds: float) -> None:
        """A chunk of this peer took so long."""
        self._chunks.append(seconds)
        self._broken.pop(node, None)

    def allowance(self, node: NodeId) -> float:
        """Seconds that this peer gets for its next chunk."""
        usual = max(DRAG_LEAST, DRAG_TIMES * median(self._chunks)) if self._chunks else DRAG_LEAST
        return min(DRAG_LONGEST, usual * (1 << self._broken.get(node, (0, 0.0))[0]))

    def broke_off(self, node: NodeId, now: float) -> None:
        """Several questions that are broken off at the same time count once."""
        times, last = self._broken.pop(node, (0, now - DRAG_LEAST))
        counts = now - last >= DRAG_LEAST
        self._broken[node] = (min(times + 1, DRAG_DOUBLINGS), now) if counts else (times, last)
        if len(self._broken) > PEERS:
            del self._broken[next(iter(self._broken))]
