"""What wins when two nodes tell different things of one ref or snapshot, and what a node knows at one moment. Pure.

Merging is commutative, associative and idempotent: nodes that were told the same, in whatever order, know the same.

A ref is a last-writer-wins register with a hybrid logical clock, and the latest of its earlier values.

A snapshot is *shown* (users see it), *removed* (a tombstone: nothing but a time), or *hidden*: kept here and told to
nobody, because its copies are not made yet or only its root was asked for. A hidden record may lie over a tombstone:
its `removed` is that time then, and it is the tombstone that peers are told.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from blake3 import blake3

from hoard_p2p.ids import SnapshotId
from hoard_p2p.node.names_buckets import Buckets, Part, parted
from hoard_p2p.node.names_wire import ref_bytes, snapshot_bytes
from hoard_p2p.storage.records import MAX_HISTORY, PastValue, RefRecord, SnapshotRecord

TOMBSTONE_DAYS = 30
DAY_NS = 24 * 3600 * 1_000_000_000


def newer_ref(known: RefRecord | None, told: RefRecord) -> RefRecord | None:
    """What is known of a ref after `told`; None if nothing changes. The later stamp wins; of the other values the
    latest are its history."""
    both = [told] if known is None else sorted((known, told), key=_ref_order, reverse=True)
    past = {value for ref in both for value in ref.history if value.stamp < ref.stamp}
    past |= {PastValue(ref.snapshot, ref.stamp) for ref in both if ref.snapshot is not None}
    by_stamp = {value.stamp: value for value in sorted(past) if value.stamp < both[0].stamp}  # of two the greater id
    earlier = [value for _, value in sorted(by_stamp.items(), reverse=True)]
    merged = replace(both[0], history=tuple(earlier[:MAX_HISTORY]))
    return None if merged == known else merged


def _ref_order(ref: RefRecord) -> tuple[object, ...]:
    return (*ref.stamp, ref.snapshot or b"")


def newer_snapshot(known: SnapshotRecord | None, told: SnapshotRecord) -> SnapshotRecord | None:
    """What is known of a snapshot after `told`; None if nothing changes.

    A removal hides what was created before or with it. Of living records a shown one wins over a hidden one, then the
    later created: its keep, source and origin count. A pin is a last-writer-wins register of one publish: it goes
    with the record that it was set on, and who publishes again takes over the pin that is known (`Names.show`). So is
    the number of replicas that was set after a publish.
    """
    both = [told] if known is None else [known, told]
    removed = max(record.removed for record in both)
    living = [record for record in both if record.created > removed]
    if living:
        best = max(living, key=_snapshot_order)
        of_best = [record for record in living if (record.shown, record.created) == (best.shown, best.created)]
        pin = max(of_best, key=lambda record: (record.pin_stamp, record.pinned))
        copies = max(of_best, key=lambda record: (record.replicas_stamp, record.replicas))
        merged = replace(
            best,
            last_used=max(record.last_used for record in living),
            pinned=pin.pinned,
            pin_stamp=pin.pin_stamp,
            replicas=copies.replicas,
            replicas_stamp=copies.replicas_stamp,
            removed=0 if best.shown else removed,
        )
    else:
        merged = tombstone(told.id, removed)
    return None if merged == known else merged


def _snapshot_order(record: SnapshotRecord) -> tuple[object, ...]:
    return record.shown, record.created, record.replicas, record.keep, record.source, record.origin


def tombstone(snapshot: SnapshotId, removed: int) -> SnapshotRecord:
    """A removed snapshot: the same on all nodes, whatever they knew of it before."""
    return SnapshotRecord(snapshot, 0, 0, 0, False, 0, False, "", removed)


def is_living(record: SnapshotRecord) -> bool:
    """Shown or hidden; its root is kept."""
    return record.created > record.removed


def tombstone_limit(now: int) -> int:
    """Removals before this time (nanoseconds) are forgotten, and not taken where nothing is known that they remove. It
    moves once a day, so that all nodes forget the same at nearly the same time."""
    return (now - TOMBSTONE_DAYS * DAY_NS) // DAY_NS * DAY_NS


def is_old_removal(record: SnapshotRecord | RefRecord, before: int) -> bool:
    """Whether it says no more than that something was removed before that time."""
    if isinstance(record, RefRecord):
        return record.snapshot is None and record.stamp.wall_ms * 1_000_000 < before
    return not is_living(record) and record.removed < before


@dataclass(frozen=True, eq=False)
class Snapshots:
    """The snapshots that a node knows at one moment. Never changes, so that any thread may read it.

    What is told of them is kept in parts, by the first byte of the id: a change costs what its part costs, among many.
    """

    records: Mapping[SnapshotId, SnapshotRecord]
    known: Mapping[int, Part[SnapshotRecord]] = field(default_factory=dict)
    """Parts of these records that were worked out before."""

    def after(self, records: Mapping[SnapshotId, SnapshotRecord]) -> "Snapshots":
        """What is known after a change."""
        changed = {one[0] for one, record in records.items() if self.records.get(one) is not record}
        changed |= {one[0] for one in self.records.keys() - records.keys()}
        return Snapshots(records, {number: part for number, part in enumerate(self.parts) if number not in changed})

    @cached_property
    def parts(self) -> tuple[Part[SnapshotRecord], ...]:
        """What peers are told: shown snapshots and tombstones, by id."""
        return parted(self._told(), snapshot_bytes, self.known)

    def _told(self) -> Iterator[tuple[int, SnapshotRecord]]:
        changed = (one for one in self.records if one[0] not in self.known)
        for one in sorted(changed):
            record = self.records[one]
            if is_living(record) and record.shown:
                yield one[0], record
            elif record.removed:
                yield one[0], tombstone(one, record.removed)

    @cached_property
    def told(self) -> list[SnapshotRecord]:
        """All of the parts."""
        return [record for part in self.parts for record in part.records]

    @cached_property
    def digest(self) -> bytes:
        """Of exactly what peers are told: equal on nodes that would tell each other nothing new."""
        return blake3(b"".join(part.joined for part in self.parts)).digest()

    @cached_property
    def buckets(self) -> Buckets[SnapshotRecord]:
        """Blocking for some 0.1 s at first, where there are many."""
        return Buckets(self.parts)


@dataclass(frozen=True, eq=False)
class Refs:
    """The refs, tombstones too, that a node knows at one moment. Never changes."""

    records: Mapping[str, RefRecord]

    @cached_property
    def told(self) -> list[RefRecord]:
        return [ref for _, ref in sorted(self.records.items())]

    @cached_property
    def digest(self) -> bytes:
        return blake3(b"".join(map(ref_bytes, self.told))).digest()

    @cached_property
    def buckets(self) -> Buckets[RefRecord]:
        """Blocking for some 0.1 s where there are many. By the first byte of the blake3 of the name."""
        return Buckets(parted(((blake3(ref.name.encode()).digest(1)[0], ref) for ref in self.told), ref_bytes, {}))
