"""Damaged places: taken out of the index, and written over where they lie as soon as good bytes are at hand.

In place, because readers that the kernel serves from a backing file, or that keep a slab open, stay on the same file:
bytes stored elsewhere would never reach them. Which places are to be healed is remembered in memory alone: after a
restart such a place is no place, and its chunk is stored anew like any that is missing.

Nobody else writes where a healer does: a place was committed, and writers give out each piece of a slab once, so
neither the slab's writer nor one that outlived its node writes there again. Two healers would write the same bytes.
"""

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from hoard_p2p.errors import ChunkCorrupt, StoreFailed
from hoard_p2p.ids import Bytes, ChunkId, chunk_id, short
from hoard_p2p.interfaces import Extent, Place
from hoard_p2p.storage import extents as chunks
from hoard_p2p.storage.index import Index, Table
from hoard_p2p.storage.reader import StoreReader
from hoard_p2p.storage.records import decode_places
from hoard_p2p.storage.slabs import SlabFile

log = logging.getLogger(__name__)

REMEMBERED = 100_000
"""Chunks with damaged places that are remembered; those of older ones are given up."""


class Wounds:
    """Which quarantined places await good bytes, and which file slabs were complete before. Thread-safe."""

    def __init__(self) -> None:
        self._places: OrderedDict[ChunkId, list[Place]] = OrderedDict()
        self._open: dict[int, int] = {}
        self._complete: set[int] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._places)

    def add(self, identifier: ChunkId, place: Place, *, was_complete: bool) -> None:
        """`was_complete`: the place's slab had all of its file until now."""
        with self._lock:
            self._places.setdefault(identifier, []).append(place)
            self._open[place.slab] = self._open.get(place.slab, 0) + 1
            if was_complete:
                self._complete.add(place.slab)
            if len(self._places) > REMEMBERED:
                for old in self._places.popitem(last=False)[1]:
                    self._close(old.slab, healed=False)

    def of(self, identifier: ChunkId) -> tuple[Place, ...]:
        with self._lock:
            return tuple(self._places.get(identifier, ()))

    def in_slab(self, slab: int) -> list[Place]:
        with self._lock:
            if slab not in self._open:
                return []
            return [place for places in self._places.values() for place in places if place.slab == slab]

    def is_last(self, place: Place) -> bool:
        """Whether the slab of `place` has all of its file again once this place is healed."""
        with self._lock:
            return place.slab in self._complete and self._open.get(place.slab) == 1

    def may_complete(self, slab: int) -> bool:
        """Whether a slab that is about to be recorded complete is; if not, it will be once its places are healed."""
        with self._lock:
            if slab in self._open:
                self._complete.add(slab)
            return slab not in self._open

    def close(self, identifier: ChunkId, place: Place, *, healed: bool) -> None:
        """The place holds the right bytes again, or never will."""
        with self._lock:
            places = self._places.get(identifier, [])
            if place in places:
                places.remove(place)
                self._close(place.slab, healed=healed)
            if not places:
                self._places.pop(identifier, None)

    def _close(self, slab: int, *, healed: bool) -> None:
        self._open[slab] -= 1
        if not healed or not self._open[slab]:
            self._complete.discard(slab)
        if not self._open[slab]:
            del self._open[slab]


