"""Long pieces of lazy snapshots that are here in part: which ranges, where their bytes lie, and who reads the rest.

Promises: a range is read by one at a time, and not again once it is here; a piece is kept as a chunk as soon as its
last range came (hashed then: before, nothing tells what its bytes are). Knows neither who reads nor from where.
"""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from hoard_p2p.errors import ChunkCorrupt, StoreFailed
from hoard_p2p.fetch.segment import Landed, Segment, Wanted
from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import Place
from hoard_p2p.limits import MAX_CHUNK
from hoard_p2p.origin.coverage import Coverage

MOST_LOOSE = 256 << 20
"""Bytes of parts that lie in memory, since their pieces have no slab of their own or there was no room."""

GIVEN_SECONDS = 75.0
"""So long after a piece was forgotten its space in a slab stays: a reader may have been told a moment before that its
range is there, and would read zeros once that space is given back."""

MOST_PIECES = 1 << 16
KEPT_DELIVERED = 4096
DELIVERED_SECONDS = 5.0
"""For so long a piece that was given to who keeps it counts as on its way to the index; later, it was not kept."""

_Key: TypeAlias = ChunkId


class PartStore(Protocol):
    """What the store does for parts. Blocking, for any thread; `node.keeping.StoreKeeper` is one."""

    def keep_part(self, segment: Segment, chunk: Wanted, start: int, data: memoryview) -> Place | None:
        """Write bytes of an unfinished piece to the place where it is to lie; where that is, as a whole. None: it has
        no such place, or there is no room."""
        ...

    def part_at(self, segment: Segment, chunk: Wanted, start: int, into: memoryview) -> bool:
        """Read such bytes again; false if the place is gone."""
        ...

    def drop_part(self, chunk: Wanted) -> None:
        """Nobody wants these bytes any more. Short, and never calls back: a lock is held."""
        ...

    def place(self, chunk_id: ChunkId) -> Place | None: ...

    def keep(self, segment: Segment, chunk: Wanted, data: memoryview) -> Place:
        """See `fetch.asking.Keeper`. Raises StoreFailed."""
        ...


class Here(NamedTuple):
    """The range is here: at its place in the piece's `place`, or as `data`."""

    place: Place | None
    data: bytes


class Mine(NamedTuple):
    """These ranges are to be read by who asked, who tells `land` or `release` of each."""

    ranges: list[tuple[int, int]]


class Awaited(NamedTuple):
    """Others read what is missing. `flight`: as whole pieces, which land in the flight of the segment."""

    flight: bool


@dataclass(slots=True, eq=False)
class _Piece:
    segment: Segment
    chunk: Wanted
    cover: Coverage
    place: Place | None = None
    loose: dict[int, bytes] = field(default_factory=dict)
    """Bytes in memory, by where they begin."""
    parted: bool = False
    """There was a place: it is to be given back."""
    homeless: bool = False
    """What lay at that place was lost: the rest stays in memory."""
    fills: int = 0
    """Claims of who reads the piece for no reader in particular."""
    composing: bool = False
    """All of it is here, and about to be kept or given away."""
    composer: bool = False
    """Somebody does that."""
    waiters: list["asyncio.Future[None]"] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        return not self.cover.busy and not self.composing


