"""A reader that never rests, for tests that break things meanwhile."""

import os
import random
import threading
import time
from pathlib import Path

from hoard_p2p.testing.missfakes import DEADLINE


class Hammer(threading.Thread):
    """Reads at random places past the page cache, and counts what was wrong."""

    def __init__(self, source: Path, mountpoint: Path, seed: int) -> None:
        """`source`: what is mounted on `mountpoint`; its files are read, those of its folders are not."""
        super().__init__(daemon=True)
        self._rng = random.Random(seed)
        self._contents = {path.name: path.read_bytes() for path in source.iterdir() if path.is_file()}
        self._mountpoint = mountpoint
        self._ending = threading.Event()
        self.reads = self.wrong = 0
        self.errors: list[OSError] = []
        self.start()

    def run(self) -> None:
        while not self._ending.is_set():
            name = self._rng.choice(sorted(self._contents))
            offset = self._rng.randrange(len(self._contents[name]))
            try:
                file = os.open(self._mountpoint / name, os.O_RDONLY)
                got = os.pread(file, 200_000, offset)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(file)
            except OSError as error:
                self.errors.append(error)
                continue
            self.wrong += got != self._contents[name][offset : offset + 200_000]
            self.reads += 1

    def more(self, reads: int) -> None:
        """Wait until that many more reads are done. Raises TimeoutError."""
        goal, deadline = self.reads + reads, time.monotonic() + DEADLINE
        while self.reads < goal:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{goal - self.reads} of {reads} reads are missing; errors: {self.errors}")
            self._ending.wait(0.01)

    def end(self) -> None:
        self._ending.set()
        self.join(DEADLINE)
