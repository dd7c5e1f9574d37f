"""Whether the store can take anything now: `ok`, `full`, `read-only` or `failing`, found by trying to write a byte."""

import errno
import os
import threading
import time
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from hoard_p2p.errors import HoardError, StoreFull
from hoard_p2p.storage.failures import store_failure
from hoard_p2p.storage.layout import DataDir
from hoard_p2p.storage.room import Room

BELIEVED_SECONDS = 0.5
"""How long a look counts: whoever asks often does not make the disk busy."""
LITTLE = 1 << 20
"""With less than this the store is full: hardly a chunk goes in."""


class State(Enum):
    OK = "ok"
    FULL = "full"
    READ_ONLY = "read-only"
    FAILING = "failing"


class Seen(NamedTuple):
    """`why`: what is wrong and what to do, in words; empty if nothing is."""

    state: State
    why: str = ""


def is_read_only(path: "os.PathLike[str]") -> bool:
    """Whether the file system was mounted so, or made so by the kernel after an error. Raises OSError."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


class Condition:
    """Thread-safe. Blocking for as long as the disk takes to write one block."""

    def __init__(self, layout: DataDir, room: Room, clock: Callable[[], float] = time.monotonic) -> None:
        self._layout = layout
        self._room = room
        self._clock = clock
        self._lock = threading.Lock()
        self._seen, self._until = Seen(State.OK), float("-inf")

    def look(self) -> Seen:
        """As of now, or of a moment ago. Never raises."""
        with self._lock:
            if self._clock() >= self._until:
                self._seen = self._try()
                self._until = self._clock() + BELIEVED_SECONDS
            return self._seen

    def _try(self) -> Seen:
        what = f"nothing can be written to {self._layout.path}"
        try:
            if is_read_only(self._layout.path):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            self._write()
            if self._room.figures().available < LITTLE:
                return Seen(State.FULL, "nothing more can be stored; hoard capacity and hoard gc --dry-run say more")
        except OSError as error:
            failure = store_failure(what, error)
            return Seen(_state_of(error, failure), str(failure))
        return Seen(State.OK)

    def _write(self) -> None:
        fd = os.open(self._layout.probe, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            os.pwrite(fd, b"?", 0)
            os.fdatasync(fd)
        finally:
            os.close(fd)


def _state_of(error: OSError, failure: HoardError) -> State:
    if isinstance(failure, StoreFull):
        return State.FULL
    return State.READ_ONLY if error.errno == errno.EROFS else State.FAILING
