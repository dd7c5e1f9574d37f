"""A worker process of a publish: reads, cuts and hashes what it is given, and stores it in slabs of its own.

One thread does the small files, batch by batch; two lanes read large ones beside it. It ends when its line closes.
"""

import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from threading import Lock
from typing import Any

from hoard_p2p.chunking import Chunker
from hoard_p2p.errors import HoardError, StoreFailed, wire_name
from hoard_p2p.interfaces import ChunkSink
from hoard_p2p.publish import crew_wire
from hoard_p2p.publish.board import Board, Counts
from hoard_p2p.publish.deposit import Deposit
from hoard_p2p.publish.entries import Content, EntryReader, SmallFiles
from hoard_p2p.publish.large import LargeFile, WindowReader
from hoard_p2p.publish.tally import Pace
from hoard_p2p.publish.walk import Directory, Found

log = logging.getLogger(__name__)

OpenSink = Callable[[int], AbstractContextManager[ChunkSink]]
"""Opens the sink of worker number so-and-so, in its process."""

LANES = 2
"""Large files that a worker reads at once: one waits for the disk while the other is cut."""

HASHERS = 2
"""Threads that hash and put the chunks of large files: one lane alone cuts faster than one thread hashes."""


def work(sock: socket.socket, number: int, board: Board, chunker: Chunker, open_sink: OpenSink) -> int:
    """The life of a worker; its exit status."""
    try:
        with ExitStack() as stack:
            first = crew_wire.receive(sock)  # nothing is opened for a publish that has no work for this worker
            if first is not None:
                sink = stack.enter_context(open_sink(number))
                _Worker(sock, number, board, chunker=chunker, sink=sink, stack=stack).run(*first)
    except HoardError as error:
        return _failed(sock, error)
    except BaseException:
        log.exception("a worker of a publish failed")
        return 1
    return 0


def _failed(sock: socket.socket, error: HoardError) -> int:
    try:
        crew_wire.send(sock, (crew_wire.FAILED, 0, wire_name(error), str(error)))
    except OSError:
        print(f"ingest: {error}", file=sys.stderr)  # noqa: T201 - whoever started it is gone
    return 1


class _Worker:
    def __init__(
        self, sock: socket.socket, number: int, board: Board, *, chunker: Chunker, sink: ChunkSink, stack: ExitStack
    ) -> None:
        self._sock = sock
        self._number = number
        self._board = board
        self._sink = sink
        self._lock = Lock()
        self._moved = 0
        self._tickets = 0
        self._deposit = Deposit(sink, board.sightings.first_sight)
        self._hashers = ThreadPoolExecutor(HASHERS, thread_name_prefix="publish-hash")
        self._lanes = ThreadPoolExecutor(LANES, thread_name_prefix="publish-read")
        self._windows = WindowReader(chunker, self._deposit, self._hashers, threads=HASHERS, check=board.check)
        pace = Pace(lambda _: None, lambda: False)
        self._reader = EntryReader(
            lambda arena: SmallFiles(arena, chunker, self._deposit, self._count), self._read_large, pace.pause
        )
        stack.callback(self._hashers.shutdown, cancel_futures=True)
        stack.callback(self._lanes.shutdown, cancel_futures=True)
        stack.callback(board.end)  # a worker ends before the publish does only if that has failed

    def run(self, message: tuple[Any, ...], fds: list[int]) -> None:
        """Carry out requests, from this first one until the line closes."""
        while True:
            self._carry_out(message, fds)
            following = crew_wire.receive(self._sock)
            if following is None:
                return
            message, fds = following

    def _carry_out(self, message: tuple[Any, ...], fds: list[int]) -> None:
        kind, number = message[:2]
        try:
            self._board.check()
            if kind == crew_wire.BATCH:
                self._read_batch(number, message[2], message[3], fds)
            else:
                self._sink.flush()
                self._send((crew_wire.ANSWER, number, ()))
        except HoardError as error:
            self._send((crew_wire.FAILED, number, wire_name(error), str(error)))
        finally:
            for fd in fds:
                os.close(fd)

    def _read_batch(self, number: int, paths: list[bytes], rows: Sequence[tuple[Any, ...]], fds: list[int]) -> None:
        self._reader.only_open = self._board.only_open
        founds = crew_wire.decode_founds(rows, [Directory(path, fd) for path, fd in zip(paths, fds, strict=True)])
        contents, later = [], []
        for found, outcome in zip(founds, self._reader.read_batch(founds), strict=True):
            assert isinstance(outcome, Content | Future)
            if isinstance(outcome, Future):
                self._tickets += 1
                later.append((self._tickets, outcome, found))
            contents.append(crew_wire.encode_content(outcome, found, self._tickets))
        self._send((crew_wire.ANSWER, number, contents))
        for ticket, future, found in later:
            future.add_done_callback(self._sender(ticket, found))

    def _sender(self, ticket: int, found: Found) -> Callable[["Future[Content]"], None]:
        def send(future: "Future[Content]") -> None:
            message = answer_of(future, ticket, found)
            if message is not None:
                self._send(message)

        return send

    def _send(self, message: tuple[Any, ...]) -> None:
        with self._lock, suppress(OSError):  # whoever asked is gone: the next look at the line tells
            crew_wire.send(self._sock, message)

    def _read_large(self, found: Found) -> "Future[Content]":
        apart = Directory(found.directory.path, os.dup(found.directory.fd))  # it outlives its batch
        return self._lanes.submit(self._read_alone, found._replace(directory=apart))

    def _read_alone(self, found: Found) -> Content:
        try:
            return self._reader.read_alone(found, LargeFile(self._windows, self._sink, self._count))
        finally:
            found.directory.release()

    def _count(self, size: int) -> None:
        """`size` more bytes of files are done."""
        with self._lock:
            self._moved += size
            counts = Counts(self._moved, self._deposit.stored, self._deposit.deduplicated)
            self._board.tell(self._number, counts)


def answer_of(future: "Future[Content]", ticket: int, found: Found) -> tuple[Any, ...] | None:
    """What is said of a large file that is done; None of one that was never begun, since the worker ends."""
    if future.cancelled():
        return None
    error = future.exception()
    if error is None:
        return crew_wire.LATER, ticket, crew_wire.encode_content(future.result(), found, 0)
    if not isinstance(error, HoardError):
        log.error("a large file could not be read", exc_info=error)
        error = StoreFailed(f"a worker of the publish failed: {error!r}")
    return crew_wire.FAILED, -ticket, wire_name(error), str(error)
