"""The values that the index and the journal keep, and their bytes (docs/formats.md, Store).

All numbers are little-endian unless a key must sort by number; each record starts with a version byte where it may
grow. Decoders trust what they are given: the index and the journal are written by this machine alone, and the journal
checks its own crc.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

from hoard_p2p.ids import ID_SIZE, SnapshotId
from hoard_p2p.interfaces import Place, SlabKind

if TYPE_CHECKING:
    from hoard_p2p.peer import NodeId

MAX_HISTORY = 16
"""A moved ref remembers this many earlier values."""

_PLACE = struct.Struct("<IIHIBx")  # slab, offset (low 32 bits, high 16 bits), length, generation, 0
_WHERE = struct.Struct("<IIHI")  # a place without its generation
_SLAB = struct.Struct("<BBIQQ16s")  # version, kind, start, size, created_ns, file key (zeros: none)
_FILE = struct.Struct("<BIB")  # version, slab, complete
_SNAPSHOT = struct.Struct(
    "<B32sQQHBQBQH"
)  # version, id, created, last used, replicas, pinned, keep, shown, removed, len
_STAMP = struct.Struct("<QI16s")
_LEASE = struct.Struct("<BQQIQ16sH")  # version, since, renewed, pid, its start time, boot id, length of mount point
_REF = struct.Struct("<BHB32sB")  # version, length of name, is set, snapshot, length of history
_VERSION = 1
_SNAPSHOT_VERSION = 3
"""Version 1 ends with the source, 2 with the stamp of the pin; then come the stamp of the replicas and the origin."""
_KINDS = (SlabKind.SHARED, SlabKind.FILE)

NO_KEY = bytes(16)


class Stamp(NamedTuple):
    """When and by whom a ref was set: a hybrid logical clock; tuples compare as the clock does, ties by node id."""

    wall_ms: int
    counter: int
    node: "NodeId"


NEVER = Stamp(0, 0, cast("NodeId", bytes(16)))
"""Of a pin that nobody ever set."""


class PastValue(NamedTuple):
    """An earlier value of a ref."""

    snapshot: SnapshotId
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """What a node keeps about one snapshot besides its root.

    `created`, `last_used`, `removed` are nanoseconds since the epoch; `removed` 0 means alive, else it is a tombstone.
    `keep` is how many seconds after its last use an unnamed snapshot lives. `shown`: visible to users (I11). `source`
    is a label for people, cut to 65,535 bytes of UTF-8. `pin_stamp`: when and by whom `pinned` was set;
    `replicas_stamp` the same of `replicas`, `NEVER` if they are as published. `origin`: the URL that its bytes can be
    read from again, empty if there is none.
    """

    id: SnapshotId
    created: int
    last_used: int
    replicas: int
    pinned: bool
    keep: int
    shown: bool
    source: str
    removed: int = 0
    pin_stamp: Stamp = NEVER
    replicas_stamp: Stamp = NEVER
    origin: str = ""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A mount that uses a snapshot, so that a node that starts again does not take it for unused. `device`:
    MAJOR:MINOR; `pid` and `start_time` (of /proc/PID/stat): its supervisor; `since`, `renewed`: nanoseconds since the
    epoch; `boot_id`: 16 bytes, of the machine's start."""

    snapshot: SnapshotId
    device: str
    mountpoint: str
    pid: int
    start_time: int
    boot_id: bytes
    since: int
    renewed: int


@dataclass(frozen=True, slots=True)
class RefRecord:
    """A name for a snapshot; `snapshot` None is a tombstone. `history`: earlier values, newest first, at most 16."""

    name: str
    snapshot: SnapshotId | None
    stamp: Stamp
    history: tuple[PastValue, ...] = ()


class FileSlab(NamedTuple):
    """The slab of one large file; `complete`: it has every byte of the file that is not in a hole."""

    slab: int
    complete: bool


class SlabRecord(NamedTuple):
    """A slab as the index lists it. `start`: the start of the node that made it; `file_key`: empty if not known."""

    kind: SlabKind
    start: int
    size: int
    created: int
    file_key: bytes


def encode_places(places: Sequence[Place]) -> bytes:
    return b"".join(
        _PLACE.pack(slab, offset & 0xFFFFFFFF, offset >> 32, length, generation)
        for slab, offset, length, generation in places
    )


def decode_place(value: bytes) -> Place:
    """The first of the places in `value`: the one that readers use."""
    slab, low, high, length, generation = _PLACE.unpack_from(value)
    return Place(slab, high << 32 | low, length, generation)


def decode_places(value: bytes) -> list[Place]:
    return [
        Place(slab, high << 32 | low, length, generation)
        for slab, low, high, length, generation in _PLACE.iter_unpack(value)
    ]


