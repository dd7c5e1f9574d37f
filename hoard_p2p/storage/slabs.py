"""Slabs from the reading side: descriptors, a bounded number of them, and exact reads."""

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from hoard_p2p.errors import ChunkCorrupt, StoreFailed

REMEMBERED_PATHS = 4096
_NO_MORE = (errno.EMFILE, errno.ENFILE)
_DAMAGED = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)


class SlabFile:
    """A slab open for reading; its descriptor `fd` is closed when the last reference goes.

    References decide, not a `close`: one thread may let go of a slab in whose descriptor another is reading, and a
    number that was closed and used again would make that one read another file."""

    __slots__ = ("fd", "path")

    def __init__(self, path: Path) -> None:
        self.fd = -1
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    def read(self, offset: int, into: memoryview) -> None:
        """Fill `into`. Raises ChunkCorrupt if the slab is too short, or the disk cannot read it."""
        try:
            done = os.preadv(self.fd, [into], offset)
            while done < len(into):
                more = os.preadv(self.fd, [into[done:]], offset + done)
                if more == 0:
                    raise ChunkCorrupt(f"slab {self.path} ends before {offset + len(into)}; fetch the chunk again")
                done += more
        except OSError as error:
            if error.errno in _DAMAGED:
                raise ChunkCorrupt(f"slab {self.path} cannot be read at {offset}: {error}") from error
            raise StoreFailed(f"slab {self.path} cannot be read at {offset}: {error}") from error


class SlabFiles:
    """The slabs that were read last, open. Safe from several threads."""

    def __init__(self, find: Callable[[int], Path], limit: int = 256) -> None:
        self._find = find
        self._limit = limit
        self._paths: dict[int, Path] = {}
        self._open: OrderedDict[int, SlabFile] = OrderedDict()
        self._lock = threading.Lock()

    def peek(self, slab: int) -> SlabFile | None:
        """The slab if it is open."""
        with self._lock:
            found = self._open.get(slab)
            if found is not None:
                self._open.move_to_end(slab)
            return found

    def get(self, slab: int) -> SlabFile:
        """Raises ChunkCorrupt if there is no such slab, StoreFailed if it cannot be opened."""
        found = self.peek(slab)
        if found is not None:
            return found
        fresh = self._open_slab(slab)
        with self._lock:
            while len(self._open) >= self._limit:
                self._open.popitem(last=False)
            return self._open.setdefault(slab, fresh)

    def forget(self, slab: int) -> None:
        """Keep it open no longer."""
        with self._lock:
            self._open.pop(slab, None)

    def open_apart(self, slab: int) -> int:
        """A descriptor of the slab that is the caller's alone. Raises as `get` does."""
        file = self._open_slab(slab)
        fd, file.fd = file.fd, -1
        return fd

    def _open_slab(self, slab: int) -> SlabFile:
        path = self._paths.get(slab)
        if path is None:  # to find it takes five times as long as to open it; a slab never moves
            path = self._find(slab)
            if len(self._paths) >= REMEMBERED_PATHS:
                self._paths.clear()
            self._paths[slab] = path
        try:
            return self._open_path(path)
        except FileNotFoundError as error:
            raise ChunkCorrupt(f"slab {path} is not there; fetch its chunks again") from error
        except OSError as error:
            raise StoreFailed(f"slab {path} cannot be opened: {error}") from error

    def _open_path(self, path: Path) -> SlabFile:
        """Where this process may have fewer descriptors open than `limit`, the others make room."""
        try:
            return SlabFile(path)
        except OSError as error:
            if error.errno not in _NO_MORE:
                raise
        self.close()
        return SlabFile(path)

    def close(self) -> None:
        """Let go of all; what is read afterwards is opened again."""
        with self._lock:
            self._open.clear()
