"""The records that cross between nodes as JSON, each with one encoder and one decoder that checks and bounds it.

A decoder raises BadRequest for anything that is not exactly such a record; fields it does not know are skipped, so
that a newer node may add some. Snapshot and ref records are opaque here and passed through.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest
from hoard_p2p.ids import ID_SIZE, SnapshotId
from hoard_p2p.interfaces import Residency
from hoard_p2p.peer import NODE_ID_SIZE, NodeId, Peer

Record: TypeAlias = "dict[str, Json]"
"""A snapshot or ref record, opaque to this room."""

MAX_ASKED = 16384
"""Chunk ids in one request for chunks, at most."""
FRAME_MISSING = 0xFFFFFFFF
"""The length of a frame that stands for "this node does not have it"; no bytes follow."""
MAX_CHUNK = 64 << 20
"""No chunk is longer; bounds what a frame may claim."""

MAX_MEMBERS = 4096
MAX_RECORDS = 65536
"""Records of one list."""
MAX_NEWS = 4096
"""Snapshot records, and ref records, of one announcement."""
MAX_ADOPTED = 64
"""Segments of one request to adopt: half a gigabyte on average."""
MAX_SEGMENT_INDEX = (1 << 32) - 1
MAX_ROOT = 64 << 10
MAX_RESIDENCY = 4 << 20
"""Bytes of a residency bit map: 33 million segments."""
MAX_NAME = 255
MAX_BOOT = 32
HEX_DIGITS = frozenset("0123456789abcdef")
MAX_MESSAGE = 4096
MAX_U64 = (1 << 64) - 1
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")
ON_LOOP = 64 << 10
"""JSON of at most so many bytes is parsed on the event loop, more in a thread."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a node answers (and tells) when two nodes meet.

    `members` are the peers it believes alive, itself not among them. `boot` is random bytes drawn at each start: two
    processes with one node id have different ones. The digests (32 bytes, or empty: nothing to compare) cover what the
    node knows of snapshots and refs, so that equal nodes need not exchange lists.
    """

    peer: Peer
    cluster: str
    members: tuple[Peer, ...] = ()
    snapshots_digest: bytes = b""
    refs_digest: bytes = b""
    boot: bytes = b""


@dataclass(frozen=True, slots=True)
class AdoptRequest:
    """A home is asked to pull `segments` of `snapshot` from the node `source`, and to keep them. `origin`: the URL that
    it is being published from, if it is: the home reads there if it may, and gets ready to if there are no segments."""

    snapshot: SnapshotId
    segments: tuple[int, ...]
    source: NodeId
    origin: str = ""


@dataclass(frozen=True, slots=True)
class AdoptReply:
    """Which of the asked segments are durable at the home now. `full`: it has no room, so ask the next node in order.
    `error` says why the others are not stored, empty if all are."""

    stored: tuple[int, ...]
    full: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class Announcement:
    """News that a node pushes to a peer: records of snapshots and refs, as `snapshots` and `refs` list them.

    `node`: who tells it, empty if it does not say; `pass_on`: not everybody was told, so whoever learns something is
    to tell others."""

    snapshots: tuple[Record, ...] = ()
    refs: tuple[Record, ...] = ()
    node: bytes = b""
    pass_on: bool = False


# --- encoders


def encode(value: Json) -> bytes:
    """Compact JSON, as every body of this protocol is written."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def encode_error(name: str, message: str) -> bytes:
    """An error by its name in `errors.WIRE_NAMES`."""
    return encode({"error": name, "message": _encodable(message)})


def encode_hello(hello: Hello) -> bytes:
    return encode(hello_record(hello))


def hello_record(hello: Hello) -> Record:
    return {
        "peer": peer_record(hello.peer),
        "cluster": hello.cluster,
        "members": [peer_record(peer) for peer in hello.members],
        "snapshots_digest": hello.snapshots_digest.hex(),
        "refs_digest": hello.refs_digest.hex(),
        "boot": hello.boot.hex(),
    }


def encode_records(records: Sequence[Record]) -> bytes:
    return encode({"records": list(records)})


def encode_residency(residency: Residency) -> bytes:
    return encode(
        {
            "snapshot": residency.snapshot.hex(),
            "node": residency.node.hex(),
            "version": residency.version,
            "bits": base64.b64encode(residency.bits).decode(),
            "full": residency.full,
        }
    )


