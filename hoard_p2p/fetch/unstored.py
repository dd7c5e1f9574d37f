"""Chunks that were fetched and could not be stored: a full disk must not fill up further with a log of it."""

import logging
import threading
import time
from collections.abc import Callable

from hoard_p2p.errors import HoardError
from hoard_p2p.ids import ChunkId, short

log = logging.getLogger(__name__)

SAY_EVERY = 60.0


class Unstored:
    """Counts them, and warns of the first and then once a minute at most. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._said = float("-inf")
        self._unsaid = 0

    def note(self, chunk_id: ChunkId, error: HoardError) -> None:
        with self._lock:
            self.count += 1
            now = self._clock()
            if now - self._said < SAY_EVERY:
                self._unsaid += 1
                return
            unsaid, self._unsaid, self._said = self._unsaid, 0, now
        more = f", nor were {unsaid:,} others since the last such line" if unsaid else ""
        log.warning("chunk %s was not stored%s; readers get it all the same: %s", short(chunk_id), more, error)
