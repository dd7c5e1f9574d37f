"""A node that joins, keeps and promises as every node does, and lies when it is asked for chunks.

A program. Its arguments are the settings of a node as JSON, and a file whose text is the lie; while that is missing it
is honest. The lies: wrong (right length, other bytes), forged (the same under the content id that fits them, where an
origin key was asked for: nothing is wrong to see; else honest), cut (one byte less than there is), short (the answer
ends in its middle), endless, html, drip (just more than what counts as silence), silent, denies (it has nothing of what
it says it has), pending (it is always about to have it).
"""

import asyncio
import json
import logging
import os
import re
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hoard_p2p.config import NodeSettings
from hoard_p2p.errors import HoardError
from hoard_p2p.ids import ID_SIZE, ChunkId, chunk_id
from hoard_p2p.node.background import Report
from hoard_p2p.node.main import run_node
from hoard_p2p.transfer.keys import Security
from hoard_p2p.transfer.server import Limits, make_server
from hoard_p2p.transfer.service import FeedEnd, PeerService, SendExtent
from hoard_p2p.transfer.streams import CANNOT, FRAME, LAST, PENDING, decode_ask

FIRST_LINE = re.compile(rb"POST (/v1/(?:chunks|stream)) ")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
PAGE = b"<html><body>You have been logged out. <a href=/login>Log in</a></body></html>"
WAIT_SECONDS = 0.1
"""What is always about to come is said to be so often."""

DRIP_SIZE, DRIP_SECONDS = 20 << 10, 1.0
ENDLESS = 1 << 40


class Piece(NamedTuple):
    """A chunk as it was asked for by index; `data` None: it is not here. `content`: what is sent before the bytes of
    one that was asked for by an origin key."""

    asked: int
    data: bytes | None
    content: bytes = b""


