"""How long a source that gets chunks while it is asked may send nothing, before it is passed by. Pure: no clock.

A source that says `pending` lives. Where a link or a disk is the bound, a dozen segments share it, and one of them may
well get nothing for seconds while the others do: so a source that gave something of any segment just now is busy, not
silent. To pass it by then is worst: the bytes come from another rack, and from it all the same. A source that was
passed by and gave nothing since has little patience coming.
"""

from dataclasses import dataclass, field

from hoard_p2p.interfaces import AskMode
from hoard_p2p.peer import NodeId

GATE_SECONDS, GATE_BUSY = 2.0, 4.0
"""A gateway that sent nothing for so long is passed by; the second one while it gives of other segments."""

READER_SECONDS, READER_BUSY, READERS_WAITED_FOR = 5.0, 15.0, 2
"""A reader of the origin that sent nothing for so long is replaced. The one that takes over may have to wait for the
first one itself, so it gets so much longer, and so forth up to so many times."""

CHAIN_SECONDS, CHAIN_BUSY, CHAIN_STEP, CHAIN_LONGEST = 6.0, 15.0, 0.25, 30.0
"""A predecessor that sent nothing for so long is passed by: longer for each node before it, since the first chunk
takes its time through each of them, but not for minutes in a chain of hundreds. More than a node that hangs is given:
who is behind one that waits for it would otherwise go to another rack, one and all, just before it turns elsewhere
itself."""

BUSY_SECONDS = 3.0
"""A source that gave something within this time is busy."""

AGAIN_SECONDS = 1.0
"""For a predecessor that was passed by and gave nothing since."""

KEPT = 4096


@dataclass(slots=True)
class Silence:
    """What each source of one lane gave when, and whom it passed by; forgotten where there are very many."""

    _gave: dict[NodeId, float] = field(default_factory=dict)
    _passed: dict[NodeId, None] = field(default_factory=dict)

    def gave(self, node: NodeId, now: float) -> None:
        """It gave something, of whichever segment. From any thread."""
        self._passed.pop(node, None)
        if len(self._gave) >= KEPT:
            self._gave.clear()
        self._gave[node] = now

    def passed_by(self, node: NodeId) -> None:
        """It was silent for too long."""
        if len(self._passed) >= KEPT:
            self._passed.clear()
        self._passed[node] = None

    def allowed(self, node: NodeId, mode: AskMode | None, place: int, now: float) -> float:
        """Seconds, for a source asked in that mode. `place`: of this node in the chain; for FETCH, how many readers
        were tried before."""
        busy = now - self._gave.get(node, float("-inf")) < BUSY_SECONDS
        if mode is AskMode.GATE:
            return GATE_BUSY if busy else GATE_SECONDS
        if mode is AskMode.FETCH:
            return READER_BUSY if busy else READER_SECONDS * (1 + min(place, READERS_WAITED_FOR))
        if node in self._passed:
            return AGAIN_SECONDS
        return min((CHAIN_BUSY if busy else CHAIN_SECONDS) + CHAIN_STEP * place, CHAIN_LONGEST)
