"""Two nodes with a key, and somebody between them who reads and changes what they say."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from blake3 import blake3

from hoard_p2p.errors import ChunkCorrupt, PeerUnavailable
from hoard_p2p.ids import SnapshotId, chunk_id, origin_key
from hoard_p2p.interfaces import AskMode, SegmentAsk
from hoard_p2p.objects import RangeAsk
from hoard_p2p.peer import Peer
from hoard_p2p.testing.network import FileService, a_peer, serving
from hoard_p2p.testing.secured import KEY, OTHER_KEY, encrypted, keyed
from hoard_p2p.transfer.bulk import BulkClient
from hoard_p2p.transfer.control import PeerControl
from hoard_p2p.transfer.keys import OPEN, Security
from hoard_p2p.transfer.wire import Announcement, Record
from tests.fault.middleman import Middleman, between

NEWS = Announcement(({"id": "aa"},), ({"name": "imagenet:1"},))
REFS: list[Record] = [{"name": "imagenet:1", "snapshot": "ab"}]
CHUNKS = [Random(number).randbytes(3000) for number in range(4)]
WANTED = [(chunk_id(data), len(data)) for data in CHUNKS]
ASK = SegmentAsk(SnapshotId(b"s" * 32), 1, AskMode.CHAIN, 0, (0, 1, 2, 3))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FileService]:
    service = FileService(a_peer(1), tmp_path / "slab", CHUNKS, ref_records=REFS)
    yield service
    service.close()


@pytest.fixture
def middle(service: FileService) -> Iterator[Middleman]:
    with serving(service, security=keyed(1)) as port, between(port) as middle:
        yield middle


def asked(port: int, ask: Callable[[PeerControl, Peer], Awaitable[object]], security: Security = keyed(2)) -> object:  # noqa: B008 - immutable
    """What comes of one question by node 2 to node 1, which it believes on that port."""

    async def main() -> object:
        async with asyncio.timeout(20), PeerControl(security) as control:
            return await ask(control, a_peer(1, port=port))

    return asyncio.run(main())


async def tell(control: PeerControl, peer: Peer) -> object:
    await control.announce(peer, NEWS)
    return None


async def refs(control: PeerControl, peer: Peer) -> object:
    return await control.refs(peer)


def fetched(port: int, security: Security = keyed(2)) -> tuple[dict[int, bytes], list[int]]:  # noqa: B008 - immutable
    got: dict[int, bytes] = {}
    with BulkClient(security=security) as client:
        missing = client.fetch(
            a_peer(1, port=port), WANTED, lambda index, data: got.update({index: bytes(data)}), timeout=5
        )
    return got, missing


def flip(message: bytes, at: int, bit: int = 0) -> bytes:
    return message[:at] + bytes([message[at] ^ 1 << bit]) + message[at + 1 :]


def is_handshake(request: bytes) -> bool:
    return b"/v1/session" in request.split(b"\r\n")[0]


def test_an_honest_one_sees_everything_and_changes_nothing(middle: Middleman, service: FileService) -> None:
    asked(middle.port, tell)
    assert service.announced == [NEWS]
    assert fetched(middle.port) == (dict(enumerate(CHUNKS)), [])
    assert any(CHUNKS[0] in answer for answer in middle.answers), "a key alone hides nothing"


@pytest.mark.parametrize("seed", range(4))
def test_no_flipped_bit_of_a_request_is_taken_for_what_was_said(
    middle: Middleman, service: FileService, seed: int
) -> None:
    random, spoiled = Random(seed), 0
    for _ in range(60):
        middle.to_server = lambda message: [flip(message, random.randrange(len(message)), random.randrange(8))]
        try:
            asked(middle.port, tell)
        except PeerUnavailable:
            spoiled += 1
    assert spoiled > 30
    assert all(told == NEWS for told in service.announced)
    middle.to_server = lambda message: [message]
    asked(middle.port, tell)
    assert service.announced[-1:] == [NEWS]


@pytest.mark.parametrize("seed", range(4))
def test_no_flipped_bit_of_an_answer_is_believed(middle: Middleman, seed: int) -> None:
    async def greet(control: PeerControl, peer: Peer) -> object:
        return await control.hello(peer.host, peer.port, timeout=patience)

    patience = 10.0
    random, spoiled, truth = Random(seed), 0, asked(middle.port, greet)
    patience = 0.3
    for _ in range(60):
        middle.to_client = lambda message: [flip(message, random.randrange(len(message)), random.randrange(8))]
        try:
            assert asked(middle.port, greet) == truth
        except PeerUnavailable:
            spoiled += 1
    assert spoiled > 30


def test_every_frame_head_of_an_answer_is_proven(middle: Middleman) -> None:
    def absent(message: bytes) -> list[bytes]:
        head, _, body = message.partition(b"\r\n\r\n")
        at = body.find(CHUNKS[2]) - 4
        if at < 0:
            return [message]
        body = body[:at] + b"\xff\xff\xff\xff" + body[at + 4 + len(CHUNKS[2]) :]
        length = b"Content-Length: %d" % (len(body) + len(CHUNKS[2]))
        return [head.replace(length, b"Content-Length: %d" % len(body)) + b"\r\n\r\n" + body]

    middle.to_client = absent
    with pytest.raises(PeerUnavailable, match="changed on the way"):
        fetched(middle.port)


@pytest.mark.parametrize("seed", range(3))
def test_no_flipped_bit_of_a_stream_is_believed(middle: Middleman, service: FileService, seed: int) -> None:
    random, spoiled = Random(seed), 0
    service.runs = [chunk for chunk, _ in WANTED]
    for _ in range(40):
        got: dict[int, bytes] = {}
        middle.to_client = lambda message: [flip(message, random.randrange(len(message)), random.randrange(8))]
        try:
            with BulkClient(security=keyed(2)) as client:
                end = client.stream(
                    a_peer(1, port=middle.port),
                    ASK,
                    WANTED,
                    lambda index, data: got.update({index: bytes(data)}),  # noqa: B023 - called before the next turn
                    patience=0.1,
                    timeout=0.5,
                )
            assert end.absent == [] and not end.pending
        except (PeerUnavailable, ChunkCorrupt):
            spoiled += 1
        assert all(CHUNKS[index] == data for index, data in got.items())
    assert spoiled > 20


KEYS = [origin_key(b"bucket/%d" % at, b"1", 0, 3000) for at in range(4)]
FORGED = Random(99).randbytes(3000)


def forged(message: bytes) -> list[bytes]:
    """Other bytes for the first piece, under the content id that they have."""
    return [message.replace(chunk_id(CHUNKS[0]), chunk_id(FORGED)).replace(CHUNKS[0], FORGED)]


def swapped(message: bytes) -> list[bytes]:
    """Two pieces of one answer in each other's place, with what proves them."""
    frames = []
    for data in CHUNKS[:2]:
        at = message.find(chunk_id(data))
        frames.append(message[at : at + 64 + 3000])
    if any(len(frame) != 64 + 3000 for frame in frames):
        return [message]
    return [message.replace(frames[0], b"?").replace(frames[1], frames[0]).replace(b"?", frames[1], 1)]


