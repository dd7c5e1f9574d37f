"""Damaged places: taken out of the index, and written over where they lie as soon as good bytes are at hand.

In place, because readers that the kernel serves from a backing file, or that keep a slab open, stay on the same file:
bytes stored elsewhere would never reach them. Which places are to be healed is kept in the index, so that a restart
does not leave a file slab incomplete for good, and a scrub knows what is missing.

Nobody else writes where a healer does: a place was committed, and writers give out each piece of a slab once, so
neither the slab's writer nor one that outlived its node writes there again. Two healers would write the same bytes.
"""

import contextlib
import logging
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from hoard_p2p.errors import ChunkCorrupt, StoreFailed
from hoard_p2p.ids import ID_SIZE, Bytes, ChunkId, chunk_id, short
from hoard_p2p.interfaces import Extent, Place
from hoard_p2p.storage import extents as chunks
from hoard_p2p.storage.index import Index, Table, Transaction
from hoard_p2p.storage.reader import StoreReader
from hoard_p2p.storage.records import decode_place, decode_places, encode_places
from hoard_p2p.storage.slabs import SlabFile

log = logging.getLogger(__name__)

REMEMBERED = 100_000
"""Chunks with damaged places that are remembered; those of older ones are given up."""

_KEY = struct.Struct(">32sIQ")  # chunk id, slab, offset


