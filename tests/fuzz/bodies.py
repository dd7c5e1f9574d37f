"""Strategies: any JSON, and valid bodies of the protocol with one or two things in them replaced."""

import json
import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from hoard_p2p.config import Json
from hoard_p2p.ids import SnapshotId
from hoard_p2p.interfaces import AskMode, Residency, SegmentAsk
from hoard_p2p.objects import RangeAsk
from hoard_p2p.peer import News, NodeId, OriginId, Rumour, Said, Standing
from hoard_p2p.testing.network import a_peer
from hoard_p2p.transfer import ranges, streams, wire, wire_contents, wire_life, wire_members, wire_names
from hoard_p2p.transfer.wire import AdoptReply, AdoptRequest, Announcement, Hello, Record
from hoard_p2p.transfer.wire_contents import ContentsRequest
from hoard_p2p.transfer.wire_life import Handed, Use, VouchRequest
from hoard_p2p.transfer.wire_members import KnownStanding, ProbeMessage
from hoard_p2p.transfer.wire_names import Comparison, Differences, Kind, Lack, Supply

LONGER = int(os.environ.get("HOARD_FUZZ", "0"))
"""Set to n to try n times as many things, each time others: `HOARD_FUZZ=50 pytest tests/fuzz`."""


def examples(count: int) -> settings:
    """So many examples, always the same ones (unless `LONGER`)."""
    return settings(
        max_examples=count * max(1, LONGER),
        derandomize=not LONGER,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


SNAPSHOT, NODE = SnapshotId(b"\x5a" * 32), NodeId(b"\x3c" * 16)
STAMP: Json = [1_700_000_000_000, 1, NODE.hex()]
SNAPSHOT_RECORD: Record = {
    "id": SNAPSHOT.hex(),
    "created": 1_700_000_000_000_000_000,
    "removed": 0,
    "replicas": 2,
    "keep": 86_400,
    "source": "/data/set",
    "root": "",
    "pin": [True, STAMP],
    "origin": "dir:/data/set",
    "replicas_stamp": STAMP,
}
REF_RECORD: Record = {"name": "set:1", "snapshot": SNAPSHOT.hex(), "stamp": STAMP, "history": [[SNAPSHOT.hex(), STAMP]]}
STANDING = Standing(NODE, 3, 4, frozenset([SNAPSHOT]), frozenset([OriginId(bytes(8))]))
NEWS = News(1, b"digest", (Rumour(a_peer(2), Said.SUSPECT, 5, (NODE,)),), (STANDING,))

EXAMPLES = {
    "error": wire.encode_error("NotFound", "no such thing"),
    "hello": wire.encode_hello(Hello(a_peer(1), "c", (a_peer(2), a_peer(3)), b"d" * 32, b"e" * 32, b"boot")),
    "records": wire.encode_records([SNAPSHOT_RECORD, REF_RECORD]),
    "residency": wire.encode_residency(Residency(SNAPSHOT, NODE, 7, b"\xff\x01")),
    "adopt": wire.encode_adopt_request(AdoptRequest(SNAPSHOT, (1, 2, 3), NODE)),
    "adopt reply": wire.encode_adopt_reply(AdoptReply((1, 2), True, "no room")),
    "announce": wire.encode_announcement(Announcement((SNAPSHOT_RECORD,), (REF_RECORD,))),
    "leave": wire.encode_leave(NODE, 3),
    "asked uses": wire_life.encode_asked([SNAPSHOT]),
    "uses": wire_life.encode_uses([Use(SNAPSHOT, ("mounted on /mnt",), 5)]),
    "vouch": wire_life.encode_vouch_request(VouchRequest(SNAPSHOT, (1, 2))),
    "handed": wire_life.encode_handed(Handed(SNAPSHOT, 3, (1, 2), NODE)),
    "promised": wire_life.encode_promised([1, 2]),
    "probe": wire_members.encode_probe(ProbeMessage(Hello(a_peer(1), "c", (), b"", b"", b"boot"), NEWS)),
    "probe for": wire_members.encode_probe_for(NODE),
    "reached": wire_members.encode_reached(reached=True),
    "known": wire_members.encode_known([KnownStanding(NODE, 1, 2)]),
    "standings": wire_members.encode_standings([STANDING]),
    "comparison": wire_names.encode_comparison(Comparison(NODE, b"d" * 32, b"e" * 32)),
    "differences": wire_names.encode_differences(Differences(bytes(2048), b"")),
    "contents": wire_contents.encode_contents_request(ContentsRequest(SNAPSHOT, (1, 2, 9))),
    "lack": wire_names.encode_lack(Lack(Kind.REFS, ((1, bytes(16)), (2, b"")))),
    "supply": wire_names.encode_supply(Supply((SNAPSHOT_RECORD, REF_RECORD), more=True)),
}
"""One valid body of each kind."""

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 80), 1 << 80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=40)
    | st.sampled_from(["", "0" * 64, "f" * 32, "A" * 64, "\ud800", "\x00", "../..", "9" * 5000, "é" * 200])
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5)
)
any_json = values.map(lambda value: json.dumps(value).encode())


@st.composite
def spoiled(draw: st.DrawFn, body: bytes) -> bytes:
    """The JSON with one or two values, wherever they are in it, replaced, removed or repeated."""
    value = json.loads(body)
    for _ in range(draw(st.integers(1, 2))):
        parent, key = draw(st.sampled_from(_places(value)))
        how = draw(st.sampled_from(["replace", "remove", "repeat"]))
        if how == "remove":
            del parent[key]
        elif how == "repeat" and isinstance(parent, list):
            parent.extend([parent[key]] * draw(st.integers(1, 300)))
        else:
            parent[key] = draw(values)
        if not _places(value):
            break
    return json.dumps(value).encode()


def _places(value: Any) -> list[tuple[Any, Any]]:
    """The containers and keys of everything in a JSON value."""
    if isinstance(value, dict):
        here = [(value, key) for key in value]
        return here + [place for inner in value.values() for place in _places(inner)]
    if isinstance(value, list):
        return [(value, index) for index in range(len(value))] + [place for inner in value for place in _places(inner)]
    return []


@st.composite
def damaged(draw: st.DrawFn, body: bytes) -> bytes:
    """The bytes with some overwritten, cut off or added."""
    data = bytearray(body)
    for _ in range(draw(st.integers(0, 4))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))]) + draw(st.binary(max_size=40))


ASK = streams.encode_ask(SegmentAsk(SNAPSHOT, 1, AskMode.FETCH, 1, (0, 1, 2)), 0.01)
RANGE = ranges.encode_range(RangeAsk(SNAPSHOT, 1, 4096, 110_592, 1, 0.1))
CONTENTS = wire_contents.encode_contents([b"a" * 64, b"", b"b" * 32])


def bodies() -> st.SearchStrategy[bytes]:
    """What a peer, a program or a stranger may send to any path."""
    valid = st.sampled_from(sorted(EXAMPLES.values()))
    return (
        valid
        | valid.flatmap(spoiled)
        | valid.flatmap(damaged)
        | any_json
        | st.binary(max_size=3000)
        | st.just(ASK)
        | damaged(ASK)
        | st.just(RANGE)
        | damaged(RANGE)
        | st.integers(0, 300).map(lambda count: b"\x11" * 32 * count)
        | st.integers(1, 100_000).map(lambda depth: b"[" * depth)
        | st.just(b"")
    )