class Ranges:
    """See the module. All methods but `changed` are for any thread."""

    def __init__(
        self, store: PartStore, clock: Callable[[], float] = time.monotonic, most_pieces: int = MOST_PIECES
    ) -> None:
        """On the event loop."""
        self._most_pieces = most_pieces
        self._store = store
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._pieces: OrderedDict[_Key, _Piece] = OrderedDict()
        self._delivered: OrderedDict[_Key, float] = OrderedDict()
        """Whole, and given to who keeps them, and when: not to be read again though they are not in the index yet."""
        self._dropping: OrderedDict[_Key, tuple[float, Wanted]] = OrderedDict()
        """Forgotten, and not begun again since: when their space is given back."""
        self._timer = False
        self._loose = 0
        self._lock = threading.Condition()
        self._rooms = threading.local()

    # --- readers

    def look(self, segment: Segment, chunk: Wanted, start: int, stop: int) -> Here | Mine | Awaited:
        """Whether a range of a piece that is not here as a whole is here, or who gets it: if nobody does, who asks."""
        with self._lock:
            if self._clock() - self._delivered.get(chunk.chunk_id, float("-inf")) < DELIVERED_SECONDS:
                return Awaited(True)
            piece = self._piece(segment, chunk)
            if piece.composing:
                return Awaited(False)
            if not piece.cover.has(start, stop):
                mine = piece.cover.claim(start, stop)
                return Mine(mine) if mine else Awaited(piece.fills > 0)
        here = self._read(piece, start, stop)
        return here if here is not None else self.look(segment, chunk, start, stop)

    def land(self, segment: Segment, chunk: Wanted, start: int, data: memoryview) -> Landed | None:
        """A claimed range came. Blocking. What became of the piece, if this was the last of it: it is kept."""
        piece = self._put(segment, chunk, start, data)
        whole = self._compose(piece)
        if whole is None:
            return None
        try:
            try:
                return Landed(self._store.keep(piece.segment, chunk, whole), b"")
            except (StoreFailed, ChunkCorrupt):  # I5: what came is used all the same; readers compare what is known
                return Landed(None, bytes(whole))
        finally:
            self._drop(piece)

    def release(self, chunk: Wanted, start: int, stop: int) -> None:
        """A range that `look` gave did not come: who waits for it looks again."""
        self._release(chunk, start, stop, fills=0)

    async def changed(self, chunk: Wanted) -> None:
        """Until a range of the piece came or was lost, or the piece is whole. For the loop, after `Awaited`."""
        with self._lock:
            piece = self._pieces.get(chunk.chunk_id)
            if piece is None or piece.idle:
                return
            future: asyncio.Future[None] = self._loop.create_future()
            piece.waiters.append(future)
        await future

    # --- who reads whole pieces

    def claim(self, segment: Segment, chunk: Wanted) -> list[tuple[int, int]]:
        """The ranges of a piece that nobody has or reads, for who reads it for no reader in particular: it tells `came`
        or `gave_up` of each. Empty: others read the last of it (`settled`)."""
        with self._lock:
            self._delivered.pop(chunk.chunk_id, None)
            piece = self._piece(segment, chunk)
            ranges = piece.cover.claim(0, chunk.length)
            piece.fills += len(ranges)
            return ranges

    def came(self, segment: Segment, chunk: Wanted, start: int, data: memoryview) -> memoryview | None:
        """Such a range came. The bytes of the whole piece if that was the last of it, for the caller to keep: good
        until its thread calls this again."""
        whole: memoryview | None = data
        if start == 0 and len(data) == chunk.length:
            with self._lock:
                piece = self._piece(segment, chunk)
        else:
            piece = self._put(segment, chunk, start, data)
            whole = self._compose(piece)
        with self._lock:
            piece.fills -= 1
            if whole is not None:
                self._delivered[chunk.chunk_id] = self._clock()
                if len(self._delivered) > KEPT_DELIVERED:
                    self._delivered.popitem(last=False)
        if whole is not None:
            self._drop(piece)
        return whole

    def gave_up(self, segment: Segment, chunk: Wanted, start: int, stop: int) -> None:
        """Such a range did not come: who waits for it looks again."""
        self._release(chunk, start, stop, fills=1)

    def settled(self, segment: Segment, chunk: Wanted, seconds: float) -> bool:
        """Blocking: wait for others who read the last of a piece; whether it is whole now."""
        deadline = self._clock() + seconds
        with self._lock:
            while (piece := self._pieces.get(chunk.chunk_id)) is not None and not piece.idle:
                left = deadline - self._clock()
                if left <= 0 or not self._lock.wait(left):
                    return False
            if piece is not None:
                return False
            delivered = chunk.chunk_id in self._delivered
        return delivered or self._store.place(chunk.chunk_id) is not None

    def let_go(self) -> None:
        """Give back the space of what was forgotten long ago. Calls itself."""
        with self._lock:
            while self._dropping:
                key, (due, chunk) = next(iter(self._dropping.items()))
                if due > self._clock():
                    break
                del self._dropping[key]
                self._store.drop_part(chunk)

    # --- inside

    def _piece(self, segment: Segment, chunk: Wanted) -> _Piece:
        """With the lock."""
        piece = self._pieces.get(chunk.chunk_id)
        if piece is None:
            known = self._dropping.pop(chunk.chunk_id, None) is not None
            piece = self._pieces[chunk.chunk_id] = _Piece(segment, chunk, Coverage(chunk.length), parted=known)
            self._trim()
        self._pieces.move_to_end(chunk.chunk_id)
        return piece

    def _trim(self) -> None:
        """With the lock: forget the pieces that were looked at longest ago, if there are too many."""
        if len(self._pieces) <= self._most_pieces and self._loose <= MOST_LOOSE:
            return
        for piece in list(self._pieces.values())[:-1]:
            if len(self._pieces) <= self._most_pieces and self._loose <= MOST_LOOSE:
                return
            if piece.idle and (piece.loose or len(self._pieces) > self._most_pieces):
                self._remove(piece)

    def _remove(self, piece: _Piece) -> None:
        """With the lock: nothing is known of the piece any more; if it was kept, that is no part's space now."""
        key = piece.chunk.chunk_id
        del self._pieces[key]
        self._loose -= sum(map(len, piece.loose.values()))
        if piece.parted:
            self._dropping[key] = self._clock() + GIVEN_SECONDS, piece.chunk
            if not self._timer:
                self._timer = True
                self._loop.call_soon_threadsafe(self._later)

    def _later(self) -> None:
        self._loop.call_later(GIVEN_SECONDS, self._tend)

    def _tend(self) -> None:
        self.let_go()
        with self._lock:
            self._timer = bool(self._dropping)
        if self._timer:
            self._later()

    def _put(self, segment: Segment, chunk: Wanted, start: int, data: memoryview) -> _Piece:
        with self._lock:
            piece = self._piece(segment, chunk)
        place = None if piece.homeless else self._store.keep_part(piece.segment, chunk, start, data)
        with self._lock:
            if place is not None:
                piece.place, piece.parted = place, True
            else:
                piece.loose[start] = bytes(data)
                self._loose += len(data)
            piece.cover.land(start, start + len(data))
            piece.composing = piece.composing or piece.cover.whole
            self._stir(piece)
        return piece

    def _compose(self, piece: _Piece) -> memoryview | None:
        """The bytes of a piece of which all is here, and None to all but one."""
        with self._lock:
            if not piece.composing or piece.composer:
                return None
            piece.composer = True
        room = self._room()[: piece.chunk.length]
        if self._fill(piece, 0, room):
            return room
        self._forget(piece)
        return None

    def _fill(self, piece: _Piece, start: int, into: memoryview) -> bool:
        """Bytes of a piece that are here. Whole ranges as they came lie either in the slab or in memory."""
        stop = start + len(into)
        with self._lock:
            loose = [(at, data) for at, data in piece.loose.items() if at < stop and at + len(data) > start]
        covered = sum(min(stop, at + len(data)) - max(start, at) for at, data in loose)
        if covered < len(into) and not self._store.part_at(piece.segment, piece.chunk, start, into):
            return False
        for at, data in loose:
            first, behind = max(start, at), min(stop, at + len(data))
            into[first - start : behind - start] = memoryview(data)[first - at : behind - at]
        return True

    def _read(self, piece: _Piece, start: int, stop: int) -> Here | None:
        with self._lock:
            loose = any(at < stop and at + len(data) > start for at, data in piece.loose.items())
            if not loose and piece.place is not None:
                return Here(piece.place, b"")
        data = bytearray(stop - start)
        if self._fill(piece, start, memoryview(data)):
            return Here(None, bytes(data))
        self._forget(piece)
        return None

    def _forget(self, piece: _Piece) -> None:
        """The slab that held parts of it is gone: they have to be read again."""
        with self._lock:
            piece.cover.forget()
            piece.place, piece.composing, piece.composer = None, False, False
            piece.homeless = True
            self._loose -= sum(map(len, piece.loose.values()))
            piece.loose.clear()
            self._stir(piece)

    def _release(self, chunk: Wanted, start: int, stop: int, *, fills: int) -> None:
        with self._lock:
            piece = self._pieces.get(chunk.chunk_id)
            if piece is None:
                return
            piece.fills -= fills
            piece.cover.release(start, stop)
            if piece.idle and not piece.cover.begun:
                self._remove(piece)
            self._stir(piece)

    def _drop(self, piece: _Piece) -> None:
        with self._lock:
            if self._pieces.get(piece.chunk.chunk_id) is piece:
                self._remove(piece)
            self._stir(piece)

    def _stir(self, piece: _Piece) -> None:
        """With the lock."""
        self._lock.notify_all()
        if piece.waiters:
            waiters, piece.waiters = piece.waiters, []
            self._loop.call_soon_threadsafe(_wake, waiters)

    def _room(self) -> memoryview:
        room: memoryview | None = getattr(self._rooms, "room", None)
        if room is None:
            room = self._rooms.room = memoryview(bytearray(MAX_CHUNK))
        return room


def _wake(waiters: list["asyncio.Future[None]"]) -> None:
    for future in waiters:
        if not future.done():
            future.set_result(None)
