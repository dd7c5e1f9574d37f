"""Scrub: everything that is stored is hashed again, and what is wrong is healed. On demand, and by itself in the
background, once in some days.

A process reads and hashes (`node.scrub_main`), the node mends (`storage.mending`), peers give what is lost here
(`node.damage`). One scrub at a time: one that somebody asked for interrupts the one in the background, which goes on
where it was.
"""

import asyncio
import logging
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hoard_p2p.catalog.root import decode as decode_root
from hoard_p2p.config import Json
from hoard_p2p.errors import HoardError, Refused, SnapshotUnknown
from hoard_p2p.ids import HOLE, ChunkId, SnapshotId
from hoard_p2p.node.damage import Use, refetch, uses
from hoard_p2p.node.local import Body
from hoard_p2p.node.scrub_process import carry_out
from hoard_p2p.node.scrub_wire import Order, Progress, decode_verdict
from hoard_p2p.storage.mending import Mended
from hoard_p2p.storage.store import Store

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

log = logging.getLogger(__name__)

Report = Callable[[Body], Awaitable[None]]

SHOWN_FILES = 1000
DEFAULT_DAYS = 7.0
DAY = 86_400.0
"""Seconds."""
TICK = 60.0
STINT = 256 << 20
"""Bytes of one stretch of work of the background scrub."""
LEAST_RATE, MOST_RATE = 1 << 20, 64 << 20
"""Bytes a second: on average at least, so that a small store is soon done; and at most, also within a stretch."""
SHARE = 0.8
"""Of the period, in which everything is to be read: the rest is for times at which the disk is busy."""

_DAYS = b"scrub_days"
_POSITION, _BEGUN, _LAST = b"scrub_position", b"scrub_begun", b"scrub_last"
_F64, _U64, _PLACE = struct.Struct("<d"), struct.Struct("<Q"), struct.Struct("<IQ")


NOTHING = Progress(0, 0, 0, 0, 0)


