"""Who follows a flight to pass on what lands: a peer that asked for chunks which are not here yet."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from hoard_p2p.fetch.segment import Landed, Wanted
from hoard_p2p.ids import ChunkId


class Arrived(NamedTuple):
    """A chunk that landed while somebody followed."""

    chunk_id: ChunkId
    landed: Landed


class Following:
    """For the event loop. The chunks that one follower wants. `waits`: it waits as a reader does, so they are asked
    for at once; else it takes what the fill brings."""

    def __init__(self, chunks: Iterable[Wanted], *, waits: bool) -> None:
        self.outstanding = {chunk.chunk_id: chunk for chunk in chunks}
        self.waits = waits
        self.reason = ""
        """Why nothing more comes; empty while something may."""
        self._arrived: list[Arrived] = []
        self._news = asyncio.Event()

    def land(self, chunk_id: ChunkId, landed: Landed) -> None:
        if self.outstanding.pop(chunk_id, None) is not None:
            self._arrived.append(Arrived(chunk_id, landed))
            self._news.set()

    def lose(self, chunk_id: ChunkId, why: str) -> None:
        """This one does not land; the others may."""
        if self.outstanding.pop(chunk_id, None) is not None and not self.outstanding:
            self.reason = self.reason or why
            self._news.set()

    def end(self, message: Callable[[ChunkId], str]) -> None:
        """Nothing more lands."""
        if self.outstanding and not self.reason:
            self.reason = message(next(iter(self.outstanding)))
            self._news.set()

    async def arrived(self, timeout: float) -> list[Arrived]:
        """What landed since the last call, waiting for at least one; empty after `timeout` seconds, or at the end."""
        if not self._arrived and not self.reason:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._news.wait()
        arrived, self._arrived = self._arrived, []
        return arrived
