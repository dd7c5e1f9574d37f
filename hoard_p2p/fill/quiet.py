"""Whether what a plan is made from has been unchanged for a while: who fills with a view that is still filling up reads
the origin, or asks another rack, for what somebody else brings anyway. Pure: time is handed in.
"""

from collections.abc import Hashable
from dataclasses import dataclass

QUIET_SECONDS = 2.0
LONGEST = 10.0
"""Seconds after which it counts as quiet although it changes all the time."""

KEPT = 1024


@dataclass(slots=True)
class _Seen:
    state: Hashable
    changed: float
    since: float


class Quiet:
    """One state for each topic (a snapshot: the nodes of the view that want it)."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, _Seen] = {}

    def begin(self, topic: Hashable, state: Hashable, now: float) -> None:
        """This node itself changed something about it: its quiet begins now."""
        self._seen.pop(topic, None)
        self._seen[topic] = _Seen(state, now, now)
        if len(self._seen) > KEPT:
            del self._seen[next(iter(self._seen))]

    def look(self, topic: Hashable, state: Hashable, now: float) -> float:
        """Seconds until it has been quiet for long enough, if nothing changes; 0 if it has. Something never looked at
        before counts as quiet: whoever asks about it has waited."""
        seen = self._seen.get(topic)
        if seen is None:
            self.begin(topic, state, now - QUIET_SECONDS)
            return 0.0
        if seen.state != state:
            seen.since = seen.since if now - seen.changed < QUIET_SECONDS else now
            seen.state, seen.changed = state, now
        return max(0.0, min(seen.changed + QUIET_SECONDS, seen.since + LONGEST) - now)
