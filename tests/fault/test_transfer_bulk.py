"""The bulk client against peers that lie, stall or break: real TCP servers on loopback, each with one vice."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from hoard_p2p.errors import ChunkCorrupt, HoardError, PeerUnavailable
from hoard_p2p.ids import ChunkId, chunk_id, origin_key
from hoard_p2p.peer import Peer
from hoard_p2p.testing.network import a_peer
from hoard_p2p.transfer.bulk import BulkClient
from tests.contract.test_transfer_peer_chunks import Gatherer
from tests.fault.oddpeers import says, server

GOOD = b"g" * 100_000
OTHER = b"o" * 100_000
WANTED: list[tuple[ChunkId, int]] = [(chunk_id(GOOD), len(GOOD)), (chunk_id(OTHER), len(OTHER))]


def head(length: int, status: str = "200 OK", *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/octet-stream", f"Content-Length: {length}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def fetch(client: BulkClient, peer: Peer, timeout: float = 5.0) -> tuple[dict[int, bytes], HoardError | None]:
    """What was delivered, and the error."""
    got: dict[int, bytes] = {}
    try:
        client.fetch(peer, WANTED, lambda index, data: got.update({index: bytes(data)}), timeout=timeout)
    except HoardError as error:
        return got, error
    return got, None


def a_whole_answer() -> bytes:
    body = frame(GOOD) + frame(OTHER)
    return head(len(body)) + body


def test_an_honest_server_of_this_kind_is_understood() -> None:
    with server(says(a_whole_answer())) as peer, BulkClient() as client:
        assert fetch(client, peer) == ({0: GOOD, 1: OTHER}, None)


def test_wrong_bytes_of_the_right_length_are_corrupt_and_never_delivered() -> None:
    lie = bytearray(OTHER)
    lie[77] ^= 1
    body = frame(GOOD) + frame(bytes(lie))
    with server(says(head(len(body)) + body)) as peer, BulkClient() as client:
        got, error = fetch(client, peer)
    assert got == {0: GOOD}
    assert isinstance(error, ChunkCorrupt)
    assert str(peer.port) in str(error)


def test_who_gathers_has_what_came_before_wrong_bytes() -> None:
    body = frame(GOOD) + frame(bytes(len(OTHER)))
    gatherer = Gatherer()
    with server(says(head(len(body)) + body)) as peer, BulkClient() as client, pytest.raises(ChunkCorrupt):
        client.fetch(peer, WANTED, gatherer, timeout=5)
    assert gatherer.got == {0: GOOD}


@pytest.mark.parametrize("claimed", [0, 99_999, 100_001, 0xFFFFFFFE])
def test_a_frame_of_another_length_is_corrupt_before_its_bytes_are_read(claimed: int) -> None:
    body = claimed.to_bytes(4, "little")
    with server(says(head(200_008) + body)) as peer, BulkClient() as client:
        got, error = fetch(client, peer)
    assert got == {}
    assert isinstance(error, ChunkCorrupt)


KEY = origin_key(b"bucket/object", b"1", 0, len(GOOD))


def piece(data: bytes, content: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + content + data


LIES = {
    "other bytes than named": piece(OTHER, chunk_id(GOOD)),
    "the key itself as content": piece(GOOD, KEY),
    "no content": piece(GOOD, bytes(32)),
    "another length": piece(GOOD[:-1], chunk_id(GOOD[:-1])),
}


@pytest.mark.parametrize("body", LIES.values(), ids=LIES.keys())
def test_bytes_of_a_piece_that_are_not_what_the_peer_named_are_corrupt_and_never_delivered(body: bytes) -> None:
    got: list[int] = []
    with server(says(head(len(body)) + body)) as peer, BulkClient() as client, pytest.raises(ChunkCorrupt):
        client.fetch(peer, [(KEY, len(GOOD))], lambda index, data: got.append(index), timeout=5)
    assert got == []


@pytest.mark.parametrize("cut", [3, 4, 20, 36, 1000])
def test_a_piece_that_breaks_off_makes_the_peer_unavailable(cut: int) -> None:
    body = piece(GOOD, chunk_id(GOOD))
    for said in (head(len(body)) + body[:cut], head(cut) + body[:cut]):
        with server(says(said)) as peer, BulkClient() as client, pytest.raises(PeerUnavailable):
            client.fetch(peer, [(KEY, len(GOOD))], lambda index, data: None, timeout=5)


HTML = b"<html>sign in to the network</html>"
UNAVAILABLE = {
    "short body": head(4 + len(GOOD)) + frame(GOOD),
    "long body": head(200_008 + 1) + frame(GOOD) + frame(OTHER) + b"x",
    "empty body": head(0),
    "no length": b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n\r\n" + frame(GOOD) + frame(OTHER),
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "an error status": head(2, "503 Service Unavailable") + b"{}",
    "a redirect": head(0, "302 Found", "Location: http://127.0.0.1:1/"),
    "html": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 35\r\n\r\n" + HTML,
    "another protocol": b"220 mail.example.org ESMTP\r\n\r\n",
    "an endless header": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
    "a length of letters": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
    "nothing": b"",
    "half a header": b"HTTP/1.1 200",
    "half a frame header": head(200_008) + b"\x10",
    "half a chunk": head(200_008) + frame(GOOD)[:50_000],
}


@pytest.mark.parametrize("answer", UNAVAILABLE.values(), ids=UNAVAILABLE.keys())
def test_an_answer_that_is_none_makes_the_peer_unavailable(answer: bytes) -> None:
    with server(says(answer)) as peer, BulkClient() as client:
        got, error = fetch(client, peer)
    assert isinstance(error, PeerUnavailable)
    assert all(data in (GOOD, OTHER) for data in got.values())


def test_what_arrived_before_a_break_stays_good() -> None:
    with server(says(head(200_008) + frame(GOOD) + frame(OTHER)[:1000])) as peer, BulkClient() as client:
        got, error = fetch(client, peer)
    assert got == {0: GOOD}
    assert isinstance(error, PeerUnavailable)


@pytest.mark.parametrize("promised", [200_008, 10**12])
def test_an_endless_body_is_not_read_to_its_end(promised: int) -> None:
    def endless(connection: socket.socket, number: int) -> None:
        connection.sendall(head(promised) + frame(GOOD) + frame(OTHER))
        while True:
            connection.sendall(b"x" * 65536)

    with server(endless) as peer, BulkClient() as client:
        got, error = fetch(client, peer)
    if promised == 200_008:  # what was asked for came first; nobody looks at the rest
        assert (got, error) == ({0: GOOD, 1: OTHER}, None)
    else:
        assert got == {}
        assert isinstance(error, PeerUnavailable)


def test_a_server_that_never_answers_is_given_up_after_the_timeout() -> None:
    with server(lambda connection, number: None) as peer, BulkClient() as client:
        begin = time.monotonic()
        _, error = fetch(client, peer, timeout=0.3)
    assert isinstance(error, PeerUnavailable)
    assert 0.25 < time.monotonic() - begin < 5


def test_a_server_that_stops_in_the_middle_is_given_up_after_the_timeout() -> None:
    def stop(connection: socket.socket, number: int) -> None:
        connection.sendall(head(200_008) + frame(GOOD) + b"\x00")

    with server(stop) as peer, BulkClient() as client:
        got, error = fetch(client, peer, timeout=0.3)
    assert got == {0: GOOD}
    assert isinstance(error, PeerUnavailable)


def test_a_drip_feed_is_given_up_though_bytes_keep_coming() -> None:
    dripping = threading.Event()

    def drip(connection: socket.socket, number: int) -> None:
        connection.sendall(head(200_008) + frame(GOOD)[:4])
        while not dripping.wait(0.02):
            connection.sendall(b"g")

    with server(drip) as peer, BulkClient() as client:
        begin = time.monotonic()
        try:
            _, error = fetch(client, peer, timeout=0.5)
        finally:
            dripping.set()
    assert isinstance(error, PeerUnavailable)
    assert time.monotonic() - begin < 5


def test_a_slow_but_steady_server_is_waited_for() -> None:
    pause = threading.Event()

    def steady(connection: socket.socket, number: int) -> None:
        answer = a_whole_answer()
        for start in range(0, len(answer), 20_000):
            connection.sendall(answer[start : start + 20_000])
            pause.wait(0.05)

    with server(steady) as peer, BulkClient() as client:
        assert fetch(client, peer, timeout=0.4) == ({0: GOOD, 1: OTHER}, None)


def test_what_is_asked_of_a_peer_can_be_broken_off_with_a_reason() -> None:
    asked, answered = threading.Event(), threading.Event()

    def begin(connection: socket.socket, number: int) -> None:
        connection.sendall(head(200_008) + frame(GOOD)[:4])
        asked.set()
        answered.wait(10)

    with server(begin) as peer, BulkClient() as client, ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(fetch, client, peer, timeout=20)
        assert asked.wait(10)
        client.abandon(peer, "it drags")
        got, error = fetching.result(10)
        answered.set()
    assert got == {}
    assert isinstance(error, PeerUnavailable) and "it drags" in str(error)


def test_a_kept_connection_that_the_server_closed_meanwhile_costs_nothing() -> None:
    answers = iter([True, False, True])

    def once(connection: socket.socket, number: int) -> None:
        if next(answers):
            connection.sendall(a_whole_answer())
        else:
            connection.shutdown(socket.SHUT_RDWR)

    with server(once) as peer, BulkClient() as client:
        assert fetch(client, peer)[1] is None
        assert fetch(client, peer) == ({0: GOOD, 1: OTHER}, None)


def test_a_server_that_says_close_is_asked_on_a_new_connection() -> None:
    seen: list[socket.socket] = []

    def close(connection: socket.socket, number: int) -> None:
        seen.append(connection)
        body = frame(GOOD) + frame(OTHER)
        connection.sendall(head(len(body), "200 OK", "Connection: close") + body)

    with server(close) as peer, BulkClient() as client:
        assert fetch(client, peer)[1] is None
        assert fetch(client, peer)[1] is None
    assert seen[0] is not seen[1]


def test_a_connection_is_kept_after_success_and_dropped_after_a_lie() -> None:
    seen: list[socket.socket] = []

    def third_lies(connection: socket.socket, number: int) -> None:
        seen.append(connection)
        body = frame(GOOD) + frame(GOOD if number == 2 else OTHER)
        connection.sendall(head(len(body)) + body)

    with server(third_lies) as peer, BulkClient() as client:
        results = [fetch(client, peer)[1] for _ in range(4)]
    assert [type(error) for error in results] == [type(None), type(None), ChunkCorrupt, type(None)]
    assert seen[0] is seen[1] is seen[2]
    assert seen[3] is not seen[2]


def test_close_breaks_a_fetch_that_waits() -> None:
    asked = threading.Event()
    errors: list[HoardError | None] = []
    with server(lambda connection, number: asked.set()) as peer, BulkClient() as client:
        thread = threading.Thread(target=lambda: errors.append(fetch(client, peer, timeout=60)[1]))
        thread.start()
        assert asked.wait(5)
        client.close()
        thread.join(5)
        assert not thread.is_alive()
        assert isinstance(errors[0], PeerUnavailable)
        assert isinstance(fetch(client, peer)[1], PeerUnavailable)


def test_a_host_that_cannot_be_one_is_unavailable() -> None:
    with BulkClient() as client:
        assert isinstance(fetch(client, a_peer(1, "x" * 70, 7000))[1], PeerUnavailable)
        assert isinstance(fetch(client, a_peer(1, "127.0.0.1", 1))[1], PeerUnavailable)


BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def test_a_busy_peer_is_asked_again() -> None:
    def busy_once(connection: socket.socket, number: int) -> None:
        connection.sendall(BUSY if number == 0 else a_whole_answer())

    with server(busy_once) as peer, BulkClient() as client:
        assert fetch(client, peer) == ({0: GOOD, 1: OTHER}, None)


def test_a_peer_that_stays_busy_is_unavailable_after_a_few_questions() -> None:
    asked: list[int] = []

    def busy(connection: socket.socket, number: int) -> None:
        asked.append(number)
        connection.sendall(BUSY)

    with server(busy) as peer, BulkClient() as client:
        got, error = fetch(client, peer)
    assert got == {}
    assert isinstance(error, PeerUnavailable)
    assert len(asked) == 3
