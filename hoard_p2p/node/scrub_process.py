"""The node's side of a scrub process: starts it, hands on what it tells, ends it."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from hoard_p2p.config import Json
from hoard_p2p.errors import StoreFailed
from hoard_p2p.ids import ChunkId
from hoard_p2p.node import framing
from hoard_p2p.node.scrub_wire import Order

Body = dict[str, Json]
EXIT_SECONDS = 10.0


async def carry_out(data_dir: Path, order: Order, ids: Iterable[ChunkId] | None = None) -> AsyncGenerator[Body, None]:
    """What the process tells of an order, message by message (`scrub_main`). Closing it kills the process. Raises what
    the process failed with."""
    async with _process(data_dir) as sock:
        _send_order(sock, order, ids)
        while (message := await _receive(sock)) is not None:
            message.close()
            framing.raise_error(message.body)
            if message.body.get("end") is True:
                return
            yield message.body
    raise StoreFailed("the scrub process ended before its work was done; the node's log has the details")


@asynccontextmanager
async def _process(data_dir: Path) -> AsyncIterator[socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    argv = [sys.executable, "-m", "hoard_p2p.node.scrub_main", os.fspath(data_dir), str(theirs.fileno())]
    try:
        ours.setblocking(False)
        process = await asyncio.create_subprocess_exec(
            *argv, pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL
        )
        theirs.close()
        try:
            yield ours
            async with asyncio.timeout(EXIT_SECONDS):
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    finally:
        theirs.close()
        ours.close()


def _send_order(sock: socket.socket, order: Order, ids: Iterable[ChunkId] | None) -> None:
    if ids is None:
        framing.send(sock, order.encode())
        return
    listed = framing.memfd_of(b"".join(ids))
    try:
        framing.send(sock, order.encode(), (listed,))
    finally:
        os.close(listed)


async def _receive(sock: socket.socket) -> framing.Message | None:
    while True:
        try:
            return framing.receive(sock)
        except ConnectionResetError:
            return None
        except BlockingIOError:
            await _readable(sock)


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not done.done():
            done.set_result(None)

    loop.add_reader(sock, wake)
    try:
        await done
    finally:
        loop.remove_reader(sock)
