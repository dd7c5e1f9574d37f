"""Every decoder of what other nodes say either takes it or raises the one error that it promises, whatever it is."""

import importlib
import inspect
import json
import pkgutil
import time
from collections.abc import Callable
from types import ModuleType

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from hoard_p2p import transfer
from hoard_p2p.catalog import root
from hoard_p2p.errors import BadRequest, CatalogCorrupt, HoardError
from hoard_p2p.ids import ID_SIZE
from hoard_p2p.node import names_wire
from hoard_p2p.transfer import streams, wire, wire_life
from hoard_p2p.transfer.sessions import Claim, Grant, Offer, Unproven
from tests.fuzz.bodies import ASK, EXAMPLES, REF_RECORD, SNAPSHOT_RECORD, any_json, bodies, damaged, spoiled

Decode = Callable[[bytes], object]
EXAMPLES_OF_EACH = 150


def decoders(*modules: ModuleType) -> dict[str, Decode]:
    """The functions of these modules that make something of a body."""
    found: dict[str, Decode] = {}
    for module in modules:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("decode_") and list(inspect.signature(function).parameters) == ["body"]:
                found[f"{module.__name__.rpartition('.')[2]}.{name}"] = function
    return found


WIRE = [name for _, name, _ in pkgutil.iter_modules(transfer.__path__) if name.startswith("wire")]
JSON_DECODERS = decoders(*(importlib.import_module(f"{transfer.__name__}.{name}") for name in WIRE))


def test_no_decoder_is_forgotten() -> None:
    assert len(JSON_DECODERS) >= 12


@pytest.mark.parametrize("decode", JSON_DECODERS.values(), ids=JSON_DECODERS.keys())
@settings(max_examples=EXAMPLES_OF_EACH, deadline=None)
@given(body=bodies())
def test_a_json_decoder_takes_it_or_says_that_the_request_is_bad(decode: Decode, body: bytes) -> None:
    try:
        decode(body)
    except BadRequest as error:
        assert len(str(error)) < 10_000


@pytest.mark.parametrize(
    ("decode", "example"),
    [
        (wire.decode_hello, "hello"),
        (wire.decode_records, "records"),
        (wire.decode_residency, "residency"),
        (wire.decode_adopt_request, "adopt"),
        (wire.decode_adopt_reply, "adopt reply"),
        (wire.decode_announcement, "announce"),
        (wire.decode_leave, "leave"),
        (wire_life.decode_asked, "asked uses"),
        (wire_life.decode_uses, "uses"),
        (wire_life.decode_vouch_request, "vouch"),
        (wire_life.decode_promised, "promised"),
    ],
)
@settings(max_examples=EXAMPLES_OF_EACH, deadline=None)
@given(data=st.data())
def test_a_spoiled_record_is_taken_or_bad(decode: Decode, example: str, data: st.DataObject) -> None:
    decode(EXAMPLES[example])
    try:
        decode(data.draw(spoiled(EXAMPLES[example])))
    except BadRequest:
        return


@settings(max_examples=400, deadline=None)
@given(body=spoiled(json.dumps(SNAPSHOT_RECORD).encode()) | spoiled(json.dumps(REF_RECORD).encode()) | any_json)
def test_records_of_snapshots_and_refs_are_taken_or_bad(body: bytes) -> None:
    record = json.loads(body)
    if not isinstance(record, dict):
        return
    for parse in (names_wire.parse_ref, names_wire.parse_snapshot):
        try:
            parse(record, time.time_ns())
        except (HoardError, KeyError, ValueError):  # what their caller drops a record for, naming its sender
            continue


@settings(max_examples=400, deadline=None)
@given(body=damaged(ASK) | st.binary(max_size=200))
def test_questions_for_streams_are_taken_or_bad(body: bytes) -> None:
    try:
        ask, patience = streams.decode_ask(body)
    except BadRequest:
        return
    assert 0 <= patience <= streams.MAX_PATIENCE
    assert 1 <= len(ask.runs) == len(set(ask.runs))


@settings(max_examples=300, deadline=None)
@given(body=st.binary(max_size=200))
def test_messages_of_sessions_are_taken_or_refused(body: bytes) -> None:
    for decode, refusal in ((Offer.decode, BadRequest), (Grant.decode, Unproven)):
        try:
            decode(body)
        except refusal:
            continue


@settings(max_examples=60, deadline=None)
@given(header=st.text(max_size=300) | st.from_regex(r"[0-9a-f]{32} \d{1,20} [0-9a-f]{63,65} [0-9a-f]{64}"))
def test_any_header_is_a_claim_or_none(header: str) -> None:
    claim = Claim.parse(header)
    assert claim is None or len(claim.mac) == ID_SIZE


@settings(max_examples=400, deadline=None)
@given(data=st.binary(max_size=400))
def test_bytes_that_are_no_root_are_corrupt(data: bytes) -> None:
    try:
        root.decode(data)
    except CatalogCorrupt:
        return
    assert blake3(data).digest(), "a root that can be decoded by chance would be a discovery"
