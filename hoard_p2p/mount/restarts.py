"""When the dead processes of a mount are to be started again. Pure: told the time, decides, does nothing."""

import math

VAIN_STARTS = 5
"""Workers that may end before they serve, one after another, until a mount that never answered is given up."""
VAIN_DELAY = 0.05
LONGEST_DELAY = 1.0
"""Seconds before a worker is started again: one more VAIN_DELAY for each that ended before it served."""
LASTING = 10.0
"""Seconds without a crash after which the next one counts as the first."""
FORGIVEN = 4
"""Crashes in a row that are made good at once: a request that kills who gets it takes two."""
VERIFIER_DELAY = 0.5
VERIFIER_LONGEST_DELAY = 60.0
"""Seconds before the verifier is started again: twice as many each time, unless it lived longer than the longest."""


class Restarts:
    """Of one mount, whose verifier (if it has one) is in slot `verifier`. Times are seconds of one clock."""

    def __init__(self, verifier: int) -> None:
        self._verifier = verifier
        self._due: dict[int, float] = {}
        self._vain = 0
        self._crashes = 0
        self._crashed_at = -math.inf
        self._verifier_delay = VERIFIER_DELAY
        self._verifier_start = -math.inf

    @property
    def in_vain(self) -> bool:
        return self._vain >= VAIN_STARTS

    def served(self) -> None:
        """A worker serves: they can be started, so the next dead one is replaced at once."""
        self._vain = 0

    def ended(self, number: int, *, served: bool, now: float, crashed: bool = False) -> None:
        """The process of a slot ended; `served`: a worker that answered requests before; `crashed`: nobody killed it.

        Workers that serve and crash, again and again, would else be started dozens of times a second."""
        if number == self._verifier:
            if now - self._verifier_start > VERIFIER_LONGEST_DELAY:
                self._verifier_delay = VERIFIER_DELAY
            self._due[number] = now + self._verifier_delay
            self._verifier_delay = min(VERIFIER_LONGEST_DELAY, 2 * self._verifier_delay)
        else:
            self._vain += not served
            if crashed:
                self._crashes = self._crashes + 1 if now - self._crashed_at < LASTING else 1
                self._crashed_at = now
            failures = max(self._vain, self._crashes - FORGIVEN if crashed else 0)
            self._due[number] = now + min(LONGEST_DELAY, VAIN_DELAY * failures)

    def failed(self, number: int, now: float) -> None:
        """The kernel would not start a process for a slot."""
        self._due[number] = now + LONGEST_DELAY

    def due(self, now: float) -> list[int]:
        """The slots whose process is to be started now; forgotten here."""
        numbers = [number for number, at in self._due.items() if at <= now]
        for number in numbers:
            del self._due[number]
            if number == self._verifier:
                self._verifier_start = now
        return numbers

    def wait(self, now: float) -> float:
        """Seconds until one is due, infinity if none is."""
        return max(0.0, min(self._due.values(), default=math.inf) - now)
