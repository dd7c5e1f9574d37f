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
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path

from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest, HoardError, StoreFailed, from_wire
from hoard_p2p.interfaces import SlabBroker, SlabHandle, SlabKind
from hoard_p2p.node import framing
from hoard_p2p.node.blocking import in_executor
from hoard_p2p.node.ingest_wire import decode_extents
from hoard_p2p.node.local import Connection, LocalReply, LocalRequest
from hoard_p2p.storage.allowance import Loan
from hoard_p2p.storage.claims import Claims
from hoard_p2p.storage.failures import store_failure

log = logging.getLogger(__name__)

Body = dict[str, Json]
Fits = Callable[[int], None]
"""Could so many new bytes be stored? Blocking. Raises StoreFull."""

EXIT_SECONDS = 10.0
MAX_WORKERS = 8
"""Processes that read and store beside the one that walks and builds the catalog: it can feed no more."""
SCRATCH = "tmp"
PREFIX = "ingest-"


@dataclass(frozen=True, slots=True)
class Ingested:
    """What an ingest process ended with: the encoded root, and figures and lists for the user."""

    root: bytes
    summary: Body


class Session:
    """The operations that one ingest process may ask for."""

    def __init__(
        self, broker: SlabBroker, executor: Executor, report: Callable[[Body], Awaitable[None]], fits: Fits
    ) -> None:
        self._broker = broker
        self.executor = executor
        self._report = report
        self.outcome: Ingested | HoardError | None = None
        self.loan = Loan(broker)
        self._fits = fits

    async def handle(self, request: LocalRequest) -> LocalReply:
        match request.op:
            case "new_slab":
                return await self._slab(self._new_slab, request)
            case "resume_slab":
                return await self._slab(self._resume_slab, request)
            case "commit":
                await self._commit(request)
            case "grant" | "give_back" | "could_fit":
                await asyncio.wrap_future(self.executor.submit(self._room, request))
            case "complete_file":
                await asyncio.wrap_future(self.executor.submit(self._complete, request))
            case "progress":
                await self._report(request.args)
            case "finished" | "failed":
                self.outcome = _outcome(request)
            case _:
                raise BadRequest(f"an ingest process asked for {request.op!r}")
        return LocalReply()

    async def _slab(self, make: Callable[[LocalRequest], SlabHandle], request: LocalRequest) -> LocalReply:
        making = self.executor.submit(make, request)
        try:
            handle = await asyncio.wrap_future(making)
        except asyncio.CancelledError:
            making.add_done_callback(_close_slab)  # the thread goes on, and nobody takes what it makes
            raise
        return LocalReply({"slab": handle.slab, "size": handle.size}, (handle.data_fd, handle.sidecar_fd))

    def _new_slab(self, request: LocalRequest) -> SlabHandle:
        return self._broker.new_slab(SlabKind(request.args["kind"]), _number(request.args["size"]))

    def _resume_slab(self, request: LocalRequest) -> SlabHandle:
        return self._broker.resume_slab(bytes.fromhex(str(request.args["key"])), _number(request.args["size"]))

    def _room(self, request: LocalRequest) -> None:
        size = _number(request.args["size"])
        if request.op == "could_fit":
            self._fits(size)
        elif request.op == "grant":
            self.loan.grant(size)
        else:
            self.loan.give_back(size, _number(request.args["taken"]))

    async def _commit(self, request: LocalRequest) -> None:
        if not request.fds:
            raise BadRequest("a commit came without its extents")
        spill = request.fds.pop(0)  # the thread's from here on: it may outlive the request
        try:
            committing = self.executor.submit(self._commit_extents, spill)
        except BaseException:
            os.close(spill)
            raise
        committing.add_done_callback(lambda _: os.close(spill))
        await asyncio.wrap_future(committing)

    def _commit_extents(self, spill: int) -> None:
        self._broker.commit(decode_extents(framing.memfd_bytes(spill)))

    def _complete(self, request: LocalRequest) -> None:
        key, slab = bytes.fromhex(str(request.args["key"])), _number(request.args["slab"])
        self._broker.complete_file(key, slab, request.args["complete"] is True)


def _outcome(request: LocalRequest) -> Ingested | HoardError:
    if request.op == "failed":
        return from_wire(str(request.args["error"]), str(request.args["message"]))
    summary = request.args["summary"]
    return Ingested(base64.b64decode(str(request.args["root"])), summary if isinstance(summary, dict) else {})


