"""Slabs that were unlinked while others had them open or mapped: their blocks are used until the last one lets go."""

import os
import threading

from hoard_p2p.storage.openslab import blocks_of
from hoard_p2p.storage.punching import is_alone
from hoard_p2p.storage.room import Room


class Ghosts:
    """Keeps a descriptor of each, since a file without a name can be asked about by nothing else. Thread-safe."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._sizes: dict[int, int] = {}
        self._lock = threading.Lock()

    def keep(self, fd: int) -> None:
        """Takes over the descriptor."""
        with self._lock:
            self._sizes[fd] = blocks_of(fd)
            self._room.pinned(self._sizes[fd])

    def look(self) -> None:
        """Let go of those that nobody else holds any more: their blocks return."""
        with self._lock:
            for fd in [fd for fd in self._sizes if is_alone(fd)]:
                os.close(fd)
                self._room.unpinned(self._sizes.pop(fd))

    @property
    def bytes(self) -> int:
        """Bytes of disk that were still held at the last look."""
        with self._lock:
            return sum(self._sizes.values())

    def close(self) -> None:
        """Others hold the blocks all the same, but nobody here asks any more."""
        with self._lock:
            for fd in self._sizes:
                os.close(fd)
            self._sizes.clear()
