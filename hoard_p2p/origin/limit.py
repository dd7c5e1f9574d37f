"""How fast one node reads an origin, where that is limited. Pure: time is handed in.

The limit is the cluster's; each node that reads takes its part. What readers wait for goes first: it may run ahead by
`URGENT_SECONDS` of the rate, which what nobody waits for then pays.
"""

from dataclasses import dataclass

SAVED_SECONDS = 0.1
"""So much of the rate can be saved up: what comes at once."""

URGENT_SECONDS = 0.5


def part(limit: int, wanting: int) -> float:
    """Bytes a second for one of `wanting` nodes that read now; 0: no limit."""
    return limit / max(1, wanting) if limit else 0.0


@dataclass(slots=True)
class Limit:
    """One caller at a time."""

    rate: float = 0.0
    """Bytes a second; 0: no limit."""

    _free: float = 0.0
    """When all that was taken is paid for."""

    def take(self, size: int, now: float, *, urgent: bool) -> float:
        """Seconds to wait after `size` bytes came, before more are read."""
        if not self.rate:
            return 0.0
        self._free = max(self._free, now - SAVED_SECONDS) + size / self.rate
        return max(0.0, self._free - now - (URGENT_SECONDS if urgent else 0.0))
