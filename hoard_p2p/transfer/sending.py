"""Sending chunks: how the body of a response gets from slabs to a socket without passing through Python.

The bytes are moved by threads, not by the event loop: `sendfile` of data that is not in the page cache waits for the
disk, and would make the loop wait with it. A thread works on a socket only while it accepts bytes; waiting for a slow
receiver costs no thread.
"""

import asyncio
import logging
import os
import select
import socket
import struct
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TypeAlias, TypeVar

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from hoard_p2p.errors import Corrupt
from hoard_p2p.transfer.pace import LONGEST_TURN, Pace
from hoard_p2p.transfer.service import Located, SendExtent
from hoard_p2p.transfer.sessions_server import Marked
from hoard_p2p.transfer.wire import FRAME_MISSING

log = logging.getLogger(__name__)

T = TypeVar("T")
Prove: TypeAlias = "Callable[[int, bytes], bytes]"
"""What proves a content id, by which of the ids or runs asked for it belongs to (`sessions.Admitted.prove`)."""

SMALL = 64 << 10
"""Frames below it are read and sent together: a system call or two each is dearer than the copy."""
BATCH = 1 << 20
"""Small frames are gathered up to about this many bytes."""
PIECE = 256 << 10
"""Bytes that an encrypted connection is given at a time."""
LINGER_MS = 5
"""How long a thread waits for a full socket before it goes back to the pool."""
LEAST_PROGRESS = 64 << 10
"""A receiver that takes less in the stall time is given up."""


class Turn(Enum):
    """Why `Sending.advance` returned."""

    DONE = "done"
    BLOCKED = "blocked"
    MORE = "more"


class Sending:
    """A sequence of frames on its way to one socket: for each chunk a head, and behind it the bytes of its extent.

    `head(i)` is what goes before `extents[i]`; an extent may be None, where the head is all there is. `size`: bytes of
    all of it. Used by one thread at a time.
    """

    def __init__(self, extents: Located, head: Callable[[int], bytes], size: int) -> None:
        self._extents = extents
        self._head = head
        self._next = 0
        self._pending = memoryview(b"")
        self._file = SendExtent(-1, 0, 0)
        self._gathered = 0
        self._ends: list[int] = []
        """Where each extent taken so far ends in the sequence."""
        self.sent = 0
        self.size = size

    def advance(self, to: socket.socket, most: int = LONGEST_TURN) -> Turn:
        """Send until the socket is full, `most` bytes went out, or everything is sent. Raises OSError, and Corrupt if a
        slab ends before its extent."""
        limit = self.sent + most
        while self.sent < limit:
            if not self._pending and not self._file.length and not self._gather():
                return Turn.DONE
            try:
                self._send_some(to, limit - self.sent)
            except BlockingIOError:
                if not _is_writable(to, LINGER_MS):
                    return Turn.BLOCKED
        return Turn.MORE

    def whole(self) -> int:
        """How many extents were given to the socket to their last byte."""
        return bisect_right(self._ends, self.sent)

    def take(self, most: int) -> bytes:
        """The next bytes, for a connection that is encrypted: they have to pass through this process. Empty at the end.
        Raises Corrupt."""
        if not self._pending and not self._file.length and not self._gather():
            return b""
        if self._pending:
            data, self._pending = bytes(self._pending[:most]), self._pending[most:]
        else:
            fd, offset, length, _ = self._file
            data = _read(SendExtent(fd, offset, min(length, most)))
            self._file = SendExtent(fd, offset + len(data), length - len(data))
        self.sent += len(data)
        return data

    def _send_some(self, to: socket.socket, most: int) -> None:
        if self._pending:
            more = socket.MSG_MORE if self._file.length else 0
            count = to.send(self._pending[:most], more)
            self._pending = self._pending[count:]
        else:
            fd, offset, length, _ = self._file
            count = os.sendfile(to.fileno(), fd, offset, min(length, most))
            if not count:
                raise Corrupt(f"a slab ends at {offset}, {length} bytes before the end of a chunk in it")
            self._file = SendExtent(fd, offset + count, length - count)
        self.sent += count

    def _gather(self) -> bool:
        """Prepare the next bytes to send: small frames together, up to the header of a large one. False at the end."""
        batch, file_bytes = bytearray(), 0
        while self._next < len(self._extents) and len(batch) < BATCH and not file_bytes:
            extent = self._extents[self._next]
            batch += self._head(self._next)
            self._next += 1
            if extent is None:
                continue
            if extent.length >= SMALL:
                self._file, file_bytes = extent, extent.length
            else:
                batch += _read(extent)
            self._ends.append(self._gathered + len(batch) + file_bytes)
        self._gathered += len(batch) + file_bytes
        self._pending = memoryview(batch)
        return bool(batch) or file_bytes > 0


def chunk_frames(located: Located, heads: Sequence[bytes]) -> Sending:
    """The answer to a request for chunks, in the order asked: what `chunk_heads` says, and the bytes of each."""
    size = sum(map(len, heads)) + sum(extent.length for extent in located if extent is not None)
    return Sending(located, heads.__getitem__, size)


def chunk_heads(located: Located, prove: Prove) -> list[bytes]:
    """What is before the bytes of each chunk: a u32 little-endian length, and for an origin key the content id and what
    proves it. The length `FRAME_MISSING` stands for an absent chunk. The mark of the answer covers them."""
    return [
        FRAME_MISSING.to_bytes(4, "little")
        if extent is None
        else extent.length.to_bytes(4, "little") + named(at, extent.content, prove)
        for at, extent in enumerate(located)
    ]


def named(at: int, content: bytes, prove: Prove) -> bytes:
    """What names a content id before its bytes; nothing for a chunk that was asked for by its id."""
    return content + prove(at, content) if content else b""


