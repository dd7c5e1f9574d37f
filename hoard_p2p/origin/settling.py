"""Files that changed just before they were listed: their stamps cannot tell another change within the same tick.

Such a file is read once it is `SETTLED` seconds old, and its stamps are compared then: what changes it later also
changes them (docs/formats.md, "Stamp files", has the same 2 s). For any thread.
"""

import threading
import time
from collections.abc import Callable

from hoard_p2p.origin.tree import youngest

SETTLED = 2.0
KEPT = 4096


class Settling:
    """Remembers when young files were first met, since a server's clock may be ahead of ours for long."""

    def __init__(self, rest: Callable[[float], None], clock: Callable[[], float] = time.time) -> None:
        self._rest = rest
        self._clock = clock
        self._met: dict[bytes, float] = {}
        self._lock = threading.Lock()

    def wait(self, version: bytes) -> None:
        """At most `SETTLED` seconds, until a file of this version is old enough."""
        left = self._left(version)
        if left > 0:
            self._rest(left)

    def _left(self, version: bytes) -> float:
        changed, now = youngest(version) / 1e9, self._clock()
        if now - changed >= SETTLED:
            return 0.0
        with self._lock:
            met = self._met.setdefault(version, now)
            while len(self._met) > KEPT:
                del self._met[next(iter(self._met))]
        return min(changed, met) + SETTLED - now
