"""When a reader asks another peer too, since the one that it asked is slow."""

import asyncio

from hoard_p2p.fetch.flight import Flight
from hoard_p2p.fetch.pace import Pace
from hoard_p2p.fetch.silence import Silence
from hoard_p2p.fetch.sources import Source

LEFT_TIMES = 2.0
"""A source that gets what it lacks is left when it was silent for too long while it was asked. After so many times as
long others are asked too, whatever keeps it: it may send bytes that make no chunk."""


class Hedging:
    """For the event loop. `silence`: of the lane that readers wait for."""

    def __init__(self, silence: Silence) -> None:
        self._silence = silence
        self._pace = Pace()

    async def keeps_pace(self, flight: Flight, task: "asyncio.Task[None]", source: Source) -> bool:
        """Wait for a source; false once it has brought nothing for longer than it usually takes, or, if it is one that
        gets things itself, for so long that it should have been passed by."""
        loop = asyncio.get_running_loop()
        began, before = loop.time(), flight.landings
        while not task.done():
            await asyncio.wait({task}, timeout=self._patience(source, loop.time()))
            if flight.landings == before and not task.done():
                return False
            before = flight.landings
        if source.mode is None:
            self._pace.took(source.peer.node_id, loop.time() - began)
        return True

    def _patience(self, source: Source, now: float) -> float:
        if source.mode is None:
            return self._pace.patience(source.peer.node_id)
        return LEFT_TIMES * self._silence.allowed(source.peer.node_id, source.mode, source.place, now)
