"""Reading segments from their origins, each by one node (I8): which one, reading here, and the budget for passing by a
reader that is late. What flights use of it is `fetch.origins.OriginLane`.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.cluster.agent import ClusterAgent
from hoard_p2p.config import Json
from hoard_p2p.errors import CatalogCorrupt, ObjectChanged, OriginRefused, Unavailable
from hoard_p2p.fetch.segment import Segment, Wanted
from hoard_p2p.ids import SnapshotId
from hoard_p2p.interfaces import Gathering
from hoard_p2p.node.blocking import in_executor
from hoard_p2p.node.changed import Changed, without
from hoard_p2p.node.lastresort import MOST_SEARCHED, Named, recover
from hoard_p2p.node.names import Names
from hoard_p2p.node.origins import Origins
from hoard_p2p.node.originwork import Deliver, Look, OneRange, PartsHere, Reading, WholePieces, works_of
from hoard_p2p.node.spotcheck import some, unchanged
from hoard_p2p.node.underway import Underway
from hoard_p2p.objects import ObjectRange, Origin
from hoard_p2p.origin.budget import Budget, Late
from hoard_p2p.origin.files import FileRead, reads
from hoard_p2p.origin.limit import part
from hoard_p2p.origin.meter import Meter
from hoard_p2p.origin.readers import reader_set, readers
from hoard_p2p.origin.streams import Allowance, Streams
from hoard_p2p.origin.throttle import share
from hoard_p2p.origin.work import Work
from hoard_p2p.peer import ClusterView, NodeId, OriginId, Peer, origin_id
from hoard_p2p.printing import printable
from hoard_p2p.transfer.wire_life import Handed

log = logging.getLogger(__name__)

LOOK_THREADS = 4
LOOK_SECONDS = 20.0
REFUSALS = 4
"""Readings in a row that an origin refused, and this node counts as one that cannot read it, until it looks again."""

PARTS_SECONDS = 60.0
"""For what other readings of this node have begun to read of a piece."""

KEPT_BUDGETS = KEPT_REASONS = 256


class _Members(NamedTuple):
    """A reader set, and what it was made from."""

    view: ClusterView
    reading: frozenset[NodeId]
    peers: tuple[Peer, ...]


class OriginReads:
    """An `OriginLane`. `read` and `received` are for any thread, the rest is for the event loop."""

    def __init__(
        self,
        names: Names,
        origins: Origins,
        agent: ClusterAgent,
        *,
        streams: int,
        limit: int = 0,
        hand: Callable[[Peer, Handed], None] = lambda _reader, _handed: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`streams`: questions that all nodes together ask one origin at a time, and so nodes that read it at most;
        `limit`: bytes a second that they read of it, 0: no limit. `hand` tells a reader what was read in its place."""
        self._names = names
        self._origins = origins
        self._agent = agent
        self._streams = streams
        self._limit = limit
        self._hand = hand
        self._clock = clock
        self._members: dict[OriginId, _Members] = {}
        self._budgets: dict[SnapshotId, Budget] = {}
        self._late: Late[NodeId] = Late()
        self._why: dict[tuple[SnapshotId, int], str] = {}
        self._refusals: dict[str, tuple[int, int]] = {}
        """Bytes that were good of an origin when it refused something, and how often it did since."""
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(LOOK_THREADS, "origin-look")
        self._reads = Streams(self._allowance, origins.meter)
        self._underway = Underway()
        self._changed = Changed(clock)
        self.parts: PartsHere = WholePieces()
        """Which ranges of unfinished pieces are here; set it before anything is read."""
        self.catalog_here: Callable[[SnapshotId], Catalog | None] = lambda _: None
        """Blocking, for any thread but the loop's: the catalog of a snapshot, if it is on this disk; set it, too."""

    def close(self) -> None:
        """Blocking."""
        self._reads.close()
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

    def last(self, segment: Segment) -> Peer | None:
        """See `OriginLane`."""
        view = self._agent.view()
        return view.by_id[view.me] if segment.number >= 0 and self._origins.any_open else None

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
        origin = self._origins.opened(url)
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await in_executor(self._pool, lambda: unchanged(origin, reads(catalog, some(catalog, segments))))
        except (TimeoutError, CatalogCorrupt):
            return False

    # --- reading here

    def read(self, segment: Segment, wanted: Sequence[Wanted], deliver: Deliver, *, urgent: bool = False) -> list[int]:
        """See `OriginLane`."""
        try:
            url, origin, plan = self._plan(segment, wanted)
        except Unavailable as error:
            given = self._recover(segment, wanted, range(len(wanted)), deliver)
            if not given:
                self._explain(segment, f"its origin: {error}")
                raise
            return sorted(set(range(len(wanted))) - given)
        with self._underway.reading((segment.snapshot, segment.number)):
            reading = Reading(segment, wanted, deliver, self.parts, self._underway, self._changed.note)
            gone = self._changed.among(segment, wanted)
            works = works_of(without(plan, gone), reading, self._reads.seen(url)[0])
            self._carry_out(url, origin, works, reading, urgent)
            reading.known(gone)
        if not reading.failed:
            self._explain(segment, "")
        else:
            self._note(segment, url, len(reading.failed), reading.error)
            reading.failed -= self._recover(segment, wanted, reading.failed, deliver)
        return sorted(reading.failed)

    def _recover(
        self, segment: Segment, wanted: Sequence[Wanted], numbers: Iterable[int], deliver: Deliver
    ) -> set[int]:
        """The last resort: what of these chunks an origin of another snapshot gave."""

        def give(number: int, data: memoryview) -> None:
            deliver(number, data)
            if isinstance(deliver, Gathering):
                deliver.settle()

        return recover(wanted, numbers, self._others(segment.snapshot), self._fetch_range, give)

    def _others(self, snapshot: SnapshotId) -> Iterator[Named]:
        """Other snapshots whose catalogs are here, and whose origins this node reads; the newest first."""
        known = [record for record in self._names.known() if record.id != snapshot and record.origin]
        readable = [record for record in known if self._origins.is_open(record.origin)]
        for record in sorted(readable, key=lambda record: -record.created)[:MOST_SEARCHED]:
            catalog = self.catalog_here(record.id)
            if catalog is not None:
                with suppress(Unavailable):
                    yield catalog, self._origins.opened(record.origin)

    def look(self, url: str, looks: Sequence[Look]) -> None:
        """Blocking, for any thread: look at parts of objects, side by side. Raises OriginFailed & co if any failed."""
        self._reads.read(self._origins.opened(url), looks, urgent=False)
        for error in [look.error for look in looks if look.error is not None]:
            raise error

    def _fetch_range(self, origin: Origin, where: ObjectRange) -> bytes:
        one = OneRange(where)
        self._reads.read(origin, [one], urgent=True)
        if one.error is not None:
            raise one.error
        self.meter(origin.url).good(len(one.data))
        return one.data

    def _carry_out(self, url: str, origin: Origin, works: Sequence[Work], reading: Reading, urgent: bool) -> None:
        try:
            self._reads.read(origin, works, urgent=urgent)
            reading.wait(PARTS_SECONDS)
        except Unavailable as error:
            self._explain(reading.segment, f"its origin: {error}")
            self._trouble(url, error)
            raise
        finally:
            reading.leave()
            self.meter(url).good(reading.good)

    def read_range(self, segment: Segment, chunk: Wanted, start: int, stop: int) -> bytes:
        """Blocking: bytes `start` to `stop` of a piece of a lazy snapshot, from the origin, before anything that nobody
        waits for. Raises Unavailable."""
        known = self._changed.of(segment, chunk)
        if known is not None:
            raise known
        url, origin, (file,) = self._plan(segment, [chunk])
        whole = file.range_of(file.pieces[0])
        span = whole._replace(start=whole.start + start, stop=whole.start + stop)
        try:
            return self._fetch_range(origin, span)
        except ObjectChanged as error:
            self._changed.note(segment, chunk, error)
            self._note(segment, url, 1, error)
            raise
        except Unavailable as error:
            self._trouble(url, error)
            raise

    def _plan(self, segment: Segment, wanted: Sequence[Wanted]) -> tuple[str, Origin, list[FileRead]]:
        """The origin's URL, the origin, and what to read of it. Raises Unavailable."""
        url, catalog = self._url(segment.snapshot), segment.catalog
        if not url or catalog is None:
            raise Unavailable("the snapshot has no origin to read from")
        origin = self._origins.opened(url)
        try:
            return url, origin, reads(catalog, [chunk.run for chunk in wanted])
        except CatalogCorrupt as error:
            raise Unavailable(f"{printable(url)} cannot be read: {error}") from error

    def _trouble(self, url: str, error: Unavailable) -> None:
        """The origin as a whole cannot be read now."""
        self.meter(url).failed(1, str(error))
        self._origins.soon_from_thread()

    def _note(self, segment: Segment, url: str, chunks: int, error: Exception | None) -> None:
        """Some of it cannot."""
        why = str(error) if error is not None else "others here who read them did not get them"
        if isinstance(error, OriginRefused):
            self._refused(url, why)
        if self.meter(url).failed(chunks, why):
            log.warning("%d chunks could not be read at the origin %s, for instance: %s", chunks, url, why)
        self._origins.soon_from_thread()
        self._explain(segment, f"its origin: {why}")

    def _explain(self, segment: Segment, why: str) -> None:
        """Why the last reading of the segment was in vain; empty if it was not."""
        with self._lock:
            self._why.pop((segment.snapshot, segment.number), None)
            if why:
                self._why[segment.snapshot, segment.number] = why
            while len(self._why) > KEPT_REASONS:
                del self._why[next(iter(self._why))]

    def _refused(self, url: str, why: str) -> None:
        """This node may not read an object; nor the whole origin, if one after the other is like that."""
        with self._lock:
            good, times = self.meter(url).reading.good, self._refusals.get(url, (0, 0))
            times = (good, times[1] + 1) if times[0] == good else (good, 1)
            self._refusals[url] = times
        if times[1] >= REFUSALS:
            self._origins.refused(url, why)

    def meter(self, url: str) -> Meter:
        """What was read from an origin, by its URL. For any thread."""
        return self._origins.meter(url)

    def told(self, url: str) -> dict[str, Json]:
        """What a status shows of how an origin may be read."""
        streams, throttled = self._reads.seen(url)
        budgets = [budget.left for snapshot, budget in self._budgets.items() if self._url(snapshot) == url]
        return {
            "streams": streams,
            "streams_cluster": self._streams,
            "throttled": throttled,
            "limit": int(self._allowance(url).rate),
            "limit_cluster": self._limit,
            "bypass_left": sum(budgets),
        }

    def _allowance(self, url: str) -> Allowance:
        """For any thread."""
        members = self._members.get(origin_id(url))
        count = len(members.peers) if members is not None else 1
        return Allowance(share(self._streams, count), part(self._limit, count))

    def why(self, segment: Segment) -> str:
        """See `OriginLane`."""
        with self._lock:
            known = self._why.get((segment.snapshot, segment.number))
        return known or self._origins.why_not(self._url(segment.snapshot))

    def changed(self, segment: Segment, chunk: Wanted) -> str:
        """See `OriginLane`."""
        return str(self._changed.of(segment, chunk) or "")

    # --- past a reader

    def received(self, snapshot: SnapshotId, size: int) -> None:
        """That many bytes of a snapshot came here, from wherever: a part of them may be read past late readers."""
        with self._lock:
            self._budget(snapshot).received(size)
        if url := self._url(snapshot):
            self.meter(url).came(size)

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
        first_byte = self.meter(url).median_first_byte
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
        self.meter(self._url(segment.snapshot)).bypassed(size)
        self._late.passed(reader.node_id, size, self._clock())

    def handed(self, segment: Segment, reader: Peer, chunks: Sequence[Wanted]) -> None:
        """See `OriginLane`."""
        runs = tuple(chunk.run for chunk in chunks)
        self._hand(reader, Handed(segment.snapshot, segment.number, runs, self._agent.view().me))

    def silent(self, reader: Peer) -> None:
        """See `OriginLane`."""
        self._late.was_late(reader.node_id, self._clock())