class Wounds:
    """Which quarantined places await good bytes, and which file slabs were complete before. Thread-safe.

    In memory, and in the index's table of that name, which `load` reads and `record` and `erase` write."""

    def __init__(self) -> None:
        self._places: OrderedDict[ChunkId, list[Place]] = OrderedDict()
        self._open: dict[int, int] = {}
        self._complete: set[int] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._places)

    def load(self, txn: Transaction) -> None:
        """What was damaged when the store was closed."""
        for key, value in txn.scan(Table.WOUNDS):
            self._add(ChunkId(key[:ID_SIZE]), decode_place(value[1:]), was_complete=bool(value[0]))

    def record(self, txn: Transaction, identifier: ChunkId, place: Place, *, was_complete: bool) -> None:
        """`was_complete`: the place's slab had all of its file until now."""
        txn.put(Table.WOUNDS, _key(identifier, place), bytes([was_complete]) + encode_places([place]))
        for old_id, old in self._add(identifier, place, was_complete=was_complete):
            txn.delete(Table.WOUNDS, _key(old_id, old))

    @staticmethod
    def erase(txn: Transaction, identifier: ChunkId, place: Place) -> None:
        """What `close` is in memory."""
        txn.delete(Table.WOUNDS, _key(identifier, place))

    def _add(self, identifier: ChunkId, place: Place, *, was_complete: bool) -> list[tuple[ChunkId, Place]]:
        """What is given up for it."""
        with self._lock:
            self._places.setdefault(identifier, []).append(place)
            self._open[place.slab] = self._open.get(place.slab, 0) + 1
            if was_complete:
                self._complete.add(place.slab)
            if len(self._places) <= REMEMBERED:
                return []
            old_id, places = self._places.popitem(last=False)
            for old in places:
                self._close(old.slab, healed=False)
            return [(old_id, old) for old in places]

    def ids(self) -> list[ChunkId]:
        with self._lock:
            return list(self._places)

    def of(self, identifier: ChunkId) -> tuple[Place, ...]:
        with self._lock:
            return tuple(self._places.get(identifier, ()))

    def in_slab(self, slab: int) -> list[tuple[ChunkId, Place]]:
        with self._lock:
            if slab not in self._open:
                return []
            return [(of, place) for of, places in self._places.items() for place in places if place.slab == slab]

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

    def was_complete(self, slab: int) -> bool:
        """Whether the slab has all of its file once its places are healed."""
        with self._lock:
            return slab in self._complete

    def demoted(self, slab: int) -> None:
        """The slab lost places that will not be healed: it has not all of its file once the others are."""
        with self._lock:
            self._complete.discard(slab)

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
        with index.read() as txn:
            self._wounds.load(txn)
        self._turn = threading.Lock()  # one place at a time: of two threads with one chunk the second finds it healed
        self._watches: list[tuple[int, list[tuple[ChunkId, Place]]]] = []

    def quarantine(self, identifier: ChunkId, place: Place) -> bool:
        """See Store.quarantine."""
        return bool(self.quarantine_all([(identifier, place)]))

    def quarantine_all(self, found: Sequence[tuple[ChunkId, Place]]) -> list[tuple[ChunkId, Place]]:
        """Quarantine places in one step; those that the index listed until now."""
        with self._turn, self._index.write() as txn:
            return [one for one in found if self._quarantine(txn, *one)]

    def _quarantine(self, txn: Transaction, identifier: ChunkId, place: Place) -> bool:
        was_complete = chunks.is_complete(txn, place.slab)
        dropped = chunks.drop_place(txn, identifier, place)
        if dropped:  # inside: who records the slab complete next must see it
            self._wounds.record(txn, identifier, place, was_complete=was_complete)
        return dropped

    def damaged(self) -> list[ChunkId]:
        """Chunks with a place that awaits good bytes."""
        return self._wounds.ids()

    def distrust(self, identifier: ChunkId, place: Place) -> bool:
        """See Store.distrust."""
        if self.good(identifier, place) is not None or not self.quarantine(identifier, place):
            return False
        self.heal_from_disk(identifier)
        return True

    def heal_from_disk(self, identifier: ChunkId) -> bool:
        """Heal the chunk's damaged places from another place, if one is right; those that are not are quarantined.

        The first to be asked are the damaged places: where the disk lost what the page cache still has, that is the
        nearest copy."""
        for place in self._wounds.of(identifier):
            data = self.good(identifier, place)
            if data is not None and self.heal(identifier, data) is not None:
                return True
        for other in self.places(identifier):
            data = self.good(identifier, other)
            if data is not None:
                self.heal(identifier, data)
                return True
            self.quarantine(identifier, other)
        return False

    def heal(self, identifier: ChunkId, data: Bytes) -> Place | None:
        """See Store.heal."""
        first = None
        for place in self._wounds.of(identifier) if len(self._wounds) else ():
            with self._turn:
                if place in self._wounds.of(identifier):
                    healed = self._heal(identifier, place, data)
                    if healed is None:
                        self._give_up(identifier, place)
                    self._wounds.close(identifier, place, healed=healed is not None)
                    first = first or healed
        return first

    def may_complete(self, slab: int) -> bool:
        """Whether no place of the slab is damaged. Called inside the transaction that records it complete: a place
        that is quarantined later finds the record."""
        return self._wounds.may_complete(slab)

    def was_complete(self, slab: int) -> bool:
        """Whether a slab has all of a large file, but for places that await good bytes."""
        return self._wounds.was_complete(slab)

    def committed(self, extents: Sequence[Extent]) -> None:
        """Chunks were stored anew: their damaged places, if any, can be healed from there."""
        if not len(self._wounds):
            return
        for slab, offset, length, identifier in extents:
            if self._wounds.of(identifier):
                data = self.good(identifier, Place(slab, offset, length, 1))
                if data is not None:
                    self.heal(identifier, data)

    def demoted(self, slab: int) -> None:
        """The slab loses places for good. Called inside the transaction that unlists them."""
        self._wounds.demoted(slab)

    @contextmanager
    def still(self) -> Iterator[Callable[[int], list[tuple[ChunkId, Place]]]]:
        """Nobody is healed or quarantined inside this block; gives the places of a slab that await good bytes."""
        with self._turn:
            yield self._wounds.in_slab

    @contextmanager
    def watched(self, slab: int) -> Iterator[Callable[[], list[tuple[ChunkId, Place]]]]:
        """For a look through a slab that nobody writes, while healing goes on. What is given, asked at the look's end,
        names the places that await good bytes, and those that came to be listed since its begin: every place that the
        look did not see listed, and that may be so from then on."""
        healed: list[tuple[ChunkId, Place]] = []
        with self._turn:
            self._watches.append((slab, healed))

        def ask() -> list[tuple[ChunkId, Place]]:
            with self._turn:
                return [*healed, *self._wounds.in_slab(slab)]

        try:
            yield ask
        finally:
            with self._turn:
                self._watches = [watch for watch in self._watches if watch[1] is not healed]

    def give_up(self, ids: Iterable[ChunkId]) -> None:
        """These chunks are wanted no more: their damaged places are not healed."""
        for identifier in ids if len(self._wounds) else ():
            with self._turn:
                for place in self._wounds.of(identifier):
                    self._give_up(identifier, place)
                    self._wounds.close(identifier, place, healed=False)

    def _heal(self, identifier: ChunkId, place: Place, data: Bytes) -> Place | None:
        """Write the bytes, make them durable, list the place again (I2). None if the slab does not allow it."""
        try:
            self.overwrite(place, data)
            with self._index.write() as txn:
                healed = chunks.restore_place(txn, identifier, place)
                for slab, seen in self._watches:
                    if slab == place.slab and healed is not None:
                        seen.append((identifier, healed))
                self._wounds.erase(txn, identifier, place)
                if healed is not None and self._wounds.is_last(place):
                    chunks.restore_file(txn, place.slab)
        except (OSError, StoreFailed, ChunkCorrupt) as error:
            log.info("chunk %s is not healed in slab %d: %s", short(identifier), place.slab, error)
            return None
        return healed

    def _give_up(self, identifier: ChunkId, place: Place) -> None:
        with contextlib.suppress(StoreFailed), self._index.write() as txn:
            self._wounds.erase(txn, identifier, place)

    def overwrite(self, place: Place, data: Bytes) -> None:
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

    def good(self, identifier: ChunkId, place: Place) -> bytearray | None:
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

    def places(self, identifier: ChunkId) -> list[Place]:
        with self._index.read() as txn:
            raw = txn.get(Table.CHUNKS, identifier)
        return decode_places(raw) if raw else []


def _key(identifier: ChunkId, place: Place) -> bytes:
    return _KEY.pack(identifier, place.slab, place.offset)
