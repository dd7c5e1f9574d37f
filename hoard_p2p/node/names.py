"""What this node knows of snapshots and refs: looked up in memory, written through, merged with what peers tell.

What wins is decided in `node.merging`, so that all nodes end with the same. Methods that may write are blocking: call
them from an executor. Reading is free, and safe from any thread while others write: what is known is replaced as a
whole, never changed in place.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice

from hoard_p2p.catalog.root import decode as decode_root
from hoard_p2p.errors import BadRequest, Corrupt, Refused, SnapshotUnknown
from hoard_p2p.ids import SnapshotId, short
from hoard_p2p.node.merging import (
    Refs,
    Snapshots,
    is_living,
    is_old_removal,
    newer_ref,
    newer_snapshot,
    tombstone_limit,
)
from hoard_p2p.node.names_buckets import Buckets
from hoard_p2p.node.names_draft import Draft, Refusals, is_ahead
from hoard_p2p.node.names_wire import (
    Record,
    label,
    parse_ref,
    parse_root,
    parse_snapshot,
    ref_json,
    ref_name,
    snapshot_json,
)
from hoard_p2p.node.resolving import new_ref_name, resolve
from hoard_p2p.peer import NodeId
from hoard_p2p.storage.records import RefRecord, SnapshotRecord, Stamp
from hoard_p2p.storage.store import Store

__all__ = ["DEFAULT_KEEP", "MAX_TOLD", "Names", "Record", "new_ref_name", "ref_name"]

log = logging.getLogger(__name__)

DEFAULT_KEEP = 30 * 24 * 3600
CLOCK_AHEAD = 60
"""Seconds: an update that is further ahead of our clock than this is refused, and its sender named."""

MAX_TOLD = 60_000
"""Snapshots, and refs, that are taken from peers at most: with room for own ones in a list of 65,536."""

BATCH = 256
"""Records of a peer that are merged before local work gets its turn."""

TOUCH_NS = 3600 * 1_000_000_000


class Names:
    """Snapshots and refs of one node. Thread-safe."""

    def __init__(self, store: Store, me: NodeId, wall_ns: Callable[[], int]) -> None:
        """`wall_ns`: nanoseconds since the epoch, for stamps."""
        self._store = store
        self._me = me
        self._wall_ns = wall_ns
        self._lock = threading.Lock()
        self._refs = Refs({ref.name: ref for ref in store.refs()})
        self._snapshots = Snapshots({record.id: newer_snapshot(None, record) or record for record in store.snapshots()})
        stamps = [max(record.pin_stamp, record.replicas_stamp) for record in self._snapshots.records.values()]
        self._clock = max([Stamp(0, 0, me), *(ref.stamp for ref in self._refs.told), *stamps])
        self._warned_full = False
        self.removals = 0
        """Snapshots that went since the start: a number that grows tells that there may be something to collect."""

    # --- reading

    def refs(self) -> list[RefRecord]:
        """Living refs by name."""
        return [ref for ref in self._refs.told if ref.snapshot is not None]

    def ref(self, name: str) -> RefRecord | None:
        """The living ref of this full name."""
        ref = self._refs.records.get(name)
        return None if ref is None or ref.snapshot is None else ref

    def all_refs(self) -> list[RefRecord]:
        """By name, those that were removed too."""
        return self._refs.told

    def names_of(self, snapshot: SnapshotId) -> list[str]:
        return [ref.name for ref in self.refs() if ref.snapshot == snapshot]

    def snapshots(self) -> list[SnapshotRecord]:
        """Snapshots that users see, newest first."""
        shown = [record for record in self._snapshots.records.values() if record.shown and is_living(record)]
        return sorted(shown, key=lambda record: (-record.created, record.id))

    def snapshot(self, snapshot: SnapshotId) -> SnapshotRecord | None:
        """What is known of it, shown or not; `removed` is 0 if its root is here, else it is a tombstone."""
        record = self._snapshots.records.get(snapshot)
        return replace(record, removed=0) if record is not None and record.removed and is_living(record) else record

    def root(self, snapshot: SnapshotId) -> bytes | None:
        """Blocking. The encoded root of a living snapshot, None if it is not known here."""
        record = self.snapshot(snapshot)
        return None if record is None or record.removed else self._store.root(snapshot)

    def resolve(self, text: str) -> SnapshotId:
        """The snapshot that a user means: see `resolving.resolve`."""
        return resolve(text, self.refs(), self.snapshots)

    def digests(self) -> tuple[bytes, bytes]:
        """Of snapshots and of refs as peers are told them: equal on nodes that know the same."""
        return self._snapshots.digest, self._refs.digest

    def known(self) -> list[SnapshotRecord]:
        """Every living snapshot, also those that users do not see."""
        return [record for record in self._snapshots.records.values() if is_living(record)]

    # --- writing: blocking

    @contextmanager
    def _writing(self) -> Iterator[Draft]:
        """A change: the store is written first, then all of it becomes known at once, also the part that was written
        before a failure."""
        with self._lock:
            draft = Draft(self._store, self._clock, dict(self._snapshots.records), dict(self._refs.records))
            try:
                yield draft
            finally:
                self._clock = draft.clock
                self.removals += draft.removals
                if draft.snapshots_changed:
                    snapshots = self._snapshots.after(draft.snapshots)
                    _ = snapshots.digest  # worked out here, not by the event loop that asks for it
                    self._snapshots = snapshots
                if draft.refs_changed:
                    refs = Refs(draft.refs)
                    _ = refs.digest
                    self._refs = refs

    def add_snapshot(self, root: bytes, record: SnapshotRecord) -> SnapshotRecord:
        """Keep a root and what is told about it; the record as it is from now on. Raises CatalogCorrupt for a root
        that is none."""
        decode_root(root)
        with self._writing() as draft:
            draft.merge(replace(record, source=label(record.source)), lambda: root)
            return draft.snapshots[record.id]

    def creation_time(self, snapshot: SnapshotId) -> int:
        """For a record that is made now: later than a removal that is known."""
        known = self._snapshots.records.get(snapshot)
        return max(self._wall_ns(), 0 if known is None else known.removed + 1)

    def show(self, root: bytes, record: SnapshotRecord) -> SnapshotRecord:
        """From now on users see it, even if it was removed meanwhile; the record as it is then."""
        with self._writing() as draft:
            known = draft.snapshots.get(record.id)
            created = max(record.created, 0 if known is None else known.removed + 1)
            told = replace(record, created=created, shown=True, removed=0, source=label(record.source))
            if record.pinned:
                told = replace(told, pin_stamp=self._next_stamp(draft))
            elif known is not None and known.shown and is_living(known):
                told = replace(told, pinned=known.pinned, pin_stamp=known.pin_stamp)
            draft.merge(told, lambda: root)
            return draft.snapshots[record.id]

    def touch(self, snapshot: SnapshotId, *, within: int = TOUCH_NS) -> None:
        """It was used now; noted to the hour, or to `within` nanoseconds, since each note is a write."""
        now = self._wall_ns()
        known = self._snapshots.records.get(snapshot)
        if known is None or not is_living(known) or now - known.last_used <= within:
            return
        with self._writing() as draft:
            known = draft.snapshots.get(snapshot)
            if known is not None and is_living(known):
                draft.keep_snapshot(replace(known, last_used=now))

    def pin(self, snapshot: SnapshotId, *, pinned: bool) -> bool:
        """Whether that changed anything. Raises SnapshotUnknown, also for one that users do not see."""
        with self._writing() as draft:
            known = self._shown(draft, snapshot)
            if known.pinned == pinned:
                return False
            draft.keep_snapshot(replace(known, pinned=pinned, pin_stamp=self._next_stamp(draft)))
            return True

    def set_replicas(self, snapshot: SnapshotId, replicas: int) -> bool:
        """Whether that changed anything. Raises SnapshotUnknown, also for one that users do not see."""
        with self._writing() as draft:
            known = self._shown(draft, snapshot)
            if known.replicas == replicas:
                return False
            draft.keep_snapshot(replace(known, replicas=replicas, replicas_stamp=self._next_stamp(draft)))
            return True

    def forget(self, snapshot: SnapshotId) -> bool:
        """Drop one that users do not see and nobody was told of; whether it was one."""
        with self._writing() as draft:
            known = draft.snapshots.get(snapshot)
            if known is None or not is_living(known) or known.shown:
                return False
            draft.forget(known)
            return True

    def remove(self, snapshot: SnapshotId, *, force: bool) -> list[str]:
        """Leave a tombstone, and untag what names it; the names. Raises SnapshotUnknown, and Refused while it is named
        unless `force`."""
        with self._writing() as draft:
            names = sorted(name for name, ref in draft.refs.items() if ref.snapshot == snapshot)
            if names and not force:
                raise Refused(f"{snapshot.hex()} is named {', '.join(names)}; hoard untag them first, or use --force")
            record = self._living(draft, snapshot)
            for name in names:
                draft.keep_ref(self._changed_ref(draft, name, None))
            removed = max(self._wall_ns(), record.created + 1)
            draft.merge(replace(record, removed=removed), bytes)
        return names

    def tag(self, snapshot: SnapshotId, text: str, *, move: bool) -> RefRecord:
        """Name a snapshot. Raises BadRequest, SnapshotUnknown, and Refused if the name is another's unless `move`."""
        with self._writing() as draft:
            return draft.keep_ref(self._tagged(draft, snapshot, text, move=move))

    def untag(self, text: str) -> RefRecord:
        """Remove a name. Raises SnapshotUnknown if there is none such."""
        with self._writing() as draft:
            return draft.keep_ref(self._untagged(draft, text))

    def planned_tag(self, snapshot: SnapshotId, text: str, *, move: bool) -> RefRecord:
        """What `tag` would keep."""
        with self._writing() as draft:
            return self._tagged(draft, snapshot, text, move=move)

    def planned_untag(self, text: str) -> RefRecord:
        """What `untag` would keep."""
        with self._writing() as draft:
            return self._untagged(draft, text)

    def _tagged(self, draft: Draft, snapshot: SnapshotId, text: str, *, move: bool) -> RefRecord:
        name = new_ref_name(text)
        self._living(draft, snapshot)
        known = draft.refs.get(name)
        if known is not None and known.snapshot == snapshot:
            return known
        if known is not None and known.snapshot is not None and not move:
            raise Refused(f"{name} names {known.snapshot.hex()} already; use --move to change it")
        return self._changed_ref(draft, name, snapshot)

    def _untagged(self, draft: Draft, text: str) -> RefRecord:
        name = ref_name(text)
        known = draft.refs.get(name)
        if known is None or known.snapshot is None:
            raise SnapshotUnknown(f"no ref is named {name}; hoard refs lists them")
        return self._changed_ref(draft, name, None)

    @staticmethod
    def _living(draft: Draft, snapshot: SnapshotId) -> SnapshotRecord:
        record = draft.snapshots.get(snapshot)
        if record is None or not is_living(record):
            raise SnapshotUnknown(f"no snapshot {snapshot.hex()} is known here")
        return record

    def _shown(self, draft: Draft, snapshot: SnapshotId) -> SnapshotRecord:
        known = self._living(draft, snapshot)
        if not known.shown:
            raise SnapshotUnknown(f"snapshot {snapshot.hex()} is not published yet")
        return known

    def _changed_ref(self, draft: Draft, name: str, snapshot: SnapshotId | None) -> RefRecord:
        told = RefRecord(name, snapshot, self._next_stamp(draft))
        return newer_ref(draft.refs.get(name), told) or told

    def _next_stamp(self, draft: Draft) -> Stamp:
        return draft.next_stamp(self._wall_ns() // 1_000_000, self._me)

    # --- age

    def drop_tombstones(self) -> int:
        """Forget of removals what all nodes had time to learn; how many records went."""
        before = tombstone_limit(self._wall_ns())
        with self._writing() as draft:
            return draft.drop_tombstones(before)

    def take_away(self, snapshots: Collection[SnapshotId], refs: Collection[str], until: int) -> int:
        """Remove what the cluster removed while this node was away for long, unless it was set or created here after
        `until` (nanoseconds); how many records that were. Others are not told."""
        with self._writing() as draft:
            return draft.take_away(snapshots, refs, until)

    def mend_times(self) -> int:
        """For a clock that is right now: what was set while it was ahead, which nobody takes, is set as of now; how
        many records that were."""
        wall = self._wall_ns() // 1_000_000
        latest = wall + CLOCK_AHEAD * 1000
        if not is_ahead([*self._refs.records.values(), *self._snapshots.records.values()], latest):
            return 0
        with self._writing() as draft:
            return draft.mend_times(latest, wall, self._me)

    # --- exchange with peers

    def ref_records(self) -> list[Record]:
        return [ref_json(ref) for ref in self._refs.told]

    def snapshot_records(self) -> list[Record]:
        """Blocking. All that peers are told: shown and removed ones, roots included."""
        return [told for told in map(self._told, self._snapshots.told) if told is not None]

    def snapshot_record(self, snapshot: SnapshotId) -> Record | None:
        """Blocking. What peers are told of one snapshot, None if nothing."""
        record = self._snapshots.records.get(snapshot)
        told = [] if record is None else Snapshots({snapshot: record}).told
        return self._told(told[0]) if told else None

    def snapshot_parts(self) -> Buckets[SnapshotRecord]:
        """Blocking. What peers are told of snapshots, in parts."""
        return self._snapshots.buckets

    def ref_parts(self) -> Buckets[RefRecord]:
        """Blocking. What peers are told of refs, in parts."""
        return self._refs.buckets

    def told(self, record: SnapshotRecord | RefRecord) -> Record | None:
        """Blocking. One of the parts as peers are told it; None if it went meanwhile."""
        return ref_json(record) if isinstance(record, RefRecord) else self._told(record)

    def _told(self, record: SnapshotRecord) -> Record | None:
        root = b"" if record.removed else self._store.root(record.id)
        return None if root is None else snapshot_json(record, root)  # None: it was removed just now

    def merge_refs(self, records: Sequence[Record], sender: str) -> int:
        """Blocking. Take what is newer; how many were. A record that is malformed or ahead of time is left out."""
        latest, limit = self._wall_ns() // 1_000_000 + CLOCK_AHEAD * 1000, tombstone_limit(self._wall_ns())

        def take(draft: Draft, record: Record) -> bool:
            told = parse_ref(record, latest)
            merged = newer_ref(draft.refs.get(told.name), told)
            if merged is None or self._is_full(draft.refs, told.name):
                return False
            if told.name not in draft.refs and is_old_removal(told, limit):
                return False
            draft.keep_ref(merged)
            return True

        return self._take_all(records, sender, take)

    def merge_snapshots(self, records: Sequence[Record], sender: str) -> int:
        """Blocking. Take what is new of snapshots; how many were. A record that is malformed or ahead of time, or whose
        root is none or another's, is left out."""
        latest, limit = self._wall_ns() + CLOCK_AHEAD * 1_000_000_000, tombstone_limit(self._wall_ns())

        def take(draft: Draft, record: Record) -> bool:
            told = parse_snapshot(record, latest)
            if self._is_full(draft.snapshots, told.id):
                return False
            if told.id not in draft.snapshots and is_old_removal(told, limit):
                return False
            taken = draft.merge(told, lambda: parse_root(record, told.id))
            if taken:
                log.info("snapshot %s is known from %s", short(told.id), label(sender))
            return taken

        return self._take_all(records, sender, take)

    def _take_all(self, records: Sequence[Record], sender: str, take: Callable[[Draft, Record], bool]) -> int:
        """Batch by batch, so that local work is not kept waiting by long lists."""
        changed, refused, left = 0, Refusals(), iter(records)
        while batch := list(islice(left, BATCH)):
            with self._writing() as draft:
                for record in batch:
                    try:
                        changed += take(draft, record)
                    except (ValueError, TypeError, KeyError, BadRequest, Corrupt) as error:
                        refused.add(error)
        refused.warn(sender)
        return changed

    def _is_full(self, known: dict[SnapshotId, SnapshotRecord] | dict[str, RefRecord], key: object) -> bool:
        """Whether `key` would be one too many; said once."""
        if key in known or len(known) < MAX_TOLD:
            return False
        if not self._warned_full:
            self._warned_full = True
            log.warning("peers told of more than %d snapshots or refs; no more are taken from them", MAX_TOLD)
        return True