def encode_adopt_request(request: AdoptRequest) -> bytes:
    told: Record = {
        "snapshot": request.snapshot.hex(),
        "segments": list(request.segments),
        "source": request.source.hex(),
    }
    return encode({**told, "origin": request.origin} if request.origin else told)


def encode_adopt_reply(reply: AdoptReply) -> bytes:
    return encode({"stored": list(reply.stored), "full": reply.full, "error": _encodable(reply.error)})


def encode_announcement(announcement: Announcement) -> bytes:
    return encode(
        {
            "snapshots": list(announcement.snapshots),
            "refs": list(announcement.refs),
            "node": announcement.node.hex(),
            "pass_on": announcement.pass_on,
        }
    )


def encode_leave(node: NodeId, incarnation: int) -> bytes:
    return encode({"node": node.hex(), "incarnation": incarnation})


# --- decoders


def decode_error(body: bytes) -> tuple[str, str]:
    """Name and message of an error."""
    fields = Fields.parse(body)
    return fields.line("error", MAX_NAME), fields.message("message")


def decode_hello(body: bytes) -> Hello:
    return decode_hello_of(Fields.parse(body))


def decode_hello_of(fields: "Fields") -> Hello:
    members = fields.items("members", MAX_MEMBERS)
    return Hello(
        peer=peer_of(fields.fields("peer")),
        cluster=fields.line("cluster", MAX_NAME),
        members=tuple(peer_of(Fields.of(member)) for member in members),
        snapshots_digest=fields.hex("snapshots_digest", 32),
        refs_digest=fields.hex("refs_digest", 32),
        boot=fields.hex("boot", MAX_BOOT),
    )


def decode_records(body: bytes) -> tuple[Record, ...]:
    return records_of(Fields.parse(body).items("records", MAX_RECORDS))


def decode_residency(body: bytes) -> Residency:
    fields = Fields.parse(body)
    return Residency(
        snapshot=fields.snapshot("snapshot"),
        node=fields.node("node"),
        version=fields.number("version", MAX_U64),
        bits=fields.base64("bits", MAX_RESIDENCY),
        full=fields.flag_or("full", False),
    )


def decode_adopt_request(body: bytes) -> AdoptRequest:
    fields = Fields.parse(body)
    origin = fields.line("origin", MAX_MESSAGE) if fields.has("origin") else ""
    return AdoptRequest(fields.snapshot("snapshot"), fields.segments("segments"), fields.node("source"), origin)


def decode_adopt_reply(body: bytes) -> AdoptReply:
    fields = Fields.parse(body)
    return AdoptReply(fields.segments("stored"), fields.flag("full"), fields.message("error"))


def decode_announcement(body: bytes) -> Announcement:
    fields = Fields.parse(body)
    return Announcement(
        snapshots=records_of(fields.items("snapshots", MAX_NEWS)),
        refs=records_of(fields.items("refs", MAX_NEWS)),
        node=fields.hex("node", NODE_ID_SIZE) if fields.has("node") else b"",
        pass_on=fields.flag("pass_on") if fields.has("pass_on") else False,
    )


def decode_leave(body: bytes) -> tuple[NodeId, int]:
    fields = Fields.parse(body)
    return fields.node("node"), fields.number("incarnation", MAX_U64)


def peer_record(peer: Peer) -> Record:
    return {
        "id": peer.node_id.hex(),
        "incarnation": peer.incarnation,
        "name": peer.name,
        "rack": peer.rack,
        "host": peer.host,
        "port": peer.port,
        "weight": peer.weight,
        "wire": peer.wire_version,
    }


def peer_of(fields: "Fields") -> Peer:
    return Peer(
        node_id=fields.node("id"),
        incarnation=fields.number("incarnation", MAX_U64),
        name=fields.line("name", MAX_NAME),
        rack=fields.line("rack", MAX_NAME),
        host=fields.line("host", MAX_NAME),
        port=fields.number("port", 65535),
        weight=fields.number("weight", MAX_U64),
        wire_version=fields.number("wire", 65535),
    )


def records_of(values: list[Json]) -> tuple[Record, ...]:
    """Opaque records. Raises BadRequest for what is none."""
    records = []
    for value in values:
        if not isinstance(value, dict):
            raise BadRequest(f"a record is {type(value).__name__}, not an object")
        records.append(value)
    return tuple(records)


