"""Memory that the processes of one publish share: what each has done, whether it is over, and which chunks came by.

Made before the fork. Every number has one writer, and is written whole.
"""

from collections.abc import Sequence
from mmap import mmap
from struct import Struct
from typing import NamedTuple

from hoard_p2p.errors import Refused
from hoard_p2p.ids import ID_SIZE, ChunkId

SLOTS = 1 << 18
"""Chunks that are remembered, 8 MiB; each pushes out another with the same first 18 bits. Those that matter were met in
the last second: what was met before is in the index by now."""

_COUNTS = Struct("=qQQ")
_HEAD = 64


class Counts(NamedTuple):
    """Bytes of files that are done, bytes put that were new, bytes that were stored already or came twice."""

    moved: int = 0
    stored: int = 0
    deduplicated: int = 0


class Sightings:
    """Which chunks some process of this publish has undertaken to store.

    That it has undertaken to is enough: if it fails, the publish fails. Two processes that meet a chunk at the very
    same moment may both store it, which costs its bytes and nothing else."""

    def __init__(self, shared: mmap, start: int) -> None:
        self._shared = shared
        self._start = start

    def first_sight(self, chunk_id: ChunkId) -> bool:
        """Whether nobody has undertaken to store the chunk yet, as far as is known; from now on the caller has."""
        at = self._start + (int.from_bytes(chunk_id[:3], "little") & (SLOTS - 1)) * ID_SIZE
        if self._shared[at : at + ID_SIZE] == chunk_id:
            return False
        self._shared[at : at + ID_SIZE] = chunk_id
        return True


class Board:
    """The shared memory of `workers` processes and the one that leads them."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        head = _HEAD + workers * _HEAD  # each worker's counts in a cache line of their own
        self._memory = mmap(-1, head + SLOTS * ID_SIZE)
        self.sightings = Sightings(self._memory, head)

    @property
    def only_open(self) -> bool:
        """The publish is bound to fail: files are only opened, to name those that cannot be."""
        return bool(self._memory[1])

    @only_open.setter
    def only_open(self, value: bool) -> None:
        self._memory[1] = value

    def end(self) -> None:
        """The publish is over; every process stops where it next looks."""
        self._memory[0] = 1

    def check(self) -> None:
        """Raises Refused once the publish is over."""
        if self._memory[0]:
            raise Refused("publish cancelled")

    def tell(self, worker: int, counts: Counts) -> None:
        """What `worker` has done by now."""
        _COUNTS.pack_into(self._memory, _HEAD + worker * _HEAD, *counts)

    def totals(self) -> Counts:
        """What all workers have done by now."""
        rows: Sequence[tuple[int, ...]] = [
            _COUNTS.unpack_from(self._memory, _HEAD + worker * _HEAD) for worker in range(self._workers)
        ]
        return Counts(*map(sum, zip(*rows))) if rows else Counts()
