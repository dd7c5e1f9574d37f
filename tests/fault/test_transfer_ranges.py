"""Ranges from peers that lie, stall or break, and questions for them that no node would put."""

import pytest
from blake3 import blake3

from hoard_p2p.errors import ChunkCorrupt, PeerBusy, PeerUnavailable
from hoard_p2p.ids import SnapshotId
from hoard_p2p.objects import RangeAsk, RangeEnd
from hoard_p2p.transfer.bulk import BulkClient
from tests.fault.oddpeers import Behave, says, server
from tests.fault.test_transfer_bulk import head

DATA = b"d" * 5000
ASK = RangeAsk(SnapshotId(b"s" * 32), 3, 4096, len(DATA), 0, 0.05)


def told(kind: int, data: bytes, length: int | None = None, digest: bytes | None = None) -> bytes:
    """A whole answer, made by hand from docs/wire.md."""
    size = len(data) if length is None else length
    body = bytes([kind]) + size.to_bytes(4, "little") + (digest or blake3(data).digest()) + data
    return head(len(body)) + body


def answered(behave: Behave, timeout: float = 5.0) -> tuple[RangeEnd, bytes]:
    into = bytearray(len(DATA))
    with server(behave) as peer, BulkClient() as client:
        return client.range(peer, ASK, memoryview(into), timeout=timeout), bytes(into)


def test_an_honest_server_of_this_kind_is_understood() -> None:
    assert answered(says(told(2, DATA))) == (RangeEnd(True, False, ""), DATA)
    assert answered(says(told(1, b"soon")))[0] == RangeEnd(False, True, "soon")
    assert answered(says(told(0, b"no\n\x1b[2J\xff")))[0] == RangeEnd(False, False, "no  [2J\ufffd")


def test_bytes_that_were_damaged_on_the_way_are_corrupt_and_not_given() -> None:
    for damaged in (told(2, DATA, digest=bytes(32)), told(2, b"x" + DATA[1:], digest=blake3(DATA).digest())):
        with pytest.raises(ChunkCorrupt):
            answered(says(damaged))


WRONG = {
    "fewer bytes": told(2, DATA[:-1]),
    "more bytes": told(2, DATA + b"d"),
    "another length than it says": told(2, DATA, length=4999),
    "a kind nobody knows": told(3, DATA),
    "an endless reason": told(0, b"x" * 1001),
    "an empty body": head(0),
    "half a head": head(20) + bytes(20),
    "a body that breaks off": told(2, DATA)[:-100],
    "a length beyond all bounds": head(10**12) + b"\2" + b"\xff" * 4,
    "html": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
    "a node that knows no ranges": b"HTTP/1.1 404 x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    "nothing": b"",
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG.keys())
def test_an_answer_that_is_none_makes_the_peer_unavailable(answer: bytes) -> None:
    with pytest.raises(PeerUnavailable):
        answered(says(answer))


def test_a_peer_that_never_answers_is_given_up() -> None:
    with pytest.raises(PeerUnavailable):
        answered(lambda connection, number: None, timeout=0.2)


def test_a_peer_with_too_much_to_do_is_busy() -> None:
    busy = b"HTTP/1.1 503 x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    with pytest.raises(PeerBusy):
        answered(says(busy))
