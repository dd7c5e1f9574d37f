"""A change of what a node knows of snapshots and refs, while it is made."""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from hoard_p2p.ids import SnapshotId
from hoard_p2p.node.merging import is_living, is_old_removal, newer_ref, newer_snapshot, tombstone
from hoard_p2p.node.names_wire import label
from hoard_p2p.peer import NodeId
from hoard_p2p.storage.records import NEVER, RefRecord, SnapshotRecord, Stamp
from hoard_p2p.storage.store import Store

log = logging.getLogger(__name__)

AT_ONCE = 1024
"""Records that one write forgets."""


@dataclass(slots=True)
class Draft:
    """What will be known after a change; private copies. Each step is blocking: it writes the store first.

    `clock`: the latest stamp seen; `removals`: snapshots that went."""

    store: Store
    clock: Stamp
    snapshots: dict[SnapshotId, SnapshotRecord]
    refs: dict[str, RefRecord]
    removals: int = 0
    snapshots_changed: bool = False
    refs_changed: bool = False

    def next_stamp(self, wall: int, me: NodeId) -> Stamp:
        """Later than all seen; `wall`: milliseconds since the epoch."""
        last = self.clock
        if wall > last.wall_ms:
            return Stamp(wall, 0, me)
        if last.counter + 1 < 1 << 32:
            return Stamp(last.wall_ms, last.counter + 1, me)
        return Stamp(last.wall_ms + 1, 0, me)

    def merge(self, told: SnapshotRecord, get_root: Callable[[], bytes]) -> bool:
        """Take a record if it is new. `get_root` gives the root where one is to be kept, and may raise."""
        known = self.snapshots.get(told.id)
        merged = newer_snapshot(known, told)
        if merged is None:
            return False
        if not is_living(merged):
            self.store.remove_snapshot(merged.id, merged.removed)
            self.removals += known is not None and is_living(known)
        elif known is None or not is_living(known):
            self.store.put_root(merged.id, get_root(), merged)
        else:
            self.store.show_snapshot(merged.id, merged)
        self._know(merged)
        return True

    def keep_snapshot(self, record: SnapshotRecord) -> None:
        self.store.show_snapshot(record.id, record)
        self._know(record)

    def _know(self, record: SnapshotRecord) -> None:
        self.snapshots[record.id] = record
        self.snapshots_changed = True
        self.clock = max(self.clock, record.pin_stamp, record.replicas_stamp)

    def keep_ref(self, ref: RefRecord) -> RefRecord:
        if self.refs.get(ref.name) == ref:
            return ref
        self.store.put_ref(ref)
        self.refs[ref.name] = ref
        self.refs_changed = True
        self.clock = max(self.clock, ref.stamp)
        return ref

    def forget(self, known: SnapshotRecord) -> None:
        """Drop a living one that nobody was told of, and leave the tombstone that it lay over."""
        if known.removed:
            self.snapshots[known.id] = tombstone(known.id, known.removed)
            self.store.remove_snapshot(known.id, known.removed)
        else:
            del self.snapshots[known.id]
            self.store.life.forget_snapshot(known.id)
        self.snapshots_changed = True
        self.removals += 1

    def drop_tombstones(self, before: int) -> int:
        """Forget removals before that time (nanoseconds); how many."""
        snapshots = [
            one for one, record in self.snapshots.items() if not is_living(record) and is_old_removal(record, before)
        ]
        refs = [name for name, ref in self.refs.items() if is_old_removal(ref, before)]
        for at in range(0, len(snapshots), AT_ONCE):
            self.store.life.forget_snapshots(snapshots[at : at + AT_ONCE])
        for at in range(0, len(refs), AT_ONCE):
            self.store.life.forget_refs(refs[at : at + AT_ONCE])
        for one in snapshots:
            del self.snapshots[one]
        for name in refs:
            del self.refs[name]
        self.snapshots_changed |= bool(snapshots)
        self.refs_changed |= bool(refs)
        return len(snapshots) + len(refs)

    def take_away(self, snapshots: Collection[SnapshotId], refs: Collection[str], until: int) -> int:
        """See `Names.take_away`. As by removals of then: what was set since stays, and nobody is told, since removals
        so old are not taken."""
        taken = 0
        for one in snapshots:
            record = self.snapshots.get(one)
            if record is not None and record.shown and is_living(record) and record.created <= until:
                taken += self.merge(tombstone(one, record.created), bytes)
        for name in refs:
            ref = self.refs.get(name)
            if ref is not None and ref.snapshot is not None and ref.stamp.wall_ms * 1_000_000 <= until:
                gone = RefRecord(name, None, ref.stamp._replace(wall_ms=ref.stamp.wall_ms + 1))
                self.keep_ref(newer_ref(ref, gone) or gone)
                taken += 1
        return taken

    def mend_times(self, latest: int, wall: int, me: NodeId) -> int:
        """See `Names.mend_times`. `latest`, `wall`: milliseconds since the epoch."""
        refs = sorted((ref for ref in self.refs.values() if ref.stamp.wall_ms > latest), key=lambda ref: ref.stamp)
        snapshots = [record for record in self.snapshots.values() if is_ahead([record], latest)]
        known: list[RefRecord | SnapshotRecord] = [*self.refs.values(), *self.snapshots.values()]
        stamps = [stamp for record in known for stamp in _stamps(record)]
        self.clock = max((stamp for stamp in stamps if stamp.wall_ms <= latest), default=NEVER)
        for ref in refs:
            past = tuple(value for value in ref.history if value.stamp.wall_ms <= latest)
            self.keep_ref(replace(ref, stamp=self.next_stamp(wall, me), history=past))
        for record in snapshots:
            self._mend_snapshot(record, latest, wall, me)
        return len(refs) + len(snapshots)

    def _mend_snapshot(self, record: SnapshotRecord, latest: int, wall: int, me: NodeId) -> None:
        now = wall * 1_000_000
        if not is_living(record):
            self.store.remove_snapshot(record.id, now)
            self._know(tombstone(record.id, now))
            return
        pin, replicas = (
            self.next_stamp(wall, me) if stamp.wall_ms > latest else stamp
            for stamp in (record.pin_stamp, record.replicas_stamp)
        )
        created, used, removed = min(record.created, now), min(record.last_used, now), min(record.removed, now - 1)
        self.keep_snapshot(
            replace(record, created=created, last_used=used, removed=removed, pin_stamp=pin, replicas_stamp=replicas)
        )


def _stamps(record: RefRecord | SnapshotRecord) -> tuple[Stamp, ...]:
    return (record.stamp,) if isinstance(record, RefRecord) else (record.pin_stamp, record.replicas_stamp)


def is_ahead(records: Iterable[RefRecord | SnapshotRecord], latest: int) -> bool:
    """Whether one of them has a time after `latest`, in milliseconds since the epoch."""
    return any(
        max(stamp.wall_ms for stamp in _stamps(record)) > latest
        or (isinstance(record, SnapshotRecord) and max(record.created, record.removed) > latest * 1_000_000)
        for record in records
    )


@dataclass(slots=True)
class Refusals:
    """Counts what a peer told and we do not take, so that one warning tells of all."""

    count: int = 0
    first: str = ""

    def add(self, error: Exception) -> None:
        self.count += 1
        self.first = self.first or label(str(error))[:200]

    def warn(self, sender: str) -> None:
        if self.count:
            log.warning("%s told %d records that are left out; the first: %s", label(sender), self.count, self.first)
