"""The records by which nodes ask each other before something goes: who uses a snapshot, and who keeps a segment; and
by which one hands over what it read in the other's place.

As in `wire`: a decoder raises BadRequest for anything that is not exactly such a record.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest
from hoard_p2p.ids import ID_SIZE, SnapshotId
from hoard_p2p.peer import NodeId
from hoard_p2p.transfer.wire import HEX_DIGITS, MAX_NAME, MAX_SEGMENT_INDEX, Fields, encode

MAX_ASKED_USES = 1024
"""Snapshots of one question."""
MAX_USERS = 16
"""Users that are named for one snapshot."""
MAX_VOUCHED = 256
"""Segments of one request to vouch: 2 GiB on average, counted in a second at worst."""
MAX_RUN = (1 << 32) - 1
MAX_HANDED = 4096
"""Chunk runs that are handed over at once."""
_MAX_TIME = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Use:
    """What a node has to do with a snapshot now. `users`: its leases, in words for people; `last_used`: nanoseconds
    since the epoch, 0 if it was never used there."""

    snapshot: SnapshotId
    users: tuple[str, ...]
    last_used: int


@dataclass(frozen=True, slots=True)
class VouchRequest:
    """Which of these segments of a snapshot do you hold, and promise to keep for a while?"""

    snapshot: SnapshotId
    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Handed:
    """The node `node` has read these chunk runs of a segment from the origin, in the place of who is told."""

    snapshot: SnapshotId
    segment: int
    runs: tuple[int, ...]
    node: NodeId


def encode_asked(snapshots: Sequence[SnapshotId]) -> bytes:
    return encode({"snapshots": [snapshot.hex() for snapshot in snapshots]})


def encode_uses(uses: Sequence[Use]) -> bytes:
    told: list[Json] = [
        {
            "snapshot": use.snapshot.hex(),
            "users": [_line(user) for user in use.users[:MAX_USERS]],
            "last_used": use.last_used,
        }
        for use in uses
    ]
    return encode({"uses": told})


def encode_vouch_request(request: VouchRequest) -> bytes:
    return encode({"snapshot": request.snapshot.hex(), "segments": list(request.segments)})


def encode_handed(handed: Handed) -> bytes:
    return encode(
        {
            "snapshot": handed.snapshot.hex(),
            "segment": handed.segment,
            "runs": list(handed.runs[:MAX_HANDED]),
            "node": handed.node.hex(),
        }
    )


def encode_promised(segments: Sequence[int]) -> bytes:
    return encode({"promised": list(segments)})


def decode_asked(body: bytes) -> tuple[SnapshotId, ...]:
    return tuple(map(_snapshot, Fields.parse(body).items("snapshots", MAX_ASKED_USES)))


def decode_uses(body: bytes) -> tuple[Use, ...]:
    return tuple(_use(Fields.of(value)) for value in Fields.parse(body).items("uses", MAX_ASKED_USES))


def decode_vouch_request(body: bytes) -> VouchRequest:
    fields = Fields.parse(body)
    return VouchRequest(fields.snapshot("snapshot"), _segments(fields, "segments"))


def decode_handed(body: bytes) -> Handed:
    fields = Fields.parse(body)
    numbers = (Fields.of({"runs": value}).number("runs", MAX_RUN) for value in fields.items("runs", MAX_HANDED))
    return Handed(
        fields.snapshot("snapshot"),
        fields.number("segment", MAX_SEGMENT_INDEX),
        tuple(dict.fromkeys(numbers)),
        fields.node("node"),
    )


def decode_promised(body: bytes) -> tuple[int, ...]:
    return _segments(Fields.parse(body), "promised")


def _use(fields: Fields) -> Use:
    users = [Fields.of({"user": user}).line("user", MAX_NAME) for user in fields.items("users", MAX_USERS)]
    return Use(fields.snapshot("snapshot"), tuple(users), fields.number("last_used", _MAX_TIME))


def _segments(fields: Fields, name: str) -> tuple[int, ...]:
    numbers = (Fields.of({name: value}).number(name, MAX_SEGMENT_INDEX) for value in fields.items(name, MAX_VOUCHED))
    return tuple(dict.fromkeys(numbers))


def _snapshot(value: Json) -> SnapshotId:
    if not isinstance(value, str) or len(value) != 2 * ID_SIZE or not set(value) <= HEX_DIGITS:
        raise BadRequest("snapshots: no snapshot id")
    return SnapshotId(bytes.fromhex(value))


def _line(user: str) -> str:
    """A lease's words as they may cross: mount points may have any bytes."""
    text = user.encode("utf-8", "backslashreplace").decode()
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)[:MAX_NAME]
