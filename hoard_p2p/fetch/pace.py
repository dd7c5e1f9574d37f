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