def _from_base64(value: Json, name: str, most: int) -> bytes:
    if not isinstance(value, str) or len(value) > most // 3 * 4 + 4:
        raise BadRequest(f"{name}: not base64 of at most {most} bytes")
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:  # not ASCII; binascii.Error is one
        raise BadRequest(f"{name}: {error}") from error


class Fields:
    """The fields of one JSON object; each getter checks type and bound and raises BadRequest."""

    def __init__(self, record: Mapping[str, Json]) -> None:
        self._record = record

    @classmethod
    def parse(cls, body: bytes) -> "Fields":
        try:
            return cls.of(json.loads(body, parse_constant=_refuse_constant))
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body is no JSON: {error}") from error

    @classmethod
    def of(cls, value: Json) -> "Fields":
        if not isinstance(value, dict):
            raise BadRequest(f"a JSON object was expected, not {type(value).__name__}")
        return cls(value)

    def has(self, name: str) -> bool:
        """Whether it is there: an older node may not tell it."""
        return name in self._record

    def fields(self, name: str) -> "Fields":
        return self.of(self._record.get(name))

    def items(self, name: str, most: int) -> list[Json]:
        value = self._record.get(name)
        if not isinstance(value, list) or len(value) > most:
            raise BadRequest(f"{name}: not a list of at most {most}")
        return value

    def text(self, name: str, most: int) -> str:
        value = self._record.get(name)
        if not isinstance(value, str) or len(value) > most or not _is_encodable(value):
            raise BadRequest(f"{name}: not a text of at most {most} characters")
        return value

    def line(self, name: str, most: int) -> str:
        """A text without control characters, which logs and listings may show as it is."""
        value = self.text(name, most)
        if _CONTROL.search(value):
            raise BadRequest(f"{name}: has control characters")
        return value

    def message(self, name: str) -> str:
        """What went wrong, for people: control characters become blanks."""
        return shown(self.text(name, MAX_MESSAGE))

    def flag(self, name: str) -> bool:
        value = self._record.get(name)
        if not isinstance(value, bool):
            raise BadRequest(f"{name}: neither true nor false")
        return value

    def flag_or(self, name: str, absent: bool) -> bool:
        """`absent`: what a node of an earlier version means, which does not tell."""
        return self.flag(name) if name in self._record else absent

    def number(self, name: str, most: int) -> int:
        return _number(self._record.get(name), name, most)

    def segments(self, name: str) -> tuple[int, ...]:
        """Segment numbers without repetitions, in the order of their first."""
        numbers = (_number(value, name, MAX_SEGMENT_INDEX) for value in self.items(name, MAX_RECORDS))
        segments = tuple(dict.fromkeys(numbers))
        if len(segments) > MAX_ADOPTED:
            raise BadRequest(f"{name}: {len(segments)} segments, at most {MAX_ADOPTED} in one request")
        return segments

    def hex(self, name: str, most: int) -> bytes:
        text = self.text(name, 2 * most)
        if len(text) % 2 or not set(text) <= HEX_DIGITS:
            raise BadRequest(f"{name}: not hexadecimal")
        return bytes.fromhex(text)

    def base64(self, name: str, most: int) -> bytes:
        return _from_base64(self._record.get(name), name, most)

    def node(self, name: str) -> NodeId:
        return NodeId(self._exactly(name, NODE_ID_SIZE))

    def snapshot(self, name: str) -> SnapshotId:
        return SnapshotId(self._exactly(name, ID_SIZE))

    def _exactly(self, name: str, size: int) -> bytes:
        value = self.hex(name, size)
        if len(value) != size:
            raise BadRequest(f"{name}: {len(value)} bytes, not {size}")
        return value


def shown(message: str) -> str:
    """What a peer says for people, as logs may show it: control characters become blanks."""
    return _CONTROL.sub(" ", message)


def _encodable(message: str) -> str:
    """A message as it may cross: bounded, and names in it that are not UTF-8 escaped."""
    return message.encode("utf-8", "backslashreplace").decode()[:MAX_MESSAGE]


def _is_encodable(text: str) -> bool:
    """Whether a text has no lone surrogates, which JSON can write and UTF-8 cannot."""
    return not _SURROGATES.search(text)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON value")


def _number(value: Json, name: str, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise BadRequest(f"{name}: not a whole number of 0 - {most}")
    return value
