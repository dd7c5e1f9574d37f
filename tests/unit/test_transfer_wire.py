"""The JSON records between nodes: both ways, and what is refused."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoard_p2p.errors import BadRequest
from hoard_p2p.ids import SnapshotId
from hoard_p2p.interfaces import Residency
from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.testing.network import a_peer
from hoard_p2p.transfer import wire, wire_life
from hoard_p2p.transfer.wire import AdoptReply, AdoptRequest, Announcement, Hello
from hoard_p2p.transfer.wire_life import Use, VouchRequest

NUMBERS = st.integers(0, (1 << 64) - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LINES = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=20)
NODES = st.binary(min_size=16, max_size=16).map(NodeId)
SNAPSHOTS = st.binary(min_size=32, max_size=32).map(SnapshotId)
PEERS = st.builds(Peer, NODES, NUMBERS, LINES, LINES, LINES, st.integers(0, 65535), NUMBERS, st.integers(0, 65535))
DIGESTS = st.one_of(st.just(b""), st.binary(min_size=32, max_size=32))
SEGMENTS = st.lists(st.integers(0, (1 << 32) - 1), max_size=5, unique=True).map(tuple)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.lists(st.dictionaries(TEXTS, JSON, max_size=3), max_size=3).map(tuple)
DECODERS = [
    wire.decode_hello,
    wire.decode_records,
    wire.decode_residency,
    wire.decode_adopt_request,
    wire.decode_adopt_reply,
    wire.decode_announcement,
    wire.decode_leave,
    wire.decode_error,
    wire_life.decode_asked,
    wire_life.decode_uses,
    wire_life.decode_vouch_request,
    wire_life.decode_handed,
    wire_life.decode_promised,
]
HELLO = Hello(a_peer(1), "c", (a_peer(2),), bytes(32), bytes(32), b"boot")


@given(st.builds(Hello, PEERS, LINES, st.lists(PEERS, max_size=3).map(tuple), DIGESTS, DIGESTS, DIGESTS))
def test_a_hello_survives_the_wire(hello: Hello) -> None:
    assert wire.decode_hello(wire.encode_hello(hello)) == hello


USERS = st.lists(st.text("a /-9", max_size=20), max_size=3).map(tuple)
USES = st.lists(st.builds(Use, SNAPSHOTS, USERS, st.integers(0, (1 << 63) - 1)), max_size=3).map(tuple)


@given(st.lists(SNAPSHOTS, max_size=3).map(tuple), USES, st.builds(VouchRequest, SNAPSHOTS, SEGMENTS))
def test_what_is_asked_before_something_goes_survives_the_wire(
    asked: tuple[SnapshotId, ...], uses: tuple[Use, ...], request: VouchRequest
) -> None:
    assert wire_life.decode_asked(wire_life.encode_asked(asked)) == asked
    assert wire_life.decode_uses(wire_life.encode_uses(uses)) == uses
    assert wire_life.decode_vouch_request(wire_life.encode_vouch_request(request)) == request
    assert wire_life.decode_promised(wire_life.encode_promised(request.segments)) == request.segments


def test_a_mount_point_of_any_bytes_crosses_as_words_and_lists_are_bounded() -> None:
    use = Use(SnapshotId(bytes(32)), ("mounted on /m\udcff\n" + "x" * 300,) * 20, 1)
    (told,) = wire_life.decode_uses(wire_life.encode_uses([use]))
    assert len(told.users) == wire_life.MAX_USERS
    assert told.users[0].startswith("mounted on /m")
    with pytest.raises(BadRequest):
        wire_life.decode_vouch_request(
            wire_life.encode_vouch_request(VouchRequest(use.snapshot, tuple(range(wire_life.MAX_VOUCHED + 1))))
        )


@given(RECORDS)
def test_records_pass_through_unchanged(records: tuple[wire.Record, ...]) -> None:
    assert wire.decode_records(wire.encode_records(records)) == records


@given(st.builds(Residency, SNAPSHOTS, NODES, NUMBERS, st.binary(max_size=50), st.booleans()))
def test_a_residency_survives_the_wire(residency: Residency) -> None:
    assert wire.decode_residency(wire.encode_residency(residency)) == residency


def test_a_node_that_does_not_tell_whether_it_is_full_has_room() -> None:
    residency = Residency(SnapshotId(bytes(32)), NodeId(bytes(16)), 1, b"x", full=True)
    told = json.loads(wire.encode_residency(residency))
    del told["full"]
    assert not wire.decode_residency(json.dumps(told).encode()).full
    with pytest.raises(BadRequest):
        wire.decode_residency(json.dumps({**told, "full": 1}).encode())


@given(st.builds(AdoptRequest, SNAPSHOTS, SEGMENTS, NODES), st.builds(AdoptReply, SEGMENTS, st.booleans(), LINES))
def test_an_adoption_survives_the_wire(request: AdoptRequest, reply: AdoptReply) -> None:
    assert wire.decode_adopt_request(wire.encode_adopt_request(request)) == request
    assert wire.decode_adopt_reply(wire.encode_adopt_reply(reply)) == reply


@given(st.builds(Announcement, RECORDS, RECORDS))
def test_an_announcement_survives_the_wire(announcement: Announcement) -> None:
    assert wire.decode_announcement(wire.encode_announcement(announcement)) == announcement


@given(NODES, NUMBERS)
def test_a_goodbye_survives_the_wire(node: NodeId, incarnation: int) -> None:
    assert wire.decode_leave(wire.encode_leave(node, incarnation)) == (node, incarnation)


def test_fields_of_a_newer_version_are_skipped() -> None:
    record = json.loads(wire.encode_hello(HELLO)) | {"tomorrow": 1}
    assert wire.decode_hello(json.dumps(record).encode()) == HELLO


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cluster", 7),
        ("cluster", "x" * 256),
        ("members", {}),
        ("members", [1]),
        ("members", [{}] * 4097),
        ("peer", None),
        ("snapshots_digest", "zz"),
        ("snapshots_digest", "abc"),
        ("refs_digest", "00" * 33),
        ("boot", " a"),
        ("boot", None),
    ],
)
def test_a_hello_with_a_bad_field_is_refused(field: str, value: object) -> None:
    record = json.loads(wire.encode_hello(HELLO)) | {field: value}
    with pytest.raises(BadRequest):
        wire.decode_hello(json.dumps(record).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "00" * 15),
        ("id", "0 " * 16),
        ("id", "AB" * 16),
        ("incarnation", -1),
        ("incarnation", True),
        ("incarnation", 1.0),
        ("port", 65536),
        ("weight", 1 << 64),
        ("host", None),
        ("name", "n" * 256),
    ],
)
def test_a_peer_with_a_bad_field_is_refused(field: str, value: object) -> None:
    record = json.loads(wire.encode_hello(HELLO))
    record["peer"][field] = value
    with pytest.raises(BadRequest):
        wire.decode_hello(json.dumps(record).encode())


@pytest.mark.parametrize(
    "body",
    [b"", b"x", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"records": [NaN]}', b'{"records": [1]}', b"1" * 9999],
)
def test_what_is_no_record_is_refused_by_every_decoder(body: bytes) -> None:
    for decode in DECODERS:
        with pytest.raises(BadRequest):
            decode(body)


@given(JSON)
def test_any_json_is_decoded_or_refused_and_never_crashes(value: object) -> None:
    body = json.dumps(value).encode()
    for decode in DECODERS:
        try:
            decode(body)
        except BadRequest:
            continue


def test_a_residency_map_beyond_the_bound_is_refused() -> None:
    residency = Residency(SnapshotId(bytes(32)), NodeId(bytes(16)), 1, bytes(wire.MAX_RESIDENCY + 3))
    with pytest.raises(BadRequest):
        wire.decode_residency(wire.encode_residency(residency))
    whole = residency._replace(bits=bytes(wire.MAX_RESIDENCY))
    assert wire.decode_residency(wire.encode_residency(whole)) == whole


def test_repeated_segments_count_once_and_more_than_the_bound_are_refused() -> None:
    request = AdoptRequest(SnapshotId(bytes(32)), (5, 3, 5, 5, 3) * 1000, NodeId(bytes(16)))
    assert wire.decode_adopt_request(wire.encode_adopt_request(request)).segments == (5, 3)
    most = replace(request, segments=tuple(range(wire.MAX_ADOPTED)))
    assert wire.decode_adopt_request(wire.encode_adopt_request(most)) == most
    with pytest.raises(BadRequest, match="at most 64"):
        wire.decode_adopt_request(wire.encode_adopt_request(replace(request, segments=tuple(range(65)))))


def test_an_announcement_has_at_most_4096_records_of_each_kind() -> None:
    records: tuple[wire.Record, ...] = ({},) * 4096
    assert wire.decode_announcement(wire.encode_announcement(Announcement(records, records))).refs == records
    for news in (Announcement((*records, {}), ()), Announcement((), (*records, {}))):
        with pytest.raises(BadRequest):
            wire.decode_announcement(wire.encode_announcement(news))


@pytest.mark.parametrize("text", ["\ud800", "a\nb", "\x1b[2J", "\x7f", "\u2028"])
def test_names_that_would_break_a_log_or_cannot_be_encoded_are_refused(text: str) -> None:
    for hello in (
        Hello(replace(a_peer(1), name=text), "c"),
        Hello(replace(a_peer(1), rack=text), "c"),
        Hello(replace(a_peer(1), host=text), "c"),
        Hello(a_peer(1), text),
        Hello(a_peer(1), "c", (replace(a_peer(2), name=text),)),
    ):
        with pytest.raises(BadRequest):
            wire.decode_hello(wire.encode_hello(hello))


def test_a_message_crosses_whatever_is_in_it_as_one_line() -> None:
    said = "cannot read 'caf\udce9':\n\x1b[2J" + "x" * 5000
    assert wire.decode_error(wire.encode_error("Refused", said))[1].startswith("cannot read 'caf\\udce9':  [2Jxx")
    reply = wire.decode_adopt_reply(wire.encode_adopt_reply(AdoptReply((), error=said)))
    assert len(reply.error) == wire.MAX_MESSAGE
