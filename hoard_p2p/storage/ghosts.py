"""Slabs that were unlinked while others had them open or mapped: their blocks are used until the last one lets go."""

import os
import threading

from hoard_p2p.storage.punching import is_alone


class Ghosts:
    """Keeps a descriptor of each, since a file without a name can be asked about by nothing else. Thread-safe."""

    def __init__(self) -> None:
        self._fds: list[int] = []
        self._lock = threading.Lock()

    def keep(self, fd: int) -> None:
        """Takes over the descriptor."""
        with self._lock:
            self._fds.append(fd)

    def look(self) -> int:
        """Bytes of disk that are still held; slabs that nobody holds any more are let go, and their blocks return."""
        with self._lock:
            for fd in [fd for fd in self._fds if is_alone(fd)]:
                self._fds.remove(fd)
                os.close(fd)
            return self._held()

    @property
    def bytes(self) -> int:
        """What was held at the last look."""
        with self._lock:
            return self._held()

    def _held(self) -> int:
        return sum(os.fstat(fd).st_blocks * 512 for fd in self._fds)

    def close(self) -> None:
        """The blocks are still held by others, but nobody here asks any more."""
        with self._lock:
            while self._fds:
                os.close(self._fds.pop())
