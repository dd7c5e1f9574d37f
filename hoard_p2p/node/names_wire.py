"""Records of snapshots and refs as peers tell them (JSON), and the bytes of them that digests cover (docs/wire.md).

A parser raises ValueError, TypeError, KeyError or a `HoardError` for anything that is not exactly such a record, has a
text that cannot be kept or shown, or a time after `latest`.
"""

import base64
import re
import struct

from hoard_p2p.catalog.root import decode as decode_root
from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest, Corrupt
from hoard_p2p.ids import SnapshotId, parse_snapshot_id, short, snapshot_id
from hoard_p2p.peer import parse_node_id
from hoard_p2p.storage.records import MAX_HISTORY, NEVER, PastValue, RefRecord, SnapshotRecord, Stamp

Record = dict[str, Json]

DEFAULT_TAG = "latest"
MAX_REPLICAS = 0xFFFF
MAX_LABEL = 1000
"""Characters of a snapshot's source."""

MAX_ORIGIN = 4096
"""Bytes of the URL of an origin."""

_REF = re.compile(r"([A-Za-z0-9][A-Za-z0-9._/@+-]{0,127}?)(?::([A-Za-z0-9][A-Za-z0-9._+-]{0,63}))?")
_UNFIT = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line and paragraph separators, marks that turn the direction of text, and lone surrogates. A list
of our own: what Python calls printable differs between its versions."""

_SNAPSHOT_BYTES = struct.Struct("<32sQQHQH")  # id, created, removed, replicas, keep, length of source
_PIN_BYTES = struct.Struct("<QI16sB")  # stamp, pinned
_REPLICAS_BYTES = struct.Struct("<QI16s")  # stamp
_PAST_BYTES = struct.Struct("<32sQI16s")
_REF_BYTES = struct.Struct("<QI16sB32sBB")  # stamp, is set, snapshot or zeros, length of history, length of name


def ref_name(text: str) -> str:
    """`NAME:TAG` in full. Raises BadRequest for what can be no name."""
    match = _REF.fullmatch(text)
    if not match:
        raise BadRequest(f"{text[:200]!r} is no name; use letters, digits and ._/@+- with an optional :TAG")
    return f"{match[1]}:{match[2] or DEFAULT_TAG}"


def label(text: str) -> str:
    """`text` as it may be kept, told, logged and shown: what is unfit becomes U+FFFD, and it is cut."""
    return _UNFIT.sub("\ufffd", text[:MAX_LABEL])


def fits_line(text: str) -> bool:
    """Whether it can be kept, told, logged and shown as it is."""
    return not _UNFIT.search(text)


# --- what digests cover


def snapshot_bytes(record: SnapshotRecord) -> bytes:
    """What nobody ever set (a pin, other replicas, an origin) adds nothing: a node that does not know of such has the
    same digest then."""
    source, origin = record.source.encode(), record.origin.encode()
    return (
        _SNAPSHOT_BYTES.pack(record.id, record.created, record.removed, record.replicas, record.keep, len(source))
        + source
        + (b"" if record.pin_stamp == NEVER else _PIN_BYTES.pack(*record.pin_stamp, record.pinned))
        + (b"" if record.replicas_stamp == NEVER else b"replicas" + _REPLICAS_BYTES.pack(*record.replicas_stamp))
        + (b"origin" + origin if origin else b"")
    )


def ref_bytes(ref: RefRecord) -> bytes:
    name = ref.name.encode()
    head = _REF_BYTES.pack(*ref.stamp, ref.snapshot is not None, ref.snapshot or bytes(32), len(ref.history), len(name))
    return head + name + b"".join(_PAST_BYTES.pack(value.snapshot, *value.stamp) for value in ref.history)


# --- refs


def ref_json(ref: RefRecord) -> Record:
    return {
        "name": ref.name,
        "snapshot": None if ref.snapshot is None else ref.snapshot.hex(),
        "stamp": _stamp_json(ref.stamp),
        "history": [[value.snapshot.hex(), _stamp_json(value.stamp)] for value in ref.history],
    }


def _stamp_json(stamp: Stamp) -> list[Json]:
    return [stamp.wall_ms, stamp.counter, stamp.node.hex()]


def parse_ref(record: Record, latest: int) -> RefRecord:
    """`latest`: in milliseconds since the epoch."""
    name, snapshot, history = record["name"], record["snapshot"], record["history"]
    if not isinstance(name, str) or ref_name(name) != name:
        raise ValueError(f"{str(name)[:200]!r} is no full ref name")
    if not isinstance(history, list):
        raise ValueError("a history is a list")
    stamp = _parse_stamp(record["stamp"])
    if stamp.wall_ms > latest:
        raise ValueError(f"ref {name} has a time more than 60 s ahead of ours: check its clock")
    past = tuple(_parse_past(value) for value in history[:MAX_HISTORY])
    return RefRecord(name, None if snapshot is None else parse_snapshot_id(str(snapshot)), stamp, past)


def _parse_past(value: Json) -> PastValue:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("a history entry has two parts")
    return PastValue(parse_snapshot_id(str(value[0])), _parse_stamp(value[1]))


def _parse_stamp(value: Json) -> Stamp:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError("a stamp has three parts")
    wall, counter, node = value
    return Stamp(_whole(wall, 63), _whole(counter, 32), parse_node_id(str(node)))


# --- snapshots


def snapshot_json(record: SnapshotRecord, root: bytes) -> Record:
    """`root`: empty for a tombstone."""
    told: Record = {
        "id": record.id.hex(),
        "created": record.created,
        "removed": record.removed,
        "replicas": record.replicas,
        "keep": record.keep,
        "source": record.source,
        "root": base64.b64encode(root).decode(),
    }
    if record.pin_stamp != NEVER:
        told["pin"] = [record.pinned, _stamp_json(record.pin_stamp)]
    if record.replicas_stamp != NEVER:
        told["replicas_stamp"] = _stamp_json(record.replicas_stamp)
    if record.origin:
        told["origin"] = record.origin
    return told


def parse_snapshot(record: Record, latest: int) -> SnapshotRecord:
    """The record alone, see `parse_root`. `latest`: in nanoseconds since the epoch."""
    identifier = parse_snapshot_id(str(record["id"]))
    created, removed = _whole(record["created"], 63), _whole(record["removed"], 63)
    if max(created, removed) > latest:
        raise ValueError(f"snapshot {short(identifier)} has a time more than 60 s ahead of ours: check its clock")
    if removed >= created:
        if not removed:
            raise ValueError(f"snapshot {short(identifier)} was never created")
        return SnapshotRecord(identifier, 0, 0, 0, False, 0, False, "", removed)
    source = record["source"]
    if not isinstance(source, str) or label(source) != source:
        raise ValueError(f"the source of snapshot {short(identifier)} is no text that can be shown")
    replicas = _whole(record["replicas"], 16)
    if not replicas:
        raise ValueError(f"snapshot {short(identifier)} with 0 replicas")
    pinned, stamp = _parse_pin(record.get("pin"))
    if stamp.wall_ms * 1_000_000 > latest:
        raise ValueError(f"the pin of snapshot {short(identifier)} is more than 60 s ahead of our time")
    keep = _whole(record["keep"], 63)
    return SnapshotRecord(
        id=identifier,
        created=created,
        last_used=created,
        replicas=replicas,
        pinned=pinned,
        keep=keep,
        shown=True,
        source=source,
        pin_stamp=stamp,
        replicas_stamp=_parse_replicas_stamp(record.get("replicas_stamp"), latest),
        origin=_parse_origin(record.get("origin")),
    )


def _parse_replicas_stamp(value: Json, latest: int) -> Stamp:
    stamp = NEVER if value is None else _parse_stamp(value)
    if stamp.wall_ms * 1_000_000 > latest:
        raise ValueError("a number of replicas was set more than 60 s ahead of our time")
    return stamp


def _parse_origin(value: Json) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or len(value.encode("utf-8", "surrogateescape")) > MAX_ORIGIN or _UNFIT.search(value):
        raise ValueError("an origin is a URL that can be shown")
    return value


def _parse_pin(value: Json) -> tuple[bool, Stamp]:
    """None, as from a node that knows no pins: never set."""
    if value is None:
        return False, NEVER
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], bool):
        raise ValueError("a pin has two parts")
    return value[0], _parse_stamp(value[1])


def parse_root(record: Record, snapshot: SnapshotId) -> bytes:
    """The encoded root in a record of a living snapshot: it has this id, and can be read."""
    text = record["root"]
    if not isinstance(text, str):
        raise ValueError("a root is base64")
    root = base64.b64decode(text, validate=True)
    if snapshot_id(root) != snapshot:
        raise Corrupt(f"the root told for {short(snapshot)} has another id")
    decode_root(root)
    return root


def _whole(value: Json, bits: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << bits:
        raise ValueError(f"{str(value)[:80]!r} is no whole number of {bits} bits")
    return value
