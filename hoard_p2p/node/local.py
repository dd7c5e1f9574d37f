"""The node's side of its unix socket: accepts local clients, runs their operations, cancels them when they leave.

Knows framing and tasks; what the operations do is handed in (`node.operations`).
"""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hoard_p2p.config import Json
from hoard_p2p.errors import HoardError
from hoard_p2p.node import framing
from hoard_p2p.node.descriptors import explained, no_files_left

log = logging.getLogger(__name__)

Body = dict[str, Json]

ACCEPT_PAUSE = 0.5
BEAT_SECONDS = 5.0
"""A client that asked for it hears this often that its operation goes on, so that it can tell work from a hang."""


@dataclass(frozen=True, slots=True)
class LocalReply:
    """The end of an operation. `fds` are closed after sending."""

    body: Body = field(default_factory=dict)
    fds: tuple[int, ...] = ()


@dataclass(slots=True)
class LocalRequest:
    """One operation of one client.

    What is in `fds` after the handler has ended, or was cancelled, is closed. A thread may outlive its handler: what it
    uses has to be taken out before it starts.
    """

    op: str
    args: Body
    fds: list[int]
    pid: int
    report: Callable[[Body], Awaitable[None]]
    stay: ExitStack = field(default_factory=ExitStack)
    """What is entered here ends with the client's connection."""


Handler = Callable[[LocalRequest], Awaitable[LocalReply]]


def _hang_up(client: socket.socket, _: object) -> None:
    client.close()


async def _ready(sock: socket.socket, *, writing: bool) -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)

    def wake() -> None:
        if not done.done():
            done.set_result(None)

    add(sock, wake)
    try:
        await done
    finally:
        remove(sock)


class Connection:
    """One client: a reader that starts a task per request, and a lock that keeps its answers whole."""

    def __init__(self, sock: socket.socket, handler: Handler, *, beat: float = BEAT_SECONDS) -> None:
        self._sock = sock
        self._handler = handler
        self._beat = beat
        self._sending = asyncio.Lock()
        self._pid = framing.peer_pid(sock)
        self._stay = ExitStack()

    async def serve(self) -> None:
        """Until the client leaves; then what it still waits for is cancelled."""
        tasks: set[asyncio.Task[None]] = set()
        try:
            async with asyncio.TaskGroup() as group:
                try:
                    while (message := await self._receive()) is not None:
                        task = group.create_task(self._run(message))
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)
                finally:
                    for task in tasks:
                        task.cancel()
        finally:
            self._stay.close()
            self._sock.close()

    async def _receive(self) -> framing.Message | None:
        while True:
            try:
                return framing.receive(self._sock)
            except BlockingIOError:
                await _ready(self._sock, writing=False)
            except (HoardError, OSError) as error:
                log.warning("a local client was cut off: %s", error)
                return None

    async def _send(self, body: Body, fds: Sequence[int] = ()) -> None:
        async with self._sending:
            while True:
                try:
                    framing.send(self._sock, body, fds)
                except BlockingIOError:
                    await _ready(self._sock, writing=True)
                except OSError:
                    return  # the client left; the reader notices and cancels
                else:
                    return

    async def _run(self, message: framing.Message) -> None:
        seq = message.body.get("seq", 0)
        args = message.body.get("args")

        async def report(body: Body) -> None:
            await self._send({"seq": seq, "progress": body})

        request = LocalRequest(
            op=str(message.body.get("op")),
            args=args if isinstance(args, dict) else {},
            fds=list(message.fds),
            pid=self._pid,
            report=report,
            stay=self._stay,
        )
        try:
            if message.cut:
                reply: LocalReply | HoardError = no_files_left(request.op)
            elif message.body.get("heartbeat") is True:
                reply = await self._answer_beating(request, seq)
            else:
                reply = await self._answer(request)
        finally:
            for fd in request.fds:
                os.close(fd)
        if isinstance(reply, HoardError):
            await self._send({"seq": seq, **framing.error_body(reply)})
            return
        try:
            await self._send({"seq": seq, "result": reply.body}, reply.fds)
        finally:
            for fd in reply.fds:
                os.close(fd)

    async def _answer_beating(self, request: LocalRequest, seq: Json) -> LocalReply | HoardError:
        async def beat() -> None:
            while True:
                await asyncio.sleep(self._beat)
                await self._send({"seq": seq, "alive": True})

        async with asyncio.TaskGroup() as group:
            beats = group.create_task(beat())
            try:
                return await self._answer(request)
            finally:
                beats.cancel()

    async def _answer(self, request: LocalRequest) -> LocalReply | HoardError:
        try:
            return await self._handler(request)
        except HoardError as error:
            return error
        except Exception as error:
            if (known := explained(error, request.op)) is not None:
                log.warning("%s", known)
                return known
            log.exception("operation %s failed", request.op)
            return HoardError(f"internal error in {request.op}: {error!r}; the node's log has the details")


class LocalServer:
    """Listens on the data directory's socket from construction on; `run` serves until it is cancelled."""

    def __init__(self, data_dir: Path, handler: Handler, *, beat: float = BEAT_SECONDS) -> None:
        self._path = data_dir / framing.SOCKET_NAME
        self._sock = framing.listen(data_dir)
        self._file = self._file_there()
        self._handler = handler
        self._beat = beat

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    try:
                        client, _ = self._sock.accept()  # not the loop's: a cancelled one may lose its socket
                        client.setblocking(False)
                    except BlockingIOError:
                        await _ready(self._sock, writing=False)
                        continue
                    except OSError as error:  # out of descriptors, most likely: wait until some are given back
                        log.warning("a local client could not be accepted: %s", error)
                        await asyncio.sleep(ACCEPT_PAUSE)
                        continue
                    serving = group.create_task(Connection(client, self._handler, beat=self._beat).serve())
                    serving.add_done_callback(partial(_hang_up, client))  # also if it never began
        finally:
            # Before closing: the open socket keeps its inode, so that no other file can have the same number.
            if self._file_there() == self._file:  # else the directory was replaced, and another node listens there
                self._path.unlink(missing_ok=True)
            self._sock.close()

    def _file_there(self) -> tuple[int, int] | None:
        with suppress(OSError):
            status = self._path.lstat()
            return status.st_dev, status.st_ino
        return None
