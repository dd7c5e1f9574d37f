"""What this node knows of snapshots and refs: looked up in memory, written through, merged with what peers tell.

Refs are last-writer-wins registers with hybrid logical clocks. A snapshot's record is alive or removed by whichever of
the two times is later. What wins is decided by pure functions (`newer_ref`, `newer_snapshot`), so that all nodes end
with the same. Methods that may write are blocking: call them from an executor.
"""

import base64
import logging
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from blake3 import blake3

from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest, Corrupt, Refused, SnapshotAmbiguous, SnapshotUnknown
from hoard_p2p.ids import MIN_PREFIX, SnapshotId, parse_snapshot_id, short, snapshot_id
from hoard_p2p.peer import NodeId, parse_node_id
from hoard_p2p.storage.records import MAX_HISTORY, PastValue, RefRecord, SnapshotRecord, Stamp
from hoard_p2p.storage.store import Store

log = logging.getLogger(__name__)

DEFAULT_TAG = "latest"
DEFAULT_KEEP = 30 * 24 * 3600
CLOCK_AHEAD_MS = 60_000
"""An update that is further ahead of our clock than this is refused, and its sender named."""

TOUCH_NS = 3600 * 1_000_000_000

_REF = re.compile(r"([A-Za-z0-9][A-Za-z0-9._/@+-]{0,127}?)(?::([A-Za-z0-9][A-Za-z0-9._+-]{0,63}))?")
_PREFIX = re.compile(f"[0-9a-f]{{{MIN_PREFIX},64}}")

Record = dict[str, Json]


def ref_name(text: str) -> str:
    """`NAME:TAG` in full. Raises BadRequest for what can be no name."""
    match = _REF.fullmatch(text)
    if not match:
        raise BadRequest(f"{text!r} is no name; use letters, digits and ._/@+- with an optional :TAG")
    return f"{match[1]}:{match[2] or DEFAULT_TAG}"


def newer_ref(known: RefRecord | None, told: RefRecord) -> RefRecord | None:
    """`told` if it replaces `known`, with what it replaces in its history; None if `known` stays."""
    if known is None:
        return told
    if told.stamp <= known.stamp:
        return None
    past = {*known.history, *told.history}
    if known.snapshot is not None:
        past.add(PastValue(known.snapshot, known.stamp))
    newest_first = sorted(past, key=lambda value: value.stamp, reverse=True)
    return replace(told, history=tuple(newest_first[:MAX_HISTORY]))


def newer_snapshot(known: SnapshotRecord | None, told: SnapshotRecord) -> SnapshotRecord | None:
    """The record to keep if `told` changes what is known: a later creation or removal wins; None if nothing changes."""
    if known is None:
        return told
    created, removed = max(known.created, told.created), max(known.removed, told.removed)
    merged = replace(
        known,
        created=created,
        removed=removed if removed >= created else 0,
        shown=known.shown or told.shown,
        replicas=told.replicas if told.created > known.created else known.replicas,
    )
    return None if merged == known else merged


