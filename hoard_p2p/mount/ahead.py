"""Where readers are going: order is learned from the last hints, and how far to verify ahead of it. Pure.

A reader in order gets a window that grows while it goes on; a reader that jumps about gets none, for what would be read
ahead of it is most likely wasted, and takes the disk from it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

FIRST = 16 << 20
"""Bytes ahead of a reader that was just met."""
MOST = 256 << 20
"""Bytes ahead of a reader of small things, at most."""
MOST_FILES = 1 << 30
"""Bytes ahead of a reader that opens large files one after another, at most (and four of them)."""
NEAR = 16 << 20
"""A hint this far behind the end of the last one still continues it; several readers may share the work."""
BACK = 8 << 20
"""A hint this far before the last one came late, and tells nothing new."""
MOST_RUNS = 4096
"""Runs ahead of a reader at most: tiny ones cost more to look up than to verify when they are read."""
STREAMS = 16
HISTORY = 16
DISORDER = 6
"""Hints out of order among the last `HISTORY` from which on a new reader is given nothing ahead."""


@dataclass(slots=True, eq=False)
class Stream:
    """One reader in order. `at`, `end`: what it was last seen at, in bytes of the chunk table; `stop`: the run behind
    that; `next`: the first run not yet given out; `steps`: hints that continued it."""

    at: int
    end: int
    stop: int
    next: int
    steps: int = 0


class Readers:
    """The readers of one mount, as far as hints tell them apart."""

    def __init__(self, position: Callable[[int], int], runs: int) -> None:
        """`position` of a run: the bytes before it in the chunk table of `runs` runs."""
        self._position = position
        self._runs = runs
        self._streams: list[Stream] = []  # the one heard of last at the end
        self._history: deque[bool] = deque(maxlen=HISTORY)
        self._turn = 0

    @property
    def in_order(self) -> bool:
        """Whether a reader that was never heard of is likely to go on in order."""
        return self._history.count(False) < DISORDER

    def hint(self, first: int, stop: int) -> Stream:
        """A reader is at runs `first` to `stop`, one run or all of a file; the stream that it belongs to."""
        start, end = self._position(first), self._position(stop)
        stream = self._continued(start)
        if stream is None:
            self._history.append(not self._streams)
            stream = Stream(start, end, stop, stop)
            del self._streams[: len(self._streams) + 1 - STREAMS]
        else:
            self._streams.remove(stream)
            self._step(stream, start, end, stop)
        self._streams.append(stream)
        return stream

    def _continued(self, start: int) -> Stream | None:
        near = [s for s in self._streams if s.at - BACK <= start <= s.end + NEAR]
        return min(near, key=lambda s: abs(start - s.at), default=None)

    def _step(self, stream: Stream, start: int, end: int, stop: int) -> None:
        if start > stream.at:
            stream.at, stream.end, stream.stop = start, end, stop
            stream.steps += 1
            self._history.append(True)
        stream.next = max(stream.next, stop)

    def window(self, stream: Stream) -> int:
        """Bytes to have verified behind the end of what the reader is at."""
        if not stream.steps and not self.in_order:
            return 0
        span = stream.end - stream.at
        most = max(MOST, min(4 * span, MOST_FILES))
        return min((FIRST + span) << min(stream.steps, 16), most)

    def wants(self, stream: Stream) -> bool:
        """Whether the stream's next run lies in its window."""
        if stream.next >= min(self._runs, stream.stop + MOST_RUNS):
            return False
        return self._position(stream.next) < stream.end + self.window(stream)

    def due(self) -> Stream | None:
        """A stream that wants more, each in its turn."""
        count = len(self._streams)
        for step in range(1, count + 1):
            stream = self._streams[(self._turn + step) % count]
            if self.wants(stream):
                self._turn = (self._turn + step) % count
                return stream
        return None

    def take(self, stream: Stream, size: int, most: int) -> range:
        """The stream's next runs: at least one, about `size` bytes, at most `most` runs; given out once."""
        first = stream.next
        last = min(self._runs, first + most)
        end = self._position(first) + size
        stop = first + 1
        while stop < last and self._position(stop) < end:
            stop += 1
        stream.next = stop
        return range(first, stop)