class Healer:
    """Quarantine and its end. Blocking, thread-safe."""

    def __init__(self, index: Index, reader: StoreReader) -> None:
        self._index = index
        self._reader = reader
        self._wounds = Wounds()
        self._turn = threading.Lock()  # one place at a time: of two threads with one chunk the second finds it healed

    def quarantine(self, identifier: ChunkId, place: Place) -> bool:
        """See Store.quarantine."""
        with self._turn:
            with self._index.write() as txn:
                was_complete = chunks.is_complete(txn, place.slab)
                dropped = chunks.drop_place(txn, identifier, place)
                if dropped:  # inside: who records the slab complete next must see it
                    self._wounds.add(identifier, place, was_complete=was_complete)
            return dropped

    def distrust(self, identifier: ChunkId, place: Place) -> bool:
        """See Store.distrust."""
        if self._good(identifier, place) is not None or not self.quarantine(identifier, place):
            return False
        for other in self._places(identifier):
            data = self._good(identifier, other)
            if data is not None:
                self.heal(identifier, data)
                break
            self.quarantine(identifier, other)
        return True

    def heal(self, identifier: ChunkId, data: Bytes) -> Place | None:
        """See Store.heal."""
        first = None
        for place in self._wounds.of(identifier) if len(self._wounds) else ():
            with self._turn:
                if place in self._wounds.of(identifier):
                    healed = self._heal(identifier, place, data)
                    self._wounds.close(identifier, place, healed=healed is not None)
                    first = first or healed
        return first

    def may_complete(self, slab: int) -> bool:
        """Whether no place of the slab is damaged. Called inside the transaction that records it complete: a place
        that is quarantined later finds the record."""
        return self._wounds.may_complete(slab)

    def committed(self, extents: Sequence[Extent]) -> None:
        """Chunks were stored anew: their damaged places, if any, can be healed from there."""
        if not len(self._wounds):
            return
        for slab, offset, length, identifier in extents:
            if self._wounds.of(identifier):
                data = self._good(identifier, Place(slab, offset, length, 1))
                if data is not None:
                    self.heal(identifier, data)

    @contextmanager
    def still(self) -> Iterator[Callable[[int], list[Place]]]:
        """Nobody is healed or quarantined inside this block; gives the places of a slab that await good bytes."""
        with self._turn:
            yield self._wounds.in_slab

    def give_up(self, ids: Iterable[ChunkId]) -> None:
        """These chunks are wanted no more: their damaged places are not healed."""
        if not len(self._wounds):
            return
        for identifier in ids:
            with self._turn:
                for place in self._wounds.of(identifier):
                    self._wounds.close(identifier, place, healed=False)

    def _heal(self, identifier: ChunkId, place: Place, data: Bytes) -> Place | None:
        """Write the bytes, make them durable, list the place again (I2). None if the slab does not allow it."""
        try:
            self._write(place, data)
            with self._index.write() as txn:
                healed = chunks.restore_place(txn, identifier, place)
                if healed is not None and self._wounds.is_last(place):
                    chunks.restore_file(txn, place.slab)
        except (OSError, StoreFailed, ChunkCorrupt) as error:
            log.info("chunk %s is not healed in slab %d: %s", short(identifier), place.slab, error)
            return None
        return healed

    def _write(self, place: Place, data: Bytes) -> None:
        """Raises OSError, and ChunkCorrupt if the slab is not there or too short.

        A slab that was cut is not made longer again: what else was cut off would read as zeros then, and not as
        missing, to those who checked it before."""
        fd = os.open(self._reader.slab_path(place.slab), os.O_WRONLY | os.O_CLOEXEC)
        try:
            end = place.offset + place.length
            if os.fstat(fd).st_size < end or len(data) != place.length:
                raise ChunkCorrupt(f"the slab ends before {end}")
            view = memoryview(data)
            at = place.offset
            while view:
                done = os.pwrite(fd, view, at)
                view, at = view[done:], at + done
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def _good(self, identifier: ChunkId, place: Place) -> bytearray | None:
        """The bytes at a place if they are the chunk. Raises StoreFailed.

        Opens the slab anew: of one that was deleted, or replaced, a descriptor that is open shows what readers in
        other processes do not see."""
        buffer = bytearray(place.length)
        try:
            SlabFile(self._reader.slab_path(place.slab)).read(place.offset, memoryview(buffer))
        except (ChunkCorrupt, FileNotFoundError):
            return None
        except OSError as error:
            raise StoreFailed(f"slab {place.slab} cannot be opened: {error}") from error
        return buffer if chunk_id(buffer) == identifier else None

    def _places(self, identifier: ChunkId) -> list[Place]:
        with self._index.read() as txn:
            raw = txn.get(Table.CHUNKS, identifier)
        return decode_places(raw) if raw else []