def names_place(value: bytes, slab: int, offset: int, length: int) -> bool:
    """Whether one of the places in `value` is this one, whatever its generation. (A third of what decoding takes.)"""
    wanted = _WHERE.pack(slab, offset & 0xFFFFFFFF, offset >> 32, length)
    starts = range(0, len(value), _PLACE.size)
    return any(value.startswith(wanted, start) for start in starts) if len(starts) > 1 else value.startswith(wanted)


def encode_slab(record: SlabRecord) -> bytes:
    kind = _KINDS.index(record.kind)
    return _SLAB.pack(_VERSION, kind, record.start, record.size, record.created, record.file_key or NO_KEY)


def decode_slab(value: bytes) -> SlabRecord:
    _, kind, start, size, created, key = _SLAB.unpack(value)
    return SlabRecord(_KINDS[kind], start, size, created, b"" if key == NO_KEY else key)


def encode_file(record: FileSlab) -> bytes:
    return _FILE.pack(_VERSION, record.slab, record.complete)


def decode_file(value: bytes) -> FileSlab:
    _, slab, complete = _FILE.unpack(value)
    return FileSlab(slab, bool(complete))


def encode_snapshot(record: SnapshotRecord) -> bytes:
    source = record.source.encode("utf-8", "surrogateescape")[:0xFFFF]
    head = _SNAPSHOT.pack(
        _SNAPSHOT_VERSION,
        record.id,
        record.created,
        record.last_used,
        record.replicas,
        record.pinned,
        record.keep,
        record.shown,
        record.removed,
        len(source),
    )
    origin = record.origin.encode("utf-8", "surrogateescape")
    stamps = _STAMP.pack(*record.pin_stamp) + _STAMP.pack(*record.replicas_stamp)
    return head + source + stamps + len(origin).to_bytes(2, "little") + origin


def decode_snapshot(value: bytes) -> SnapshotRecord:
    version, name, created, last_used, replicas, pinned, keep, shown, removed, length = _SNAPSHOT.unpack_from(value)
    end = _SNAPSHOT.size + length
    source = value[_SNAPSHOT.size : end].decode("utf-8", "surrogateescape")
    pin_stamp = _decode_stamp(value, end) if version >= 2 else NEVER
    replicas_stamp, origin = NEVER, ""
    if version >= 3:
        replicas_stamp = _decode_stamp(value, end + _STAMP.size)
        origin = value[end + 2 * _STAMP.size + 2 :].decode("utf-8", "surrogateescape")
    return SnapshotRecord(
        id=SnapshotId(name),
        created=created,
        last_used=last_used,
        replicas=replicas,
        pinned=bool(pinned),
        keep=keep,
        shown=bool(shown),
        source=source,
        removed=removed,
        pin_stamp=pin_stamp,
        replicas_stamp=replicas_stamp,
        origin=origin,
    )


def encode_lease(record: LeaseRecord) -> bytes:
    """The value; snapshot and device are its key."""
    where = record.mountpoint.encode("utf-8", "surrogateescape")[:0xFFFF]
    return (
        _LEASE.pack(_VERSION, record.since, record.renewed, record.pid, record.start_time, record.boot_id, len(where))
        + where
    )


def decode_lease(key: bytes, value: bytes) -> LeaseRecord:
    _, since, renewed, pid, start_time, boot_id, length = _LEASE.unpack_from(value)
    where = value[_LEASE.size : _LEASE.size + length].decode("utf-8", "surrogateescape")
    snapshot, device = SnapshotId(key[:ID_SIZE]), key[ID_SIZE:].decode("utf-8", "surrogateescape")
    return LeaseRecord(snapshot, device, where, pid, start_time, boot_id, since, renewed)


def encode_ref(record: RefRecord) -> bytes:
    name = record.name.encode()
    history = record.history[:MAX_HISTORY]
    head = _REF.pack(_VERSION, len(name), record.snapshot is not None, record.snapshot or bytes(ID_SIZE), len(history))
    past = b"".join(value.snapshot + _STAMP.pack(*value.stamp) for value in history)
    return head + _STAMP.pack(*record.stamp) + name + past


def decode_ref(value: bytes) -> RefRecord:
    _, length, is_set, snapshot, count = _REF.unpack_from(value)
    stamp = _decode_stamp(value, _REF.size)
    at = _REF.size + _STAMP.size
    name = value[at : at + length].decode()
    step = ID_SIZE + _STAMP.size
    starts = range(at + length, at + length + count * step, step)
    history = tuple(PastValue(SnapshotId(value[s : s + ID_SIZE]), _decode_stamp(value, s + ID_SIZE)) for s in starts)
    return RefRecord(name, SnapshotId(snapshot) if is_set else None, stamp, history)


def _decode_stamp(value: bytes, at: int) -> Stamp:
    from hoard_p2p.peer import NodeId

    wall_ms, counter, node = _STAMP.unpack_from(value, at)
    return Stamp(wall_ms, counter, NodeId(node))
