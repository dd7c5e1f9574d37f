"""How many questions one node asks an origin at a time. Pure: time is handed in (CLUSTER 4, "Read once").

What the whole cluster may ask at once is divided over the reader set; an origin that says it is too much, or times out,
is asked half as much, and one more after each second in which it did not.
"""

from dataclasses import dataclass

RAISE_SECONDS = 1.0
HALVE_SECONDS = 1.0
"""Refusals within it are one: they were asked before the halving could help."""


def share(total: int, members: int) -> int:
    """The questions of one of `members` nodes, of `total` for all."""
    return max(1, total // max(1, members))


@dataclass(slots=True)
class Throttle:
    """One caller at a time."""

    most: int
    """What this node may ask at a time if the origin bears it; set it when the share changes."""

    _cut: int | None = None
    _raised: float = 0.0
    _halved: float = float("-inf")
    times: int = 0
    """It was halved."""

    def allowed(self, now: float) -> int:
        """Questions at a time, at least one."""
        if self._cut is None:
            return max(1, self.most)
        steps = int((now - self._raised) / RAISE_SECONDS)
        if steps > 0:
            self._cut, self._raised = self._cut + steps, self._raised + steps * RAISE_SECONDS
        if self._cut >= self.most:
            self._cut = None
            return max(1, self.most)
        return self._cut

    def busy(self, now: float) -> None:
        """The origin asked to be asked less, or did not answer in time."""
        allowed = self.allowed(now)
        self._raised = now
        if now - self._halved < HALVE_SECONDS:
            self._cut = allowed
            return
        self._halved = now
        self._cut = max(1, allowed // 2)
        self.times += 1


def for_fill(allowed: int, readers_wait: bool) -> int:
    """How many of `allowed` questions those that nobody waits for may take: while readers come and go, some are kept
    free, so that none of them waits for a stream."""
    return max(1, allowed - max(1, allowed // 4)) if readers_wait and allowed > 1 else allowed


def backoff(tries: int, busy: bool, draw: float) -> float:
    """Seconds until a question is asked again that failed for the `tries`th time; `draw` is random in [0, 1), so that
    those that failed together do not come back together."""
    first, longest = (0.4, 8.0) if busy else (0.1, 2.0)
    return float(min(longest, first * 2 ** (tries - 1)) * (0.5 + draw))
