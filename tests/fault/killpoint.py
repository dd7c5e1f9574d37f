"""A data directory as `kill -9` would leave it at a chosen moment, without a process that dies: it is copied.

A profile hook sees each call of a C function in the threads that wear it. Before call number `at` of those that touch
the disk, every thread is kept from the next such call, those under way end, and the directory is copied; then all go
on. That is what a kill leaves, since all that a dead process had done to its disk is what it had called. (What a power
cut leaves is another matter: `powerdisk`.)
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

DISK_CALLS = frozenset({
    "pwrite", "write", "fdatasync", "fsync", "ftruncate", "truncate", "posix_fallocate", "fallocate", "open", "close",
    "put", "delete", "begin", "commit", "flock", "mkdir", "rename", "replace", "unlink", "rmdir", "__exit__",
    "copy_file_range",
})  # fmt: skip
"""By name; those of LMDB too, whose transactions reach the disk in `commit` or at the end of a `with`."""
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_EVENTS = ("c_call", "c_return", "c_exception")


class Camera:
    """Copies `directory` to `copy` once, before the disk call number `at` in the block of `aimed`.

    A thread enters its name and then looks whether a picture is being taken; who takes one says so and then waits until
    nobody else is inside. Each step is atomic under the interpreter lock, so one of the two sees the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: set[int] = set()
        self._left = self._every = 0
        self._taking = False
        self._take: Callable[[], None] = lambda: None
        self.taken = False

    def hook(self, frame: FrameType, event: str, what: object) -> None:
        """For `sys.setprofile` and `threading.setprofile`."""
        if event in _EVENTS and touches_disk(what):
            me = threading.get_ident()
            if event != "c_call":
                self._inside.discard(me)
                return
            self._inside.add(me)
            if self._left or self._taking:
                self._inside.discard(me)
                self._count()
                self._inside.add(me)

    @contextmanager
    def aimed(self, directory: Path, copy: Path, at: int) -> Iterator[None]:
        """Take the picture in the block, if it makes that many calls: `taken` says whether it did."""
        with self.series(lambda: copy_tree(directory, copy), at, 0):
            yield

    @contextmanager
    def series(self, take: Callable[[], None], first: int, every: int) -> Iterator[None]:
        """Call `take` before call number `first` in the block, and before each `every`th that follows."""
        self.taken = False
        self._take = take
        self._every = every
        before = sys.getprofile()
        sys.setprofile(self.hook)
        self._left = first
        try:
            yield
        finally:
            with self._lock:
                self._left = 0
            sys.setprofile(before)

    @contextmanager
    def worn(self) -> Iterator[None]:
        """Threads that are started in the block wear the hook for all their life."""
        threading.setprofile(self.hook)
        try:
            yield
        finally:
            threading.setprofile(None)

    def _count(self) -> None:
        """Held while the picture is taken: others wait here, outside."""
        with self._lock:
            if not self._left:
                return
            self._left -= 1
            if self._left:
                return
            self._left = self._every
            self._taking = True
            while self._inside:
                time.sleep(0)
            self._take()
            self.taken = True
            self._taking = False


def touches_disk(what: object) -> bool:
    """Not the end of a lock's `with`."""
    return getattr(what, "__name__", "") in DISK_CALLS and not isinstance(getattr(what, "__self__", None), _LOCKS)


def copy_tree(directory: Path, copy: Path) -> None:
    """Folders and regular files, holes left out; names that vanish or sockets are no part of a store."""
    copy.mkdir()
    for entry in sorted(directory.iterdir()):
        if entry.is_dir():
            copy_tree(entry, copy / entry.name)
        elif entry.is_file():
            _copy_file(entry, copy / entry.name)


def _copy_file(source: Path, copy: Path) -> None:
    with source.open("rb", buffering=0) as file, copy.open("wb", buffering=0) as out:
        size = os.fstat(file.fileno()).st_size
        os.ftruncate(out.fileno(), size)
        at = 0
        while at < size:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:  # nothing but a hole up to the end
                return
            end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            while at < end:
                at += os.pwrite(out.fileno(), os.pread(file.fileno(), min(1 << 20, end - at), at), at)
