"""What a fetch thread has brought, told to the event loop: one wake-up for all that came before the loop looked, and
none for what nobody waits for, until there is more of it."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from hoard_p2p.fetch.segment import Landed
from hoard_p2p.ids import ChunkId

UNTOLD_SECONDS = 0.02
"""For so long what nobody waits for is not told: a wake-up of the loop costs as much as landing ten chunks."""


class Landings:
    """What was noted before a thread's work ended (`end`) is told before that end is."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        land: Callable[[ChunkId, Landed], None],
        awaited: Callable[[], bool] = lambda: True,
    ) -> None:
        """`awaited`, asked from the thread: whether somebody waits for what may be noted. Who comes to wait calls
        `tell` after that has become true."""
        self._loop = loop
        self._land = land
        self._awaited = awaited
        self._noted: deque[tuple[ChunkId, Landed]] = deque()
        self._woken = False
        self._told_at = time.monotonic()

    def note(self, chunk_id: ChunkId, landed: Landed) -> None:
        """Have it landed on the loop. For a thread."""
        self._noted.append((chunk_id, landed))  # before the look whether it is awaited
        if landed.place is None or self._awaited() or time.monotonic() - self._told_at > UNTOLD_SECONDS:
            self._wake()

    def end(self) -> None:
        """Nothing more is noted. For the thread."""
        if self._noted:
            self._wake()

    def _wake(self) -> None:
        if not self._woken:  # behind the append: if it is set, the loop has yet to look
            self._woken = True
            self._told_at = time.monotonic()
            self._loop.call_soon_threadsafe(self.tell)

    def tell(self) -> None:
        """Land what was noted. For the loop."""
        self._woken = False  # before the look: what is noted from now on wakes the loop again
        while self._noted:
            self._land(*self._noted.popleft())
