"""What the processes of one mount share: a memfd with a slot per process, recent failures and interrupts, hints for
the verifier, the open files of a passthrough mount, and what was verified: a byte per chunk run, a slab per file.

Layout (little-endian, 64-bit words; it lives as long as the mount and is never stored):

| at | what |
|---|---|
| 0 | header of 16 words: magic, workers, runs, inodes, room for open files, ending, supervisor's pid, open files'
high-water mark, hints told, backing id registered last, backing id being closed, refused registrations, features,
whether files are looked up, 2 reserved |
| 128 | `FAILURES` words: recently failed runs; upper half the run, lower half the end in tenths of seconds |
| then | `INTERRUPTS` words: numbers of requests whose reader got a signal |
| then | `DEATHS` words: numbers of requests that workers died at; the upper four bits: what speaks against it |
| then | `HINTS` words: a ring of chunk runs (and inodes) that readers are at, for the verifier |
| then | a slot of 8 words per worker and one for the verifier: request in work, heartbeat, pid, served, parked,
failed, process, 1 reserved |
| then | 2 words per open file: its handle (0: free); upper half its inode, lower half its backing id (0: cached) |
| then | 32 bits per inode: number of the slab of its own whose bytes were all verified under this mount, 0 for none |
| then | one byte per chunk run: generation of the place whose bytes were verified, 0 for none |

Who supervises the mount holds a POSIX record lock on the first byte: it goes with its process, whatever that dies of,
and forks do not inherit it. (It would also go when its process closed *any* descriptor of this memory.)

Every item is one aligned word, half a word or a byte, with one meaning, written whole: there is nothing to lock. (Bits
shared by processes lose updates, and a lost clear would serve damage.)
"""

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

from hoard_p2p.mount.kernel import RESENT

MAGIC = 0x34_4D_44_52_41_4F_48  # "HOARDM4"
FAILURES = 1024
INTERRUPTS = 256
DEATHS = 256
KILLS = 4
"""Workers that must have been killed at one request until it is to blame; one that died by itself counts for two."""
HINTS = 256
OPENS = 1 << 18
"""Files that can be open at once in a passthrough mount."""
URGENT = 1 << 63
"""In a hint: it is no chunk run, but an inode whose own slab somebody waits for."""
SLOT_WORDS = 8
_HEADER_WORDS = 16
_GUILT_BIT = 60
_UNIQUE = (1 << _GUILT_BIT) - 1
_FIRST_FAILURE = _HEADER_WORDS
_FIRST_INTERRUPT = _FIRST_FAILURE + FAILURES
_FIRST_DEATH = _FIRST_INTERRUPT + INTERRUPTS
_FIRST_HINT = _FIRST_DEATH + DEATHS
_FIRST_SLOT = _FIRST_HINT + HINTS
_ENDING, _SUPERVISOR, _OPENS_USED, _HINTS_TOLD = 5, 6, 7, 8
_BACKING_LAST, _BACKING_CLOSING, _BACKING_REFUSED, _FEATURES, _STATS = 9, 10, 11, 12, 13
_PROCESS = 6
_FLOCK = struct.Struct("@hhqqi4x")
"""`struct flock` (fcntl(2)) of a 64-bit system: type, whence, start, length, pid."""
_TENTHS = 10
_HALF = 0xFFFF_FFFF


class MountFds(NamedTuple):
    """The descriptors that every process of a mount holds, and the node keeps copies of (in this order).

    `devices`: one of /dev/fuse per worker (the same one several times where it cannot be cloned; -1 for one that this
    process does not hold, because its requests must end with its worker). `shared`: the memory
    of this module. `catalog`: the sealed memfd. `hint_bell`: eventfd that wakes the verifier. `checked_bell`: eventfd
    that wakes the worker which waits for the verifier. Travels in an argument vector as `encode()`.
    """

    devices: tuple[int, ...]
    shared: int
    catalog: int
    hint_bell: int
    checked_bell: int

    @property
    def all(self) -> tuple[int, ...]:
        """Those that are held, in this order."""
        return tuple(fd for fd in self._numbers if fd >= 0)

    @property
    def _numbers(self) -> tuple[int, ...]:
        return (*self.devices, self.shared, self.catalog, self.hint_bell, self.checked_bell)

    def encode(self) -> str:
        return ":".join(map(str, self._numbers))

    @classmethod
    def of(cls, numbers: Sequence[int]) -> "MountFds":
        """The descriptors in the order of `all`. Raises ValueError."""
        if len(numbers) < 5:
            raise ValueError(f"{len(numbers)} descriptors are not those of a mount")
        shared, catalog, hint_bell, checked_bell = numbers[-4:]
        return cls(tuple(numbers[:-4]), shared, catalog, hint_bell, checked_bell)

    @classmethod
    def parse(cls, text: str) -> "MountFds":
        """What `encode` wrote. Raises ValueError."""
        return cls.of([int(part) for part in text.split(":")])


