"""The node's side of an ingest process: starts it, makes slabs for it, commits what it wrote, passes on its progress.

The process (`node.ingest_main`) walks and reads the source and writes bytes; only the node writes the index.
"""

import asyncio
import base64
import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest, HoardError, StoreFailed, from_wire
from hoard_p2p.interfaces import SlabBroker, SlabHandle, SlabKind
from hoard_p2p.node import framing
from hoard_p2p.node.ingest_wire import decode_extents
from hoard_p2p.node.local import Connection, LocalReply, LocalRequest

log = logging.getLogger(__name__)

Body = dict[str, Json]
EXIT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Ingested:
    """What an ingest process ended with: the encoded root, and figures and lists for the user."""

    root: bytes
    summary: Body


class _Session:
    """The operations that one ingest process may ask for."""

    def __init__(self, broker: SlabBroker, executor: Executor, report: Callable[[Body], Awaitable[None]]) -> None:
        self._broker = broker
        self._executor = executor
        self._report = report
        self.outcome: Ingested | HoardError | None = None

    async def handle(self, request: LocalRequest) -> LocalReply:
        match request.op:
            case "new_slab":
                return await self._slab(self._new_slab, request)
            case "resume_slab":
                return await self._slab(self._resume_slab, request)
            case "commit":
                await self._blocking(self._commit, request)
            case "complete_file":
                await self._blocking(self._complete, request)
            case "progress":
                await self._report(request.args)
            case "finished":
                root = base64.b64decode(str(request.args["root"]))
                summary = request.args["summary"]
                self.outcome = Ingested(root, summary if isinstance(summary, dict) else {})
            case "failed":
                self.outcome = from_wire(str(request.args["error"]), str(request.args["message"]))
            case _:
                raise BadRequest(f"an ingest process asked for {request.op!r}")
        return LocalReply()

    async def _slab(self, make: Callable[[LocalRequest], SlabHandle], request: LocalRequest) -> LocalReply:
        handle = await asyncio.get_running_loop().run_in_executor(self._executor, make, request)
        return LocalReply({"slab": handle.slab, "size": handle.size}, (handle.data_fd, handle.sidecar_fd))

    def _new_slab(self, request: LocalRequest) -> SlabHandle:
        return self._broker.new_slab(SlabKind(request.args["kind"]), _number(request.args["size"]))

    def _resume_slab(self, request: LocalRequest) -> SlabHandle:
        return self._broker.resume_slab(bytes.fromhex(str(request.args["key"])), _number(request.args["size"]))

    async def _blocking(self, work: Callable[[LocalRequest], None], request: LocalRequest) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, work, request)

    def _commit(self, request: LocalRequest) -> None:
        self._broker.commit(decode_extents(framing.memfd_bytes(request.fds[0])))

    def _complete(self, request: LocalRequest) -> None:
        key, slab = bytes.fromhex(str(request.args["key"])), _number(request.args["slab"])
        self._broker.complete_file(key, slab, request.args["complete"] is True)


def _number(value: Json) -> int:
    if not isinstance(value, int):
        raise BadRequest(f"{value!r} is no number")
    return value


async def ingest(
    dir_fd: int,
    options: Body,
    *,
    data_dir: Path,
    broker: SlabBroker,
    executor: Executor,
    report: Callable[[Body], Awaitable[None]],
) -> Ingested:
    """Run an ingest process over the open directory `dir_fd` to its end. Cancelling kills the process; what it wrote
    stays unreferenced. Raises what the process failed with."""
    scratch_root = data_dir / "tmp"
    scratch_root.mkdir(mode=0o700, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="ingest-", dir=scratch_root))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    session = _Session(broker, executor, report)
    try:
        ours.setblocking(False)
        argv = _argv(data_dir, scratch, dir_fd, theirs.fileno())
        process = await asyncio.create_subprocess_exec(
            *argv, pass_fds=(dir_fd, theirs.fileno()), stdin=asyncio.subprocess.DEVNULL
        )
        theirs.close()
        await _converse(process, ours, session, options)
    finally:
        theirs.close()
        ours.close()
        shutil.rmtree(scratch, ignore_errors=True)
    if isinstance(session.outcome, Ingested):
        return session.outcome
    if session.outcome is not None:
        raise session.outcome
    raise StoreFailed(f"the ingest process ended with status {process.returncode}; the node's log has the details")


def _argv(data_dir: Path, scratch: Path, dir_fd: int, sock_fd: int) -> list[str]:
    return [
        sys.executable, "-m", "hoard_p2p.node.ingest_main",
        os.fspath(data_dir), os.fspath(scratch), str(dir_fd), str(sock_fd),
    ]  # fmt: skip


async def _converse(process: asyncio.subprocess.Process, ours: socket.socket, session: _Session, options: Body) -> None:
    try:
        framing.send(ours, options)
        await Connection(ours, session.handle).serve()
        async with asyncio.timeout(EXIT_SECONDS):
            await process.wait()
    except TimeoutError:
        log.warning("ingest process %d did not end by itself", process.pid)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
