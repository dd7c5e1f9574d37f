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
from concurrent.futures import Executor
from contextlib import suppress
from enum import Enum

from aiohttp import web

from hoard_p2p.errors import Corrupt
from hoard_p2p.transfer.service import Located, SendExtent
from hoard_p2p.transfer.sessions import frames_mark
from hoard_p2p.transfer.sessions_server import Marked
from hoard_p2p.transfer.wire import FRAME_MISSING

log = logging.getLogger(__name__)

SMALL = 64 << 10
"""Frames below it are read and sent together: a system call or two each is dearer than the copy."""
BATCH = 1 << 20
"""Small frames are gathered up to about this many bytes."""
PIECE = 256 << 10
"""Bytes that an encrypted connection is given at a time."""
TURN = 16 << 20
"""Bytes that one response sends before others get the thread."""
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
    """The body of one response: the chunks at `extents` as frames, one after the other.

    A frame is a u32 little-endian length and as many bytes; the length `FRAME_MISSING` stands for an absent chunk.
    Used by one thread at a time.
    """

    def __init__(self, extents: Located) -> None:
        self._extents = extents
        self._next = 0
        self._pending = memoryview(b"")
        self._file = SendExtent(-1, 0, 0)
        self.sent = 0
        self.size = 4 * len(extents) + sum(extent.length for extent in extents if extent is not None)

    def advance(self, to: socket.socket) -> Turn:
        """Send until the socket is full, the turn is over, or everything is sent. Raises OSError, and Corrupt if a
        slab ends before its extent."""
        limit = self.sent + TURN
        while self.sent < limit:
            if not self._pending and not self._file.length and not self._gather():
                return Turn.DONE
            try:
                self._send_some(to)
            except BlockingIOError:
                if not _is_writable(to, LINGER_MS):
                    return Turn.BLOCKED
        return Turn.MORE

    def whole(self) -> int:
        """How many chunks were given to the socket to their last byte."""
        count, end = 0, 0
        for extent in self._extents:
            end += 4 + (0 if extent is None else extent.length)
            if end > self.sent:
                break
            count += extent is not None
        return count

    def take(self) -> bytes:
        """The next bytes, for a connection that is encrypted: they have to pass through this process. Empty at the end.
        Raises Corrupt."""
        if not self._pending and not self._file.length and not self._gather():
            return b""
        if self._pending:
            data, self._pending = bytes(self._pending), memoryview(b"")
        else:
            fd, offset, length = self._file
            data = _read(SendExtent(fd, offset, min(length, PIECE)))
            self._file = SendExtent(fd, offset + len(data), length - len(data))
        self.sent += len(data)
        return data

    def mark(self) -> str:
        """Of the whole body, for the proof of its head (`transfer.sessions`)."""
        return frames_mark(FRAME_MISSING if extent is None else extent.length for extent in self._extents)

    def _send_some(self, to: socket.socket) -> None:
        if self._pending:
            more = socket.MSG_MORE if self._file.length else 0
            count = to.send(self._pending, more)
            self._pending = self._pending[count:]
        else:
            fd, offset, length = self._file
            count = os.sendfile(to.fileno(), fd, offset, length)
            if not count:
                raise Corrupt(f"a slab ends at {offset}, {length} bytes before the end of a chunk in it")
            self._file = SendExtent(fd, offset + count, length - count)
        self.sent += count

    def _gather(self) -> bool:
        """Prepare the next bytes to send: small frames together, up to the header of a large one. False at the end."""
        batch = bytearray()
        while self._next < len(self._extents) and len(batch) < BATCH:
            extent = self._extents[self._next]
            self._next += 1
            batch += (FRAME_MISSING if extent is None else extent.length).to_bytes(4, "little")
            if extent is None:
                continue
            if extent.length >= SMALL:
                self._file = extent
                break
            batch += _read(extent)
        self._pending = memoryview(batch)
        return bool(batch) or self._file.length > 0


def _read(extent: SendExtent) -> bytes:
    data = os.pread(extent.fd, extent.length, extent.offset)
    if len(data) != extent.length:
        raise Corrupt(f"a slab ends at {extent.offset + len(data)}, inside a chunk")
    return data


def _is_writable(to: socket.socket, milliseconds: int) -> bool:
    poll = select.poll()
    poll.register(to, select.POLLOUT)
    return bool(poll.poll(milliseconds))


async def send(request: web.Request, sending: Sending, executor: Executor, *, stall_time: float) -> web.StreamResponse:
    """Answer `request` with the body. A body that cannot be completed ends with the connection, so that the receiver
    sees it is short."""
    response = Marked(sending.mark, "application/octet-stream")
    response.content_length = sending.size
    await response.prepare(request)
    transport = request.transport
    if transport is None or request.method == "HEAD":
        return response
    try:
        await response.write(b"")  # aiohttp keeps the headers back until the first write
        if transport.get_extra_info("sslcontext") is None:
            await _send_all(transport, sending, executor, stall_time)
        else:
            await _send_encrypted(response, sending, executor, stall_time)
    except Corrupt as error:
        log.error("chunks for %s: %s", request.remote, error)
        _break(transport)
    except OSError as error:  # TimeoutError is one
        log.info("chunks for %s: stopped after %d of %d bytes: %r", request.remote, sending.sent, sending.size, error)
        _break(transport)
    except BaseException:  # cancelled, or a bug: whatever it is, no other answer may follow on this connection
        _break(transport)
        raise
    return response


async def _send_encrypted(
    response: web.StreamResponse, sending: Sending, executor: Executor, stall_time: float
) -> None:
    loop = asyncio.get_running_loop()
    while data := await loop.run_in_executor(executor, sending.take):
        async with asyncio.timeout(stall_time):
            await response.write(data)


def _break(transport: asyncio.Transport) -> None:
    """End the connection with a reset, so that the kernel drops at once what a stalled receiver left in its buffers."""
    with suppress(OSError):  # it is gone already
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def _send_all(transport: asyncio.Transport, sending: Sending, executor: Executor, stall_time: float) -> None:
    loop = asyncio.get_running_loop()
    window, sent = loop.time(), 0
    with transport.get_extra_info("socket").dup() as to:
        async with asyncio.timeout(stall_time):
            await _emptied(transport, to)
        while True:
            turn = await _in_thread(executor, sending, to)
            if turn is Turn.DONE:
                return
            if turn is Turn.BLOCKED:
                async with asyncio.timeout(stall_time):
                    await _writable(to)
            if loop.time() - window >= stall_time:
                if sending.sent - sent < LEAST_PROGRESS:
                    raise TimeoutError(f"less than {LEAST_PROGRESS} bytes taken in {stall_time} s")
                window, sent = loop.time(), sending.sent


async def _emptied(transport: asyncio.Transport, to: socket.socket) -> None:
    """Return when the headers left the transport's buffer, so that the socket can be written to directly."""
    while transport.get_write_buffer_size():
        await _writable(to)  # the transport writes in the same turn of the loop


async def _in_thread(executor: Executor, sending: Sending, to: socket.socket) -> Turn:
    """One turn in a thread. When cancelled it still waits for the thread, which uses the descriptors until then; that
    is short, for nothing in a turn waits for the receiver."""
    turn = asyncio.get_running_loop().run_in_executor(executor, sending.advance, to)
    try:
        return await asyncio.shield(turn)
    except asyncio.CancelledError:
        while not turn.done():
            with suppress(asyncio.CancelledError):  # cancelled once more; the first is raised below
                await asyncio.wait([turn])
        raise


async def _writable(to: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(to, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(to)
