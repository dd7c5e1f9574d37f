"""Extents that left the index and may not be punched yet. In memory alone: after a crash they are found by sidecar.

First they wait for readers: whoever looked a place up before transaction T may still read there. LMDB's reader table
says who that is, in all processes; py-lmdb writes an entry before it reads, but this processor may see it late, so one
further commit (microseconds are enough, an fsync lies between) has to follow. Then they are *free*, and wait at most
for those who hold their slab: its writer, a send, a mapping.
"""

import logging
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import Place
from hoard_p2p.storage.index import Index, Reader

log = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds after which a reader that delays the return of space is named in the log."""
SHOWN = 120
"""Characters of a command line."""
_ROW = struct.Struct("<QIB32s")  # offset, length, generation, chunk id


class Waiting(NamedTuple):
    """Space that is not returned yet, and why, in words for people."""

    bytes: int
    since_seconds: float
    reason: str


class Gone(NamedTuple):
    """A place that a chunk had."""

    chunk_id: ChunkId
    place: Place


class GoneExtents:
    """Extents by slab, packed: 45 bytes each, for there may be millions."""

    def __init__(self) -> None:
        self._rows: dict[int, bytearray] = {}
        self._sizes: Counter[int] = Counter()

    def __bool__(self) -> bool:
        return bool(self._rows)

    @property
    def size(self) -> int:
        """Bytes of all extents."""
        return self._sizes.total()

    def size_in(self, slab: int) -> int:
        return self._sizes[slab]

    def add(self, gone: Gone) -> None:
        slab, offset, length, generation = gone.place
        self._rows.setdefault(slab, bytearray()).extend(_ROW.pack(offset, length, generation, gone.chunk_id))
        self._sizes[slab] += length

    def slabs(self) -> list[int]:
        return list(self._rows)

    def has(self, slab: int) -> bool:
        return slab in self._rows

    def packed(self, slab: int) -> bytes:
        return bytes(self._rows.get(slab, b""))

    def all(self) -> Iterator[Gone]:
        for slab in self.slabs():
            yield from unpacked(slab, self.packed(slab))

    def replace(self, slab: int, rest: Iterable[Gone]) -> None:
        """`rest` is what is left of a slab's extents."""
        self._rows.pop(slab, None)
        self._sizes.pop(slab, None)
        for gone in rest:
            self.add(gone)


def unpacked(slab: int, rows: bytes) -> Iterator[Gone]:
    for offset, length, generation, chunk_id in _ROW.iter_unpack(rows):
        yield Gone(ChunkId(chunk_id), Place(slab, offset, length, generation))


@dataclass(slots=True, eq=False)
class Batch:
    """What one transaction unlisted. `txn` is 0 until it is known, which counts as not committed."""

    since: float
    extents: GoneExtents = field(default_factory=GoneExtents)
    txn: int = 0


@dataclass(slots=True)
class _Held:
    """Why the free extents of a slab are not punched, and since when."""

    reason: str
    since: float


class Limbo:
    """Thread-safe."""

    def __init__(self, index: Index, clock: Callable[[], float]) -> None:
        self._index = index
        self._clock = clock
        self._lock = threading.Lock()
        self._batches: list[Batch] = []
        self._free = GoneExtents()
        self._held: dict[int, _Held] = {}
        self._named: set[Reader] = set()

    @contextmanager
    def entering(self) -> Iterator[Batch]:
        """A batch to be filled inside a write transaction that commits inside this block: whoever sees an extent
        unlisted finds it here. Forgotten if the block fails."""
        batch = Batch(self._clock())
        with self._lock:
            self._batches.append(batch)
        try:
            yield batch
        except BaseException:
            batch.extents = GoneExtents()
            raise
        finally:
            if not batch.extents:
                with self._lock:
                    self._batches.remove(batch)

    def settle(self) -> list[Batch]:
        """Take out the batches that no reader can see any more. Raises StoreFailed if the index cannot be written."""
        with self._lock:
            waiting = [batch for batch in self._batches if batch.txn]
        if not waiting:
            return []
        if self._index.last_transaction <= max(batch.txn for batch in waiting):
            self._index.tick()
        last = self._index.last_transaction
        oldest = min((reader.txn for reader in self._index.readers()), default=last)
        safe = [batch for batch in waiting if batch.txn < last and batch.txn <= oldest]
        with self._lock:
            self._batches = [batch for batch in self._batches if batch not in safe]
        return safe

    @property
    def unsettled(self) -> bool:
        """Whether something was unlisted, or is just being, that `settle` has not taken out yet."""
        with self._lock:
            return bool(self._batches)

    def free(self, extents: Iterable[Gone]) -> None:
        with self._lock:
            for gone in extents:
                self._free.add(gone)

    def free_slabs(self) -> list[int]:
        with self._lock:
            return sorted(self._free.slabs())

    def free_in(self, slab: int) -> Iterator[Gone]:
        with self._lock:
            rows = self._free.packed(slab)
        return unpacked(slab, rows)

    def size_free_in(self, slab: int) -> int:
        with self._lock:
            return self._free.size_in(slab)

    def has(self, slab: int) -> bool:
        """Whether anything of the slab is here, free or not."""
        with self._lock:
            return any(extents.has(slab) for extents in (self._free, *(batch.extents for batch in self._batches)))

    def waiting_in(self, slab: int) -> Iterator[Gone]:
        """The extents of a slab that readers may still see: those of the moment of this call."""
        with self._lock:
            rows = b"".join(batch.extents.packed(slab) for batch in self._batches)
        return unpacked(slab, rows)

    def punched(self, slab: int, rest: Iterable[Gone]) -> None:
        """The free extents of a slab were given back, but for `rest`."""
        with self._lock:
            self._free.replace(slab, rest)

    def held(self, slab: int, reason: str) -> None:
        """The free extents of a slab that are left, if any, wait for `reason`."""
        with self._lock:
            if self._free.has(slab):
                since = self._held[slab].since if slab in self._held else self._clock()
                self._held[slab] = _Held(reason, since)
            else:
                self._held.pop(slab, None)

    def waiting(self) -> tuple[Waiting, ...]:
        """What is not returned yet. Names a reader in the log once it has been waited for long enough."""
        now = self._clock()
        readers = self._index.readers() if self._batches else []
        with self._lock:
            batches = [batch for batch in self._batches if batch.txn]
            held = [Waiting(self._free.size_in(slab), now - why.since, why.reason) for slab, why in self._held.items()]
        if not batches:
            return tuple(held)
        since = now - min(batch.since for batch in batches)
        newest = max(batch.txn for batch in batches)
        late = [reader for reader in readers if reader.txn < newest]
        size = sum(batch.extents.size for batch in batches)
        return (Waiting(size, since, self._blame(late, since)), *held)

    def _blame(self, late: list[Reader], since: float) -> str:
        if not late:
            return "the next commit"
        oldest = min(late, key=lambda reader: reader.txn)
        reason = f"{described(oldest.pid)} has been reading the index since before"
        self._named &= set(late)
        if since >= PATIENCE and oldest not in self._named:
            self._named.add(oldest)
            log.warning("space is not returned for %.0f s now: %s; is it stopped?", since, reason)
        return reason


def described(pid: int) -> str:
    """A process in words: its number and its command."""
    try:
        first, *rest = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return f"process {pid} (of another pid namespace, or just ending)"
    return f"process {pid} ({' '.join((Path(first).name, *rest)).strip()[:SHOWN]})"
