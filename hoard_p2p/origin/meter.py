"""What was read from one origin, and how fast it answers. For any thread."""

import threading
import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

KEPT_TIMES = 64
RATE_SECONDS = 10
TOLD_AGAIN = 10.0


class Reading(NamedTuple):
    """Counts since the node started. `read`: bytes that the origin gave; `good`: those that matched their ids;
    `errors`: chunks that could not be read, or were others than those published; `last_error`: the last of them, for
    people, empty if none. `spared`: bytes of its data sets that came from other nodes in its place; `bypassed`: of what
    was read, what another node was too late with; `rate`: bytes a second that it gave lately."""

    read: int
    good: int
    errors: int
    last_error: str
    spared: int
    bypassed: int
    rate: float


class Meter:
    """See the module."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._read = self._good = self._errors = self._came = self._bypassed = 0
        self._seconds: dict[int, int] = {}
        self._last_error = ""
        self._told = -TOLD_AGAIN
        self._first_bytes: deque[float] = deque(maxlen=KEPT_TIMES)

    def read(self, size: int) -> None:
        """That many bytes came."""
        second = int(self._clock())
        with self._lock:
            self._read += size
            self._seconds[second] = self._seconds.get(second, 0) + size
            if len(self._seconds) > RATE_SECONDS:
                del self._seconds[min(self._seconds)]

    def came(self, size: int) -> None:
        """That many bytes of its data sets came here, from wherever."""
        with self._lock:
            self._came += size

    def bypassed(self, size: int) -> None:
        """That many bytes are read past the node whose turn it is."""
        with self._lock:
            self._bypassed += size

    def good(self, size: int) -> None:
        """A chunk of that many bytes matched its id."""
        with self._lock:
            self._good += size

    def failed(self, chunks: int, reason: str) -> bool:
        """Whether that is news for a log: nothing was told there for `TOLD_AGAIN`."""
        now = self._clock()
        with self._lock:
            self._errors += chunks
            self._last_error = reason
            if now < self._told + TOLD_AGAIN:
                return False
            self._told = now
            return True

    def first_byte(self, seconds: float) -> None:
        """So long a question took until its first byte."""
        with self._lock:
            self._first_bytes.append(seconds)

    @property
    def median_first_byte(self) -> float:
        """Seconds, over the last questions; 0 if there was none yet."""
        with self._lock:
            return median(self._first_bytes) if self._first_bytes else 0.0

    @property
    def reading(self) -> Reading:
        since = int(self._clock()) - RATE_SECONDS
        with self._lock:
            lately = sum(size for second, size in self._seconds.items() if second >= since)
            spared = max(0, self._came - self._good)
            return Reading(
                self._read, self._good, self._errors, self._last_error, spared, self._bypassed, lately / RATE_SECONDS
            )
