"""Counting beside the work: what is done, and how much there is to do."""

import os
import stat
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from threading import Event, Lock, Thread

from hoard_p2p.errors import Refused
from hoard_p2p.publish.board import Counts
from hoard_p2p.publish.deposit import Deposit
from hoard_p2p.publish.estimate import Estimate, Sample
from hoard_p2p.publish.exclude import Rules
from hoard_p2p.publish.outcome import Phase, Progress
from hoard_p2p.publish.spill import PathQueue, Spill
from hoard_p2p.publish.walk import DirectoryOpener

INTERVAL = 0.1
"""Seconds between two reports."""

HEAD_START = 0.05
"""Seconds that the count of the tree may take at once: enough for 10,000 files."""

SHARE = 0.05
"""Part of one core that the count takes after that, since it runs at the expense of the reading."""

LEAD = 10.0
"""Seconds that the reading waits for the count where room is scarce: enough for a million files. Then the count goes on
beside it, and takes what it needs."""


class Tally:
    """What is done so far. `moved` may be called from any thread, the rest from one."""

    def __init__(self, deposit: Deposit, count: "TreeCount", elsewhere: Callable[[], Counts] = Counts) -> None:
        """`elsewhere`: what other processes of this publish have done by now."""
        self._elsewhere = elsewhere
        self.files = 0
        self._bytes = 0
        self._lock = Lock()
        self._deposit = deposit
        self._count = count
        self._deduplicated: int | None = None

    @property
    def deduplicated(self) -> int:
        """Bytes of files that were stored already or came twice."""
        return self._all_deduplicated() if self._deduplicated is None else self._deduplicated

    @property
    def stored(self) -> int:
        """Bytes put that were not stored before."""
        return self._deposit.stored + self._elsewhere().stored

    def _all_deduplicated(self) -> int:
        return self._deposit.deduplicated + self._elsewhere().deduplicated

    def files_end(self) -> None:
        """What is deposited from now on is no file's."""
        self._deduplicated = self._all_deduplicated()

    def moved(self, size: int) -> None:
        """`size` bytes of files are done; negative: they have to be done again."""
        with self._lock:
            self._bytes += size

    def progress(self, phase: Phase) -> Progress:
        files, size = self._count.totals or (None, None)
        return Progress(phase, self.files, self._bytes + self._elsewhere().moved, files, size, self.deduplicated)


class Pace:
    """When to report and to ask whether to go on; and the one flag by which every thread learns that it is over."""

    def __init__(self, report: Callable[[Phase], None], stop: Callable[[], bool]) -> None:
        self._report = report
        self._stop = stop
        self._over = Event()
        self._phase = Phase.READING
        self._due = 0.0

    def tick(self) -> None:
        """Called as often as one likes, from the publishing thread. Raises Refused if the publish is cancelled."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + INTERVAL
        if self._stop():
            self.end()
        self.check()
        self._report(self._phase)

    def enter(self, phase: Phase) -> None:
        """A new phase begins; reported at once."""
        self._phase = phase
        self._due = 0.0
        self.tick()

    def end(self) -> None:
        """Have every thread stop where it next looks."""
        self._over.set()

    def check(self) -> None:
        """From any thread. Raises Refused once the publish is over."""
        if self._over.is_set():
            raise Refused("publish cancelled")

    def pause(self, seconds: float) -> None:
        """Wait, from any thread. Raises Refused if the publish is over before."""
        if self._over.wait(seconds):
            raise Refused("publish cancelled")


class TreeCount:
    """Counts the regular files of a tree and their bytes in a thread of its own, for progress, and to ask in time
    whether they fit.

    Errors are passed over: the walk names them. `totals` appears when the tree was counted to its end.
    """

    def __init__(
        self,
        root_fd: int,
        rules: Rules,
        spill: Spill,
        own_data: tuple[int, int] | None,
        estimate: Estimate | None = None,
    ) -> None:
        self._root_fd = root_fd
        self._rules = rules
        self._spill = spill
        self._own_data = own_data
        self._end = Event()
        self._led = Event()
        self._share = SHARE
        self._thread = Thread(target=self._run, name="publish-count", daemon=True)
        self._files = 0
        self._bytes = 0
        self._estimate = estimate
        self._sample = Sample()
        self._data = 0
        """Bytes that take room: without holes, each file once."""
        self.totals: tuple[int, int] | None = None
        """Files and bytes; None while they are not known."""

    def start(self) -> None:
        self._thread.start()

    def lead(self, tick: Callable[[], None]) -> None:
        """Wait until the reading may begin, calling `tick` meanwhile: where room is scarce it is known then, mostly,
        whether the source fits."""
        until = time.monotonic() + LEAD
        while not self._led.wait(INTERVAL) and time.monotonic() < until:
            tick()

    def close(self) -> None:
        """Stop counting; returns when the thread is gone."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            if self._estimate is not None and self._estimate.is_scarce():
                self._share = 1.0
            else:
                self._led.set()
            with suppress(OSError):  # no room to queue directories: the publish will say so
                self._count_tree()
        finally:
            self._led.set()

    def _count_tree(self) -> None:
        with closing(DirectoryOpener(self._root_fd)) as opener, closing(PathQueue(self._spill)) as queue:
            queue.put(b"")
            worked = -HEAD_START
            while (path := queue.get()) is not None:
                began = time.thread_time()
                with suppress(OSError):
                    self._count_directory(path, opener, queue)
                worked += time.thread_time() - began
                if self._end.wait(max(0.0, worked * (1 / self._share - 1))):
                    return
                worked = min(worked, 0.0)
            self.totals = (self._files, self._bytes)
            if self._estimate is not None:
                self._estimate.ask(self._data, self._sample.files, partial(_open_file, opener))

    def _count_directory(self, path: bytes, opener: DirectoryOpener, queue: PathQueue) -> None:
        fd = opener.open(path)
        try:
            with os.scandir(fd) as listing:
                for entry in listing:
                    self._count_entry(path, entry, queue)
        finally:
            os.close(fd)

    def _count_entry(self, parent: bytes, entry: "os.DirEntry[str]", queue: PathQueue) -> None:
        name = os.fsencode(entry.name)
        path = parent + b"/" + name if parent else name
        is_directory = entry.is_dir(follow_symlinks=False)
        if self._rules.leaves_out(path, name, is_directory=is_directory):
            return
        if is_directory:
            if self._own_data is None or not self._is_own_data(entry):
                queue.put(path)
        elif entry.is_file(follow_symlinks=False):
            self._files += 1
            status = entry.stat(follow_symlinks=False)
            self._bytes += status.st_size
            data = min(status.st_size, status.st_blocks * 512) // max(1, status.st_nlink)
            self._data += data
            self._sample.add(path, data)

    def _is_own_data(self, entry: "os.DirEntry[str]") -> bool:
        status = entry.stat(follow_symlinks=False)
        return stat.S_ISDIR(status.st_mode) and (status.st_dev, status.st_ino) == self._own_data


def _open_file(opener: DirectoryOpener, path: bytes) -> int:
    """A descriptor of a regular file that is the caller's. Raises OSError."""
    parent, _, name = path.rpartition(b"/")
    directory = opener.open(parent)
    try:
        return os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    finally:
        os.close(directory)
