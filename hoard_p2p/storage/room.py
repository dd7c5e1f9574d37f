"""How much the store may take of its disk: the capacity, the floor, and the count of what is used.

Whoever writes bytes asks first (`grant`), says when they lie on the disk (`settle`), and hands back what it did not
need (`give_back`). So what is used and what is promised never exceed the capacity together (I3), and the file system
keeps its floor free for others. `used` is what `du` of the data directory says, plus blocks of deleted slabs that
somebody still holds; slabs are counted by increments, which `measure` puts right when nothing is being written.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hoard_p2p.config import Floor
from hoard_p2p.errors import StoreFailed, StoreFull
from hoard_p2p.printing import size_text
from hoard_p2p.storage.layout import DataDir

log = logging.getLogger(__name__)

UNLIMITED = 1 << 62
"""The capacity of a store for which none was set."""

MARGIN_SHARE, MARGIN_MOST = 64, 64 << 20
"""1/64 of the capacity, at most 64 MiB, is never granted: index pages and sidecars are written without asking."""

REST_SECONDS = 1.0
"""How long the size of all but slabs and index (journal, log, temporary files: a few files) is believed."""

_SECTOR = 512


CAPACITY_SHARE = 0.8
"""Of the space that is free at the first start, where no capacity was chosen."""


class Disk(NamedTuple):
    """A file system: its bytes, and those that an ordinary user may still write."""

    size: int
    free: int


class Figures(NamedTuple):
    """The room at one moment, in bytes. `floor` is that of the disk as it is; `ghosts` are part of `used`; `available`
    is what could be granted now; `disk_free` is what the file system has left."""

    capacity: int
    floor: int
    used: int
    promised: int
    available: int
    ghosts: int
    disk_free: int


class Room:
    """Thread-safe. Blocking for as long as a look at the file system takes, and for `relief`."""

    def __init__(
        self, layout: DataDir, capacity: int | None, floor: Floor, disk: Callable[[], Disk] | None = None
    ) -> None:
        """`capacity` None: as much as the floor allows. `disk`: looks at the file system. Raises OSError."""
        self.relief: Callable[[int], bool] | None = None
        """Tries to make that many bytes available, and says whether they are; `grant` calls it once before it gives
        up."""
        self.advice: Callable[[int], str] | None = None
        """What could be given up to have that many bytes more, in words; empty if nothing."""
        self._layout = layout
        self._disk = disk or (lambda: disk_of(layout.path))
        self._lock = threading.Lock()
        self._relieving = threading.Lock()
        self._capacity = UNLIMITED if capacity is None else capacity
        self._floor = floor
        self._promised = self._ghosts = self._changes = 0
        self._slabs = size_of(layout.slabs)
        self._index = self._rest = 0
        self._rest_seen = float("-inf")

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def floor(self) -> int:
        """Bytes of the file system that stay free. Raises OSError."""
        return self._floor.of(self._disk().size)

    @property
    def used(self) -> int:
        with self._lock:
            return self._used()

    @property
    def promised(self) -> int:
        return self._promised

    @property
    def available(self) -> int:
        """What could be granted now; 0 if the file system does not answer."""
        with contextlib.suppress(OSError):
            return self.figures().available
        return 0

    def figures(self) -> Figures:
        """Raises OSError."""
        disk = self._disk()
        with self._lock:
            floor, used = self._floor.of(disk.size), self._used()
            available = max(0, -self._lacking(0, disk))
            return Figures(self._capacity, floor, used, self._promised, available, self._ghosts, disk.free)

    def limit(self, capacity: int | None = None, floor: Floor | None = None) -> None:
        """Change what is allowed, from the next grant on."""
        with self._lock:
            self._capacity = self._capacity if capacity is None else capacity
            self._floor = floor or self._floor

    # --- asking, and telling what became of it

    def grant(self, size: int) -> None:
        """Promise `size` bytes. Raises StoreFull, which says how much is missing and what to do; asks `relief` first.
        Raises StoreFailed if the file system cannot be looked at."""
        if not self._lacks(size):
            return
        with self._relieving:  # of several in need one frees, the others look again
            if not self._lacks(size) or (self.relief is not None and self.relief(size) and not self._lacks(size)):
                return
        raise self._full(size)

    def check(self, size: int) -> None:
        """Raises StoreFull if `size` bytes could not be granted now, after `relief` was asked."""
        if size:
            self.grant(size)
            self.give_back(size)

    def could_fit(self, size: int, evictable: int) -> None:
        """Nothing is promised. Raises StoreFull if `size` bytes would not fit even if `evictable` bytes went."""
        if self._missing(size) > evictable:
            raise self._full(size)

    def settle(self, size: int) -> None:
        """Granted bytes lie on the disk now."""
        self.turn(size, size)

    def give_back(self, size: int) -> None:
        """Granted bytes are not needed."""
        self.turn(size, 0)

    def freed(self, size: int) -> None:
        """Bytes of slabs left the disk."""
        self.turn(0, -size)

    def turn(self, granted: int, taken: int) -> None:
        """`granted` bytes are promised no more, and slabs take `taken` more (or, negative, fewer) on the disk."""
        with self._lock:
            self._promised = max(0, self._promised - granted)
            self._slabs = max(0, self._slabs + taken)
            self._changes += 1

    def pinned(self, size: int) -> None:
        """A slab of `size` bytes lost its name, and somebody still holds it: its blocks stay (a ghost)."""
        with self._lock:
            self._slabs = max(0, self._slabs - size)
            self._ghosts += size
            self._changes += 1

    def unpinned(self, size: int) -> None:
        """A ghost is gone."""
        with self._lock:
            self._ghosts = max(0, self._ghosts - size)

    def measure(self) -> bool:
        """Look at every slab, and believe that rather than the count; false if something was written meanwhile: what
        is on its way to the count would count twice. Raises OSError."""
        with self._lock:
            before, quiet = self._changes, not self._promised
        slabs = size_of(self._layout.slabs)
        with self._lock:
            quiet = quiet and before == self._changes and not self._promised
            if quiet:
                if abs(slabs - self._slabs) > slabs // 100:
                    log.info("slabs take %s, not %s as counted", size_text(slabs), size_text(self._slabs))
                self._slabs = slabs
            self._rest_seen = float("-inf")
        return quiet

    # --- inside

    def _used(self) -> int:
        now = time.monotonic()
        if now - self._rest_seen >= REST_SECONDS:
            with contextlib.suppress(OSError):  # a disk that is ill: as it was
                self._rest = size_of(self._layout.path, self._layout.slabs, self._layout.index)
            self._rest_seen = now
        with contextlib.suppress(OSError):
            self._index = size_of(self._layout.index)
        return self._slabs + self._ghosts + self._rest + self._index

    def _lacking(self, size: int, disk: Disk) -> int:
        """By how much `size` more bytes are too many; negative: what could be had besides."""
        return max(self._over_capacity(size), self._under_floor(size, disk))

    def _over_capacity(self, size: int) -> int:
        margin = min(self._capacity // MARGIN_SHARE, MARGIN_MOST)
        return self._used() + self._promised + size + margin - self._capacity

    def _under_floor(self, size: int, disk: Disk) -> int:
        return self._floor.of(disk.size) + self._promised + size - disk.free

    def _look(self) -> Disk:
        try:
            return self._disk()
        except OSError as error:
            raise StoreFailed(f"the data directory {self._layout.path} cannot be looked at: {error}") from error

    def _missing(self, size: int) -> int:
        disk = self._look()
        with self._lock:
            return self._lacking(size, disk)

    def _lacks(self, size: int) -> int:
        """Promise `size` bytes and return 0, or return how many are missing."""
        disk = self._look()
        with self._lock:
            lacking = self._lacking(size, disk)
            if lacking <= 0:
                self._promised += size
            return max(0, lacking)

    def _full(self, size: int) -> StoreFull:
        disk = self._look()
        with self._lock:
            over, under = self._over_capacity(size), self._under_floor(size, disk)
            if over >= under:
                why = (
                    f"the store uses {size_text(self._used() + self._promised)} of its capacity of "
                    f"{size_text(self._capacity)}; hoard capacity SIZE changes it"
                )
            else:
                why = (
                    f"the disk has {size_text(disk.free)} free, and {size_text(self._floor.of(disk.size))} of it are "
                    "kept for others (the floor); make room on it, or see hoard capacity --floor"
                )
        missing = max(over, under, 1)
        advice = self.advice(missing) if self.advice is not None else ""
        return StoreFull(f"the store is full: {size_text(missing)} are missing; {why}" + (f"; {advice}" * bool(advice)))


def disk_of(path: Path) -> Disk:
    """Raises OSError."""
    found = os.statvfs(path)
    return Disk(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def default_capacity(disk: Disk, floor: int) -> int:
    """Bytes that a store may take that was told nothing: no more than the floor lets it have."""
    return max(0, min(int(disk.free * CAPACITY_SHARE), disk.free - floor))


def size_of(directory: Path, *leave_out: Path) -> int:
    """Disk space of everything in a directory but for `leave_out`, itself included, by blocks as `du` counts. What
    vanishes meanwhile counts nothing. Raises OSError if the directory cannot be looked at."""
    total = directory.stat().st_blocks * _SECTOR
    waiting = [os.fspath(directory)]
    skipped = set(map(os.fspath, leave_out))
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.path in skipped:
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        total += entry.stat(follow_symlinks=False).st_blocks * _SECTOR
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
        except FileNotFoundError:
            continue
    return total
