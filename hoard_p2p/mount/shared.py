"""What the processes of one mount share: a memfd with a slot per worker, recent failures and interrupts, and one byte
per chunk run.

Layout (little-endian, 64-bit words; it lives as long as the mount and is never stored):

| at | what |
|---|---|
| 0 | magic, workers, runs, 5 words reserved |
| 64 | `FAILURES` words: recently failed runs; upper half the run, lower half the end in tenths of seconds |
| then | `INTERRUPTS` words: numbers of requests whose reader got a signal |
| then | a slot of 8 words per worker: request in work, heartbeat, pid, served, parked, failed, 2 reserved |
| then | one byte per chunk run: generation of the place whose bytes were verified, 0 for none |

Every item is one aligned word or byte with one meaning, written whole: there is nothing to lock. (Bits shared by
processes lose updates, and a lost clear would serve damage.)
"""

import fcntl
import mmap
import os
import time
from dataclasses import dataclass
from typing import NamedTuple

from hoard_p2p.mount.kernel import RESENT

MAGIC = 0x31_4D_44_52_41_4F_48  # "HOARDM1"
FAILURES = 1024
INTERRUPTS = 256
SLOT_WORDS = 8
_HEADER_WORDS = 8
_FIRST_FAILURE = _HEADER_WORDS
_FIRST_INTERRUPT = _FIRST_FAILURE + FAILURES
_FIRST_SLOT = _FIRST_INTERRUPT + INTERRUPTS
_TENTHS = 10
_HALF = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """What one worker is told by its supervisor: its number and the descriptors it inherits, under these numbers.

    Travels in an argument vector as `encode()` and comes back by `parse()`.
    """

    number: int
    device_fd: int
    shared_fd: int
    ready_fd: int

    def encode(self) -> str:
        return f"{self.number}:{self.device_fd}:{self.shared_fd}:{self.ready_fd}"

    @classmethod
    def parse(cls, text: str) -> "WorkerSlot":
        """The slot that `encode` wrote. Raises ValueError."""
        number, device_fd, shared_fd, ready_fd = map(int, text.split(":"))
        return cls(number, device_fd, shared_fd, ready_fd)


class SlotView(NamedTuple):
    """One worker's slot at one moment. `working_on`: number of the request in work without the resent bit, 0 for none;
    `beat`: seconds of the monotonic clock; `pid` 0 until the worker serves; the rest are counts since the mount."""

    working_on: int
    beat: float
    pid: int
    served: int
    parked: int
    failed: int


class SharedState:
    """The shared memory of one mount, mapped into this process.

    `verified[run]` is the generation of the place whose bytes were verified under this mount, 0 for none; index it
    with the canonical run.
    """

    def __init__(self, fd: int) -> None:
        """Map the memory behind `fd`, which `create` made; takes the descriptor. Raises ValueError for another file."""
        self.fd = fd
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)
        self._bytes = memoryview(self._map)
        self._words = self._bytes[: len(self._bytes) & ~7].cast("Q")
        if self._words[0] != MAGIC:
            raise ValueError(f"descriptor {fd} is not the shared memory of a mount")
        self.workers = self._words[1]
        self.runs = self._words[2]
        first = _FIRST_SLOT + self.workers * SLOT_WORDS
        self.verified = self._bytes[first * 8 : first * 8 + self.runs]

    @classmethod
    def create(cls, *, name: str, workers: int, runs: int) -> "SharedState":
        """New shared memory, of a size that nobody can change. `name` shows in /proc/PID/fd and tells whose it is."""
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, ((_FIRST_SLOT + workers * SLOT_WORDS) * 8 + runs + 7) & ~7)
        os.pwrite(fd, b"".join(word.to_bytes(8, "little") for word in (MAGIC, workers, runs)), 0)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return cls(fd)

    def close(self) -> None:
        self.verified.release()
        self._words.release()
        self._bytes.release()
        self._map.close()
        os.close(self.fd)

    # --- slots

    def begin(self, worker: int, unique: int) -> None:
        """Note the request that `worker` starts on; one whose worker dies of it twice is answered EIO."""
        self._words[_FIRST_SLOT + worker * SLOT_WORDS] = unique & ~RESENT

    def beat(self, worker: int, served: int = 0, parked: int = 0) -> None:
        """The worker's loop went round: nothing is in work now."""
        at = _FIRST_SLOT + worker * SLOT_WORDS
        words = self._words
        words[at] = 0
        words[at + 1] = time.monotonic_ns()
        words[at + 3] += served
        words[at + 4] = parked

    def attach(self, worker: int, pid: int) -> None:
        """A worker (or, with pid 0, its supervisor for a worker that is about to start) takes the slot."""
        self.beat(worker)
        self._words[_FIRST_SLOT + worker * SLOT_WORDS + 2] = pid

    def count_failure(self, worker: int) -> None:
        self._words[_FIRST_SLOT + worker * SLOT_WORDS + 5] += 1

    def slot(self, worker: int) -> SlotView:
        at = _FIRST_SLOT + worker * SLOT_WORDS
        working_on, beat, pid, served, parked, failed = self._words[at : at + 6]
        return SlotView(working_on, beat / 1e9, pid, served, parked, failed)

    # --- failures and interrupts: small rings, the newest entry of a place wins

    def remember_failure(self, run: int, until: float) -> None:
        """Chunk run `run` could not be had; reads of it fail at once until the monotonic time `until`.

        The kernel reads a page again by itself when its read-ahead failed: without this the reader would wait for a
        second deadline.
        """
        self._words[_FIRST_FAILURE + run % FAILURES] = (run & _HALF) << 32 | int(until * _TENTHS) & _HALF

    def failed_recently(self, run: int, now: float) -> bool:
        word = self._words[_FIRST_FAILURE + run % FAILURES]
        return word != 0 and word >> 32 == run & _HALF and int(now * _TENTHS) <= word & _HALF

    def interrupt(self, unique: int) -> None:
        """The reader behind request `unique` got a signal; the worker that has it parked looks here."""
        self._words[_FIRST_INTERRUPT + (unique >> 1) % INTERRUPTS] = unique & ~RESENT

    def interrupted(self, unique: int) -> bool:
        """Whether `interrupt` was told of that request (numbers are never used twice)."""
        return self._words[_FIRST_INTERRUPT + (unique >> 1) % INTERRUPTS] == unique & ~RESENT