class WorkerSlot(NamedTuple):
    """What one worker is told by its supervisor: its number (and so its slot and its device), the mount's descriptors,
    and the eventfd on which it says that it serves."""

    number: int
    fds: MountFds
    ready_fd: int

    @property
    def device_fd(self) -> int:
        return self.fds.devices[self.number]


class SlotView(NamedTuple):
    """One worker's slot at one moment. `working_on`: number of the request in work without the resent bit, 0 for none;
    `beat`: seconds of the monotonic clock; `pid` 0 until the worker serves; `process`: its pid from the start, 0 until
    then; the rest are counts since the mount."""

    working_on: int
    beat: float
    pid: int
    served: int
    parked: int
    failed: int
    process: int


class SharedState:
    """The shared memory of one mount, mapped into this process.

    `verified[run]` is the generation of the place whose bytes were verified under this mount, 0 for none; index it
    with the canonical run. `checked[inode]` is the number of the file's own slab that was verified as a whole,
    0 for none: what was verified says nothing about another slab that the file comes to lie in.
    `opens` is the table of open files, two words each, for `mount.opens` alone.
    """

    def __init__(self, fd: int) -> None:
        """Map the memory behind `fd`, which `create` made; takes the descriptor, or raises ValueError for another
        file (or another version's)."""
        if os.pread(fd, 8, 0) != MAGIC.to_bytes(8, "little"):
            raise ValueError(f"descriptor {fd} is not the shared memory of a mount, or of another version's")
        self.fd = fd
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)
        self._bytes = memoryview(self._map)
        self._words = self._bytes[: len(self._bytes) & ~7].cast("Q")
        self.workers, self.runs, self.inodes, room = self._words[1:5]
        first = _FIRST_SLOT + (self.workers + 1) * SLOT_WORDS
        self.opens = self._words[first : first + 2 * room]
        start = (first + 2 * room) * 8
        behind = start + 4 * self.inodes
        self.checked = self._bytes[start:behind].cast("I")
        self.verified = self._bytes[behind : behind + self.runs]

    @classmethod
    def create(cls, *, name: str, workers: int, runs: int, inodes: int = 0, opens: int = 0) -> "SharedState":
        """New shared memory, of a size that nobody can change. `name` shows in /proc/PID/fd and tells whose it is.
        `opens`: open files to make room for (`OPENS` for a passthrough mount); untouched room takes no memory."""
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        words = _FIRST_SLOT + (workers + 1) * SLOT_WORDS + 2 * opens
        os.ftruncate(fd, (words * 8 + 4 * inodes + runs + 7) & ~7)
        header = (MAGIC, workers, runs, inodes, opens)
        os.pwrite(fd, b"".join(word.to_bytes(8, "little") for word in header), 0)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return cls(fd)

    def close(self) -> None:
        for view in (self.verified, self.checked, self.opens):
            view.release()
        self._words.release()
        self._bytes.release()
        self._map.close()
        os.close(self.fd)

    # --- the mount as a whole

    @property
    def ending(self) -> bool:
        """Whether the mount's processes are being ended on purpose: then nobody takes a dead one's place."""
        return bool(self._words[_ENDING])

    def end(self) -> None:
        self._words[_ENDING] = 1

    @property
    def supervisor(self) -> int:
        """Pid of the last process that became the mount's supervisor (it may have died since)."""
        return self._words[_SUPERVISOR]

    def supervise(self, pid: int) -> None:
        self._words[_SUPERVISOR] = pid

    def lock(self) -> bool:
        """Become the one supervisor, until this process ends; False if another process is. Close no other descriptor of
        this memory from now on."""
        try:
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            return False
        self.supervise(os.getpid())
        return True

    def holder(self) -> int:
        """Pid of the process that supervises this mount now, 0 if none does. (Not to be asked by the supervisor.)"""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(self.fd, fcntl.F_GETLK, asked))
        return 0 if kind == fcntl.F_UNLCK else pid or -1  # a process of another pid namespace has no pid here

    @property
    def features(self) -> int:
        """What the kernel agreed to (`kernel.Can`)."""
        return self._words[_FEATURES]

    @features.setter
    def features(self, features: int) -> None:
        self._words[_FEATURES] = features

    @property
    def stats(self) -> bool:
        """Whether this mount's readers look files up by name, beyond listing them (`mount.listing.Habits`)."""
        return bool(self._words[_STATS])

    @stats.setter
    def stats(self, stats: bool) -> None:
        self._words[_STATS] = stats

    @property
    def opens_used(self) -> int:
        """Entries of `opens` that were ever used; those behind them are free."""
        return self._words[_OPENS_USED]

    @opens_used.setter
    def opens_used(self, count: int) -> None:
        self._words[_OPENS_USED] = count

    @property
    def passthrough(self) -> bool:
        """Whether each OPEN of this mount is answered (there is room for open files); else it is a no-open mount."""
        return len(self.opens) > 0

    @property
    def backing_last(self) -> int:
        """The newest backing id that is known to be in `opens`; the kernel gives them out in ascending order."""
        return self._words[_BACKING_LAST]

    @backing_last.setter
    def backing_last(self, backing_id: int) -> None:
        self._words[_BACKING_LAST] = backing_id

    @property
    def backing_closing(self) -> int:
        """A backing id that is about to be closed, or was closed last."""
        return self._words[_BACKING_CLOSING]

    @backing_closing.setter
    def backing_closing(self, backing_id: int) -> None:
        self._words[_BACKING_CLOSING] = backing_id

    @property
    def backing_refused(self) -> int:
        """How often the kernel refused to register a backing file."""
        return self._words[_BACKING_REFUSED]

    def count_refused(self) -> int:
        """Count one refusal; how many there were before."""
        before = self._words[_BACKING_REFUSED]
        self._words[_BACKING_REFUSED] = before + 1
        return before

    @property
    def verifier(self) -> int:
        """The verifier's slot number, behind those of the workers."""
        return self.workers

    def hint(self, hint: int) -> None:
        """Tell the verifier (after which its bell is to be rung). Two who tell at once may lose one: it is a hint."""
        told = self._words[_HINTS_TOLD]
        self._words[_FIRST_HINT + told % HINTS] = hint
        self._words[_HINTS_TOLD] = told + 1

    def hints(self, since: int) -> tuple[int, list[int]]:
        """How many hints were told so far, and those behind the first `since`, at most `HINTS`, oldest first."""
        told = self._words[_HINTS_TOLD]
        return told, [self._words[_FIRST_HINT + at % HINTS] for at in range(max(since, told - HINTS), told)]

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

    def vacate(self, worker: int) -> None:
        """Nobody is in the slot: a process is about to be started for it."""
        self._words[_FIRST_SLOT + worker * SLOT_WORDS + _PROCESS] = 0
        self.attach(worker, 0)

    def enter(self, worker: int, pid: int) -> None:
        """A process is in the slot, and will serve as soon as it can."""
        self._words[_FIRST_SLOT + worker * SLOT_WORDS + _PROCESS] = pid

    def blame(self, worker: int, *, by_itself: bool) -> int:
        """A worker died, `by_itself` or because somebody killed it. The number of the request that it worked on if that
        is to blame, else 0: two workers died of it by themselves, or `KILLS` were killed at it. (In a storm of kills a
        request is in work at two of them now and then; the killer of a process that eats all memory kills too.)"""
        at = _FIRST_SLOT + worker * SLOT_WORDS
        unique, self._words[at] = self._words[at], 0  # a death is counted once, whoever sees it
        if unique == 0:
            return 0
        place = _FIRST_DEATH + (unique >> 1) % DEATHS
        known = self._words[place]
        guilt = known >> _GUILT_BIT if known & _UNIQUE == unique else 0
        guilt += KILLS // 2 if by_itself else 1
        self._words[place] = min(guilt, KILLS) << _GUILT_BIT | unique
        return unique if guilt >= KILLS else 0

    def count_failure(self, worker: int) -> None:
        self._words[_FIRST_SLOT + worker * SLOT_WORDS + 5] += 1

    def slot(self, worker: int) -> SlotView:
        at = _FIRST_SLOT + worker * SLOT_WORDS
        working_on, beat, pid, served, parked, failed, process = self._words[at : at + 7]
        return SlotView(working_on, beat / 1e9, pid, served, parked, failed, process)

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