@pytest.mark.parametrize("change", [forged, swapped])
def test_what_a_piece_is_said_to_be_is_proven_before_it_is_delivered(
    middle: Middleman, service: FileService, change: Callable[[bytes], list[bytes]]
) -> None:
    service.contents_of.update(zip(KEYS, service.runs, strict=True))
    service.keys.update(enumerate(KEYS))
    wanted, got = [(key, 3000) for key in KEYS], dict[int, bytes]()

    def deliver(index: int, data: memoryview) -> None:
        got[index] = bytes(data)

    with BulkClient(security=keyed(2)) as client:
        peer = a_peer(1, port=middle.port)
        assert client.fetch(peer, wanted, deliver, timeout=5) == []
        assert got == dict(enumerate(CHUNKS))
        middle.to_client = change
        got.clear()
        with pytest.raises(PeerUnavailable, match="changed on the way"):
            client.fetch(peer, wanted, deliver, timeout=5)
        with pytest.raises(PeerUnavailable, match="changed on the way"):
            client.stream(peer, ASK, wanted, deliver, patience=0.1, timeout=5)
    assert got == {}


def test_no_flipped_bit_of_a_range_is_believed(middle: Middleman) -> None:
    random, spoiled = Random(5), 0
    for _ in range(40):
        into = bytearray(1000)
        middle.to_client = lambda message: [flip(message, random.randrange(len(message)), random.randrange(8))]
        try:
            with BulkClient(security=keyed(2)) as client:
                ask = RangeAsk(ASK.snapshot, 2, 100, 1000, 0, 0.1)
                end = client.range(a_peer(1, port=middle.port), ask, memoryview(into), timeout=0.5)
            assert end.got and into == CHUNKS[2][100:1100]
        except (PeerUnavailable, ChunkCorrupt):
            spoiled += 1
    assert spoiled > 20


