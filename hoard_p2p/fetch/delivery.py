"""What one question brings, for the thread that asks: stored several chunks at a time, then landed in the flight."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hoard_p2p.fetch.landings import Landings
from hoard_p2p.fetch.segment import Landed, Wanted

BURST_BYTES = 1 << 20
"""Stored at once at most: still in the processor's cache, and few milliseconds for who waits for the first of it."""


class Received(NamedTuple):
    """A chunk that matched its id, and its number in the batch that was asked for."""

    number: int
    chunk: Wanted
    data: memoryview


class Delivery:
    """An `interfaces.Gathering` deliverer. `given` are the indexes of what was stored, or could not be, and landed."""

    def __init__(
        self, batch: Sequence[Wanted], store: Callable[[Sequence[Received]], list[Landed]], landings: Landings
    ) -> None:
        self._batch = batch
        self._store = store
        self._landings = landings
        self._gathers = False
        self._held: list[Received] = []
        self._size = 0
        self.given: list[int] = []

    def gather(self) -> None:
        self._gathers = True

    def __call__(self, index: int, data: memoryview) -> None:
        self._held.append(Received(index, self._batch[index], data))
        self._size += len(data)
        if not self._gathers or self._size >= BURST_BYTES:
            self.settle()

    def settle(self) -> None:
        if not self._held:
            return
        held, self._held, self._size = self._held, [], 0
        for received, landed in zip(held, self._store(held), strict=True):
            self.given.append(received.number)
            self._landings.note(received.chunk.chunk_id, landed)

    def end(self) -> None:
        """Nothing more comes. Before the thread's end is told."""
        self.settle()
        self._landings.end()
