"""The server against receivers that stall or go away, and slabs that are not what the index says."""

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from hoard_p2p.errors import Corrupt
from hoard_p2p.ids import ChunkId, chunk_id
from hoard_p2p.testing.network import FileService, a_peer
from hoard_p2p.transfer.sending import Turn, chunk_frames
from hoard_p2p.transfer.server import Limits, bind, make_server
from hoard_p2p.transfer.service import Located, SendExtent

CHUNKS = [Random(number).randbytes(4 << 20) for number in range(8)]
REQUEST = b"".join(chunk_id(data) for data in CHUNKS) * 8
"""A quarter of a gigabyte: more than any socket buffer takes."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FileService]:
    service = FileService(a_peer(1), tmp_path / "slab", CHUNKS)
    yield service
    service.close()


async def receiver(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has asked for much, and takes little by itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    head = f"POST /v1/chunks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(REQUEST)}\r\n\r\n"
    writer.write(head.encode() + REQUEST)
    await reader.readuntil(b"\r\n\r\n")
    return reader, writer


async def until_released(service: FileService) -> None:
    async with asyncio.timeout(10):
        while service.open_extents:  # noqa: ASYNC110 - the server is another party, polled with a deadline
            await asyncio.sleep(0.01)


def test_a_receiver_that_stops_taking_is_given_up_and_its_extents_released(service: FileService) -> None:
    async def main() -> None:
        server = make_server(service, limits=Limits(stall_time=0.3))
        port = await server.start("127.0.0.1", 0)
        reader, writer = await receiver(port)
        assert service.open_extents == 64
        await until_released(service)
        assert service.sent < 64, "only what went out whole counts as sent"
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(len(CHUNKS[0]) * 64)
        writer.close()
        await server.stop()

    asyncio.run(main())


def test_a_receiver_that_takes_drops_is_given_up(service: FileService) -> None:
    async def drink(taker: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while await loop.sock_recv(taker, 500):  # noqa: ASYNC110 - a slow receiver is what this plays
            await asyncio.sleep(0.01)

    async def main() -> None:
        server = make_server(service, limits=Limits(stall_time=1.0))
        listener = bind("127.0.0.1", 0)
        port = listener.getsockname()[1]
        # small buffers, so that the sender feels each drop; with large ones it finds a full socket and gives up anyway
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
        await server.serve(listener)
        with socket.socket() as taker:
            taker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            taker.setblocking(False)
            await asyncio.get_running_loop().sock_connect(taker, ("127.0.0.1", port))
            head = f"POST /v1/chunks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(REQUEST)}\r\n\r\n"
            await asyncio.get_running_loop().sock_sendall(taker, head.encode() + REQUEST)
            async with asyncio.timeout(15):
                with suppress(ConnectionError):
                    await drink(taker)
        await until_released(service)
        await server.stop()

    asyncio.run(main())


def test_a_receiver_that_goes_away_releases_the_extents(service: FileService) -> None:
    async def main() -> None:
        server = make_server(service)
        port = await server.start("127.0.0.1", 0)
        _, writer = await receiver(port)
        writer.transport.abort()
        await until_released(service)
        await server.stop()

    asyncio.run(main())


def test_stopping_the_server_ends_a_transfer_and_releases_the_extents(service: FileService) -> None:
    async def main() -> None:
        server = make_server(service)
        port = await server.start("127.0.0.1", 0)
        _, writer = await receiver(port)
        async with asyncio.timeout(10):
            await server.stop()
        assert service.open_extents == 0
        writer.close()

    asyncio.run(main())


def test_many_stalled_receivers_do_not_keep_others_waiting(service: FileService) -> None:
    async def main() -> None:
        server = make_server(service, limits=Limits(send_threads=2))
        port = await server.start("127.0.0.1", 0)
        stalled = [await receiver(port) for _ in range(10)]
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = b"POST /v1/chunks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 32\r\n\r\n"
            writer.write(head + chunk_id(CHUNKS[0]))
            await reader.readuntil(b"\r\n\r\n")
            assert (await reader.readexactly(4 + len(CHUNKS[0])))[4:] == CHUNKS[0]
        for _, other in [*stalled, (reader, writer)]:
            other.transport.abort()
        await until_released(service)
        await server.stop()

    asyncio.run(main())


class LateService(FileService):
    """Finds chunks only when the test lets it."""

    go: threading.Event

    def locate(self, ids: Sequence[ChunkId]) -> Located:
        assert self.go.wait(10)
        return super().locate(ids)


@pytest.mark.parametrize("how", ["too late", "the node stops"])
def test_extents_that_are_found_after_the_request_ended_are_released(tmp_path: Path, how: str) -> None:
    service = LateService(a_peer(1), tmp_path / "slab", CHUNKS)
    service.go = threading.Event()

    async def main() -> None:
        limits = Limits(answer_time=0.1) if how == "too late" else Limits()
        server = make_server(service, limits=limits)
        port = await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /v1/chunks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(REQUEST)}\r\n\r\n"
        writer.write(head.encode() + REQUEST)
        if how == "too late":
            assert b" 504 " in await reader.readline()
            service.go.set()
            await server.stop()
        else:
            async with asyncio.TaskGroup() as group:
                group.create_task(server.stop())
                assert await reader.read() == b""
                service.go.set()
        writer.close()
        assert service.located, "the test is about extents that were lent"
        assert service.open_extents == 0

    asyncio.run(main())
    service.close()


@pytest.mark.expect_warnings
def test_a_slab_shorter_than_the_index_says_breaks_the_connection_and_is_logged(
    service: FileService, caplog: pytest.LogCaptureFixture
) -> None:
    with service.path.open("r+b") as slab:
        slab.truncate(5 << 20)

    async def main() -> None:
        server = make_server(service)
        port = await server.start("127.0.0.1", 0)
        reader, writer = await receiver(port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(len(CHUNKS[0]) * 64)
        await until_released(service)
        writer.close()
        await server.stop()

    asyncio.run(main())
    assert "a slab ends" in caplog.text


@pytest.mark.parametrize("size", [100, 100_000])
def test_sending_from_a_short_slab_raises_instead_of_sending_something_else(tmp_path: Path, size: int) -> None:
    path = tmp_path / "slab"
    path.write_bytes(b"x" * 50)
    left, right = socket.socketpair()
    with path.open("rb") as slab, left, right:
        left.setblocking(False)
        sending = chunk_frames([SendExtent(slab.fileno(), 0, size)], [size.to_bytes(4, "little")])
        with pytest.raises(Corrupt):
            while sending.advance(left) is not Turn.DONE:
                right.recv(1 << 20)


async def draw(port: int, count: int) -> None:
    """Ask for `count` chunks and take them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    ids = b"".join(chunk_id(chunk) for chunk in CHUNKS[:count])
    head = f"POST /v1/chunks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(ids)}\r\n\r\n"
    writer.write(head.encode() + ids)
    await reader.readuntil(b"\r\n\r\n")
    for chunk in CHUNKS[:count]:
        assert (await reader.readexactly(4 + len(chunk)))[4:] == chunk
    writer.close()


def test_a_server_with_a_rate_sends_every_byte_to_all(service: FileService) -> None:
    async def main() -> None:
        server = make_server(service, limits=Limits(send_rate=64 << 20))
        port = await server.start("127.0.0.1", 0)
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for count in (1, 3, 2):
                group.create_task(draw(port, count))
        await server.stop()

    asyncio.run(main())
    assert service.sent == 6


def test_more_senders_than_may_be_wait_for_their_turn_and_some_are_told_to_come_again(service: FileService) -> None:
    async def main() -> None:
        limits = Limits(sends=1, sends_waiting=1, send_wait=10.0)
        server = make_server(service, limits=limits)
        port = await server.start("127.0.0.1", 0)
        _, stalled = await receiver(port)
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            group.create_task(draw(port, 1))
            await asyncio.sleep(0.1)  # it is waiting now, or else is refused below, which fails the test
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = "POST /v1/chunks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 32\r\n\r\n"
            writer.write(head.encode() + chunk_id(CHUNKS[0]))
            assert (await reader.readline()).split()[1] == b"503"
            writer.close()
            stalled.transport.abort()
        await server.stop()

    asyncio.run(main())
    assert service.open_extents == 0
