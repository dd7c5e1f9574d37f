"""What nodes say to find the few snapshots and refs that one knows and the other does not; see `transfer.wire`."""

import base64
from dataclasses import dataclass
from enum import Enum

from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest
from hoard_p2p.peer import NodeId
from hoard_p2p.transfer.wire import Fields, Record, encode, records_of

PARTS = 256
MARK = 8
DIGESTS = PARTS * MARK
MAX_ASKED_MARKS = 512 << 10
"""Bytes of marks in one request: those of 65,536 records."""
MAX_SUPPLIED = 1 << 20
"""Bytes of the records of one answer, about; one more record may be on top."""
MAX_SKIPPED = 1 << 20
MAX_ANSWERED = 16_384
"""Records of one answer."""
MAX_TIME = (1 << 63) - 1


class Kind(Enum):
    SNAPSHOTS = "snapshots"
    REFS = "refs"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A node tells its digests of all snapshots and refs, 32 bytes each. `node`: who asks; `again`: it was asked for
    this, so nobody need ask back."""

    node: NodeId
    snapshots_digest: bytes
    refs_digest: bytes
    again: bool = False


@dataclass(frozen=True, slots=True)
class Differences:
    """The digests of all parts (`DIGESTS` bytes) of what differs; empty where nothing does.

    `since`: in milliseconds since the epoch: whatever its cluster knew at that time or later and the answerer does not
    know was removed; 0 if it cannot say so. `now`: what time it is there, in the same way; 0: not told."""

    snapshots: bytes
    refs: bytes
    since: int = 0
    now: int = 0

    def of(self, kind: Kind) -> bytes:
        return self.snapshots if kind is Kind.SNAPSHOTS else self.refs


@dataclass(frozen=True, slots=True)
class Lack:
    """A node asks for the records of some parts that have other marks than it knows. `skip`: so many of them it was
    told already, as answers are bounded."""

    kind: Kind
    parts: tuple[tuple[int, bytes], ...]
    skip: int = 0


@dataclass(frozen=True, slots=True)
class Supply:
    """The records asked for; `more` if there are others behind them."""

    records: tuple[Record, ...]
    more: bool


def encode_comparison(comparison: Comparison) -> bytes:
    return encode(
        {
            "node": comparison.node.hex(),
            "snapshots_digest": comparison.snapshots_digest.hex(),
            "refs_digest": comparison.refs_digest.hex(),
            "again": comparison.again,
        }
    )


def decode_comparison(body: bytes) -> Comparison:
    fields = Fields.parse(body)
    return Comparison(
        node=fields.node("node"),
        snapshots_digest=_exactly(fields.hex("snapshots_digest", 32), 32, "snapshots_digest"),
        refs_digest=_exactly(fields.hex("refs_digest", 32), 32, "refs_digest"),
        again=fields.flag("again"),
    )


def encode_differences(differences: Differences) -> bytes:
    return encode(
        {
            "snapshots": _b64(differences.snapshots),
            "refs": _b64(differences.refs),
            "since": differences.since,
            "now": differences.now,
        }
    )


def decode_differences(body: bytes) -> Differences:
    fields = Fields.parse(body)
    since, now = (fields.number(name, MAX_TIME) if fields.has(name) else 0 for name in ("since", "now"))
    return Differences(_digests(fields, "snapshots"), _digests(fields, "refs"), since, now)


def _digests(fields: Fields, name: str) -> bytes:
    digests = fields.base64(name, DIGESTS)
    return digests and _exactly(digests, DIGESTS, name)


def encode_lack(lack: Lack) -> bytes:
    parts: list[Json] = [[part, _b64(marks)] for part, marks in lack.parts]
    return encode({"kind": lack.kind.value, "parts": parts, "skip": lack.skip})


def decode_lack(body: bytes) -> Lack:
    fields = Fields.parse(body)
    kind = fields.line("kind", 16)
    if kind not in (known.value for known in Kind):
        raise BadRequest(f"kind: {kind!r} is neither snapshots nor refs")
    parts = tuple(_part(value) for value in fields.items("parts", PARTS))
    if sum(len(marks) for _, marks in parts) > MAX_ASKED_MARKS or len({part for part, _ in parts}) < len(parts):
        raise BadRequest("parts: too many marks, or one part twice")
    return Lack(Kind(kind), parts, fields.number("skip", MAX_SKIPPED))


def _part(value: Json) -> tuple[int, bytes]:
    if not isinstance(value, list) or len(value) != 2:
        raise BadRequest("parts: not pairs of a number and marks")
    fields = Fields({"part": value[0], "marks": value[1]})
    marks = fields.base64("marks", MAX_ASKED_MARKS)
    if len(marks) % MARK:
        raise BadRequest(f"parts: marks have {MARK} bytes each")
    return fields.number("part", PARTS - 1), marks


def encode_supply(supply: Supply) -> bytes:
    return encode({"records": list(supply.records), "more": supply.more})


def decode_supply(body: bytes) -> Supply:
    fields = Fields.parse(body)
    return Supply(records_of(fields.items("records", MAX_ANSWERED)), fields.flag("more"))


def _exactly(value: bytes, size: int, name: str) -> bytes:
    if len(value) != size:
        raise BadRequest(f"{name}: {len(value)} bytes, not {size}")
    return value


def _b64(value: bytes) -> str:
    return base64.b64encode(value).decode()
