"""Starting and stopping a node: in the foreground, or detached."""

import asyncio
import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Protocol

from hoard_p2p.config import LEAST_CAPACITY, NodeSettings, parse_floor
from hoard_p2p.errors import DeadlineExceeded, HoardError
from hoard_p2p.node import ingest, operations, room_operations
from hoard_p2p.node.app import Node
from hoard_p2p.node.background import START_SECONDS, Report, wait_for_report
from hoard_p2p.node.descriptors import NODE_FILES, allow_files
from hoard_p2p.node.local import LocalServer
from hoard_p2p.node.parts import NodeParts
from hoard_p2p.node.rack import with_rack
from hoard_p2p.node.scrubbing import set_days
from hoard_p2p.node.securing import security_of
from hoard_p2p.node.service import NodeService
from hoard_p2p.peer import is_loopback
from hoard_p2p.storage.failures import store_failure
from hoard_p2p.storage.layout import DataDir
from hoard_p2p.storage.room import default_capacity, disk_of
from hoard_p2p.storage.store import Store
from hoard_p2p.transfer.control import PeerControl
from hoard_p2p.transfer.keys import Security
from hoard_p2p.transfer.server import Limits, bind, make_server
from hoard_p2p.transfer.service import PeerService

log = logging.getLogger(__name__)

LOG_LIMIT = 16 << 20
"""Bytes after which a detached node's log is put aside when the next one starts."""

PIPE_SIZE = 64 << 10
GOODBYE_SECONDS = 2.0
WATCH_SECONDS = 2.0


class Door(Protocol):
    """What peers come to."""

    async def serve(self, listener: socket.socket) -> None:
        """Answer on a bound socket, and take it."""
        ...

    async def stop(self) -> None:
        """Let nobody in any more. Idempotent."""
        ...


class MakeDoor(Protocol):
    def __call__(self, service: PeerService, *, limits: Limits, security: Security) -> Door: ...


class _Stop(Exception):
    """Somebody asked the node to stop."""


def run_node(settings: NodeSettings, report: Report, make_door: MakeDoor = make_server) -> int:
    """Run a node until SIGINT, SIGTERM or `hoard down`; 0 then.

    `report` is told once the node answers; peers come to the door that `make_door` makes. Raises NodeRunning,
    StoreFailed, BadRequest, Refused if it may open too few files, and HoardError if the address is taken.
    """
    allow_files(NODE_FILES, "a node")
    settings = with_rack(settings)
    with Store.open(settings.data_dir) as store:
        _set_capacity(store, settings)
        set_days(store, settings.scrub_days)
        ingest.sweep(settings.data_dir)
        try:
            asyncio.run(_serve(settings, store, report, make_door))
        except ExceptionGroup as group:
            raise _reason(group) from group
    return 0


def _reason(group: ExceptionGroup[Exception]) -> Exception:
    """What a user should be told of everything that a TaskGroup failed with."""
    expected = group.subgroup(HoardError)
    while expected is not None and isinstance(expected.exceptions[0], ExceptionGroup):
        expected = expected.exceptions[0]
    return expected.exceptions[0] if expected is not None else group


def _set_capacity(store: Store, settings: NodeSettings) -> None:
    if settings.floor:
        store.set_floor(parse_floor(settings.floor))
    if settings.capacity is not None:
        store.set_capacity(settings.capacity)
    elif store.capacity() is None:
        disk = disk_of(settings.data_dir)
        share = default_capacity(disk, store.floor().of(disk.size))
        store.set_capacity(max(share, LEAST_CAPACITY))


async def _serve(settings: NodeSettings, store: Store, report: Report, make_door: MakeDoor) -> None:
    stop = asyncio.Event()
    security = security_of(settings, store.node_id)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        listener = bind(settings.host, settings.port)
    except OSError as error:
        raise HoardError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}") from error
    node: Node | None = None
    try:
        async with PeerControl(security) as control, asyncio.TaskGroup() as group:
            node = Node(NodeParts(settings, store, control, group, stop, security=security), listener.getsockname()[1])
            limits = Limits(send_rate=settings.peer_limit)
            server = make_door(NodeService(node), limits=limits, security=security)
            await _run(node, server, listener, report)
    except* _Stop:
        log.info("the node stops")
    finally:
        listener.close()
        if node is not None:
            node.mounts.close()
            await asyncio.to_thread(node.close)
    if node is not None and node.failed:
        raise HoardError(f"the node stopped: {node.failed}")


