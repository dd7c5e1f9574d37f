"""Segments that are under way here only since peers asked for them: a bounded number, and who waits for room. For the
event loop."""

import asyncio
from collections.abc import Callable, Hashable
from contextlib import suppress


class Beside:
    """`most` of them; what this node wants itself has no part in it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys: set[Hashable] = set()
        self._stirred: set[asyncio.Event] = set()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._keys

    def begin(self, key: Hashable) -> None:
        self._keys.add(key)

    def end(self, key: Hashable) -> None:
        self._keys.discard(key)
        self.stir()

    def stir(self) -> None:
        """Something began or ended: whoever waits looks again."""
        for event in self._stirred:
            event.set()

    async def room(self, comes: Callable[[], bool], seconds: float) -> bool:
        """Wait until there is room for one more, or until it is under way anyway; false after `seconds`."""
        event = asyncio.Event()
        self._stirred.add(event)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while not comes() and len(self._keys) >= self._most:
                        event.clear()
                        await event.wait()
                    return True
            return False
        finally:
            self._stirred.discard(event)
