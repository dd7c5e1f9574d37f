"""What was read from one origin, and how fast it answers. For any thread."""

import threading
from collections import deque
from statistics import median
from typing import NamedTuple

KEPT_TIMES = 64


class Reading(NamedTuple):
    """Counts since the node started. `read`: bytes that the origin gave; `good`: those that matched their ids;
    `errors`: chunks that could not be read, or were others than those published; `last_error`: the last of them, for
    people, empty if none."""

    read: int
    good: int
    errors: int
    last_error: str


class Meter:
    """See the module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read = self._good = self._errors = 0
        self._last_error = ""
        self._first_bytes: deque[float] = deque(maxlen=KEPT_TIMES)

    def read(self, size: int) -> None:
        """That many bytes came."""
        with self._lock:
            self._read += size

    def good(self, size: int) -> None:
        """A chunk of that many bytes matched its id."""
        with self._lock:
            self._good += size

    def failed(self, chunks: int, reason: str) -> None:
        with self._lock:
            self._errors += chunks
            self._last_error = reason

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
        with self._lock:
            return Reading(self._read, self._good, self._errors, self._last_error)
