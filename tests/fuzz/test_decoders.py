"""Every decoder of what other nodes say either takes it or raises the one error that it promises, whatever it is."""

import importlib
import inspect
import io
import json
import pkgutil
import tempfile
import time
from collections.abc import Callable
from types import ModuleType

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from hoard_p2p import transfer
from hoard_p2p.catalog import root
from hoard_p2p.catalog.builder import CatalogBuilder, Meta
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import BadRequest, CatalogCorrupt, HoardError
from hoard_p2p.ids import HOLE, ID_SIZE, chunk_id
from hoard_p2p.node import names_wire
from hoard_p2p.origin.files import reads
from hoard_p2p.transfer import ranges, streams, wire, wire_contents, wire_life, wire_members, wire_names
from hoard_p2p.transfer.sessions import Claim, Grant, Offer, Unproven
from tests.fuzz.bodies import (
    ASK,
    CONTENTS,
    EXAMPLES,
    RANGE,
    REF_RECORD,
    SNAPSHOT_RECORD,
    any_json,
    bodies,
    damaged,
    examples,
    spoiled,
)

Decode = Callable[[bytes], object]


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
@examples(40)
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
        (wire_life.decode_handed, "handed"),
        (wire_life.decode_promised, "promised"),
        (wire_contents.decode_contents_request, "contents"),
        (wire_members.decode_probe, "probe"),
        (wire_members.decode_probe_for, "probe for"),
        (wire_members.decode_reached, "reached"),
        (wire_members.decode_known, "known"),
        (wire_members.decode_standings, "standings"),
        (wire_names.decode_comparison, "comparison"),
        (wire_names.decode_differences, "differences"),
        (wire_names.decode_lack, "lack"),
        (wire_names.decode_supply, "supply"),
    ],
)
@examples(40)
@given(data=st.data())
def test_a_spoiled_record_is_taken_or_bad(decode: Decode, example: str, data: st.DataObject) -> None:
    decode(EXAMPLES[example])
    try:
        decode(data.draw(spoiled(EXAMPLES[example])))
    except BadRequest:
        return


@examples(200)
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


@examples(200)
@given(body=damaged(ASK) | st.binary(max_size=200))
def test_questions_for_streams_are_taken_or_bad(body: bytes) -> None:
    try:
        ask, patience = streams.decode_ask(body)
    except BadRequest:
        return
    assert 0 <= patience <= streams.MAX_PATIENCE
    assert 1 <= len(ask.runs) == len(set(ask.runs))


@examples(200)
@given(body=damaged(RANGE) | st.binary(min_size=50, max_size=54))
def test_questions_for_ranges_are_taken_or_bad(body: bytes) -> None:
    try:
        ask = ranges.decode_range(body)
    except BadRequest:
        return
    assert 1 <= ask.length <= ranges.MAX_RANGE
    assert ask.start + ask.length <= 4 << 20
    assert ranges.encode_range(ask) == body


@examples(200)
@given(body=damaged(CONTENTS) | st.binary(max_size=200))
def test_what_pieces_are_said_to_be_is_taken_or_bad(body: bytes) -> None:
    try:
        contents = wire_contents.decode_contents(body)
    except BadRequest:
        return
    assert wire_contents.encode_contents(contents) == body


@examples(200)
@given(body=st.binary(max_size=200))
def test_messages_of_sessions_are_taken_or_refused(body: bytes) -> None:
    for decode, refusal in ((Offer.decode, BadRequest), (Grant.decode, Unproven)):
        try:
            decode(body)
        except refusal:
            continue


@examples(60)
@given(header=st.text(max_size=300) | st.from_regex(r"[0-9a-f]{32} \d{1,20} [0-9a-f]{63,65} [0-9a-f]{64}"))
def test_any_header_is_a_claim_or_none(header: str) -> None:
    claim = Claim.parse(header)
    assert claim is None or len(claim.mac) == ID_SIZE


@examples(200)
@given(data=st.binary(max_size=400))
def test_bytes_that_are_no_root_are_corrupt(data: bytes) -> None:
    try:
        root.decode(data)
    except CatalogCorrupt:
        return
    assert blake3(data).digest(), "a root that can be decoded by chance would be a discovery"


def a_catalog() -> bytes:
    """With everything that a catalog may have."""
    out, meta = io.BytesIO(), Meta(0o644, 7, 1, 2, ((b"user.x", b"y"),))
    with CatalogBuilder(spill=tempfile.TemporaryFile, keep_owner=True) as builder:
        builder.add_root(meta)
        builder.next_directory()
        builder.add_file(b"a", meta, 8, [(chunk_id(b"abc"), 3), (HOLE, 2), (chunk_id(b"abc"), 3)])
        builder.add_hard_link(b"b", 1)
        builder.add_directory(b"d", meta)
        builder.add_symlink(b"s", meta, b"a")
        builder.next_directory()
        builder.add_file(b"inner", meta, 1, [(chunk_id(b"x"), 1)])
        builder.finish(out)
    return out.getvalue()


CATALOG = a_catalog()


@examples(200)
@given(data=damaged(CATALOG) | st.binary(max_size=400))
def test_a_node_uses_a_damaged_catalog_or_says_that_it_is_corrupt(data: bytes) -> None:
    """What serving, placing and reading an origin ask of a catalog; a peer may have made it, since it names its id."""
    try:
        catalog = Catalog(memoryview(data))
        for segment in range(catalog.segments):
            catalog.placement_key(segment)
            reads(catalog, [chunk.run for chunk in catalog.segment_chunks(segment)])
        for inode in range(catalog.inodes):
            assert not catalog.path_of(inode).startswith(b"/")
            catalog.run_offset(inode, next(iter(catalog.runs(inode)), 0))
    except CatalogCorrupt:
        return