def test_a_forged_range_is_not_believed(middle: Middleman) -> None:
    truth, other = CHUNKS[2][100:1100], FORGED[:1000]

    def forge(message: bytes) -> list[bytes]:
        return [message.replace(truth, other).replace(blake3(truth).digest(), blake3(other).digest())]

    middle.to_client = forge
    ask = RangeAsk(ASK.snapshot, 2, 100, 1000, 0, 0.1)
    with BulkClient(security=keyed(2)) as client, pytest.raises(PeerUnavailable, match="changed on the way"):
        client.range(a_peer(1, port=middle.port), ask, memoryview(bytearray(1000)), timeout=5)


def test_a_stream_that_loses_a_frame_on_the_way_is_noticed(middle: Middleman, service: FileService) -> None:
    service.runs = [chunk for chunk, _ in WANTED]

    def emptied(message: bytes) -> list[bytes]:
        head, _, body = message.partition(b"\r\n\r\n")
        if b"chunked" not in head:
            return [message]
        size, _, rest = body.partition(b"\r\n")
        return [head + b"\r\n\r\n" + rest[int(size, 16) + 2 :]]

    middle.to_client = emptied
    with BulkClient(security=keyed(2)) as client, pytest.raises(PeerUnavailable, match="changed on the way"):
        client.stream(a_peer(1, port=middle.port), ASK, WANTED, lambda index, data: None, patience=0.1, timeout=5)


def test_a_request_that_is_repeated_on_its_connection_is_taken_once(middle: Middleman, service: FileService) -> None:
    middle.to_server = lambda message: [message] if is_handshake(message) else [message, message]
    with pytest.raises(PeerUnavailable):
        asked(middle.port, tell)
    assert service.announced == [NEWS]
    assert b"HTTP/1.1 401" in middle.answers[-1]


def test_a_recorded_request_is_of_no_use_later_or_elsewhere(
    middle: Middleman, service: FileService, tmp_path: Path
) -> None:
    asked(middle.port, tell)
    recorded = [request for request in middle.requests if not is_handshake(request)]
    other = FileService(a_peer(3), tmp_path / "other", [])
    with serving(other, security=keyed(3)) as elsewhere:
        for port in (middle.server, elsewhere):
            for request in recorded:
                with socket.create_connection(("127.0.0.1", port), 5) as raw:
                    raw.sendall(request)
                    assert raw.recv(65536).startswith(b"HTTP/1.1 401")
    other.close()
    assert service.announced == [NEWS]
    assert other.announced == []


def test_a_recorded_answer_is_not_believed_again(middle: Middleman) -> None:
    assert asked(middle.port, refs) == tuple(REFS)
    old = middle.answers[-1]
    middle.to_client = lambda message: [old] if b"application/json" in message else [message]
    with pytest.raises(PeerUnavailable, match="not from it, or not to this question"):
        asked(middle.port, refs)


def test_a_recorded_grant_is_not_believed_again(middle: Middleman) -> None:
    asked(middle.port, refs)
    old = middle.answers[0]
    middle.to_client = lambda message: [old]
    for ask in (refs, tell):
        with pytest.raises(PeerUnavailable, match="does not have our key"):
            asked(middle.port, ask)


def test_being_led_to_another_member_is_noticed(service: FileService, tmp_path: Path) -> None:
    other = FileService(a_peer(3), tmp_path / "other", CHUNKS)
    with serving(other, security=keyed(3)) as port:
        with pytest.raises(PeerUnavailable, match="instead of"):
            asked(port, refs)
        with pytest.raises(PeerUnavailable, match="instead of"):
            fetched(port)
    other.close()


def test_an_answer_to_the_question_before_is_not_believed(middle: Middleman) -> None:
    """Both questions are of one session; the second is answered with what was said to the first."""
    said: list[bytes] = []

    def late(message: bytes) -> list[bytes]:
        said.append(message)
        return [message if len(said) < 3 else said[1]]

    async def twice(control: PeerControl, peer: Peer) -> object:
        assert await control.refs(peer) == tuple(REFS)
        return await control.refs(peer)

    middle.to_client = late
    with pytest.raises(PeerUnavailable, match="not to this question"):
        asked(middle.port, twice)


