"""How two nodes find the few snapshots and refs that one knows and the other does not: both sides of it.

Digests of everything are compared first, then those of 256 parts, then the marks of the parts that differ: a cluster
that knows 60,000 snapshots exchanges kilobytes to find one more.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from hoard_p2p.node.names import Names
from hoard_p2p.node.names_buckets import Buckets
from hoard_p2p.node.names_wire import Record
from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.storage.records import RefRecord, SnapshotRecord
from hoard_p2p.transfer.control import PeerControl
from hoard_p2p.transfer.wire_names import MAX_ANSWERED, MAX_SUPPLIED, Comparison, Differences, Kind, Lack, Supply

PARTS_AT_ONCE = 16
"""Parts that one request asks for: the answerer looks through so much for each page of it."""

MOST_TOLD = 65_536
"""Records of one kind that are taken from one peer in one go."""

T = TypeVar("T")


class NameExchange:
    """For the event loop but where it says blocking. `names` is read and written in `executor`."""

    def __init__(self, names: Names, control: PeerControl, executor: Executor, me: NodeId) -> None:
        self._names = names
        self._control = control
        self._executor = executor
        self._me = me

    # --- answering

    def compare(self, comparison: Comparison) -> Differences:
        """Blocking. In which parts this node knows other records than the asker."""
        snapshots, refs = self._names.digests()
        return Differences(
            b"" if snapshots == comparison.snapshots_digest else self._names.snapshot_parts().digests,
            b"" if refs == comparison.refs_digest else self._names.ref_parts().digests,
        )

    def supply(self, lack: Lack) -> Supply:
        """Blocking. What the asker does not know of some parts, as much as one answer takes."""
        records, size = list[Record](), 0
        for number, record in enumerate(self._lacking(lack)):
            if number < lack.skip:
                continue
            if size >= MAX_SUPPLIED or len(records) == MAX_ANSWERED:
                return Supply(tuple(records), more=True)
            told = self._names.told(record)
            if told is None:  # it goes just now; the count has to be right all the same
                continue
            records.append(told)
            size += len(json.dumps(told))
        return Supply(tuple(records), more=False)

    def _lacking(self, lack: Lack) -> "Iterator[SnapshotRecord | RefRecord]":
        parts = self._parts(lack.kind)
        for part, marks in lack.parts:
            yield from parts.missing(part, marks)

    def _parts(self, kind: Kind) -> "Buckets[SnapshotRecord] | Buckets[RefRecord]":
        return self._names.snapshot_parts() if kind is Kind.SNAPSHOTS else self._names.ref_parts()

    # --- asking

    async def differences(self, peer: Peer, *, again: bool) -> Differences | None:
        """What the peer has in other parts; None if it cannot tell. Raises Unavailable."""
        return await self._control.compare(peer, Comparison(self._me, *self._names.digests(), again=again))

    async def take(self, peer: Peer, differences: Differences) -> None:
        """Take over what the peer knows and this node does not. Raises Unavailable, StoreFailed."""
        for kind in Kind:
            if theirs := differences.of(kind):
                await self._take(peer, kind, theirs)

    async def _take(self, peer: Peer, kind: Kind, theirs: bytes) -> None:
        ours = await self._blocking(self._parts, kind)
        differing = ours.differing(theirs)
        taken = 0
        for start in range(0, len(differing), PARTS_AT_ONCE):
            parts = tuple((part, ours.marks(part)) for part in differing[start : start + PARTS_AT_ONCE])
            taken += await self._take_parts(peer, kind, parts, MOST_TOLD - taken)

    async def _take_parts(self, peer: Peer, kind: Kind, parts: tuple[tuple[int, bytes], ...], most: int) -> int:
        """Page by page; how many records the peer told."""
        told, more = 0, True
        while more and told < most:
            supply = await self._control.supply(peer, Lack(kind, parts, told))
            await self._merge(kind, supply.records, peer.name)
            told += len(supply.records)
            more = supply.more and bool(supply.records)
        return told

    async def lists(self, peer: Peer, *, snapshots: bool, refs: bool) -> None:
        """The same with a peer of an older version: its whole lists. Raises Unavailable, StoreFailed."""
        if snapshots:
            await self._merge(Kind.SNAPSHOTS, await self._control.snapshots(peer), peer.name)
        if refs:
            await self._merge(Kind.REFS, await self._control.refs(peer), peer.name)

    async def _merge(self, kind: Kind, records: Sequence[Record], sender: str) -> int:
        merge = self._names.merge_snapshots if kind is Kind.SNAPSHOTS else self._names.merge_refs
        return await self._blocking(merge, records, sender)

    async def _blocking(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *args)
