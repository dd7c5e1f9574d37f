"""The records by which nodes keep track of each other: probes with their news, and standings.

As in `wire`: a decoder raises BadRequest for anything that is not exactly such a record.
"""

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest
from hoard_p2p.ids import ID_SIZE, SnapshotId
from hoard_p2p.peer import NODE_ID_SIZE, News, NodeId, OriginId, Rumour, Said, Standing
from hoard_p2p.transfer.wire import MAX_U64, Fields, Hello, Record, decode_hello_of, encode, hello_record
from hoard_p2p.transfer.wire import peer_of as _peer
from hoard_p2p.transfer.wire import peer_record as _peer_record

MAX_PROBE = 64 << 10
"""Bytes of a probe or its answer; senders keep to a quarter of it."""
MAX_RUMOURS = 64
MAX_TOLD = 64
"""Standings of one probe."""
MAX_ACCUSERS = 8
MAX_WANTS = 256
MAX_READS = 256
ORIGIN_ID_SIZE = 8
MAX_DIGEST = 32
MAX_KNOWN = 8192
MAX_STANDINGS = 4096
"""Standings of one list."""
LIST_ROOM = 512 << 10
"""Bytes of standings that one list takes before it ends; who asks has the rest with the next question."""
MAX_LIST = 2 << 20
NO_NEWS = News()
_KNOWN = struct.Struct(f"<{NODE_ID_SIZE}sQQ")


@dataclass(frozen=True, slots=True)
class ProbeMessage:
    """A probe, and the answer to it: who speaks (without members), and what is new."""

    hello: Hello
    news: News = NO_NEWS


@dataclass(frozen=True, slots=True)
class KnownStanding:
    """Which standing of a node the asker has already."""

    node_id: NodeId
    incarnation: int
    version: int


def encode_probe(message: ProbeMessage) -> bytes:
    news = message.news
    return encode(
        {
            "hello": hello_record(message.hello),
            "refutation": news.refutation,
            "digest": news.digest.hex(),
            "rumours": [_rumour_record(rumour) for rumour in news.rumours],
            "standings": [_standing_record(standing) for standing in news.standings],
        }
    )


def encode_probe_for(node: NodeId) -> bytes:
    return encode({"node": node.hex()})


def encode_reached(reached: bool) -> bytes:
    return encode({"reached": reached})


def encode_known(known: Sequence[KnownStanding]) -> bytes:
    packed = b"".join(_KNOWN.pack(each.node_id, each.incarnation, each.version) for each in known[:MAX_KNOWN])
    return encode({"known": base64.b64encode(packed).decode()})


def encode_standings(standings: Sequence[Standing]) -> bytes:
    """As many of the first as one list takes."""
    taken: list[Json] = []
    room = LIST_ROOM
    for standing in standings[:MAX_STANDINGS]:
        if room <= 0:
            break
        taken.append(_standing_record(standing))
        room -= 200 + 43 * len(standing.wants) + 11 * len(standing.reads)
    return encode({"standings": taken})


def decode_probe(body: bytes) -> ProbeMessage:
    fields = Fields.parse(body)
    news = News(
        refutation=fields.number("refutation", MAX_U64),
        digest=fields.hex("digest", MAX_DIGEST),
        rumours=tuple(_rumour(Fields.of(value)) for value in fields.items("rumours", MAX_RUMOURS)),
        standings=tuple(_standing(Fields.of(value)) for value in fields.items("standings", MAX_TOLD)),
    )
    return ProbeMessage(decode_hello_of(fields.fields("hello")), news)


def decode_probe_for(body: bytes) -> NodeId:
    return Fields.parse(body).node("node")


def decode_reached(body: bytes) -> bool:
    return Fields.parse(body).flag("reached")


def decode_known(body: bytes) -> tuple[KnownStanding, ...]:
    packed = Fields.parse(body).base64("known", MAX_KNOWN * _KNOWN.size)
    if len(packed) % _KNOWN.size:
        raise BadRequest(f"known: {len(packed)} bytes are no whole number of entries")
    return tuple(KnownStanding(NodeId(node), start, version) for node, start, version in _KNOWN.iter_unpack(packed))


def decode_standings(body: bytes) -> tuple[Standing, ...]:
    return tuple(_standing(Fields.of(value)) for value in Fields.parse(body).items("standings", MAX_STANDINGS))


def _rumour_record(rumour: Rumour) -> Record:
    return {
        "peer": _peer_record(rumour.peer),
        "said": rumour.said.value,
        "refutation": rumour.refutation,
        "accusers": [accuser.hex() for accuser in rumour.accusers],
    }


def _rumour(fields: Fields) -> Rumour:
    said = fields.line("said", 16)
    try:
        kind = Said(said)
    except ValueError as error:
        raise BadRequest(f"said: {said!r} is nothing that is said of a node") from error
    accusers = (Fields.of({"accuser": value}).node("accuser") for value in fields.items("accusers", MAX_ACCUSERS))
    return Rumour(_peer(fields.fields("peer")), kind, fields.number("refutation", MAX_U64), tuple(accusers))


def _standing_record(standing: Standing) -> Record:
    return {
        "node": standing.node_id.hex(),
        "incarnation": standing.incarnation,
        "version": standing.version,
        "wants": base64.b64encode(b"".join(sorted(standing.wants))).decode(),
        "reads": base64.b64encode(b"".join(sorted(standing.reads))).decode(),
    }


def _standing(fields: Fields) -> Standing:
    return Standing(
        node_id=fields.node("node"),
        incarnation=fields.number("incarnation", MAX_U64),
        version=fields.number("version", MAX_U64),
        wants=frozenset(map(SnapshotId, _packed(fields, "wants", ID_SIZE, MAX_WANTS))),
        reads=frozenset(map(OriginId, _packed(fields, "reads", ORIGIN_ID_SIZE, MAX_READS))),
    )


def _packed(fields: Fields, name: str, size: int, most: int) -> list[bytes]:
    packed = fields.base64(name, size * most)
    if len(packed) % size:
        raise BadRequest(f"{name}: {len(packed)} bytes are no whole number of ids")
    return [packed[start : start + size] for start in range(0, len(packed), size)]