class Caller(NamedTuple):
    """A connection on which chunks are asked for."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def drip(self, data: bytes) -> None:
        for at in range(0, len(data), DRIP_SIZE):
            await self.write(data[at : at + DRIP_SIZE])
            await asyncio.sleep(DRIP_SECONDS)


class LyingDoor:
    """What is no question for chunks goes through it to the real server."""

    def __init__(self, service: PeerService, limits: Limits, security: Security, lie: Path) -> None:
        self._service = service
        self._inner = make_server(service, limits=limits, security=security)
        self._lie = lie
        self._inner_port = 0
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket) -> None:
        self._inner_port = await self._inner.start("127.0.0.1", 0)
        self._server = await asyncio.start_server(self._visited, sock=listener)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for visit in self._visits:
            visit.cancel()
        await self._inner.stop()

    async def _visited(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = asyncio.current_task()
        assert visit is not None
        self._visits.add(visit)
        try:
            with suppress(OSError, EOFError, asyncio.CancelledError):
                await self._talk(Caller(reader, writer))
        finally:
            self._visits.discard(visit)
            writer.close()

    async def _talk(self, caller: Caller) -> None:
        """All requests of one connection; a node does not use one for chunks and for other questions."""
        while True:
            head = await caller.reader.readuntil(b"\r\n\r\n")
            path, length = FIRST_LINE.match(head), LENGTH.search(head)
            if path is None or length is None:
                await self._pass_on(head, caller)
                return
            body = await caller.reader.readexactly(int(length[1]))
            lie = self._lie.read_text() if self._lie.exists() else "honest"
            if path[1] == b"/v1/stream":
                await self._stream(lie, body, caller)
            else:
                await self._chunks(lie, body, caller)

    async def _pass_on(self, head: bytes, caller: Caller) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._inner_port)
        writer.write(head)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pipe(caller.reader, writer))
                group.create_task(_pipe(reader, caller.writer))
        finally:
            writer.close()

    async def _chunks(self, lie: str, body: bytes, caller: Caller) -> None:
        await _say_something_else(lie, caller, HEAD + b"Content-Length: %d\r\n\r\n" % ENDLESS)
        pieces = [_told(lie, piece) for piece in await asyncio.to_thread(self._pieces, body)]
        frames = b"".join(
            b"\xff\xff\xff\xff"
            if piece.data is None
            else len(piece.data).to_bytes(4, "little") + piece.content + piece.data
            for piece in pieces
        )
        whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(frames) + frames
        await _send(lie, whole, caller)

    def _pieces(self, body: bytes) -> list[Piece]:
        ids = [ChunkId(body[at : at + ID_SIZE]) for at in range(0, len(body), ID_SIZE)]
        located = self._service.locate(ids)
        pieces = [
            Piece(at, None) if extent is None else Piece(at, _bytes_of(extent), extent.content)
            for at, extent in enumerate(located)
        ]
        self._service.release([extent for extent in located if extent is not None], 0)
        return pieces

    async def _stream(self, lie: str, body: bytes, caller: Caller) -> None:
        head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
        await _say_something_else(lie, caller, head + b"%x\r\n" % ENDLESS)
        await caller.write(head)
        if lie in {"denies", "pending"}:
            await asyncio.sleep(WAIT_SECONDS)
            await caller.write(_end(FeedEnd(lie == "pending")))
            return
        items = self._fed(body)
        async for item in items:
            if isinstance(item, FeedEnd):
                await caller.write(_end(item))
                return
            piece = _told(lie, item)
            assert piece.data is not None
            frame = FRAME.pack(piece.asked, len(piece.data)) + piece.content + piece.data
            await _send(lie, _http_chunk(frame), caller)

    async def _fed(self, body: bytes) -> AsyncGenerator[Piece | FeedEnd, None]:
        ask, patience = decode_ask(body)
        async for item in self._service.feed(ask, patience):
            if isinstance(item, FeedEnd):
                yield item
                return
            pieces = [
                Piece(fed.asked, fed.data, fed.content)
                if fed.extent is None
                else Piece(fed.asked, _bytes_of(fed.extent), fed.extent.content)
                for fed in item
            ]
            self._service.release([fed.extent for fed in item if fed.extent is not None], 0)
            for piece in pieces:
                yield piece


async def _say_something_else(lie: str, caller: Caller, endless_head: bytes) -> None:
    """The lies that have nothing to do with what was asked for; these do not return."""
    if lie == "silent":
        await caller.reader.read()
        raise EOFError
    if lie == "html":
        page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%b" % (len(PAGE), PAGE)
        await caller.write(page)
        raise EOFError
    if lie == "endless":
        await caller.write(endless_head)
        while True:
            await caller.write(bytes(1 << 16))


def _told(lie: str, piece: Piece) -> Piece:
    if lie in {"denies", "pending"} or piece.data is None:
        return Piece(piece.asked, None)
    if lie == "forged" and not piece.content:
        return piece
    if lie in {"wrong", "forged"}:
        other = bytes([piece.data[0] ^ 1]) + piece.data[1:]
        return piece._replace(data=other, content=chunk_id(other) if lie == "forged" else piece.content)
    return piece._replace(data=piece.data[:-1] if lie == "cut" else piece.data)


async def _send(lie: str, data: bytes, caller: Caller) -> None:
    if lie == "short":
        await caller.write(data[: len(data) // 2])
        raise EOFError
    await (caller.drip(data) if lie == "drip" else caller.write(data))


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _end(end: FeedEnd) -> bytes:
    last = FRAME.pack(LAST, PENDING if end.pending else CANNOT) + end.reason.encode()
    return _http_chunk(last) + b"0\r\n\r\n"


def _bytes_of(extent: SendExtent) -> bytes:
    return os.pread(extent.fd, extent.length, extent.offset)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    told, lie = json.loads(sys.argv[1]), Path(sys.argv[2])
    told["data_dir"] = Path(told["data_dir"])

    def make_door(service: PeerService, *, limits: Limits, security: Security) -> LyingDoor:
        return LyingDoor(service, limits, security, lie)

    try:
        return run_node(NodeSettings(**told), Report(), make_door)
    except HoardError as error:
        logging.error("%s", error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
