"""How fast a node sends (`--peer-limit`): a rate that all its bulk answers share, each in its turn.

Pure: time is handed in.
"""

LEAST_TURN, LONGEST_TURN = 64 << 10, 16 << 20
"""Bytes of one turn, between which it is what the rate allows in `TURN_TIME`."""
TURN_TIME = 0.02
BURST_TIME = 0.1
"""Seconds of rest that may be made up for at once."""


class Pace:
    """Turns are as long as each other and follow in the order asked for, so each answer gets the same share; nobody
    waits for one that does not send."""

    def __init__(self, rate: int) -> None:
        """`rate`: bytes a second, 0: no limit."""
        self._rate = rate
        self.turn = LONGEST_TURN if not rate else min(max(int(rate * TURN_TIME), LEAST_TURN), LONGEST_TURN)
        self._next = 0.0

    def reserve(self, now: float) -> float:
        """When the next turn may begin."""
        if not self._rate:
            return now
        start = max(self._next, now - BURST_TIME)
        self._next = start + self.turn / self._rate
        return max(start, now)

    def used(self, size: int) -> None:
        """So many bytes of a turn were sent."""
        if self._rate:
            self._next -= (self.turn - size) / self._rate
