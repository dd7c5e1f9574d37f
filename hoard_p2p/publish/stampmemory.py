"""What one publish knows of the last one, and writes down for the next: the one door to the stamps."""

import logging
import os
from collections.abc import Generator, Iterable
from contextlib import ExitStack

from hoard_p2p.interfaces import ChunkSink
from hoard_p2p.publish.entries import Outcome
from hoard_p2p.publish.outcome import PublishResult
from hoard_p2p.publish.spill import Spill
from hoard_p2p.publish.stampfs import FileSystems
from hoard_p2p.publish.stamps import Remembering
from hoard_p2p.publish.stampsift import Sieve, Sifted
from hoard_p2p.publish.stampwriter import StampWriter
from hoard_p2p.publish.walk import Event

log = logging.getLogger(__name__)


class Memory:
    """Used from the publishing thread. Does nothing without a `Remembering`."""

    def __init__(
        self, remembering: Remembering | None, sink: ChunkSink, spill: Spill, stack: ExitStack, *, listed: bool
    ) -> None:
        """`listed`: no rule leaves anything out. What is held on the way ends with `stack`."""
        self._writer: StampWriter | None = None
        self._sieve: Sieve | None = None
        self._file_systems = FileSystems()
        if remembering is not None:
            self._writer = StampWriter(remembering, self._file_systems, spill, stack, listed=listed)
            self._sieve = Sieve(remembering.known, self._file_systems, sink)

    def add_root(self, fd: int, status: os.stat_result) -> None:
        """The published directory, open, and its state before it is walked."""
        if self._writer is not None:
            self._file_systems.look_at(fd)
            self._writer.add_root(status)

    def sifted(self, events: Iterable[Event]) -> Generator[Sifted, None, None]:
        """The events of the walk, files replaced that need not be read."""
        if self._sieve is None:
            yield from events
        else:
            yield from self._sieve.sifted(events)

    def add(self, outcome: Outcome) -> None:
        """What became of the next event."""
        if self._writer is not None:
            self._writer.add(outcome)

    def write(self, result: PublishResult, *, sound: bool) -> None:
        """Write the stamps, if the outcomes were `sound`. A publish does not fail for them."""
        if self._writer is None or not sound:
            return
        try:
            self._writer.write(result)
        except OSError as error:
            log.warning("the next publish of this directory will read all files: %s", error)