def _close_slab(making: Future[SlabHandle]) -> None:
    if not making.cancelled() and making.exception() is None:
        handle = making.result()
        os.close(handle.data_fd)
        os.close(handle.sidecar_fd)


def _number(value: Json) -> int:
    if not isinstance(value, int):
        raise BadRequest(f"{value!r} is no number")
    return value


def sweep(data_dir: Path) -> None:
    """Remove what ingests of a node left that was killed. For the holder of the node lock, before its first ingest."""
    for scratch in (data_dir / SCRATCH).glob(f"{PREFIX}*"):
        shutil.rmtree(scratch, ignore_errors=True)


async def ingest(
    dir_fd: int,
    options: Body,
    *,
    data_dir: Path,
    broker: SlabBroker,
    claims: Claims,
    executor: Executor,
    report: Callable[[Body], Awaitable[None]],
    fits: Fits,
    memory: Sequence[int] = (),
) -> Ingested:
    """Run an ingest process over the open directory `dir_fd` to its end. Cancelling kills the process; what it wrote
    stays unreferenced. What it relies on is marked in `claims`, which the caller holds until the snapshot itself is
    known to be in use. `fits` is asked in a thread of `executor`. `memory`: see `ingest_memory`. Raises what the
    process failed with."""
    session = Session(broker, executor, report, fits)
    process = Process("hoard_p2p.node.ingest_main", (str(dir_fd),), (dir_fd,), lines=1 + _workers())
    return await run(process, session, options, data_dir=data_dir, claims=claims, fds=memory)


@dataclass(frozen=True, slots=True)
class Process:
    """An ingest process to be: its module, arguments before the descriptors of claims and lines, what it inherits, and
    how many lines to the node it has."""

    module: str
    arguments: tuple[str, ...] = ()
    inherited: tuple[int, ...] = ()
    lines: int = 1


async def run(
    kind: Process, session: Session, options: Body, *, data_dir: Path, claims: Claims, fds: Sequence[int]
) -> Ingested:
    """Run an ingest process to its end; `options` and `fds` are its first message. Cancelling kills it. Raises what it
    failed with."""
    scratch = await in_executor(session.executor, make_scratch, data_dir)
    lines = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(kind.lines)]
    try:
        theirs = [line.fileno() for _, line in lines]
        argv = _argv(kind, data_dir, scratch, claims.fd, theirs)
        process = await asyncio.create_subprocess_exec(
            *argv, pass_fds=(*kind.inherited, claims.fd, *theirs), stdin=asyncio.subprocess.DEVNULL
        )
        for _, line in lines:
            line.close()
        await _converse(process, [ours for ours, _ in lines], session, options, fds)
    finally:
        session.loan.close()
        for ours, line in lines:
            line.close()
            ours.close()
        shutil.rmtree(scratch, ignore_errors=True)
    if isinstance(session.outcome, Ingested):
        return session.outcome
    if session.outcome is not None:
        raise session.outcome
    raise StoreFailed(f"the ingest process ended with status {process.returncode}; the node's log has the details")


def _workers() -> int:
    return min(len(os.sched_getaffinity(0)), MAX_WORKERS)


def make_scratch(data_dir: Path) -> Path:
    """A fresh folder for the temporary files of one ingest. Raises StoreFailed."""
    root = data_dir / SCRATCH
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
    except OSError as error:
        raise store_failure(f"no room for temporary files in {root}", error) from error


def _argv(kind: Process, data_dir: Path, scratch: Path, claims_fd: int, lines: Sequence[int]) -> list[str]:
    return [
        sys.executable, "-m", kind.module,
        os.fspath(data_dir), os.fspath(scratch), *kind.arguments, str(claims_fd), *map(str, lines),
    ]  # fmt: skip


async def _converse(
    process: asyncio.subprocess.Process,
    lines: Sequence[socket.socket],
    session: Session,
    options: Body,
    memory: Sequence[int],
) -> None:
    """Serve the process on the first line, and its workers on the others, until it ends."""
    try:
        for line in lines:
            line.setblocking(False)
        framing.send(lines[0], options, memory)
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(Connection(line, session.handle).serve()) for line in lines[1:]]
            await Connection(lines[0], session.handle).serve()
            for worker in workers:  # they ended before their leader did, or die with it
                worker.cancel()
        async with asyncio.timeout(EXIT_SECONDS):
            await process.wait()
    except TimeoutError:
        log.warning("ingest process %d did not end by itself", process.pid)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
