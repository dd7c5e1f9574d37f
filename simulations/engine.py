"""The virtual clock: actions in the order of their times, ties in the order in which they were planned."""

import gc
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
        heappush(self._planned, (when if when > self.now else self.now, next(self._turn), action, argument))

    def after(self, seconds: float, action: Callable[[Any], None], argument: object = None) -> None:
        self.at(self.now + seconds, action, argument)

    def run(self, until: float = float("inf")) -> None:
        """Carry out what is planned, up to and including the time `until`."""
        gc.disable()  # it would look at millions of planned actions again and again; nothing here goes in rings
        try:
            self._run(until)
        finally:
            gc.enable()
        if until != float("inf"):
            self.now = max(self.now, until)

    def _run(self, until: float) -> None:
        planned, events = self._planned, 0
        while planned and planned[0][0] <= until:
            self.now, _, action, argument = heappop(planned)
            events += 1
            action(argument)
        self.events += events