@dataclass(slots=True)
class Tally:
    """What one scrub found. `missing`: chunks that are damaged and could not be healed from this disk."""

    damaged: set[ChunkId] = field(default_factory=set)
    missing: set[ChunkId] = field(default_factory=set)
    others: int = 0
    left: list[str] = field(default_factory=list)
    progress: Progress = NOTHING

    def add(self, mended: Mended) -> None:
        self.damaged |= mended.chunks
        self.missing |= mended.missing
        self.others += mended.others
        self.left += mended.left


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the background scrub is; it survives restarts. Times in ns since the epoch, 0: never. `slab` 0: at the
    beginning of a pass."""

    begun: int
    last: int
    slab: int
    offset: int


def set_days(store: Store, days: float | None) -> None:
    """What the operator chose; None leaves it as it was. Blocking."""
    if days is not None:
        store.choose(_DAYS, _F64.pack(days))


def rate_of(used: int, days: float) -> int:
    """Bytes a second at which a store of `used` bytes is read within its period. Pure."""
    return min(MOST_RATE, max(LEAST_RATE, int(used / (days * DAY * SHARE))))


def is_due(standing: Standing, days: float, now: int) -> bool:
    """Whether there is something to do: a pass is under way, or the period since the last began has passed. Pure."""
    return standing.slab > 0 or now >= standing.begun + int(days * DAY * 1e9)


def _after(standing: Standing, progress: Progress, now: int) -> Standing:
    return replace(standing, slab=progress.slab, offset=progress.offset, last=standing.last if progress.slab else now)


class Scrubbing:
    """See the module. For the event loop."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._turn = asyncio.Lock()
        self._asked = False
        """Somebody wants a scrub: the one in the background stops at its next message."""

    # --- on demand

    async def scrub(self, snapshot: SnapshotId | None, report: Report) -> Body:
        """Check everything, or the chunks of one snapshot and its catalog. Raises Refused while another one runs."""
        if self._asked:
            raise Refused("a scrub is running already; wait for it, or end it with Ctrl-C where it was started")
        self._asked = True
        try:
            async with self._turn:
                return await self._scrub(snapshot, report)
        finally:
            self._asked = False

    async def _scrub(self, snapshot: SnapshotId | None, report: Report) -> Body:
        node, tally, begun = self._node, Tally(), time.monotonic()
        started = time.time_ns()
        ids = None if snapshot is None else await self._ids(snapshot)
        tally.others += await node.blocking(node.store.mend)
        await self._run(Order(ids=ids is not None), tally, ids, report)
        if ids is None:
            await self._note(Standing(started, time.time_ns(), 0, 0))
        await self._add_known(tally, ids)
        await report({"phase": "fetching what is damaged", "done": 0, "total": None})
        if tally.missing:
            tally.missing = await refetch(node, tally.missing)
        return _body(snapshot, tally, await uses(node, tally.missing), time.monotonic() - begun)

    async def _ids(self, snapshot: SnapshotId) -> list[ChunkId]:
        """The chunks of a snapshot and of its catalog, each once. Raises SnapshotUnknown, Unavailable, Corrupt."""
        node = self._node
        opened = await node.open(snapshot)
        encoded = await node.blocking(node.names.root, snapshot)
        if encoded is None:
            raise SnapshotUnknown(f"snapshot {snapshot.hex()} was removed meanwhile")
        root = decode_root(encoded)
        ids = [run.chunk_id for run in (*root.catalog_runs, *((root.catalog_list,) if root.catalog_list else ()))]
        catalog = opened.catalog
        ids += await node.blocking(lambda: [catalog.chunk_id(run) for run in range(catalog.chunks)])
        found = await node.blocking(node.store.contents, ids)
        return [chunk_id for chunk_id in dict.fromkeys(found) if chunk_id is not None and chunk_id != HOLE]

    async def _add_known(self, tally: Tally, ids: Iterable[ChunkId] | None) -> None:
        """Damage that was found before and is not healed yet; what nobody wants any more is forgotten."""
        node, store = self._node, self._node.store
        known = set(await node.blocking(store.healer.damaged)) - tally.missing
        known = known if ids is None else known & set(ids)
        lost = set(await node.blocking(store.mender.heal_from_disk, known))
        here = {use.chunk_id for use in await uses(node, lost)}
        tally.missing |= here
        tally.damaged |= here
        if ids is None and lost != here:
            await node.blocking(store.healer.give_up, lost - here)

    # --- by itself

    async def run(self) -> None:
        """The background scrub, for ever."""
        budget = 0.0
        while True:
            await asyncio.sleep(TICK)
            try:
                budget = await self._tick(budget)
            except HoardError as error:
                log.warning("the background scrub was interrupted: %s", error)
            except Exception:  # the door of this task: a bug must not end the node
                log.exception("the background scrub failed")

    async def _tick(self, budget: float) -> float:
        """A stretch of work if one is due; what is left of `budget`, in bytes."""
        node = self._node
        days, standing = await node.blocking(self.days), await node.blocking(self.standing)
        if self._asked or not days or not is_due(standing, days, time.time_ns()):
            return 0.0
        used = await node.blocking(node.store.used_bytes)
        budget = min(budget + rate_of(used, days) * TICK, 4 * STINT)
        if budget < min(STINT, used):
            return budget
        return budget - await self.stint(int(budget))

    async def stint(self, most: int) -> int:
        """Go on with the background scrub, for about `most` bytes; how many it were. Ends early if somebody asks for
        a scrub."""
        async with self._turn:
            standing = await self._node.blocking(self.standing)
            first = standing.slab == 0
            if first:
                standing = replace(standing, begun=time.time_ns(), slab=1)
                await self._node.blocking(self._node.store.mend)
            tally = Tally(progress=Progress(0, 0, 0, standing.slab, standing.offset))
            order = Order(
                slab=standing.slab, offset=standing.offset, most=most, pace=MOST_RATE, polite=True, survey=first
            )
            try:
                await self._run(order, tally)
            finally:
                await self._note(_after(standing, tally.progress, time.time_ns()))
            await self._heal_quietly(tally)
            return tally.progress.size

    async def _heal_quietly(self, tally: Tally) -> None:
        left = await refetch(self._node, tally.missing) if tally.missing else set()
        if left:
            log.error("scrub: %d chunks are damaged and cannot be healed; hoard scrub names their files", len(left))

    # --- what it remembers

    def days(self) -> float:
        """The period, 0: no background scrub. Blocking."""
        raw = self._node.store.meta(_DAYS)
        return _F64.unpack(raw)[0] if raw else DEFAULT_DAYS

    def standing(self) -> Standing:
        """Blocking."""
        store = self._node.store
        begun, last = (_U64.unpack(store.meta(name) or bytes(8))[0] for name in (_BEGUN, _LAST))
        return Standing(begun, last, *_PLACE.unpack(store.meta(_POSITION) or bytes(12)))

    async def _note(self, standing: Standing) -> None:
        values = {
            _BEGUN: _U64.pack(standing.begun),
            _LAST: _U64.pack(standing.last),
            _POSITION: _PLACE.pack(standing.slab, standing.offset),
        }
        await self._node.blocking(self._node.store.note, values)

    async def body(self) -> Body:
        """For `hoard status`."""
        node = self._node
        days, standing = await node.blocking(self.days), await node.blocking(self.standing)
        return {
            "days": days,
            "begun": standing.begun,
            "last_pass": standing.last,
            "slab": standing.slab,
            "offset": standing.offset,
            "running": self._turn.locked(),
            "damaged": len(await node.blocking(node.store.healer.damaged)),
        }

    # --- one run of the process

    async def _run(
        self, order: Order, tally: Tally, ids: Iterable[ChunkId] | None = None, report: Report | None = None
    ) -> None:
        async with aclosing(carry_out(self._node.settings.data_dir, order, ids)) as told:
            async for body in told:
                if self._asked and report is None:
                    return
                if isinstance(verdict := body.get("verdict"), dict):
                    await self._mend(verdict, tally)
                elif isinstance(progress := body.get("progress"), dict):
                    tally.progress = Progress.decode(progress)
                    if report is not None:
                        await report(_progress(tally.progress))

    async def _mend(self, body: Body, tally: Tally) -> None:
        node = self._node
        mended = await node.blocking(node.store.mender.mend, decode_verdict(body))
        tally.add(mended)
        if mended.chunks:
            await node.blocking(node.held.forget)
            node.counters.quarantined += len(mended.chunks)
        if mended.chunks or mended.others:
            log.warning(
                "scrub: slab %s: %d chunks were damaged, this disk had %d of them elsewhere; %d other faults",
                body.get("slab"),
                len(mended.chunks),
                len(mended.chunks) - len(mended.missing),
                mended.others,
            )


def _progress(progress: Progress) -> Body:
    return {"phase": "checking", "done": progress.size, "total": progress.total or None, "chunks": progress.chunks}


def _body(snapshot: SnapshotId | None, tally: Tally, files: Sequence[Use], seconds: float) -> Body:
    named = list(dict.fromkeys((use.snapshot.hex(), use.path) for use in files))
    unhealed = len(tally.missing) + len(tally.left)
    damaged = len(tally.damaged) + tally.others
    shown: list[Json] = [{"snapshot": of, "path": path} for of, path in named[:SHOWN_FILES]]
    left: list[Json] = [*tally.left]
    return {
        "snapshot": None if snapshot is None else snapshot.hex(),
        "chunks": tally.progress.chunks,
        "bytes": tally.progress.size,
        "absent": tally.progress.absent,
        "damaged": damaged,
        "healed": damaged - unhealed,
        "unhealed": unhealed,
        "files": shown,
        "files_count": len(named),
        "left": left,
        "seconds": seconds,
    }