def _read(extent: SendExtent) -> bytes:
    data = os.pread(extent.fd, extent.length, extent.offset)
    if len(data) != extent.length:
        raise Corrupt(f"a slab ends at {extent.offset + len(data)}, inside a chunk")
    return data


def _is_writable(to: socket.socket, milliseconds: int) -> bool:
    poll = select.poll()
    poll.register(to, select.POLLOUT)
    return bool(poll.poll(milliseconds))


@dataclass(frozen=True, slots=True)
class Means:
    """What all answers of a server are sent with: threads, a pace, and how long a receiver may take nothing."""

    executor: Executor
    pace: Pace
    stall_time: float


class Body:
    """The body of one response, written straight to its socket, as fast as the pace allows."""

    def __init__(self, to: socket.socket, means: "Means") -> None:
        self._to = to
        self._means = means
        self.sent = 0

    async def write(self, sending: Sending) -> None:
        """Send all of it. Raises OSError (TimeoutError: the receiver takes too little), Corrupt."""
        before = self.sent
        try:
            await self._write(sending)
        finally:
            self.sent = before + sending.sent

    async def _write(self, sending: Sending) -> None:
        loop, stall_time = asyncio.get_running_loop(), self._means.stall_time
        window, sent = loop.time(), 0
        while (turn := await self._turn(sending)) is not Turn.DONE:
            if turn is Turn.BLOCKED:
                async with asyncio.timeout(stall_time):
                    await _writable(self._to)
            if loop.time() - window >= stall_time:
                if sending.sent - sent < LEAST_PROGRESS:
                    raise TimeoutError(f"less than {LEAST_PROGRESS} bytes taken in {stall_time} s")
                window, sent = loop.time(), sending.sent

    async def _turn(self, sending: Sending) -> Turn:
        """Send what the pace allows, as soon as it does."""
        now, before, pace = asyncio.get_running_loop().time(), sending.sent, self._means.pace
        start = pace.reserve(now)
        try:
            if start > now:
                await asyncio.sleep(start - now)
            return await self._send(sending, pace.turn)
        finally:
            pace.used(sending.sent - before)

    async def _send(self, sending: Sending, most: int) -> Turn:
        return await _in_thread(self._means.executor, partial(sending.advance, self._to, most))


class EncryptedBody(Body):
    """The same where the bytes have to be encrypted in between, by the event loop: `sendfile` is lost."""

    def __init__(
        self, to: socket.socket, means: Means, writer: AbstractStreamWriter, transport: asyncio.Transport
    ) -> None:
        super().__init__(to, means)
        self._writer = writer
        self._transport = transport

    async def _send(self, sending: Sending, most: int) -> Turn:
        data = await _in_thread(self._means.executor, partial(sending.take, min(most, PIECE)))
        if not data:
            return Turn.DONE
        if self._transport.is_closing():
            raise ConnectionResetError("the receiver hung up")
        self._transport.write(data)
        async with asyncio.timeout(self._means.stall_time):
            await self._writer.drain()
        return Turn.MORE


async def answer(
    request: web.Request,
    write: Callable[[Body], Awaitable[None]],
    means: Means,
    *,
    length: int | None,
    mark: Callable[[], str] | None = None,
) -> web.StreamResponse:
    """Answer `request` with `length` bytes that `write` writes; None: in chunked transfer coding, all of which is the
    work of `write` but for the last, empty chunk. A body that cannot be completed ends with the connection, so that the
    receiver sees that it is short. `mark` tells the mark of the body, None: its parts prove themselves."""
    response = Marked(mark, "application/octet-stream")
    if length is None:
        response.enable_chunked_encoding()
    else:
        response.content_length = length
    writer = await response.prepare(request)
    transport = request.transport
    if transport is None or writer is None or transport.is_closing():
        return response
    with transport.get_extra_info("socket").dup() as to:
        is_plain = transport.get_extra_info("sslcontext") is None
        body = Body(to, means) if is_plain else EncryptedBody(to, means, writer, transport)
        try:
            await response.write(b"")  # aiohttp keeps the headers back until the first write
            if is_plain:
                async with asyncio.timeout(means.stall_time):
                    await _emptied(transport, to)
            await write(body)
        except Corrupt as error:
            log.error("chunks for %s: %s", request.remote, error)
            _break(transport, to)
        except OSError as error:  # TimeoutError is one
            log.info("chunks for %s: stopped after %d bytes: %r", request.remote, body.sent, error)
            _break(transport, to)
        except BaseException:  # cancelled, or a bug: whatever it is, no other answer may follow on this connection
            _break(transport, to)
            raise
    return response


def _break(transport: asyncio.Transport, to: socket.socket) -> None:
    """End the connection with a reset, so that the kernel drops at once what a stalled receiver left in its buffers."""
    with suppress(OSError):  # it is gone already
        to.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def _emptied(transport: asyncio.Transport, to: socket.socket) -> None:
    """Return when the headers left the transport's buffer, so that the socket can be written to directly."""
    while transport.get_write_buffer_size():
        await _writable(to)  # the transport writes in the same turn of the loop


async def _in_thread(executor: Executor, work: Callable[[], T]) -> T:
    """One turn in a thread. When cancelled it still waits for the thread, which uses the descriptors until then; that
    is short, for nothing in a turn waits for the receiver."""
    turn = asyncio.get_running_loop().run_in_executor(executor, work)
    try:
        return await asyncio.shield(turn)
    except asyncio.CancelledError:
        while not turn.done():
            with suppress(asyncio.CancelledError):  # cancelled once more; the first is raised below
                await asyncio.wait([turn])
        if not turn.cancelled():
            turn.exception()  # seen, so that asyncio does not report it: the receiver hung up, most likely
        raise


async def _writable(to: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(to, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(to)