class Names:
    """Snapshots and refs of one node. Thread-safe; reads are free."""

    def __init__(self, store: Store, me: NodeId, wall_ns: Callable[[], int]) -> None:
        """`wall_ns`: nanoseconds since the epoch, for stamps."""
        self._store = store
        self._me = me
        self._wall_ns = wall_ns
        self._lock = threading.Lock()
        self._refs = {ref.name: ref for ref in store.refs()}
        self._snapshots = {record.id: record for record in store.snapshots()}
        self._clock = max((ref.stamp for ref in self._refs.values()), default=Stamp(0, 0, me))
        self._digests: tuple[bytes, bytes] | None = None

    # --- reading

    def refs(self) -> list[RefRecord]:
        """Living refs by name."""
        return [ref for _, ref in sorted(self._refs.items()) if ref.snapshot is not None]

    def names_of(self, snapshot: SnapshotId) -> list[str]:
        return [ref.name for ref in self.refs() if ref.snapshot == snapshot]

    def snapshots(self) -> list[SnapshotRecord]:
        """Snapshots that users see, newest first."""
        shown = [record for record in self._snapshots.values() if record.shown and not record.removed]
        return sorted(shown, key=lambda record: (-record.created, record.id))

    def snapshot(self, snapshot: SnapshotId) -> SnapshotRecord | None:
        return self._snapshots.get(snapshot)

    def root(self, snapshot: SnapshotId) -> bytes | None:
        """Blocking. The encoded root of a living snapshot, None if it is not known here."""
        record = self._snapshots.get(snapshot)
        return None if record is None or record.removed else self._store.root(snapshot)

    def resolve(self, text: str) -> SnapshotId:
        """The snapshot that a user means: a ref, an id, or a unique prefix.

        An id needs not be known here. Raises SnapshotUnknown, SnapshotAmbiguous.
        """
        named = self._named(text)
        if named is not None:
            return named
        if not _PREFIX.fullmatch(text.lower()):
            raise SnapshotUnknown(f"no ref is named {text!r}; hoard ls and hoard refs list what there is")
        if len(text) == 64:
            return parse_snapshot_id(text.lower())
        return self._by_prefix(text.lower())

    def _named(self, text: str) -> SnapshotId | None:
        try:
            ref = self._refs.get(ref_name(text))
        except BadRequest:
            return None
        return None if ref is None else ref.snapshot

    def _by_prefix(self, prefix: str) -> SnapshotId:
        found = [record.id for record in self.snapshots() if record.id.hex().startswith(prefix)]
        if not found:
            raise SnapshotUnknown(f"no snapshot begins with {prefix}; hoard ls lists what there is")
        if len(found) > 1:
            listed = ", ".join(identifier.hex()[:20] for identifier in found[:8])
            raise SnapshotAmbiguous(f"{len(found)} snapshots begin with {prefix}: {listed}; write more digits")
        return found[0]

    def digests(self) -> tuple[bytes, bytes]:
        """Of snapshots and of refs: equal on nodes that know the same."""
        if self._digests is None:
            living = sorted((record.id, record.created, record.removed) for record in self._snapshots.values())
            refs = sorted((ref.name, ref.stamp) for ref in self._refs.values())
            self._digests = (blake3(repr(living).encode()).digest(), blake3(repr(refs).encode()).digest())
        return self._digests

    # --- writing: blocking

    def add_snapshot(self, root: bytes, record: SnapshotRecord) -> SnapshotRecord:
        """Keep a root and what is told about it; the record as it is from now on."""
        with self._lock:
            known = self._snapshots.get(record.id)
            kept = newer_snapshot(known, record)
            if kept is None and known is not None:
                return known
            kept = kept or record
            if kept.removed:
                self._store.remove_snapshot(kept.id, kept.removed)
            else:
                self._store.put_root(kept.id, root, kept)
            self._remember(kept)
            return kept

    def show(self, snapshot: SnapshotId) -> None:
        """From now on users see it."""
        self._change(snapshot, lambda record: replace(record, shown=True))

    def touch(self, snapshot: SnapshotId) -> None:
        """It was used now; noted to the hour, since each note is a write."""
        now = self._wall_ns()
        record = self._snapshots.get(snapshot)
        if record is not None and now - record.last_used > TOUCH_NS:
            self._change(snapshot, lambda record: replace(record, last_used=now))

    def _change(self, snapshot: SnapshotId, change: Callable[[SnapshotRecord], SnapshotRecord]) -> None:
        with self._lock:
            known = self._snapshots.get(snapshot)
            if known is not None and not known.removed:
                changed = change(known)
                self._store.show_snapshot(snapshot, changed)
                self._remember(changed)

    def remove(self, snapshot: SnapshotId, *, force: bool) -> list[str]:
        """Leave a tombstone, and untag what names it; the names. Raises SnapshotUnknown, and Refused while it is named
        unless `force`."""
        names = self.names_of(snapshot)
        if names and not force:
            raise Refused(f"{snapshot.hex()} is named {', '.join(names)}; hoard untag them first, or use --force")
        record = self._snapshots.get(snapshot)
        if record is None or record.removed:
            raise SnapshotUnknown(f"no snapshot {snapshot.hex()} is known here")
        for name in names:
            self._set_ref(name, None)
        with self._lock:
            removed = max(self._wall_ns(), record.created + 1)
            self._store.remove_snapshot(snapshot, removed)
            self._remember(replace(record, removed=removed))
        return names

    def tag(self, snapshot: SnapshotId, text: str, *, move: bool) -> RefRecord:
        """Name a snapshot. Raises BadRequest, SnapshotUnknown, and Refused if the name is another's unless `move`."""
        name = ref_name(text)
        record = self._snapshots.get(snapshot)
        if record is None or record.removed:
            raise SnapshotUnknown(f"no snapshot {snapshot.hex()} is known here")
        known = self._refs.get(name)
        if known is not None and known.snapshot == snapshot:
            return known
        if known is not None and known.snapshot is not None and not move:
            raise Refused(f"{name} names {known.snapshot.hex()} already; use --move to change it")
        return self._set_ref(name, snapshot)

    def untag(self, text: str) -> RefRecord:
        """Remove a name. Raises SnapshotUnknown if there is none such."""
        name = ref_name(text)
        known = self._refs.get(name)
        if known is None or known.snapshot is None:
            raise SnapshotUnknown(f"no ref is named {name}; hoard refs lists them")
        return self._set_ref(name, None)

    def _set_ref(self, name: str, snapshot: SnapshotId | None) -> RefRecord:
        with self._lock:
            told = RefRecord(name, snapshot, self._next_stamp())
            merged = newer_ref(self._refs.get(name), told) or told
            self._keep_ref(merged)
            return merged

    def _next_stamp(self) -> Stamp:
        wall = self._wall_ns() // 1_000_000
        last = self._clock
        self._clock = (
            Stamp(wall, 0, self._me) if wall > last.wall_ms else Stamp(last.wall_ms, last.counter + 1, self._me)
        )
        return self._clock

    def _keep_ref(self, ref: RefRecord) -> None:
        self._store.put_ref(ref)
        self._refs[ref.name] = ref
        self._clock = max(self._clock, ref.stamp)
        self._digests = None

    def _remember(self, record: SnapshotRecord) -> None:
        self._snapshots[record.id] = record
        self._digests = None

    # --- exchange with peers

    def ref_records(self) -> list[Record]:
        return [_ref_json(ref) for ref in self._refs.values()]

    def snapshot_records(self) -> list[Record]:
        """Blocking. All that may be told: shown and removed ones, roots included."""
        told = [record for record in self._snapshots.values() if record.shown or record.removed]
        return [_snapshot_json(record, b"" if record.removed else self._store.root(record.id)) for record in told]

    def merge_refs(self, records: Sequence[Record], sender: str) -> int:
        """Blocking. Take what is newer; how many were. A record that is malformed or ahead of time is left out."""
        limit = self._wall_ns() // 1_000_000 + CLOCK_AHEAD_MS
        changed = 0
        for record in records:
            try:
                told = _parse_ref(record)
            except (ValueError, TypeError, KeyError, BadRequest) as error:
                log.warning("%s told a ref that is none: %s", sender, error)
                continue
            if told.stamp.wall_ms > limit:
                log.warning(
                    "%s told ref %s with a time more than 60 s ahead of ours: check its clock", sender, told.name
                )
                continue
            with self._lock:
                merged = newer_ref(self._refs.get(told.name), told)
                if merged is not None:
                    self._keep_ref(merged)
                    changed += 1
        return changed

    def merge_snapshots(self, records: Sequence[Record], sender: str) -> int:
        """Blocking. Take what is new of snapshots; how many were. A root that does not match its id is left out."""
        changed = 0
        for record in records:
            try:
                told, root = _parse_snapshot(record)
            except (ValueError, TypeError, KeyError, Corrupt) as error:
                log.warning("%s told a snapshot that is none: %s", sender, error)
                continue
            known = self._snapshots.get(told.id)
            if newer_snapshot(known, told) is not None:
                log.info("snapshot %s is known from %s", short(told.id), sender)
                self.add_snapshot(root, told)
                changed += 1
        return changed


