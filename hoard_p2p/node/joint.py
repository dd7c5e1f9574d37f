"""Reading a snapshot from its origin by all nodes together: every home pulls its segments, and reads there what is its
own to read (CLUSTER 4, "Publishing a shared origin").

The same as handing over what this node has (`node.spreading`), but that this node, too, has only what it is home of.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hoard_p2p.errors import HoardError, ObjectChanged, Unavailable
from hoard_p2p.ids import SnapshotId
from hoard_p2p.node.blocking import in_executor
from hoard_p2p.node.handover import Copies, hand_over
from hoard_p2p.node.originwork import Look
from hoard_p2p.node.residencies import ask_residencies
from hoard_p2p.node.spreading import Report, ask_to_adopt, has_few_nodes, placement_keys
from hoard_p2p.origin.files import reads
from hoard_p2p.peer import Peer, origin_id
from hoard_p2p.transfer.wire import AdoptRequest

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node
    from hoard_p2p.node.catalogs import OpenSnapshot

LANES = 2
"""Questions to a home at a time: while one is being made durable there, the other one reads."""
INVITED_AT_ONCE = 32
INVITE_SECONDS = 30.0
READERS_SECONDS = 3.0
READERS_QUIET = 0.5
"""Everybody is to know who reads the origin before anybody plans: at most so long, and until it stays as it is."""
LOOK_SECONDS = 1.0
ASKED_PEERS = 64
LOOKED_AT = 4
"""Segments whose objects are looked at when they could not be read."""


@dataclass(slots=True)
class Spread:
    """How that went. `lost`: segments that nobody has; `short_of`: with too few copies; `why`: what homes said."""

    lost: list[int] = field(default_factory=list)
    short_of: list[int] = field(default_factory=list)
    why: str = ""


async def invite(node: "Node", snapshot: SnapshotId, origin: str) -> None:
    """Have all nodes know the snapshot, which users do not see yet, and look whether they may read its origin; and
    wait until they know of each other."""
    await node.settled()
    limit = asyncio.Semaphore(INVITED_AT_ONCE)
    request = AdoptRequest(snapshot, (), node.me.node_id, origin)

    async def ask(peer: Peer) -> None:
        async with limit:
            with suppress(Unavailable):
                await node.control.adopt(peer, request, timeout=INVITE_SECONDS)

    async with asyncio.TaskGroup() as group:
        for peer in node.agent.view().others:
            group.create_task(ask(peer))
    await _readers_known(node, origin)


async def _readers_known(node: "Node", origin: str) -> None:
    name, began = origin_id(origin), time.monotonic()
    known, since = node.agent.reading(name), began
    while len(known) < len(node.agent.view().peers) and time.monotonic() < began + READERS_SECONDS:
        await asyncio.sleep(0.05)
        now = node.agent.reading(name)
        if now != known:
            known, since = now, time.monotonic()
        elif known and time.monotonic() > since + READERS_QUIET:
            return


class Joint:
    """One snapshot that is read by all. Use once."""

    def __init__(self, node: "Node", opened: "OpenSnapshot", replicas: int, origin: str, report: Report) -> None:
        """`origin`: empty: nothing is to be read, only kept."""
        self._node = node
        self._opened = opened
        self._replicas = replicas
        self._origin = origin
        self._report = report
        self._why: list[str] = []
        self._changed: ObjectChanged | None = None

    async def run(self) -> Spread:
        """Have every segment at its homes. Raises ObjectChanged as soon as that is why one cannot be had."""
        node, catalog = self._node, self._opened.catalog
        keys = await node.blocking(placement_keys, catalog)
        copies = await node.blocking(lambda: Copies(node.agent.view(), keys, self._replicas, publisher_has_all=False))
        async with self._shown():
            short_of = await hand_over(
                copies, self._adopt, _untold, executor=node.executor, lanes=LANES, over=lambda: bool(self._changed)
            )
        if self._changed is not None:
            raise self._changed
        lost = await node.blocking(copies.nowhere)
        if has_few_nodes(node, self._opened.id, self._replicas):
            short_of = list(keys)
        return Spread(lost, list(short_of), "; ".join(dict.fromkeys(self._why[:8])))

    async def _adopt(self, peer: Peer, segments: Sequence[int]) -> Sequence[int]:
        """Raises Unavailable, but not where an object changed: then all is over."""
        try:
            stored = await self._asked(peer, segments)
        except Unavailable as error:
            self._why.append(str(error))
            if await self._is_changed(segments):
                return ()
            raise
        kept = set(stored)
        await self._is_changed([segment for segment in segments if segment not in kept])
        return stored

    async def _asked(self, peer: Peer, segments: Sequence[int]) -> Sequence[int]:
        node, snapshot = self._node, self._opened.id
        if peer.node_id == node.me.node_id:
            return await self._mine(segments)
        request = AdoptRequest(snapshot, tuple(segments), node.me.node_id, self._origin)
        return await ask_to_adopt(node, peer, self._opened.catalog, request)

    async def _mine(self, segments: Sequence[int]) -> Sequence[int]:
        try:
            return await self._node.pull(self._opened.id, segments, None)
        except Unavailable:
            raise
        except HoardError as error:
            raise Unavailable(str(error)) from error

    async def _is_changed(self, segments: Sequence[int]) -> bool:
        """Whether objects of these segments, which could not be had, are not as they were listed."""
        if self._origin and segments and self._changed is None:
            node, opened = self._node, self._opened
            found = await in_executor(node.fetchers, why_not, node, opened, self._origin, segments)
            if isinstance(found, ObjectChanged):
                self._changed = self._changed or found
            elif found is not None:
                self._why.append(str(found))
        return self._changed is not None

    # --- telling

    @asynccontextmanager
    async def _shown(self) -> AsyncIterator[None]:
        """Tell every second how much of it is anywhere."""
        async with asyncio.TaskGroup() as group:
            teller = group.create_task(self._tell())
            try:
                yield
            finally:
                teller.cancel()

    async def _tell(self) -> None:
        catalog = self._opened.catalog
        sizes = await self._node.blocking(lambda: [catalog.segment_size(number) for number in range(catalog.segments)])
        while True:
            await self._report({"phase": "reading", "bytes": await self._held(sizes), "total_bytes": sum(sizes)})
            await asyncio.sleep(LOOK_SECONDS)

    async def _held(self, sizes: Sequence[int]) -> int:
        """Bytes of segments that are here or at a home."""
        node, snapshot = self._node, self._opened.id
        here = await node.blocking(node.held.residency, snapshot, self._opened.catalog)
        asked = node.agent.view().others[:ASKED_PEERS]
        there = await ask_residencies(node.control, asked, snapshot, seconds=LOOK_SECONDS)
        records = [here, *(record for record in there.values() if record is not None)]
        bits = 0
        for record in records:
            bits |= int.from_bytes(record.bits, "little")
        return await node.blocking(lambda: sum(size for at, size in enumerate(sizes) if bits >> at & 1))


def why_not(node: "Node", opened: "OpenSnapshot", origin: str, segments: Sequence[int]) -> HoardError | None:
    """Blocking. Why objects of some of these segments cannot be read here: ObjectChanged, if one is another than was
    listed; None if they can be."""
    try:
        runs = [run for segment in segments[:LOOKED_AT] for run, _, _ in opened.catalog.segment_chunks(segment)]
        firsts = [read.range_of(read.pieces[0]) for read in reads(opened.catalog, runs)]
        node.origins.look(origin, [Look(where._replace(stop=where.start + 1)) for where in firsts])
    except HoardError as error:
        return error
    return None


async def _untold(_settled: int) -> None:
    """What is told is counted on the disks."""
