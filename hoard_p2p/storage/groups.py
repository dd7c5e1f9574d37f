"""Making puts durable in groups: which chunks are on their way, and the thread that commits them.

The order in a group is I2's: bytes (written by `keep`, before the chunk joins a group), sidecars, fdatasync of both,
index commit. Only then is a chunk no longer pending; a group that fails is forgotten, and whoever flushes hears of it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hoard_p2p.errors import HoardError, StoreFailed, StoreFull
from hoard_p2p.ids import Bytes, ChunkId, short
from hoard_p2p.interfaces import Extent, Place, SlabBroker
from hoard_p2p.storage.allowance import Allowance
from hoard_p2p.storage.failures import store_failure
from hoard_p2p.storage.openslab import OpenSlab
from hoard_p2p.storage.spots import Spot, write_together

BEHIND = 2
"""Puts wait while more closed groups than this are not yet on disk: memory and loss stay bounded."""
PATIENCE = 300.0
"""Seconds that a put or flush waits for the disk at most."""
REMEMBERED_FAILURES = 1000


class Completion(NamedTuple):
    """A large file to record once everything put before it is committed."""

    slab: OpenSlab
    file_key: bytes
    complete: bool


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """When a group is closed, and when a large file's slab is worth completing.

    A group ends at `group_bytes`, `group_chunks`, or `group_seconds` after its first chunk. `copy_share`: a file slab
    is completed by copies if at most this share of the file's data is missing from it. `refused_seconds`: how long a
    full store is believed to be full, so that a fetch which cannot be stored does not ask again for each chunk.
    """

    group_bytes: int = 64 << 20
    group_chunks: int = 1024
    group_seconds: float = 0.05
    copy_share: float = 0.25
    refused_seconds: float = 1.0


@dataclass(slots=True)
class _Group:
    number: int
    due: float = 0.0
    size: int = 0
    rows: list[tuple[OpenSlab, Extent]] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    known: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not self.rows and not self.completions and not self.known

    def by_slab(self) -> dict[OpenSlab, list[Extent]]:
        found: dict[OpenSlab, list[Extent]] = {}
        for slab, extent in self.rows:
            found.setdefault(slab, []).append(extent)
        return found


class Groups:
    """The chunks of one writer that are on their way to the index, and the thread that brings them there."""

    def __init__(
        self,
        broker: SlabBroker,
        vacancies: Callable[[Sequence[ChunkId]], list[int | None]],
        allowance: Allowance,
        settings: WriterSettings,
    ) -> None:
        self._broker = broker
        self._allowance = allowance
        self._vacancies = vacancies
        self._settings = settings
        lock = threading.Lock()
        self._work = threading.Condition(lock)  # the thread waits here, so that puts do not wake it each time
        self._changed = threading.Condition(lock)  # puts and flushes wait here
        self._writing: set[ChunkId] = set()
        self._pending: dict[ChunkId, Place] = {}
        self._known: dict[bytes, bytes] = {}
        self._group = _Group(1)
        self._closed: deque[_Group] = deque()
        self._done = 0
        self._heard = 0
        self._failures: deque[int] = deque(maxlen=REMEMBERED_FAILURES)
        self._why: HoardError | None = None
        self._stopping = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="hoard-store-groups", daemon=True)
        self._thread.start()

    def pending(self, chunk_id: ChunkId) -> Place | None:
        return self._pending.get(chunk_id)  # one dictionary read: atomic, no lock

    def know(self, key: bytes, found: bytes) -> None:
        """Have what an origin key was found to be told to the index with, or after, all that was put so far. Raises
        StoreFailed once the writer is closed."""
        with self._changed:
            self._wait_until(lambda: not self._crowded)
            if self._stopping:
                raise StoreFailed("the store's writer is closed")
            self._start_clock()
            self._known[key] = self._group.known[key] = found
            if len(self._group.known) >= self._settings.group_chunks:
                self._close_group()

    def known(self, key: bytes) -> bytes | None:
        """What is on its way to the index about a key."""
        return self._known.get(key)

    def keep(self, chunk_id: ChunkId, data: Bytes, spot_for: Callable[[int], Spot]) -> bool:
        """Write a chunk where `spot_for(length)` says, and let it join a group; false if it is stored already.

        Of two callers with one id the second waits for the first. Raises StoreFailed."""
        with self._changed:
            self._wait_until(lambda: not self._crowded and chunk_id not in self._writing)
            if chunk_id in self._pending:
                return False
            self._writing.add(chunk_id)
        try:
            (generation,) = self._vacancies((chunk_id,))
            if generation is None:
                return False
            self._write(chunk_id, data, spot_for(len(data)), generation)
            return True
        finally:
            with self._changed:
                self._writing.discard(chunk_id)
                self._changed.notify_all()

    def keep_many(
        self, chunks: Mapping[ChunkId, Bytes], spots_for: Callable[[Sequence[int]], list[Spot]]
    ) -> set[ChunkId]:
        """`keep` for several chunks that go into shared slabs, with one look at the index and few writes; those that
        were stored. Raises StoreFailed."""
        with self._changed:
            self._wait_until(lambda: not self._crowded)
            elsewhere = [chunk_id for chunk_id in chunks if chunk_id in self._writing]
            mine = [chunk_id for chunk_id in chunks if chunk_id not in self._writing and chunk_id not in self._pending]
            self._writing.update(mine)
        try:
            vacant = {name: number for name, number in zip(mine, self._vacancies(mine)) if number is not None}
            if vacant:
                spots = spots_for([len(chunks[name]) for name in vacant])
                self._write_many([chunks[name] for name in vacant], spots, list(vacant.items()))
        finally:
            with self._changed:
                self._writing.difference_update(mine)
                self._changed.notify_all()
        found = {name for name in elsewhere if self.keep(name, chunks[name], lambda size: spots_for((size,))[0])}
        return found | vacant.keys()

    def keep_copy(self, chunk_id: ChunkId, data: Bytes, spot: Spot) -> None:
        """Write one more place of a chunk that is stored or pending elsewhere. Raises StoreFailed."""
        try:
            with self._changed:
                self._wait_until(lambda: not self._crowded)
        except StoreFailed:
            spot.slab.leave()
            raise
        self._write(chunk_id, data, spot, None)

    def complete(self, completion: Completion) -> None:
        """Record a large file after everything put so far. The caller entered the slab once more for this."""
        with self._changed:
            if self._stopping:
                completion.slab.leave()
                raise StoreFailed("the store's writer is closed")
            self._start_clock()
            self._group.completions.append(completion)

    def mark(self) -> int:
        with self._changed:
            return self._group.number

    def flush(self, since: int | None) -> None:
        """See ChunkWriter.flush."""
        with self._changed:
            if not self._group.empty:
                self._close_group()
            upto = self._group.number - 1
            self._wait_until(lambda: self._done >= upto)
            first = self._heard + 1 if since is None else since
            if since is None:
                self._heard = max(self._heard, upto)
            if any(first <= number <= upto for number in self._failures):
                kind = StoreFull if isinstance(self._why, StoreFull) else StoreFailed
                raise kind(f"chunks could not be stored: {self._why}")

    def stop(self) -> None:
        """Commit what there is and end the thread; what is put from then on fails."""
        with self._changed:
            self._stopping = True
            self._work.notify()
        self._thread.join(PATIENCE)

    # --- the putting side

    @property
    def _crowded(self) -> bool:
        return self._group.number - 1 - self._done > BEHIND

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait, lock held, for `ready`. Raises StoreFailed if the thread is gone or the disk does not get on."""
        if ready():
            return
        self._changed.wait_for(lambda: self._ended or ready(), PATIENCE)
        if not ready():
            raise StoreFailed("the store's writer has ended" if self._ended else f"no write ended in {PATIENCE:.0f} s")

    def _write(self, chunk_id: ChunkId, data: Bytes, spot: Spot, generation: int | None) -> None:
        slab, offset = spot
        try:
            slab.reserve(offset, len(data))
            slab.write(data, offset)
            self._join(slab, Extent(slab.slab, offset, len(data), chunk_id), generation)
        except OSError as error:
            slab.lose([Extent(slab.slab, offset, len(data), chunk_id)])
            slab.leave()
            raise store_failure(f"chunk {short(chunk_id)} could not be written", error) from error
        except StoreFailed:
            slab.leave()
            raise

    def _write_many(self, data: Sequence[Bytes], spots: Sequence[Spot], names: Sequence[tuple[ChunkId, int]]) -> None:
        try:
            write_together(spots, data)
            extents = [Extent(s.slab.slab, s.offset, len(d), name) for s, d, (name, _) in zip(spots, data, names)]
            with self._changed:
                for spot, extent, (_, generation) in zip(spots, extents, names):
                    self._enlist(spot.slab, extent, generation)
        except (OSError, StoreFailed) as error:
            for spot in spots:
                spot.slab.leave()
            if isinstance(error, StoreFailed):
                raise
            raise store_failure(f"{len(data)} chunks could not be written", error) from error

    def _join(self, slab: OpenSlab, extent: Extent, generation: int | None) -> None:
        with self._changed:
            self._enlist(slab, extent, generation)

    def _enlist(self, slab: OpenSlab, extent: Extent, generation: int | None) -> None:
        """Lock held. Raises StoreFailed once the writer is closed."""
        if self._stopping:
            raise StoreFailed("the store's writer is closed")
        self._start_clock()
        self._group.rows.append((slab, extent))
        self._group.size += extent.length
        if generation is not None:
            self._pending[extent.chunk_id] = Place(extent.slab, extent.offset, extent.length, generation)
        settings = self._settings
        if self._group.size >= settings.group_bytes or len(self._group.rows) >= settings.group_chunks:
            self._close_group()

    def _start_clock(self) -> None:
        if self._group.empty:
            self._group.due = time.monotonic() + self._settings.group_seconds
            self._work.notify()

    def _close_group(self) -> None:
        self._closed.append(self._group)
        self._group = _Group(self._group.number + 1)
        self._work.notify()

    # --- the thread

    @property
    def _quiet(self) -> bool:
        """Whether nothing waits behind the group at hand: what was granted may be needed elsewhere."""
        with self._changed:
            return self._group.empty and not self._closed

    def _run(self) -> None:
        try:
            while (group := self._next_group()) is not None:
                self._settle(group, self._commit(group))
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _forget(self, group: _Group) -> None:
        """Lock held: nothing of it is on its way any more."""
        for _, extent in group.rows:
            place = self._pending.get(extent.chunk_id)
            if place is not None and (place.slab, place.offset) == (extent.slab, extent.offset):
                del self._pending[extent.chunk_id]
        later = [self._group, *self._closed]
        for key in group.known:
            if not any(key in other.known for other in later):
                self._known.pop(key, None)

    def _next_group(self) -> _Group | None:
        """The next group that is closed or due; None when there is nothing left and the writer stops."""
        with self._work:
            while not self._closed:
                if self._group.empty:
                    if self._stopping:
                        return None
                    self._work.wait()
                elif self._stopping or self._group.due <= time.monotonic():
                    self._close_group()
                else:
                    self._work.wait(self._group.due - time.monotonic())
            return self._closed.popleft()

    def _commit(self, group: _Group) -> HoardError | None:
        """Bring a group to disk and into the index; returns why that failed. The slabs know afterwards which bytes the
        index lists, or may list, and which it certainly does not."""
        by_slab = group.by_slab()
        failure = self._sync(by_slab)
        listed = failure is None
        if failure is None:
            failure = self._list(group)
            listed = not isinstance(failure, StoreFull)  # any other error may have come after the fact
        for slab, extents in by_slab.items():
            (slab.keep if listed else slab.lose)(extents)
        self._allowance.report()  # what lies on the disk is not to count as promised, too
        return failure or self._record(group.completions)

    def _sync(self, by_slab: dict[OpenSlab, list[Extent]]) -> HoardError | None:
        try:
            for slab, extents in by_slab.items():
                if slab.broken:
                    return self._why
                slab.append_sidecar(extents)
                slab.sync()
        except OSError as error:
            return store_failure("they did not get to the disk", error)
        return None

    def _list(self, group: _Group) -> HoardError | None:
        try:
            if group.rows or group.known:
                extents = [extent for _, extent in group.rows]
                self._broker.commit(extents, list(group.known.items()))  # I2: index after fdatasync
        except HoardError as error:
            return error
        return None

    def _record(self, completions: Sequence[Completion]) -> HoardError | None:
        try:
            for done in completions:
                if not done.slab.broken:
                    self._broker.complete_file(done.file_key, done.slab.slab, done.complete)
        except HoardError as error:
            return error
        return None

    def _settle(self, group: _Group, failure: HoardError | None) -> None:
        if failure is not None:
            for slab, _ in group.rows:
                slab.broken = True
                slab.retire()
        with self._changed:
            self._forget(group)
        for slab in [slab for slab, _ in group.rows] + [done.slab for done in group.completions]:
            slab.leave()
        if self._quiet:
            self._allowance.settle()
        with self._changed:  # last: who flushes finds everything settled
            self._done = group.number
            if failure is not None:
                self._failures.append(group.number)
                self._why = failure
            self._changed.notify_all()
