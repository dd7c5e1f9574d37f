"""The virtual clock: actions in the order of their times, ties in the order in which they were planned."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any


class Engine:
    """A discrete-event simulation. `now`: seconds since it began; `events`: actions carried out."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._planned: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._turn = count()

    def at(self, when: float, action: Callable[[Any], None], argument: object = None) -> None:
        """Plan `action(argument)`; a time that is over means now."""
        heappush(self._planned, (max(when, self.now), next(self._turn), action, argument))

    def after(self, seconds: float, action: Callable[[Any], None], argument: object = None) -> None:
        self.at(self.now + seconds, action, argument)

    def run(self, until: float = float("inf")) -> None:
        """Carry out what is planned, up to and including the time `until`."""
        planned = self._planned
        while planned and planned[0][0] <= until:
            self.now, _, action, argument = heappop(planned)
            self.events += 1
            action(argument)
        if until != float("inf"):
            self.now = max(self.now, until)
