"""The worker processes of a publish, from the side of the process that leads them.

They are forked before anything else happens in the process (the index must not be open, nor any thread run), and die
with it. Each has a line, a stream socket; a thread per line takes the answers.
"""

import ctypes
import os
import signal
import socket
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Lock, Thread
from typing import Any

from hoard_p2p.chunking import Chunker
from hoard_p2p.errors import StoreFailed, from_wire
from hoard_p2p.publish import crew_wire
from hoard_p2p.publish.board import Board, Counts
from hoard_p2p.publish.entries import Content, Outcome, Step
from hoard_p2p.publish.walk import Found
from hoard_p2p.publish.worker import OpenSink, work

PR_SET_PDEATHSIG = 1
FILE_COST = 64 << 10
"""A file counts as its bytes and these when work is shared out: to open it takes as long as to read so much."""


class Crew:
    """Worker processes. Used from one thread; closing it ends them."""

    def __init__(self, count: int, chunker: Chunker, open_sink: OpenSink) -> None:
        """Fork `count` workers. The process must have one thread, and whatever it has open the workers have too."""
        self._board = Board(count)
        self._members: list[_Member] = []
        for number in range(count):
            self._members.append(self._fork(number, chunker, open_sink))

    def _fork(self, number: int, chunker: Chunker, open_sink: OpenSink) -> "_Member":
        ours, theirs = socket.socketpair()
        leader = os.getpid()
        pid = os.fork()
        if pid == 0:
            ours.close()
            for member in self._members:
                member.let_go()
            os._exit(_live(leader, lambda: work(theirs, number, self._board, chunker, open_sink)))
        theirs.close()
        return _Member(pid, ours)

    def __len__(self) -> int:
        return len(self._members)

    @property
    def pids(self) -> list[int]:
        return [member.pid for member in self._members]

    @property
    def counts(self) -> Counts:
        return self._board.totals()

    def only_open(self) -> None:
        """From now on files are only opened, to name those that cannot be."""
        self._board.only_open = True

    def end(self) -> None:
        """Have every worker stop where it next looks."""
        self._board.end()

    def read(self, steps: Sequence[Step]) -> "Future[list[Outcome]]":
        """Have the files and links among `steps` read by one worker; the outcomes in order."""
        return min(self._members, key=lambda member: member.load).read(steps)

    def flush(self) -> "list[Future[None]]":
        """Done when all that was put is durable and in the index."""
        return [member.flush() for member in self._members if member.used]

    def close(self) -> None:
        """Close the lines, and wait for the workers to end. Does nothing the second time."""
        while self._members:
            self._members.pop().close()


def _live(leader: int, life: "Any") -> int:
    """A worker, which dies with its leader however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return 1 if os.getppid() != leader else int(life())


class _Batch:
    """Steps at a worker."""

    def __init__(self, steps: Sequence[Step], founds: Sequence[Found]) -> None:
        self.steps = steps
        self.founds = founds
        self.cost = sum(found.status.st_size + FILE_COST for found in founds)
        self.future: Future[list[Outcome]] = Future()


class _Member:
    """One worker: what it was given and has not answered."""

    def __init__(self, pid: int, sock: socket.socket) -> None:
        self.pid = pid
        self._sock = sock
        self._lock = Lock()
        self._batches: dict[int, _Batch] = {}
        self._flushes: dict[int, Future[None]] = {}
        self._later: dict[int, tuple[Found, Future[Content]]] = {}
        self._number = 0
        self._gone: Exception | None = None
        self._thread: Thread | None = None
        self.load = 0
        """Bytes, and for each file `FILE_COST`, that it was given and has not answered."""

    @property
    def used(self) -> bool:
        return self._number > 0

    def let_go(self) -> None:
        """In another worker: this line is none of its business."""
        self._sock.close()

    def read(self, steps: Sequence[Step]) -> "Future[list[Outcome]]":
        batch = _Batch(steps, [step for step in steps if isinstance(step, Found)])
        if not batch.founds:
            batch.future.set_result([step for step in steps if not isinstance(step, Found)])
            return batch.future
        paths, rows, fds = crew_wire.encode_founds(batch.founds)
        with self._lock:
            number = self._next()
            self._batches[number] = batch
            self.load += batch.cost
        self._send((crew_wire.BATCH, number, paths, rows), fds)
        return batch.future

    def flush(self) -> "Future[None]":
        future: Future[None] = Future()
        with self._lock:
            number = self._next()
            self._flushes[number] = future
        self._send((crew_wire.FLUSH, number))
        return future

    def close(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join()
        self._sock.close()
        os.waitpid(self.pid, 0)

    def _next(self) -> int:
        self._number += 1
        if self._thread is None:  # not before the last fork
            self._thread = Thread(target=self._listen, name="publish-worker", daemon=True)
            self._thread.start()
        return self._number

    def _send(self, message: tuple[Any, ...], fds: Sequence[int] = ()) -> None:
        try:
            crew_wire.send(self._sock, message, fds)
        except OSError:
            self._fail_all()

    def _listen(self) -> None:
        while (received := crew_wire.receive(self._sock)) is not None:
            self._hear(received[0])
        self._fail_all()

    def _hear(self, message: tuple[Any, ...]) -> None:
        kind, number = message[:2]
        if kind == crew_wire.ANSWER:
            self._answered(number, message[2])
        elif kind == crew_wire.LATER:
            with self._lock:
                found, future = self._later.pop(number)
                self.load -= found.status.st_size
            future.set_result(_content(message[2], found))
        elif number:
            self._fail(number, from_wire(message[2], message[3]))
        else:  # the worker ends with this
            self._gone = from_wire(message[2], message[3])

    def _answered(self, number: int, rows: Sequence[tuple[Any, ...]]) -> None:
        with self._lock:
            flush = self._flushes.pop(number, None)
            batch = self._batches.pop(number, None)
        if flush is not None:
            flush.set_result(None)
        if batch is not None:
            self.load -= batch.cost
            contents = iter([self._taken(row, found) for row, found in zip(rows, batch.founds, strict=True)])
            batch.future.set_result([next(contents) if isinstance(step, Found) else step for step in batch.steps])

    def _taken(self, row: tuple[Any, ...], found: Found) -> "Content | Future[Content]":
        content = crew_wire.decode_content(row, found)
        if not isinstance(content, int):
            return content
        future: Future[Content] = Future()
        with self._lock:
            self._later[content] = (found, future)
            self.load += found.status.st_size
        return future

    def _fail(self, number: int, error: Exception) -> None:
        with self._lock:
            future: Future[Any]
            if number < 0:
                future = self._later.pop(-number)[1]
            elif number in self._flushes:
                future = self._flushes.pop(number)
            else:
                future = self._batches.pop(number).future
        future.set_exception(error)

    def _fail_all(self) -> None:
        """The worker is gone: nothing that it was given will be answered."""
        error = self._gone or StoreFailed("a worker of the publish ended; the node's log may have the details")
        with self._lock:
            left: list[Future[Any]] = [batch.future for batch in self._batches.values()]
            left += [future for _, future in self._later.values()]
            left += self._flushes.values()
            self._batches, self._later, self._flushes = {}, {}, {}
        for future in left:
            future.set_exception(error)


def _content(row: tuple[Any, ...], found: Found) -> Content:
    content = crew_wire.decode_content(row, found)
    assert not isinstance(content, int)
    return content
