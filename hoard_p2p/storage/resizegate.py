"""Waiting with a remap of the index until no thread of this process is inside a transaction."""

import threading
import time
from collections.abc import Callable

from hoard_p2p.errors import StoreFailed

RESIZE_WAIT = 60.0


class ResizeGate:
    """Lets a remap wait until no thread of this process is inside a transaction: it would move pages under them.

    A reader first enters its name and then looks at the flag; the resizer sets the flag and then looks for names. Each
    step is atomic under the interpreter lock, so one of the two sees the other; a reader pays two set operations."""

    def __init__(self) -> None:
        self._inside: set[int] = set()
        self._resizing = False
        self._lock = threading.Lock()

    def enter(self) -> None:
        me = threading.get_ident()
        self._inside.add(me)
        while self._resizing:
            self._inside.discard(me)
            with self._lock:  # held while the map is resized
                self._inside.add(me)

    def leave(self) -> None:
        self._inside.discard(threading.get_ident())

    def resize(self, action: Callable[[], None]) -> None:
        """Run `action` while nobody is inside. Raises StoreFailed if a reader does not come out."""
        with self._lock:
            self._resizing = True
            try:
                until = time.monotonic() + RESIZE_WAIT
                while self._inside:
                    if time.monotonic() > until:
                        raise StoreFailed(f"a read of the index did not end in {RESIZE_WAIT:.0f} s; is the disk alive?")
                    time.sleep(0.001)
                action()
            finally:
                self._resizing = False