def _ref_json(ref: RefRecord) -> Record:
    return {
        "name": ref.name,
        "snapshot": None if ref.snapshot is None else ref.snapshot.hex(),
        "stamp": _stamp_json(ref.stamp),
        "history": [[value.snapshot.hex(), _stamp_json(value.stamp)] for value in ref.history],
    }


def _stamp_json(stamp: Stamp) -> list[Json]:
    return [stamp.wall_ms, stamp.counter, stamp.node.hex()]


def _parse_stamp(value: Json) -> Stamp:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError("a stamp has three parts")
    wall, counter, node = value
    if (
        not isinstance(wall, int)
        or not isinstance(counter, int)
        or not 0 <= wall < 1 << 63
        or not 0 <= counter < 1 << 32
    ):
        raise ValueError(f"a stamp cannot be {wall!r}, {counter!r}")
    return Stamp(wall, counter, parse_node_id(str(node)))


def _parse_ref(record: Record) -> RefRecord:
    name, snapshot, history = record["name"], record["snapshot"], record["history"]
    if not isinstance(name, str) or ref_name(name) != name:
        raise ValueError(f"{name!r} is no full ref name")
    if not isinstance(history, list):
        raise ValueError("a history is a list")
    past: list[PastValue] = []
    for entry in history[:MAX_HISTORY]:
        if not isinstance(entry, list) or len(entry) != 2:
            raise ValueError("a history entry has two parts")
        past.append(PastValue(parse_snapshot_id(str(entry[0])), _parse_stamp(entry[1])))
    value = None if snapshot is None else parse_snapshot_id(str(snapshot))
    return RefRecord(name, value, _parse_stamp(record["stamp"]), tuple(past))


def _snapshot_json(record: SnapshotRecord, root: bytes | None) -> Record:
    return {
        "id": record.id.hex(),
        "created": record.created,
        "removed": record.removed,
        "replicas": record.replicas,
        "keep": record.keep,
        "source": record.source,
        "root": base64.b64encode(root or b"").decode(),
    }


def _parse_snapshot(record: Record) -> tuple[SnapshotRecord, bytes]:
    root = base64.b64decode(str(record["root"]), validate=True)
    removed = _whole(record["removed"])
    told = SnapshotRecord(
        id=parse_snapshot_id(str(record["id"])),
        created=_whole(record["created"]),
        last_used=_whole(record["created"]),
        replicas=max(1, _whole(record["replicas"]) & 0xFFFF),
        pinned=False,
        keep=_whole(record["keep"]),
        shown=True,
        source=str(record["source"])[:1000],
        removed=removed,
    )
    if not removed and snapshot_id(root) != told.id:
        raise Corrupt(f"the root told for {short(told.id)} has another id")
    return told, root


def _whole(value: Json) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is no whole number in range")
    return value
