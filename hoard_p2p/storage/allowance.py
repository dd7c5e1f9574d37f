"""What one writer may still write: room that is asked for in large steps, and given out in small ones."""

import contextlib
import threading
import time
from collections.abc import Callable

from hoard_p2p.errors import HoardError, StoreFailed, StoreFull
from hoard_p2p.interfaces import Grants

STEP = 8 << 20
"""Bytes that are asked for at once: one question in each 8 MiB of a fast writer, little kept from others by a slow.
What was granted and is written counts twice against the floor until it is reported: more would refuse too early."""
FIRST_STEP = 1 << 20
"""The first time; it doubles from question to question."""


class Allowance:
    """Thread-safe. Of what was granted, a part is free, a part is taken by writes under way, the rest is done with and
    not yet reported.

    The owner may have to make room before it answers, and who makes room reports to us (`changed`, `report`): so
    nothing but `_asking` is held while it is asked."""

    def __init__(
        self, broker: Grants, refused_seconds: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """A refusal is believed for `refused_seconds`, by those who ask for as much or more."""
        self._broker = broker
        self._refused_seconds = refused_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._free = 0
        self._done = 0
        self._change = 0
        self._step = FIRST_STEP
        self._refused: tuple[float, int, StoreFull] | None = None

    def take(self, size: int) -> None:
        """May `size` bytes be written? Each that was taken is `done` sooner or later. Raises StoreFull, and StoreFailed
        if the owner does not answer."""
        while not self._took(size):
            with self._asking:
                lacking = size - self._free
                if lacking > 0:
                    self._ask(lacking)

    def _took(self, size: int) -> bool:
        with self._lock:
            enough = self._free >= size
            self._free -= size * enough
            return enough

    def done(self, size: int) -> None:
        """`size` bytes that were taken lie on the disk, or will not."""
        with self._lock:
            self._done += size

    def changed(self, size: int) -> None:
        """Slabs take `size` more bytes of the disk, negative: fewer."""
        with self._lock:
            self._change += size

    def refuse(self, size: int, error: StoreFull) -> None:
        """The disk itself had no room for `size` bytes."""
        with self._lock:
            self._refused = (self._clock() + self._refused_seconds, size, error)

    @property
    def refusing(self) -> bool:
        """Whether somebody was refused so lately that it is believed."""
        refused = self._refused
        return refused is not None and self._clock() < refused[0]

    def settle(self) -> None:
        """Hand back what is free, and report. Never raises: an owner that is gone counts anew."""
        with self._lock:
            self._done += self._free
            self._free = 0
        self.report()

    def report(self) -> None:
        """Tell what is done. Never raises."""
        with contextlib.suppress(HoardError):
            self._report()

    def _report(self) -> None:
        with self._lock:
            size, change = self._done, self._change
            self._done = self._change = 0
        if size or change:
            self._broker.give_back(size, change)

    def _ask(self, size: int) -> None:
        if self._refused is not None:
            until, refused, error = self._refused
            if size >= refused and self._clock() < until:
                raise StoreFull(str(error))
            self._refused = None
        try:
            self._report()
            granted = self._granted(size)
            with self._lock:
                self._free += granted
        except StoreFull as error:
            self._refused = (self._clock() + self._refused_seconds, size, error)
            raise
        except StoreFailed:
            raise
        except HoardError as error:
            raise StoreFailed(f"no room to write to: {error}") from error

    def _granted(self, size: int) -> int:
        """A step if there is one, else just what is needed."""
        step, self._step = self._step, min(STEP, 2 * max(self._step, size))
        if size < step:
            with contextlib.suppress(StoreFull):
                self._broker.grant(step)
                return step
        self._broker.grant(size)
        return size


class Loan:
    """What a writer in another process was granted, so that it comes back when that process dies. Thread-safe."""

    def __init__(self, broker: Grants) -> None:
        self._broker = broker
        self._lock = threading.Lock()
        self._granted = 0
        self._closed = False

    def grant(self, size: int) -> None:
        """See Grants."""
        self._broker.grant(size)
        with self._lock:
            self._granted += size
            closed = self._closed
        if closed:  # the process died while it was asked for
            self.close()

    def give_back(self, size: int, taken: int) -> None:
        """See Grants. Never more than was granted."""
        with self._lock:
            size = min(size, self._granted)
            self._granted -= size
        self._broker.give_back(size, taken)

    def close(self) -> None:
        """The process is gone."""
        with self._lock:
            self._closed = True
            size, self._granted = self._granted, 0
        self._broker.give_back(size)
