"""Pieces of large files that arrive in parts, in any order, at the place in the file's slab where they are to lie.

Nothing of them is listed, in no sidecar and no index: what a crash, or a piece that never becomes whole, leaves behind
is given back as garbage like any other. Until a part is closed its slab stays locked, so that nobody takes it for that.
"""

import threading

from hoard_p2p.errors import StoreFailed
from hoard_p2p.ids import Bytes
from hoard_p2p.interfaces import Place
from hoard_p2p.storage.failures import store_failure
from hoard_p2p.storage.openslab import OpenSlab


class OpenPart:
    """The space of one unfinished piece. Thread-safe."""

    def __init__(self, slab: OpenSlab, offset: int, length: int) -> None:
        """The caller has entered the slab for this, and reserved the space."""
        self._slab = slab
        self._lock = threading.Lock()
        self._users = 1
        self._closed = False
        self.place = Place(slab.slab, offset, length, 1)

    def write(self, data: Bytes, start: int) -> None:
        """Raises StoreFailed."""
        if start < 0 or start + len(data) > self.place.length:
            raise StoreFailed(f"bytes {start} - {start + len(data)} of a piece of {self.place.length}")
        self._enter()
        try:
            self._slab.write(data, self.place.offset + start)
        except OSError as error:
            raise store_failure("part of a piece could not be written", error) from error
        finally:
            self._leave()

    def read(self, start: int, into: memoryview) -> None:
        """Raises StoreFailed."""
        if start < 0 or start + len(into) > self.place.length:
            raise StoreFailed(f"bytes {start} - {start + len(into)} of a piece of {self.place.length}")
        self._enter()
        try:
            self._slab.read(self.place.offset + start, into)
        except OSError as error:
            raise store_failure("part of a piece could not be read", error) from error
        finally:
            self._leave()

    def close(self) -> None:
        """The piece is whole and stored, or given up. Does nothing the second time."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._leave()

    @property
    def is_open(self) -> bool:
        return not self._closed

    def _enter(self) -> None:
        with self._lock:
            if self._closed:
                raise StoreFailed("the piece was given up")
            self._users += 1

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            last = not self._users
        if last:
            self._slab.leave()
