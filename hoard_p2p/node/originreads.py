"""Reading segments from their origins, each by one node (I8): which one, reading here, and the budget for passing by a
reader that is late. What flights use of it is `fetch.origins.OriginLane`.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.cluster.agent import ClusterAgent
from hoard_p2p.errors import CatalogCorrupt, Unavailable
from hoard_p2p.fetch.segment import Segment, Wanted
from hoard_p2p.ids import SnapshotId, chunk_id
from hoard_p2p.interfaces import Origin
from hoard_p2p.node.blocking import in_executor
from hoard_p2p.node.names import Names
from hoard_p2p.node.origins import Origins
from hoard_p2p.origin.budget import Budget, Late
from hoard_p2p.origin.directory import DirectoryOrigin
from hoard_p2p.origin.files import FileRead, Piece, reads
from hoard_p2p.origin.readers import reader_set, readers
from hoard_p2p.peer import ClusterView, NodeId, OriginId, Peer, origin_id
from hoard_p2p.printing import printable
from hoard_p2p.transfer.wire_life import Handed

log = logging.getLogger(__name__)

READ_THREADS = 16
"""Half of them for what readers wait for (`fetch.turns`)."""

STALL_SECONDS = 20.0
"""Without a byte; then the origin counts as away. The thread goes on by itself, and nobody hears of what it reads."""

KEPT_BUDGETS = KEPT_REASONS = 256
LOOKED_AT = 16
"""Files that are looked at before copies are dropped because their origin has them."""

Deliver = Callable[[int, memoryview], None]


class _Members(NamedTuple):
    """A reader set, and what it was made from."""

    view: ClusterView
    reading: frozenset[NodeId]
    peers: tuple[Peer, ...]


class _Left(Exception):
    """Nobody waits for this reading any more."""


@dataclass(slots=True)
class _Reading:
    """One `read` in its thread. `lock` is held while something is delivered."""

    deliver: Deliver
    failed: list[int] = field(default_factory=list)
    why: str = ""
    done: int = 0
    left: bool = False
    moved: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def give(self, index: int, data: memoryview) -> None:
        with self.lock:
            if self.left:
                raise _Left
            self.deliver(index, data)
            self.done += 1
        self.moved.set()

    def fail(self, pieces: Sequence[Piece], why: str) -> None:
        with self.lock:
            if self.left:
                raise _Left
            self.failed += [piece.number for piece in pieces]
            self.why = self.why or why
        self.moved.set()

    def moves(self, seconds: float) -> bool:
        """Wait until something came, failed or ended; false if nothing did in time, and it is not the store that what
        came waits for."""
        moved = self.moved.wait(seconds) or self.lock.locked()
        self.moved.clear()
        return moved

    def leave(self) -> None:
        with self.lock:
            self.left = True


class OriginReads:
    """An `OriginLane`. `read` and `received` are for any thread, the rest is for the event loop."""

    def __init__(
        self,
        names: Names,
        origins: Origins,
        agent: ClusterAgent,
        *,
        streams: int,
        hand: Callable[[Peer, Handed], None] = lambda _reader, _handed: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`streams`: nodes that read one origin at a time. `hand` tells a reader what was read in its place."""
        self._names = names
        self._origins = origins
        self._agent = agent
        self._streams = streams
        self._hand = hand
        self._clock = clock
        self._members: dict[OriginId, _Members] = {}
        self._budgets: dict[SnapshotId, Budget] = {}
        self._late: Late[NodeId] = Late()
        self._why: dict[tuple[SnapshotId, int], str] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(READ_THREADS, "origin")

    def close(self) -> None:
        """Blocking."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _url(self, snapshot: SnapshotId) -> str:
        """Empty: none."""
        record = self._names.snapshot(snapshot)
        return "" if record is None else record.origin

    # --- who

    def reader(self, segment: Segment, without: Container[NodeId]) -> Peer | None:
        """See `OriginLane`."""
        url = self._url(segment.snapshot) if segment.number >= 0 else ""
        if not url:
            return None
        members, view = self._set(origin_id(url)), self._agent.view()
        if not members and view.me not in without:
            return view.by_id[view.me]  # nobody can now: asked again and again while somebody waits, and says why
        ranked = readers(members, segment.key, without)
        if not ranked:  # the whole set gave up: who comes behind it takes over
            others = [peer for peer in view.peers if peer.node_id in self._agent.reading(origin_id(url))]
            ranked = readers(others, segment.key, without)
        best = next(iter(self._late.last((peer.node_id for peer in ranked), self._clock())), None)
        return None if best is None else view.by_id.get(best)

    def first_reader(self, segment: Segment) -> Peer | None:
        """Who reads the segment as long as it can, so that all nodes with the same view agree: the chain begins with
        it. None: the snapshot has no origin, or nobody can read it."""
        url = self._url(segment.snapshot) if segment.number >= 0 else ""
        members = self._set(origin_id(url)) if url else ()
        return next(iter(readers(members, segment.key)), None)

    def _set(self, origin: OriginId) -> tuple[Peer, ...]:
        view, reading = self._agent.view(), self._agent.reading(origin)
        known = self._members.get(origin)
        if known is None or known.view is not view or known.reading != reading:
            known = _Members(view, reading, reader_set(view.peers, reading, origin, self._streams))
            self._members[origin] = known
        return known.peers

    def readable(self, snapshot: SnapshotId) -> bool:
        """Whether the snapshot's bytes can be had again from its origin, by this node or by another of the view that
        does not drain."""
        url = self._url(snapshot)
        return bool(url) and (self._origins.is_open(url) or self.stays(snapshot))

    def stays(self, snapshot: SnapshotId) -> bool:
        """Whether another node of the view, that does not drain, can read the origin of the snapshot."""
        return any(peer.weight > 0 for peer in self._reading(snapshot) if peer.node_id != self._agent.view().me)

    def leaves(self, snapshot: SnapshotId) -> bool:
        """Whether all that can read the origin of the snapshot drain: then its copies are what is left."""
        reading = self._reading(snapshot)
        return bool(reading) and all(peer.weight == 0 for peer in reading)

    def _reading(self, snapshot: SnapshotId) -> list[Peer]:
        url, known = self._url(snapshot), self._agent.view().by_id
        return [known[node] for node in self._agent.reading(origin_id(url))] if url else []

    async def has(self, snapshot: SnapshotId, catalog: Catalog, segments: Sequence[int]) -> bool:
        """Whether the origin has these segments, as far as this node can see: it is readable, and where it is so here,
        some files of them are there with the lengths that they had."""
        if not self.readable(snapshot):
            return False
        url = self._url(snapshot)
        if not self._origins.is_open(url):
            return True
        origin = _directory(self._origins.opened(url))
        try:
            async with asyncio.timeout(STALL_SECONDS):
                return await in_executor(self._pool, lambda: origin.unchanged(reads(catalog, _some(catalog, segments))))
        except (TimeoutError, CatalogCorrupt):
            return False

    # --- reading here

    def read(self, segment: Segment, wanted: Sequence[Wanted], deliver: Deliver) -> list[int]:
        """See `OriginLane`."""
        url, catalog = self._url(segment.snapshot), segment.catalog
        if not url or catalog is None:
            raise Unavailable("the snapshot has no origin to read from")
        origin = _directory(self._origins.opened(url))
        try:
            plan = reads(catalog, [chunk.run for chunk in wanted])
        except CatalogCorrupt as error:
            raise Unavailable(f"{printable(url)} cannot be read: {error}") from error
        reading = _Reading(deliver)
        running = self._pool.submit(_read, origin, plan, wanted, reading)
        while not running.done():
            if not reading.moves(STALL_SECONDS) and not running.done():
                running.cancel()
                reading.leave()
                self._origins.soon_from_thread()
                raise Unavailable(f"the origin {printable(url)} sent nothing for {STALL_SECONDS:.0f} s")
        running.result()
        if reading.failed:
            origin.meter.failed(len(reading.failed), reading.why)
            log.warning("the origin %s lacks %d chunks, for instance of %s", url, len(reading.failed), reading.why)
            self._origins.soon_from_thread()
            with self._lock:
                self._why[segment.snapshot, segment.number] = f"its origin: {reading.why}"
                while len(self._why) > KEPT_REASONS:
                    del self._why[next(iter(self._why))]
        return sorted(reading.failed)

    def read_range(self, segment: Segment, chunk: Wanted, start: int, stop: int) -> bytes:
        """Blocking, for any thread: bytes of a piece that a reader waits for. Raises Unavailable, OriginFailed."""
        raise Unavailable("ranges of origins cannot be read yet")

    def why(self, segment: Segment) -> str:
        """See `OriginLane`."""
        with self._lock:
            return self._why.get((segment.snapshot, segment.number), "")

    # --- past a reader

    def received(self, snapshot: SnapshotId, size: int) -> None:
        """That many bytes of a snapshot came here, from wherever: a part of them may be read past late readers."""
        with self._lock:
            self._budget(snapshot).received(size)

    def _budget(self, snapshot: SnapshotId) -> Budget:
        found = self._budgets.pop(snapshot, None) or Budget()
        self._budgets[snapshot] = found
        while len(self._budgets) > KEPT_BUDGETS:
            del self._budgets[next(iter(self._budgets))]
        return found

    def may_bypass(self, segment: Segment, size: int, waited: float) -> bool:
        """See `OriginLane`."""
        url = self._url(segment.snapshot) if segment.number >= 0 else ""
        if not url or not self._origins.is_open(url):
            return False
        first_byte = self._origins.meter(url).median_first_byte
        cost = size * self._sharing(segment.snapshot)
        with self._lock:
            return self._budget(segment.snapshot).may_bypass(cost, waited, first_byte)

    def _sharing(self, snapshot: SnapshotId) -> int:
        """How many nodes share the budget of a snapshot: it is a part of what the origin gives once, and not of what
        each of them receives."""
        return max(1, len(self._agent.wanting(snapshot)))

    def bypassed(self, segment: Segment, reader: Peer, size: int) -> None:
        """See `OriginLane`."""
        cost = size * self._sharing(segment.snapshot)
        with self._lock:
            self._budget(segment.snapshot).bypassed(cost)
        self._late.passed(reader.node_id, size, self._clock())

    def handed(self, segment: Segment, reader: Peer, chunks: Sequence[Wanted]) -> None:
        """See `OriginLane`."""
        runs = tuple(chunk.run for chunk in chunks)
        self._hand(reader, Handed(segment.snapshot, segment.number, runs, self._agent.view().me))

    def silent(self, reader: Peer) -> None:
        """See `OriginLane`."""
        self._late.was_late(reader.node_id, self._clock())


def _directory(origin: Origin) -> DirectoryOrigin:
    """Raises Unavailable for other kinds."""
    if isinstance(origin, DirectoryOrigin):
        return origin
    raise Unavailable(f"the origin {printable(origin.url)} is of a kind that this version cannot read")


def _some(catalog: Catalog, segments: Sequence[int]) -> list[int]:
    """About `LOOKED_AT` of the runs of these segments, spread evenly."""
    chosen = segments[:: -(-len(segments) // LOOKED_AT)]
    each = LOOKED_AT // len(chosen)
    ranges = [catalog.segment_runs(number) for number in chosen]
    return [run for runs in ranges for run in runs[:: -(-len(runs) // each)]]


def _read(origin: DirectoryOrigin, plan: Sequence[FileRead], wanted: Sequence[Wanted], reading: _Reading) -> None:
    """In a thread of ours: each chunk is hashed before anybody gets it (I1)."""
    names = {piece.number: file for file in plan for piece in file.pieces}

    def take(piece: Piece, data: memoryview) -> None:
        if chunk_id(data) != wanted[piece.number].chunk_id:
            reading.fail([piece], f"{origin.name(names[piece.number])}: changed since it was published")
            return
        origin.meter.good(piece.length)
        reading.give(piece.number, data)

    try:
        origin.read_files(plan, take, reading.fail)
    except _Left:
        return
    finally:
        reading.moved.set()
