"""What a fetch thread has brought, told to the event loop: one wake-up for all that came before the loop looked."""

import asyncio
from collections import deque
from collections.abc import Callable

from hoard_p2p.fetch.segment import Landed
from hoard_p2p.ids import ChunkId


class Landings:
    """What was noted before a thread's work ended is told before that end is."""

    def __init__(self, loop: asyncio.AbstractEventLoop, land: Callable[[ChunkId, Landed], None]) -> None:
        self._loop = loop
        self._land = land
        self._noted: deque[tuple[ChunkId, Landed]] = deque()
        self._woken = False

    def note(self, chunk_id: ChunkId, landed: Landed) -> None:
        """Have it landed on the loop. For a thread."""
        self._noted.append((chunk_id, landed))
        if not self._woken:  # behind the append: if it is set, the loop has yet to look
            self._woken = True
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._woken = False  # before the look: what is noted from now on wakes the loop again
        while self._noted:
            self._land(*self._noted.popleft())
