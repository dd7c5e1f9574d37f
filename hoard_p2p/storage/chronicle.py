"""What a node knows besides chunks: its id, settings, roots, snapshots, refs and holds, as one value.

It can be had from a journal and from an index, and written as either: so a journal is checked, shortened, and turned
into an index again.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from hoard_p2p.ids import ID_SIZE
from hoard_p2p.storage.index import Table, Transaction
from hoard_p2p.storage.journal import Entry, Kind
from hoard_p2p.storage.records import decode_ref, decode_snapshot

NODE_ID = b"node_id"
START = b"start"
SETTINGS = frozenset({b"capacity", b"floor", b"scrub_days", b"origins"})
"""Keys of META that an operator chose: they are in the journal too."""

_U64 = struct.Struct("<Q")
_SEGMENT = struct.Struct("<I")
_KEY = struct.Struct(">I")
HELD_AT_ONCE = 4096


def setting(name: bytes, value: bytes) -> Entry:
    return Entry(Kind.SETTING, bytes([len(name)]) + name + value)


def held(kind: Kind, snapshot: bytes, segments: Iterable[int]) -> Entry:
    """HELD or UNHELD."""
    return Entry(kind, snapshot + b"".join(map(_SEGMENT.pack, segments)))


@dataclass(slots=True)
class Chronicle:
    """Values are as in the index. `start` is a lower bound."""

    node_id: bytes = b""
    start: int = 0
    settings: dict[bytes, bytes] = field(default_factory=dict)
    roots: dict[bytes, bytes] = field(default_factory=dict)
    snapshots: dict[bytes, bytes] = field(default_factory=dict)
    refs: dict[bytes, bytes] = field(default_factory=dict)
    holds: dict[bytes, set[int]] = field(default_factory=dict)

    @classmethod
    def of_journal(cls, entries: Iterable[Entry]) -> "Chronicle":
        """What a journal ends with; the last word on each thing counts."""
        told = cls()
        for kind, payload in entries:
            told._learn(kind, payload)
        return told

    @classmethod
    def of_index(cls, txn: Transaction) -> "Chronicle":
        told = cls(txn.get(Table.META, NODE_ID) or b"", _U64.unpack(txn.get(Table.META, START) or bytes(8))[0])
        found = {name: txn.get(Table.META, name) for name in SETTINGS}
        told.settings = {name: value for name, value in found.items() if value is not None}
        for table, into in ((Table.ROOTS, told.roots), (Table.SNAPSHOTS, told.snapshots), (Table.REFS, told.refs)):
            into.update(txn.scan(table))
        for key, _ in txn.scan(Table.HOLDS):
            told.holds.setdefault(key[:ID_SIZE], set()).add(_KEY.unpack_from(key, ID_SIZE)[0])
        return told

    def _learn(self, kind: int, payload: bytes) -> None:
        name, rest = payload[:ID_SIZE], payload[ID_SIZE:]
        match kind:
            case Kind.NODE | Kind.START | Kind.SETTING:
                self._learn_own(kind, payload)
            case Kind.ROOT:
                self.roots[name] = rest
            case Kind.SNAPSHOT:
                self._learn_snapshot(payload)
            case Kind.REF:
                self.refs[decode_ref(payload).name.encode()] = payload
            case Kind.UNNAMED:
                self.refs.pop(payload, None)
            case Kind.FORGOTTEN:
                self._forget(name)
            case Kind.HELD | Kind.UNHELD:
                self._learn_holds(name, {number for (number,) in _SEGMENT.iter_unpack(rest)}, kind == Kind.HELD)

    def _learn_own(self, kind: int, payload: bytes) -> None:
        if kind == Kind.NODE:
            self.node_id = payload
        elif kind == Kind.START:
            self.start = max(self.start, _U64.unpack(payload)[0])
        else:
            self.settings[payload[1 : 1 + payload[0]]] = payload[1 + payload[0] :]

    def _learn_snapshot(self, payload: bytes) -> None:
        record = decode_snapshot(payload)
        self.snapshots[record.id] = payload
        if record.removed and record.created <= record.removed:  # else it lies over a tombstone, and lives
            self.roots.pop(record.id, None)
            self.holds.pop(record.id, None)

    def _forget(self, snapshot: bytes) -> None:
        for known in (self.snapshots, self.roots, self.holds):
            known.pop(snapshot, None)

    def _learn_holds(self, snapshot: bytes, segments: set[int], held: bool) -> None:
        known = self.holds.pop(snapshot, set())
        left = known | segments if held else known - segments if segments else set()
        if left:
            self.holds[snapshot] = left

    def entries(self) -> list[Entry]:
        """The shortest journal that says the same."""
        told = [Entry(Kind.NODE, self.node_id)] if self.node_id else []
        told.append(Entry(Kind.START, _U64.pack(self.start)))
        told += [setting(name, value) for name, value in self.settings.items()]
        told += [Entry(Kind.ROOT, name + root) for name, root in self.roots.items()]
        told += [Entry(Kind.SNAPSHOT, record) for record in self.snapshots.values()]
        told += [Entry(Kind.REF, record) for record in self.refs.values()]
        for snapshot, segments in self.holds.items():
            ordered = sorted(segments)
            for at in range(0, len(ordered), HELD_AT_ONCE):
                told.append(held(Kind.HELD, snapshot, ordered[at : at + HELD_AT_ONCE]))
        return told

    def write(self, txn: Transaction) -> None:
        """Into an empty index."""
        if self.node_id:
            txn.put(Table.META, NODE_ID, self.node_id)
        txn.put(Table.META, START, _U64.pack(self.start))
        for name, value in self.settings.items():
            txn.put(Table.META, name, value)
        self.write_names(txn)
        for snapshot, segments in self.holds.items():
            for segment in segments:
                txn.put(Table.HOLDS, snapshot + _KEY.pack(segment), b"")

    def write_names(self, txn: Transaction) -> None:
        """Roots, snapshots and refs, over what is there."""
        for table, rows in ((Table.ROOTS, self.roots), (Table.SNAPSHOTS, self.snapshots), (Table.REFS, self.refs)):
            for key, value in rows.items():
                txn.put(table, key, value)

    def agrees(self, other: "Chronicle") -> bool:
        """Whether they say the same, but for the number of starts."""
        return (self.node_id, self.settings, self.roots, self.snapshots, self.refs, self.holds) == (
            other.node_id, other.settings, other.roots, other.snapshots, other.refs, other.holds,
        )  # fmt: skip
