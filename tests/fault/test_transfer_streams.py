"""Streams against peers that lie, stall or break, and servers of streams whose askers do."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from hoard_p2p.errors import ChunkCorrupt, HoardError, PeerUnavailable, SnapshotUnknown
from hoard_p2p.ids import ChunkId, SnapshotId, chunk_id
from hoard_p2p.interfaces import AskMode, SegmentAsk, StreamEnd
from hoard_p2p.peer import Peer
from hoard_p2p.testing.network import FileService, a_peer, serving
from hoard_p2p.transfer.bulk import BulkClient
from hoard_p2p.transfer.server import Limits, make_server
from hoard_p2p.transfer.service import Fed, FeedEnd
from hoard_p2p.transfer.streams import encode_ask
from tests.fault.oddpeers import Behave, says, server

GOOD = b"g" * 100_000
OTHER = b"o" * 70_000
WANTED: list[tuple[ChunkId, int]] = [(chunk_id(GOOD), len(GOOD)), (chunk_id(OTHER), len(OTHER))]
ASK = SegmentAsk(SnapshotId(b"s" * 32), 0, AskMode.GATE, 0, (0, 1))
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = 0xFFFFFFFF
END = b"0\r\n\r\n"


def frame(index: int, data: bytes, length: int | None = None) -> bytes:
    size = len(data) if length is None else length
    return index.to_bytes(4, "little") + size.to_bytes(4, "little") + data


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def last(how: int = 0, reason: bytes = b"") -> bytes:
    return chunk(frame(LAST, reason, how))


def stream(client: BulkClient, peer: Peer, timeout: float = 5.0) -> tuple[dict[int, bytes], StreamEnd | HoardError]:
    """What was delivered, and the end."""
    got: dict[int, bytes] = {}
    try:
        end = client.stream(
            peer, ASK, WANTED, lambda index, data: got.update({index: bytes(data)}), patience=0.05, timeout=timeout
        )
    except HoardError as error:
        return got, error
    return got, end


def answered(behave: Behave, timeout: float = 5.0) -> tuple[dict[int, bytes], StreamEnd | HoardError]:
    with server(behave) as peer, BulkClient() as client:
        return stream(client, peer, timeout)


def test_an_honest_server_of_this_kind_is_understood() -> None:
    both = {0: GOOD, 1: OTHER}
    whole = HEAD + chunk(frame(1, OTHER) + frame(0, GOOD)) + last() + END
    assert answered(says(whole)) == (both, StreamEnd([], False, ""))
    apart = HEAD + chunk(frame(0, GOOD)) + last(1, b"the rest soon") + END
    assert answered(says(apart)) == ({0: GOOD}, StreamEnd([1], True, "the rest soon"))


def test_a_reason_cannot_write_into_a_log_what_is_no_text() -> None:
    _, end = answered(says(HEAD + last(0, b"no\n\x1b[2J\xff") + END))
    assert end == StreamEnd([0, 1], False, "no  [2J\ufffd")


WRONG = {
    "other bytes": chunk(frame(0, OTHER[:1] + GOOD[1:])),
    "another chunk that was asked for": chunk(frame(0, OTHER)),
    "a shorter chunk": chunk(frame(0, GOOD[:-1])),
    "a length beyond all bounds": b"fffffff\r\n" + frame(0, b"", 0xFFFFFFF0),
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG.keys())
def test_wrong_bytes_are_corrupt_and_never_delivered(body: bytes) -> None:
    got, error = answered(says(HEAD + body + last() + END))
    assert got == {}
    assert isinstance(error, ChunkCorrupt)


BROKEN = {
    "no last frame": HEAD + chunk(frame(0, GOOD)) + END,
    "no end": HEAD + chunk(frame(0, GOOD)) + last(),
    "cut inside a chunk": HEAD + chunk(frame(0, GOOD))[:5000],
    "cut inside a frame's head": HEAD + b"64\r\n\x00\x00",
    "a chunk twice": HEAD + chunk(frame(0, GOOD) + frame(0, GOOD)) + last() + END,
    "a chunk nobody asked for": HEAD + chunk(frame(2, GOOD)) + last() + END,
    "an HTTP chunk that ends inside a frame": HEAD + chunk(frame(0, GOOD)[:500]) + last() + END,
    "an HTTP chunk longer than it said": HEAD + b"8\r\n" + frame(LAST, b"xx", 0) + b"\r\n" + END,
    "more after the last frame": HEAD + last() + chunk(frame(0, GOOD)) + END,
    "an end that says nothing known": HEAD + last(2) + END,
    "an endless reason": HEAD + last(0, b"x" * 5000) + END,
    "a size of letters": HEAD + b"many\r\n",
    "an endless size": HEAD + b"1" * 100_000,
    "an empty size": HEAD + b"\r\n" + last() + END,
    "a length instead": b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: 1\r\n\r\n0",
    "both": HEAD[:-2] + b"Content-Length: 8\r\n\r\n12345678",
    "html": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n"
    + chunk(b"<html>")
    + END,
    "an error status": b"HTTP/1.1 503 Busy\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    "nothing": b"",
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN.keys())
def test_an_answer_that_is_none_makes_the_peer_unavailable(answer: bytes) -> None:
    got, error = answered(says(answer))
    assert isinstance(error, PeerUnavailable)
    assert got in ({}, {0: GOOD})


def test_a_server_that_never_answers_is_given_up_after_the_timeout() -> None:
    begin = time.monotonic()
    _, error = answered(lambda connection, number: None, timeout=0.3)
    assert isinstance(error, PeerUnavailable)
    assert 0.25 < time.monotonic() - begin < 5


def test_a_drip_feed_is_given_up_though_bytes_keep_coming() -> None:
    dripping = threading.Event()

    def drip(connection: socket.socket, number: int) -> None:
        send = connection.sendall
        send(HEAD + chunk(frame(0, GOOD))[:100])
        while not dripping.wait(0.02):
            send(b"g")

    begin = time.monotonic()
    with server(drip) as peer, BulkClient() as client:
        try:
            _, error = stream(client, peer, timeout=0.4)
        finally:
            dripping.set()
    assert isinstance(error, PeerUnavailable)
    assert time.monotonic() - begin < 5


def test_chunks_that_come_now_and_then_are_waited_for() -> None:
    pause = threading.Event()

    def steady(connection: socket.socket, number: int) -> None:
        for part in (HEAD, chunk(frame(1, OTHER)), chunk(frame(0, GOOD)), last(), END):
            connection.sendall(part)
            pause.wait(0.3)

    assert answered(steady, timeout=0.5) == ({0: GOOD, 1: OTHER}, StreamEnd([], False, ""))


def test_an_endless_stream_is_not_read_to_its_end() -> None:
    def endless(connection: socket.socket, number: int) -> None:
        connection.sendall(HEAD + chunk(frame(0, GOOD)))
        while True:
            connection.sendall(chunk(b""))

    got, error = answered(endless)
    assert got == {0: GOOD}
    assert isinstance(error, PeerUnavailable)


CHUNKS = [Random(number).randbytes(1 << 20) for number in range(8)]


class SlowFeed(FileService):
    """Feeds its first chunk, and the others when the test lets it; `ended` when the feed is closed."""

    go: asyncio.Event
    ended: asyncio.Event
    fails: HoardError | None = None

    async def feed(self, ask: SegmentAsk, patience: float) -> AsyncGenerator[Sequence[Fed] | FeedEnd, None]:
        if self.fails is not None:
            raise self.fails
        try:
            for asked, run in enumerate(ask.runs):
                yield [Fed(asked, self.locate([self.runs[run]])[0])]
                await self.go.wait()
        finally:
            self.ended.set()


@pytest.fixture
def feeder(tmp_path: Path) -> Iterator[SlowFeed]:
    service = SlowFeed(a_peer(1), tmp_path / "slab", CHUNKS)
    service.go, service.ended = asyncio.Event(), asyncio.Event()
    yield service
    assert service.open_extents == 0, "extents were not released"
    service.close()


QUESTION = encode_ask(SegmentAsk(SnapshotId(b"s" * 32), 0, AskMode.CHAIN, 0, tuple(range(8))), 1.0)


async def asker(
    port: int, body: bytes = QUESTION, version: str = "1.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/stream HTTP/{version}\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


def test_an_asker_that_hangs_up_ends_the_feed_while_it_waits(feeder: SlowFeed) -> None:
    async def main() -> None:
        stream_server = make_server(feeder)
        reader, writer = await asker(await stream_server.start("127.0.0.1", 0))
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(1 << 20)
        assert not feeder.ended.is_set()
        writer.close()
        async with asyncio.timeout(10):
            await feeder.ended.wait()
        await stream_server.stop()

    asyncio.run(main())
    assert feeder.located == 1


def test_an_asker_that_takes_nothing_is_given_up_and_ends_the_feed(feeder: SlowFeed) -> None:
    feeder.go.set()
    feeder.runs *= 8

    async def main() -> None:
        stream_server = make_server(feeder, limits=Limits(stall_time=0.3))
        body = encode_ask(SegmentAsk(SnapshotId(b"s" * 32), 0, AskMode.CHAIN, 0, tuple(range(64))), 1.0)
        _, writer = await asker(await stream_server.start("127.0.0.1", 0), body)
        async with asyncio.timeout(10):
            await feeder.ended.wait()
        writer.transport.abort()
        await stream_server.stop()

    asyncio.run(main())
    assert feeder.sent < 64


def test_stopping_the_server_ends_a_stream(feeder: SlowFeed) -> None:
    async def main() -> None:
        stream_server = make_server(feeder)
        reader, writer = await asker(await stream_server.start("127.0.0.1", 0))
        await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(10):
            await stream_server.stop()
            await feeder.ended.wait()
        writer.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "version", "status"),
    [
        (QUESTION, "1.0", b"400"),
        (QUESTION[:-1], "1.1", b"400"),
        (QUESTION[:40], "1.1", b"400"),
        (QUESTION[:36] + b"\x07" + QUESTION[37:], "1.1", b"400"),
        (QUESTION + QUESTION[-4:], "1.1", b"400"),
        (QUESTION[:38] + b"\xff\xff" + QUESTION[40:], "1.1", b"400"),
        (bytes(41 + 4 * 16385), "1.1", b"400"),
    ],
    ids=["HTTP/1.0", "a byte too few", "no runs", "an unknown mode", "a run twice", "much patience", "too many runs"],
)
def test_a_question_that_is_none_is_refused(feeder: SlowFeed, body: bytes, version: str, status: bytes) -> None:
    async def main() -> None:
        stream_server = make_server(feeder)
        reader, writer = await asker(await stream_server.start("127.0.0.1", 0), body, version)
        assert (await reader.readline()).split()[1] == status
        writer.close()
        await stream_server.stop()

    asyncio.run(main())
    assert feeder.located == 0


def test_what_a_service_raises_before_its_first_chunk_is_the_answer(feeder: SlowFeed) -> None:
    feeder.fails = SnapshotUnknown("snapshot 12 is unknown here")

    async def main() -> None:
        stream_server = make_server(feeder)
        reader, writer = await asker(await stream_server.start("127.0.0.1", 0))
        assert (await reader.readline()).split()[1] == b"404"
        writer.close()
        await stream_server.stop()

    asyncio.run(main())


def test_more_runs_than_one_question_may_have_are_asked_for_in_part(tmp_path: Path) -> None:
    chunks = [number.to_bytes(4, "little") for number in range(16384 + 3)]
    service = FileService(a_peer(1), tmp_path / "slab", chunks)
    wanted = [(chunk_id(data), 4) for data in chunks]
    got: list[int] = []
    with serving(service) as port, BulkClient() as client:
        ask = SegmentAsk(SnapshotId(b"s" * 32), 0, AskMode.GATE, 0, tuple(range(len(chunks))))
        peer = a_peer(1, port=port)
        end = client.stream(peer, ask, wanted, lambda index, data: got.append(index), patience=1, timeout=10)
    assert end == StreamEnd([16384, 16385, 16386], True, "")
    assert got == list(range(16384))
    service.close()
