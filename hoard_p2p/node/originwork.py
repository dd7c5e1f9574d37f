"""What one reading of an origin brings: chunks that match their ids, or pieces of a lazy snapshot, whose bytes the
origin vouches for by their version (I1). `origin.streams` carries it out; here is what it is about.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hoard_p2p.errors import ObjectChanged
from hoard_p2p.fetch.segment import Segment, Wanted
from hoard_p2p.ids import ChunkId, SnapshotId, chunk_id, is_origin_key
from hoard_p2p.interfaces import Gathering
from hoard_p2p.node.underway import Underway
from hoard_p2p.objects import ObjectRange
from hoard_p2p.origin.files import FileRead
from hoard_p2p.origin.spans import at_once, grouped, joined
from hoard_p2p.origin.work import Work
from hoard_p2p.printing import printable

PARTED = 1 << 20
"""Lazy pieces over this are read in ranges, since readers may ask for parts of them."""

Deliver = Callable[[int, memoryview], None]


class PartsHere(Protocol):
    """Which ranges of unfinished pieces of lazy snapshots are here, or on their way. Blocking, for any thread."""

    def claim(self, segment: Segment, chunk: Wanted) -> list[tuple[int, int]]:
        """The ranges of a piece that are neither here nor being read: the caller reads them, and tells."""
        ...

    def came(self, segment: Segment, chunk: Wanted, start: int, data: memoryview) -> memoryview | None:
        """A claimed range came. The whole piece if it is complete now, good until the next call in this thread."""
        ...

    def gave_up(self, segment: Segment, chunk: Wanted, start: int, stop: int) -> None:
        """A claimed range does not come."""
        ...

    def settled(self, segment: Segment, chunk: Wanted, seconds: float) -> bool:
        """Wait until others have read what they claimed of the piece: whether it is whole, and has landed."""
        ...


class WholePieces:
    """`PartsHere` of a node that keeps no parts."""

    def claim(self, segment: Segment, chunk: Wanted) -> list[tuple[int, int]]:
        return [(0, chunk.length)]

    def came(self, segment: Segment, chunk: Wanted, start: int, data: memoryview) -> memoryview | None:
        return data if len(data) == chunk.length else None

    def gave_up(self, segment: Segment, chunk: Wanted, start: int, stop: int) -> None:
        return None

    def settled(self, segment: Segment, chunk: Wanted, seconds: float) -> bool:
        return False


@dataclass(slots=True)
class Reading:
    """What came of one `OriginReads.read`. `lock` is held while something is delivered; after `leave` nothing is."""

    segment: Segment
    wanted: Sequence[Wanted]
    deliver: Deliver
    parts: PartsHere
    underway: Underway
    note: Callable[[Segment, Wanted, Exception], None] = lambda _segment, _chunk, _error: None
    """Told of each chunk that could not be read, at once."""
    failed: set[int] = field(default_factory=set)
    elsewhere: set[int] = field(default_factory=set)
    """Numbers of large pieces of which others read a part."""
    others: set[int] = field(default_factory=set)
    """Numbers of chunks that another reading of the segment has, or brings."""
    whole: set[int] = field(default_factory=set)
    """Runs claimed as a whole."""
    error: Exception | None = None
    good: int = 0
    """Bytes that came, and were right: of a piece that is given, others may have read a part."""
    claimed: dict[tuple[int, int], int] = field(default_factory=dict)
    left: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    claiming: threading.Lock = field(default_factory=threading.Lock)
    """Held while `claimed` or `elsewhere` change."""

    def __post_init__(self) -> None:
        if isinstance(self.deliver, Gathering):
            self.deliver.gather()

    @property
    def place(self) -> tuple[SnapshotId, int]:
        return self.segment.snapshot, self.segment.number

    def claim(self, numbers: Sequence[int]) -> list[int]:
        """Those of these chunks that this reading is to read; none after `leave`."""
        with self.claiming:
            if self.left:
                return []
            fresh = self.underway.claim(self.place, [self.wanted[number].run for number in numbers])
            self.whole |= fresh
            mine = [number for number in numbers if self.wanted[number].run in fresh]
            self.others.update(set(numbers).difference(mine))
            return mine

    def settle(self, numbers: Sequence[int], *, landed: bool) -> None:
        """Chunks that were claimed as a whole are here, or cannot be had."""
        runs = [self.wanted[number].run for number in numbers]
        with self.claiming:
            self.whole.difference_update(runs)
        self.underway.settle(self.place, runs, landed=landed)

    def give(self, numbers: Sequence[int], pieces: Sequence[memoryview]) -> None:
        """Chunks that are good: they are delivered, and may be reused afterwards."""
        with self.lock:
            if self.left:
                return
            for number, data in zip(numbers, pieces, strict=True):
                self.deliver(number, data)
            if isinstance(self.deliver, Gathering):
                self.deliver.settle()

    def was_good(self, size: int) -> None:
        with self.lock:
            self.good += size

    def fail(self, numbers: Sequence[int], error: Exception) -> None:
        for number in numbers:
            self.note(self.segment, self.wanted[number], error)
        with self.lock:
            if not self.left:
                self.failed.update(numbers)
                self.error = self.error or error

    def known(self, errors: Mapping[int, Exception]) -> None:
        """Chunks that were not read, since it is known why that would be in vain."""
        with self.lock:
            self.failed.update(errors)
            self.error = self.error or next(iter(errors.values()), None)

    def leave(self) -> None:
        """Nobody waits any more: what was claimed and did not come is lost."""
        with self.lock, self.claiming:
            self.left = True
            claimed, self.claimed = self.claimed, {}
            self.underway.settle(self.place, list(self.whole), landed=False)
        for (number, start), stop in claimed.items():
            self.parts.gave_up(self.segment, self.wanted[number], start, stop)

    def wait(self, seconds: float) -> None:
        """For what others read."""
        for number in sorted(self.elsewhere - self.failed):
            landed = self.parts.settled(self.segment, self.wanted[number], seconds)
            self.settle([number], landed=landed)
            if not landed:
                self.failed.add(number)
        for number in sorted(self.others):
            if not self.underway.wait(self.place, self.wanted[number].run, seconds):
                self.failed.add(number)


@dataclass(slots=True)
class Chunks:
    """A `Work`: neighbouring chunks of one object, each for itself good or not."""

    reading: Reading
    numbers: Sequence[int]
    where: Sequence[ObjectRange]

    most: int

    def ranges(self) -> Sequence[ObjectRange]:
        mine = set(self.reading.claim(self.numbers))
        return joined([where for number, where in self._all() if number in mine], self.most)

    def _all(self) -> list[tuple[int, ObjectRange]]:
        return list(zip(self.numbers, self.where, strict=True))

    def _inside(self, wanted: ObjectRange) -> list[tuple[int, ObjectRange]]:
        return [(number, at) for number, at in self._all() if wanted.start <= at.start and at.stop <= wanted.stop]

    def came(self, wanted: ObjectRange, data: memoryview) -> None:
        numbers, pieces = list[int](), list[memoryview]()
        for number, where in self._inside(wanted):
            piece = data[where.start - wanted.start : where.stop - wanted.start]
            expected = self.reading.wanted[number].chunk_id
            if is_origin_key(expected) or chunk_id(piece) == expected:
                numbers.append(number)
                pieces.append(piece)
            else:
                why = f"{printable(where.path)}: changed since it was published"
                self._lost([number], ObjectChanged(why))
        self.reading.was_good(sum(map(len, pieces)))
        self.reading.give(numbers, pieces)
        self.reading.settle(numbers, landed=True)

    def failed(self, wanted: ObjectRange, error: Exception) -> None:
        self._lost([number for number, _ in self._inside(wanted)], error)

    def _lost(self, numbers: Sequence[int], error: Exception) -> None:
        self.reading.fail(numbers, error)
        self.reading.settle(numbers, landed=False)


@dataclass(slots=True)
class Parts:
    """A `Work`: neighbouring large pieces of one object of a lazy snapshot, of which only those ranges are read that
    are not here, nor being read by others."""

    reading: Reading
    numbers: Sequence[int]
    where: Sequence[ObjectRange]
    most: int

    def ranges(self) -> Sequence[ObjectRange]:
        reading, found = self.reading, list[ObjectRange]()
        mine = set(reading.claim(self.numbers))
        with reading.claiming:
            for number, where in zip(self.numbers, self.where, strict=True):
                if number not in mine or reading.left:
                    continue
                claimed = reading.parts.claim(reading.segment, reading.wanted[number])
                reading.claimed.update(((number, start), stop) for start, stop in claimed)
                found += [where._replace(start=where.start + start, stop=where.start + stop) for start, stop in claimed]
                if not claimed:
                    reading.elsewhere.add(number)
        return joined(found, self.most)

    def _claimed(self, wanted: ObjectRange) -> list[tuple[int, int, int]]:
        """Number, start and stop in the piece of what `wanted` was joined from; it is claimed no more."""
        found = []
        with self.reading.claiming:
            for number, where in zip(self.numbers, self.where, strict=True):
                for (one, start), stop in list(self.reading.claimed.items()):
                    if one == number and wanted.start <= where.start + start and where.start + stop <= wanted.stop:
                        del self.reading.claimed[one, start]
                        found.append((number, start, stop))
        return found

    def came(self, wanted: ObjectRange, data: memoryview) -> None:
        reading = self.reading
        bases = dict(zip(self.numbers, (where.start for where in self.where), strict=True))
        for number, start, stop in self._claimed(wanted):
            at = bases[number] + start - wanted.start
            reading.was_good(stop - start)
            whole = reading.parts.came(reading.segment, reading.wanted[number], start, data[at : at + stop - start])
            if whole is not None:
                reading.give([number], [whole])
                reading.settle([number], landed=True)
            else:
                with reading.claiming:
                    if not any(one == number for one, _ in reading.claimed):
                        reading.elsewhere.add(number)

    def failed(self, wanted: ObjectRange, error: Exception) -> None:
        for number, start, stop in self._claimed(wanted):
            self.reading.parts.gave_up(self.reading.segment, self.reading.wanted[number], start, stop)
            self.reading.fail([number], error)
            self.reading.settle([number], landed=False)


@dataclass(slots=True)
class OneRange:
    """A `Work`: a part of an object for one reader."""

    where: ObjectRange
    data: bytes = b""
    error: Exception | None = None

    def ranges(self) -> Sequence[ObjectRange]:
        return [self.where]

    def came(self, wanted: ObjectRange, data: memoryview) -> None:
        self.data = bytes(data)

    def failed(self, wanted: ObjectRange, error: Exception) -> None:
        self.error = error


@dataclass(slots=True)
class Look:
    """A `Work`: a part of an object, of which only the hash is wanted."""

    where: ObjectRange
    found: ChunkId | None = None
    error: Exception | None = None

    def ranges(self) -> Sequence[ObjectRange]:
        return [self.where]

    def came(self, wanted: ObjectRange, data: memoryview) -> None:
        self.found = chunk_id(data)

    def failed(self, wanted: ObjectRange, error: Exception) -> None:
        self.error = error


def works_of(plan: Sequence[FileRead], reading: Reading, streams: int) -> list[Work]:
    """What to read, in the order that it is wanted in."""
    pieces = sorted(((piece.number, file.range_of(piece)) for file in plan for piece in file.pieces), key=_place)
    numbers, where = [number for number, _ in pieces], [each for _, each in pieces]
    most = at_once(sum(each.stop - each.start for each in where), streams)
    works = list[tuple[int, Work]]()
    for group in grouped(where, most):
        inside = numbers[group.start : group.stop], where[group.start : group.stop]
        lazy = is_origin_key(reading.wanted[inside[0][0]].chunk_id)
        large = lazy and max(reading.wanted[number].length for number in inside[0]) > PARTED
        works.append((min(inside[0]), Parts(reading, *inside, most) if large else Chunks(reading, *inside, most)))
    return [work for _, work in sorted(works, key=lambda each: each[0])]


def _place(piece: tuple[int, ObjectRange]) -> tuple[bytes, int]:
    return piece[1].path, piece[1].start
