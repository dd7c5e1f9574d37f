"""How far a long piece of work in a thread has come, told to whoever waits for it, and how gently it goes."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import TypeVar

from hoard_p2p.config import Json

T = TypeVar("T")
Report = Callable[[dict[str, Json]], Awaitable[None]]

ROUND = 1024
"""Chunks between two rests."""
LONGEST_REST = 0.1
TELL_SECONDS = 1.0


async def silent(_report: dict[str, Json]) -> None:
    """Nobody wants to know."""


class Course:
    """The thread at work calls `begin`, `passed` and `rest`; the event loop awaits it by `follow`."""

    def __init__(self, report: Report = silent, gently: Callable[[], bool] = lambda: False) -> None:
        """`gently`: whether to leave half of the time to others now. (Not by the kernel's priorities: a thread of low
        priority that holds the interpreter's lock keeps all others waiting.)"""
        self.report = report
        self._gently = gently
        self._phase, self._done, self._total = "", 0, 0
        self._asked = 0
        self._since = time.monotonic()

    def begin(self, phase: str, total: int) -> None:
        self._phase, self._done, self._total = phase, 0, total

    def passed(self, identifier: bytes) -> None:
        """A chunk was looked at, of all, in order of ids, which are spread evenly: `total` is 100 then."""
        self._asked += 1
        if self._asked % ROUND == 0:
            self.rest(int.from_bytes(identifier[:2], "big") * 100 >> 16)

    def rest(self, done: int) -> None:
        """So much is done; between two pieces of work, with no transaction open and no lock held."""
        self._done = done
        if self._gently():
            time.sleep(min(time.monotonic() - self._since, LONGEST_REST))
        self._since = time.monotonic()

    def told(self) -> dict[str, Json]:
        """For people, as `report` tells it."""
        return {"phase": self._phase, "done": self._done, "total": self._total}

    async def follow(self, executor: Executor, work: Callable[[], T]) -> T:
        """Run `work` in a thread, and tell each second how far it is. Raises what it raises; cancelled, it leaves the
        thread at work."""
        future = asyncio.get_running_loop().run_in_executor(executor, work)
        try:
            while not (await asyncio.wait({future}, timeout=TELL_SECONDS))[0]:
                await self.report(self.told())
            return future.result()
        finally:
            future.cancel()