async def _run(node: Node, server: Door, listener: socket.socket, report: Report) -> None:
    local = LocalServer(node.settings.data_dir, partial(operations.handle, node))
    await server.serve(listener)
    try:
        for work in (
            local.run,
            node.agent.run,
            node.gossip.run,
            node.naming.run,
            node.known_origins.run,
            node.mounts.run,
            node.retention.run,
            node.fills.run,
            node.scrubbing.run,
            node.repairing.run,
            node.autosealing.run,
            partial(_watch_data_dir, node),
            partial(room_operations.keep_count, node),
        ):
            node.group.create_task(work())
        log.info("node %s (%s) listens on %s", node.me.name, node.me.node_id.hex()[:12], node.security.url(node.me))
        if node.security.ring is not None:
            log.info("key %s: %s", node.security.fingerprints[0], "encrypted" if node.security.tls else "not encrypted")
        elif not is_loopback(node.me.host):
            log.info("open mode: no key is set, so whoever reaches this port can read what is published here")
        report.answers()
        await node.stop.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await node.say_goodbye()
    finally:
        await server.stop()
    raise _Stop


async def _watch_data_dir(node: Node) -> None:
    """Stop the node when its data directory is deleted or replaced: it could neither keep nor serve anything."""
    directory = node.settings.data_dir
    ours = (await node.blocking(os.stat, directory)).st_ino
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        try:
            there = (await node.blocking(os.stat, directory)).st_ino
        except FileNotFoundError:
            there = 0
        except OSError as error:
            log.warning("data directory %s cannot be looked at: %s", directory, error)
            continue
        if there != ours:
            log.error("data directory %s was removed or replaced; the node stops", directory)
            node.failed = "its data directory was removed or replaced"
            node.stop.set()
            return


def _open_log(path: Path, data_dir: Path) -> IO[bytes]:
    """The log of a detached node; made only where a store is or may be made. Raises Refused, StoreFailed."""
    try:
        DataDir(data_dir).refuse_foreign()
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > LOG_LIMIT:
            path.rename(path.with_suffix(".log.1"))
        return path.open("ab")
    except OSError as error:
        raise store_failure(
            f"the data directory {data_dir} cannot be used (another can be chosen with --data-dir)", error
        ) from error


def _pipe_with(data: bytes) -> IO[bytes]:
    """The reading end of a pipe with these bytes: whoever may list processes sees what their arguments are, and an
    etcd's password can be among the settings."""
    reading, writing = os.pipe()
    with open(writing, "wb") as pipe:
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, max(PIPE_SIZE, len(data)))
        pipe.write(data)
    return open(reading, "rb")


def detach(settings: NodeSettings) -> int:
    """Start a node in the background; its pid, once it answers. Its log is DATA_DIR/log/node.log.

    Raises what the node failed with, and DeadlineExceeded if it took too long; it is left to itself then.
    """
    path = settings.data_dir / "log" / "node.log"
    told = json.dumps({**settings._asdict(), "data_dir": os.fspath(settings.data_dir)})
    with _open_log(path, settings.data_dir) as out, _pipe_with(told.encode()) as given:
        ours, theirs = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "hoard_p2p.node.main", os.fspath(settings.data_dir), str(theirs)],
            pass_fds=(theirs,),
            stdin=given,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd="/",
        )
    os.close(theirs)
    try:
        answered = wait_for_report(ours)
    except TimeoutError as error:
        raise DeadlineExceeded(
            f"the node (pid {process.pid}) has not answered within {START_SECONDS:.0f} s and goes on starting; "
            f"{path} has what it does, hoard status works once it is there"
        ) from error
    if not answered:
        raise HoardError(f"the node ended before it answered; {path} has the reason")
    return process.pid


def main(argv: Sequence[str]) -> int:
    """The detached process: settings as JSON on stdin; the data directory (to be seen in lists of processes), and the
    descriptor to report on."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("botocore").setLevel(logging.WARNING)
    told = json.load(sys.stdin)
    told["data_dir"] = Path(told["data_dir"])
    told["discovery"] = tuple(told["discovery"])
    told["allow_origin"] = tuple(told["allow_origin"])
    report = Report(int(argv[1]))
    try:
        return run_node(NodeSettings(**told), report)
    except HoardError as error:
        log.error("%s", error)
        report.failed(error)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
