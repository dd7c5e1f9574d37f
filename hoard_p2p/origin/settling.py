"""Files that changed just before they were listed: their stamps cannot tell another change within the same tick.

Such a file is read once it is `SETTLED` seconds old, and its stamps are compared then: what changes it later also
changes them (docs/formats.md, "Stamp files", has the same 2 s). For any thread.
"""

import threading
import time
from collections.abc import Callable

from hoard_p2p.origin.tree import changed_at

SETTLED = 2.0


class Settling:
    """Learns how far a server's clock is ahead of ours, from the stamps that it gave: each lies in its past."""

    def __init__(self, rest: Callable[[float], None], clock: Callable[[], float] = time.time) -> None:
        self._rest = rest
        self._clock = clock
        self._ahead = 0.0
        self._lock = threading.Lock()

    def wait(self, version: bytes) -> None:
        """At most `SETTLED` seconds, until a file of this version is old enough."""
        changed, now = changed_at(version), self._clock()
        if now - changed >= SETTLED:
            return
        with self._lock:
            self._ahead = max(self._ahead, changed - now)
            left = changed + SETTLED - (now + self._ahead)
        if left > 0:
            self._rest(left)
