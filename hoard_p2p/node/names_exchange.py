"""How two nodes find the few snapshots and refs that one knows and the other does not: both sides of it.

Digests of everything are compared first, then those of 256 parts, then the marks of the parts that differ: a cluster
that knows 60,000 snapshots exchanges kilobytes to find one more.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from hoard_p2p.errors import Unavailable
from hoard_p2p.ids import SnapshotId
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


@dataclass(frozen=True, slots=True)
class Unknown:
    """What another node does not know of what is known here."""

    snapshots: frozenset[SnapshotId]
    refs: frozenset[str]

    def both(self, other: "Unknown") -> "Unknown":
        """What neither knows."""
        return Unknown(self.snapshots & other.snapshots, self.refs & other.refs)


class Telling(Protocol):
    """What this node may tell others of what it knows."""

    @property
    def away(self) -> bool:
        """Whether it tells nothing now, as it may know what was removed long ago."""
        ...

    @property
    def since(self) -> int:
        """See `Differences`."""
        ...

    @property
    def now(self) -> int:
        """See `Differences`."""
        ...


class NameExchange:
    """For the event loop but where it says blocking. `names` is read and written in `executor`."""

    def __init__(self, names: Names, control: PeerControl, executor: Executor, me: NodeId, telling: Telling) -> None:
        self.telling = telling
        self._names = names
        self._control = control
        self._executor = executor
        self._me = me

    # --- answering

    def compare(self, comparison: Comparison) -> Differences:
        """Blocking. In which parts this node knows other records than the asker."""
        if self.telling.away:
            return Differences(b"", b"", now=self.telling.now)
        snapshots, refs = self._names.digests()
        return Differences(
            b"" if snapshots == comparison.snapshots_digest else self._names.snapshot_parts().digests,
            b"" if refs == comparison.refs_digest else self._names.ref_parts().digests,
            self.telling.since,
            self.telling.now,
        )

    def supply(self, lack: Lack) -> Supply:
        """Blocking. What the asker does not know of some parts, as much as one answer takes."""
        if self.telling.away:
            return Supply((), more=False)
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

    def listed(self, kind: Kind) -> list[Record]:
        """Blocking. All of one kind, for nodes of older versions."""
        if self.telling.away:
            return []
        return self._names.snapshot_records() if kind is Kind.SNAPSHOTS else self._names.ref_records()

    # --- asking

    async def differences(self, peer: Peer, *, again: bool) -> Differences | None:
        """What the peer has in other parts; None if it cannot tell. Raises Unavailable."""
        return await self._control.compare(peer, Comparison(self._me, *self._names.digests(), again=again))

    async def take(self, peer: Peer, differences: Differences) -> None:
        """Take over what the peer knows and this node does not. Raises Unavailable, StoreFailed."""
        for kind in Kind:
            if theirs := differences.of(kind):
                await self._take(peer, kind, theirs)

    async def unknown_to(self, peer: Peer) -> Unknown:
        """What is known here and not there, removed or not. Raises Unavailable."""
        differences = await self.differences(peer, again=True)
        if differences is None:
            raise Unavailable(f"{peer.name} is of a version that cannot tell what it knows")
        refs = await self._unknown(peer, Kind.REFS, differences.refs)
        snapshots = await self._unknown(peer, Kind.SNAPSHOTS, differences.snapshots)
        return Unknown(
            frozenset(one.id for one in snapshots if isinstance(one, SnapshotRecord)),
            frozenset(one.name for one in refs if isinstance(one, RefRecord)),
        )

    async def _unknown(self, peer: Peer, kind: Kind, theirs: bytes) -> "list[SnapshotRecord | RefRecord]":
        """Of the parts that differ, all that the peer knows is asked for."""
        if not theirs:
            return []
        ours = await self._blocking(self._parts, kind)
        unknown: list[SnapshotRecord | RefRecord] = []
        for part in ours.differing(theirs):
            known = await self._keys(peer, kind, part)
            unknown += [record for record in ours.missing(part, b"") if _key(record) not in known]
        return unknown

    async def _keys(self, peer: Peer, kind: Kind, part: int) -> set[str]:
        """Names or ids that the peer knows in a part."""
        keys, told, more = set[str](), 0, True
        while more and told < MOST_TOLD:
            supply = await self._control.supply(peer, Lack(kind, ((part, b""),), told))
            keys |= {str(record.get("id" if kind is Kind.SNAPSHOTS else "name")) for record in supply.records}
            told += len(supply.records)
            more = supply.more and bool(supply.records)
        return keys

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


def _key(record: SnapshotRecord | RefRecord) -> str:
    return record.name if isinstance(record, RefRecord) else record.id.hex()