@pytest.mark.parametrize(
    ("mine", "why"),
    [(OPEN, "has a key"), (keyed(2, OTHER_KEY), "another key"), (keyed(2, OTHER_KEY, KEY), "another key")],
    ids=["none", "another", "another first"],
)
def test_without_the_key_nothing_is_answered_and_both_sides_say_so(
    service: FileService, mine: Security, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with serving(service, security=keyed(1)) as port:
        for _ in range(3):
            with pytest.raises(PeerUnavailable) as caught:
                asked(port, tell, mine)
            assert why in str(caught.value)
            with pytest.raises(PeerUnavailable):
                fetched(port, mine)
    assert service.announced == [] and service.located == 0
    assert sum("is left alone" in record.message for record in caplog.records) == 1


def test_a_node_with_a_key_asks_nothing_of_one_without(service: FileService, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with serving(service) as port, between(port) as middle:
        for _ in range(2):
            with pytest.raises(PeerUnavailable, match="another key, or none"):
                asked(middle.port, tell)
            with pytest.raises(PeerUnavailable):
                fetched(middle.port)
        assert all(is_handshake(request) for request in middle.requests)
    assert service.announced == []
    assert sum("has a key and this node has none" in record.message for record in caplog.records) == 1


def test_an_answer_without_proof_is_no_answer(middle: Middleman) -> None:
    def stripped(message: bytes) -> list[bytes]:
        lines = message.split(b"\r\n")
        return [b"\r\n".join(line for line in lines if not line.lower().startswith(b"hoard-proof"))]

    middle.to_client = stripped
    with pytest.raises(PeerUnavailable, match="proves nothing"):
        asked(middle.port, refs)
    with pytest.raises(PeerUnavailable, match="proves nothing"):
        fetched(middle.port)


def test_keys_are_rotated_while_nodes_have_different_files(service: FileService) -> None:
    """Old alone; old first; new first; new alone: each node meets those of the step before and after."""
    old, new = KEY, OTHER_KEY
    steps = [(old,), (old, new), (new, old), (new,)]
    for mine, theirs in pairwise(steps):
        for caller, server in ((mine, theirs), (theirs, mine)):
            with serving(service, security=keyed(1, *server)) as port:
                assert asked(port, refs, keyed(2, *caller)) == tuple(REFS)
                assert fetched(port, keyed(2, *caller)) == (dict(enumerate(CHUNKS)), [])


def test_an_encrypted_conversation_shows_nothing(service: FileService) -> None:
    with serving(service, security=encrypted(1)) as port, between(port) as middle:
        middle.is_blind = True
        asked(middle.port, tell, encrypted(2))
        assert asked(middle.port, refs, encrypted(2)) == tuple(REFS)
        assert fetched(middle.port, encrypted(2)) == (dict(enumerate(CHUNKS)), [])
        seen = b"".join(middle.requests + middle.answers)
    assert len(seen) > 12_000
    for said in (CHUNKS[0][:64], b"imagenet", b"/v1/", b"Hoard-Proof"):
        assert said not in seen


@pytest.mark.parametrize(
    "mine", [OPEN, keyed(2), encrypted(2, OTHER_KEY)], ids=["open", "not encrypted", "another key"]
)
def test_a_node_that_encrypts_talks_to_none_that_does_not_or_has_another_key(
    service: FileService, mine: Security
) -> None:
    with serving(service, security=encrypted(1)) as port:
        for ask in (refs, tell):
            with pytest.raises(PeerUnavailable):
                asked(port, ask, mine)
        with pytest.raises(PeerUnavailable):
            fetched(port, mine)
    assert service.announced == [] and service.located == 0


def test_an_encrypting_caller_does_not_fall_back(service: FileService) -> None:
    with serving(service, security=keyed(1)) as port:
        with pytest.raises(PeerUnavailable):
            asked(port, refs, encrypted(2))
        with pytest.raises(PeerUnavailable):
            fetched(port, encrypted(2))


def test_encrypted_nodes_rotate_keys_too(service: FileService) -> None:
    steps = [(KEY,), (KEY, OTHER_KEY), (OTHER_KEY, KEY), (OTHER_KEY,)]
    for mine, theirs in pairwise(steps):
        with serving(service, security=encrypted(1, *theirs)) as port:
            assert asked(port, refs, encrypted(2, *mine)) == tuple(REFS)
            assert fetched(port, encrypted(2, *mine)) == (dict(enumerate(CHUNKS)), [])
