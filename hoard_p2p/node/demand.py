"""What readers on this machine want: chunks they wait for, damage they found, and what they will want next."""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial

from hoard_p2p.errors import BadRequest
from hoard_p2p.fetch.ahead import Ahead, Span
from hoard_p2p.fetch.fetcher import Fetcher
from hoard_p2p.fetch.segment import Landed, Segment, Wanted, segment_of
from hoard_p2p.ids import SnapshotId, is_origin_key, short
from hoard_p2p.interfaces import Place
from hoard_p2p.limits import MAX_SEGMENT, WHOLE_PIECE
from hoard_p2p.node.blocking import in_executor
from hoard_p2p.node.catalogs import OpenSnapshot
from hoard_p2p.node.keeping import Held
from hoard_p2p.node.parts import Counters
from hoard_p2p.node.ranged import Part, Range, Ranged
from hoard_p2p.storage.store import Store

log = logging.getLogger(__name__)

KEPT_SEGMENTS = 32
KEPT_TOUCHED = 1024
"""Segments that were touched and brought lately: a touch of one of them costs nothing."""


class Demand:
    """See the module. For the event loop; blocking work goes to `executor`."""

    def __init__(
        self,
        *,
        store: Store,
        fetcher: Fetcher,
        held: Held,
        counters: Counters,
        executor: Executor,
        open_snapshot: Callable[[SnapshotId], Awaitable[OpenSnapshot]],
        full: Callable[[], bool],
        ranged: Ranged,
        near: Callable[[SnapshotId, int], None] = lambda _snapshot, _segment: None,
    ) -> None:
        """`full`: whether nothing can be stored now; then nothing is fetched but what is waited for. `near` is told
        where readers are."""
        self._ranged = ranged
        self._near = near
        self._full = full
        self._store = store
        self._fetcher = fetcher
        self._held = held
        self._counters = counters
        self._executor = executor
        self._open = open_snapshot
        self._ahead = Ahead()
        self._touched: OrderedDict[tuple[SnapshotId, int], None] = OrderedDict()
        self._segments: OrderedDict[tuple[SnapshotId, int], Segment] = OrderedDict()

    async def need(
        self, snapshot: SnapshotId, run: int, *, wrong: Place | None, timeout: float, fill: bool = True
    ) -> Landed:
        """A chunk run that a reader waits for. `wrong`: a place whose bytes did not match. `fill`: bring what is
        likely to be wanted next, too.

        Raises Unavailable, NotFound, Corrupt."""
        opened, chunk = await self._wanted(snapshot, run)
        if wrong is not None:
            await self._distrust(chunk, wrong)
        segment, fill = self._near_to(opened, run, fill)
        return await self._fetcher.chunk(segment, chunk, timeout=timeout, fill=fill)

    async def part(
        self, snapshot: SnapshotId, run: int, span: tuple[int, int], *, timeout: float, fill: bool = True
    ) -> Part:
        """Bytes `span` of a chunk run of a lazy snapshot, or all of it. Raises as `need`."""
        opened, chunk = await self._wanted(snapshot, run)
        start, stop = span
        if not 0 <= start < stop <= chunk.length:
            raise BadRequest(f"chunk run {run} has no bytes {start} to {stop}")
        segment, fill = self._near_to(opened, run, fill)
        if is_origin_key(chunk.chunk_id) and chunk.length > WHOLE_PIECE:
            return await self._ranged.need(Range(segment, chunk, start, stop), timeout)
        landed = await self._fetcher.chunk(segment, chunk, timeout=timeout, fill=fill)
        return Part(landed.place, landed.data, False)

    async def _wanted(self, snapshot: SnapshotId, run: int) -> tuple[OpenSnapshot, Wanted]:
        opened = await self._open(snapshot)
        catalog = opened.catalog
        if not 0 <= run < catalog.chunks:
            raise BadRequest(f"snapshot {short(snapshot)} has no chunk run {run}")
        self._counters.misses += 1
        canonical = catalog.canonical(run)
        return opened, Wanted(canonical, catalog.chunk_id(canonical), catalog.length(run))

    def _near_to(self, opened: OpenSnapshot, run: int, fill: bool) -> tuple[Segment, bool]:
        """The segment of a run that a reader wants, and whether the rest of it is to come too; what is likely to be
        wanted next is planned."""
        number = opened.catalog.segment_of(run)
        fill = fill and not self._full()
        if fill:
            self._fetch_ahead(opened, number, run)
        return self.segment(opened, number), fill

    async def touched(self, snapshot: SnapshotId, run: int) -> None:
        """A reader is at this chunk run, which may be here already: the rest of its segment, and what lies behind it,
        may be wanted soon."""
        opened = await self._open(snapshot)
        if not 0 <= run < opened.catalog.chunks or self._full():
            return
        number = opened.catalog.segment_of(run)
        if (snapshot, number) not in self._touched:
            self._touched[snapshot, number] = None
            if len(self._touched) > KEPT_TOUCHED:
                self._touched.popitem(last=False)
            self._fetcher.ahead(self.segment(opened, number))
        self._fetch_ahead(opened, number, run)

    def left(self, snapshot: SnapshotId) -> None:
        """Nobody on this machine reads the snapshot any more: what is only likely to be wanted is wanted no more."""
        self._fetcher.stop_ahead(snapshot)
        self._ahead.left(snapshot)
        for key in [key for key in self._touched if key[0] == snapshot]:
            del self._touched[key]

    def segment(self, opened: OpenSnapshot, number: int) -> Segment:
        """A segment of an open snapshot. The last ones are kept: many misses are about one segment, and listing its
        chunks takes a few milliseconds when they are small."""
        key = (opened.id, number)
        found = self._segments.get(key)
        if found is None:
            found = self._segments[key] = segment_of(opened.catalog, opened.id, number)
            while len(self._segments) > KEPT_SEGMENTS:
                self._segments.popitem(last=False)
        return found

    async def _distrust(self, chunk: Wanted, wrong: Place) -> None:
        """Quarantine a place if its bytes are wrong indeed; healed at once if there is another copy on this disk, else
        as soon as one is fetched."""
        if await in_executor(self._executor, self._store.distrust, chunk.chunk_id, wrong):
            await in_executor(self._executor, self._held.forget)
            self._counters.quarantined += 1
            log.warning("chunk %s was damaged in slab %d; it is being healed", short(chunk.chunk_id), wrong.slab)

    def _fetch_ahead(self, opened: OpenSnapshot, number: int, run: int) -> None:
        catalog = opened.catalog
        self._near(opened.id, number)
        span = Span(catalog.segments, lambda segment: min(catalog.segment_size(segment), MAX_SEGMENT))
        for segment in self._ahead.at(opened.id, number, run, span):
            self._fetcher.ahead(self.segment(opened, segment), partial(self._ahead.ended, opened.id, segment))
