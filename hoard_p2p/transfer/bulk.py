"""Chunks from peers, received into a reused buffer and hashed there. Blocking, for threads and worker processes.

Speaks just enough HTTP for `POST /v1/chunks`, `POST /v1/stream` and `POST /v1/range`: plain sockets, because the bytes
then go from the kernel to the buffer and nowhere else.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import random
from typing import Self, TypeVar

from hoard_p2p.errors import ChunkCorrupt, PeerBusy, PeerUnavailable
from hoard_p2p.interfaces import Gathering, SegmentAsk, StreamEnd
from hoard_p2p.objects import RangeAsk, RangeEnd
from hoard_p2p.peer import Peer
from hoard_p2p.transfer.connection import Busy, Connection, Garbled, StaleConnection, settled
from hoard_p2p.transfer.intake import Deliver, Intake, Named, Wanted, believed, content_of
from hoard_p2p.transfer.keys import OPEN, Security
from hoard_p2p.transfer.ranges import encode_range, receive_range
from hoard_p2p.transfer.sessions import frames_mark
from hoard_p2p.transfer.streams import encode_ask, receive_stream
from hoard_p2p.transfer.wire import FRAME_MISSING, MAX_ASKED

T = TypeVar("T")

BATCH_BYTES = 64 << 20
BATCH_CHUNKS = 2048
"""One request asks for at most so much (never more than `wire.MAX_ASKED`). The next is sent before the answer to the
first is read, so that it costs no round trip; at 64 KiB it fits into socket buffers while the peer is busy sending."""
LENGTH_SIZE = 4
"""Bytes of the length of a frame."""
ABSENT = FRAME_MISSING.to_bytes(LENGTH_SIZE, "little")
BUSY_PAUSES = (0.1, 0.3)
"""Seconds before a busy peer is asked again, half as much to one and a half times."""
MOST_IDLE = 32
"""Unused connections to all peers that are kept: each has a buffer of 4 MiB."""
IDLE_TIME = 60.0
"""Seconds that an unused connection is kept; the server would end it after 75."""


class BulkClient:
    """An `interfaces.PeerChunks`, `PeerSegments` and `PeerRanges` over HTTP with a pool of kept-alive sockets for each
    peer. Thread-safe."""

    def __init__(
        self,
        *,
        idle_per_peer: int = 8,
        connect_timeout: float = 3.0,
        security: Security = OPEN,
        named: Named = believed,
    ) -> None:
        """`named` is told what peers say that the pieces of origin keys are."""
        self._security = security
        self._named = named
        self._idle_per_peer = idle_per_peer
        self._connect_timeout = connect_timeout
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, int], list[Connection]] = {}
        self._busy: set[Connection] = set()
        self._closed = False

    def fetch(self, peer: Peer, wanted: Wanted, deliver: Deliver, *, timeout: float) -> list[int]:
        """See `interfaces.PeerChunks.fetch`. Less than 64 KiB in `timeout` seconds counts as no progress; the time
        that `deliver` takes does not count. What `deliver` raises passes through."""
        missing: list[int] = []
        if wanted:
            intake = Intake(peer, wanted, deliver, self._named)
            with _gathered(deliver) as settle:

                def exchange(connection: Connection) -> None:
                    connection.settle = settle
                    _fetch_all(connection, intake, missing)

                self._use(peer, timeout, exchange)
        return missing

    def stream(
        self, peer: Peer, ask: SegmentAsk, wanted: Wanted, deliver: Deliver, *, patience: float, timeout: float
    ) -> StreamEnd:
        """See `interfaces.PeerSegments.stream`. A chunk, or 64 KiB of one, are to come in `patience` + `timeout`
        seconds. Of more than 16,384 runs the first are asked for; the others count as pending."""
        if not wanted:
            return StreamEnd([], False, "")
        asked = replace(ask, runs=ask.runs[:MAX_ASKED])

        def exchange(connection: Connection) -> StreamEnd:
            connection.settle = settle
            connection.post("/v1/stream", encode_ask(asked, patience))
            connection.answer_in_chunks()
            return receive_stream(connection, Intake(peer, wanted[:MAX_ASKED], deliver, self._named))

        with _gathered(deliver) as settle:
            end = self._use(peer, patience + timeout, exchange)
        left = list(range(MAX_ASKED, len(wanted)))
        return StreamEnd(end.absent + left, True, end.reason) if left else end

    def range(self, peer: Peer, ask: RangeAsk, into: memoryview, *, timeout: float) -> RangeEnd:
        """See `objects.PeerRanges.range`."""

        def exchange(connection: Connection) -> RangeEnd:
            connection.post("/v1/range", encode_range(ask))
            return receive_range(connection, into)

        return self._use(peer, ask.patience + timeout, exchange)

    def abandon(self, peer: Peer, reason: str) -> None:
        """See `interfaces.PeerChunks.abandon`."""
        with self._lock:
            for connection in self._busy:
                if connection.address == (peer.host, peer.port):
                    connection.abort(reason)

    def close(self) -> None:
        """Close idle sockets and break running fetches, which then raise PeerUnavailable. Idempotent."""
        with self._lock:
            self._closed = True
            idle = [connection for connections in self._idle.values() for connection in connections]
            self._idle.clear()
            for connection in self._busy:
                connection.abort()
        for connection in idle:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _use(self, peer: Peer, timeout: float, exchange: Callable[[Connection], T]) -> T:
        """One exchange with `peer`; when it is busy, again after a while, which differs for each asker. Raises
        PeerUnavailable, ChunkCorrupt."""
        for pause in BUSY_PAUSES:
            try:
                return self._use_once(peer, timeout, exchange)
            except Busy:
                time.sleep(pause * (0.5 + random()))
        try:
            return self._use_once(peer, timeout, exchange)
        except Busy as error:
            raise PeerBusy(f"{peer.url} sent no chunks: {error}") from error

    def _use_once(self, peer: Peer, timeout: float, exchange: Callable[[Connection], T]) -> T:
        """Raises Busy only if nothing was received."""
        connection = self._take(peer, timeout)
        try:
            try:
                result = exchange(connection)
            except StaleConnection:  # kept alive for too long; nothing was received on it
                self._drop(connection)
                connection = self._open(peer, timeout)
                result = exchange(connection)
        except (Garbled, StaleConnection) as error:
            if isinstance(error, Busy) and connection.answered == 1:
                raise
            raise PeerUnavailable(f"{peer.url} sent no chunks: {error}") from error
        except OSError as error:  # TimeoutError is one
            raise PeerUnavailable(f"{peer.url} did not send the chunks: {error or type(error).__name__}") from error
        except ChunkCorrupt as error:
            raise ChunkCorrupt(f"{peer.url} sent wrong bytes: {error}") from error
        else:
            self._give_back(connection)
            return result
        finally:
            self._drop(connection)

    def _take(self, peer: Peer, timeout: float) -> Connection:
        self._close_expired()
        with self._lock:
            idle = self._idle.get((peer.host, peer.port))
            if idle and not self._closed:
                connection = idle.pop()
                self._busy.add(connection)
                connection.reuse(timeout)
                return connection
        return self._open(peer, timeout)

    def _close_expired(self) -> None:
        """Close what was unused for long, at whatever peer: it may be gone for good."""
        earliest = time.monotonic() - IDLE_TIME
        with self._lock:
            expired = [one for idle in self._idle.values() for one in idle if one.idle_since < earliest]
            kept = {address: [one for one in idle if one not in expired] for address, idle in self._idle.items()}
            self._idle = {address: idle for address, idle in kept.items() if idle}
        for connection in expired:
            connection.close()

    def _open(self, peer: Peer, timeout: float) -> Connection:
        try:
            soon = min(self._connect_timeout, timeout)
            connection = Connection(peer.host, peer.port, soon, timeout, security=self._security, expected=peer.node_id)
        except (OSError, UnicodeError, Garbled) as error:  # UnicodeError: a host name that cannot be one
            raise PeerUnavailable(f"{peer.url} cannot be reached: {error}") from error
        with self._lock:
            if not self._closed:
                self._busy.add(connection)
                return connection
        connection.close()
        raise PeerUnavailable("this node is shutting down")

    def _give_back(self, connection: Connection) -> None:
        """Keep a connection for later, if it can be."""
        connection.settle()
        connection.settle = settled
        with self._lock:
            idle = self._idle.setdefault(connection.address, [])
            if not self._closed and connection.is_reusable and len(idle) < self._idle_per_peer:
                self._busy.discard(connection)
                connection.idle_since = time.monotonic()
                idle.append(connection)
                self._close_one_too_many()

    def _close_one_too_many(self) -> None:
        """With the lock held."""
        if sum(map(len, self._idle.values())) > MOST_IDLE:
            oldest = min((one for one in self._idle.values() if one), key=lambda one: one[0].idle_since)
            oldest.pop(0).close()

    def _drop(self, connection: Connection) -> None:
        """Close a connection, unless it was given back."""
        with self._lock:
            if connection not in self._busy:
                return
            self._busy.discard(connection)
        connection.close()


@contextmanager
def _gathered(deliver: Deliver) -> Iterator[Callable[[], None]]:
    """What to call before the buffer is reused; called at the end, too."""
    if not isinstance(deliver, Gathering):
        yield settled
        return
    deliver.gather()
    try:
        yield deliver.settle
    finally:
        deliver.settle()


def _fetch_all(connection: Connection, intake: Intake, missing: list[int]) -> None:
    """Ask for every batch, one request ahead of the answers."""
    batches = list(_batches(intake.wanted))
    _request(connection, intake.wanted, batches[0])
    for position, batch in enumerate(batches):
        body = connection.answer()
        if position + 1 < len(batches):
            _request(connection, intake.wanted, batches[position + 1])
        _receive(connection, intake, batch, body=body, missing=missing)


def _batches(wanted: Wanted) -> Iterator[range]:
    """Consecutive index ranges that are worth one request each."""
    start, size = 0, 0
    for index, (_, length) in enumerate(wanted):
        if index > start and (size + length > BATCH_BYTES or index - start == BATCH_CHUNKS):
            yield range(start, index)
            start, size = index, 0
        size += length
    yield range(start, len(wanted))


def _request(connection: Connection, wanted: Wanted, batch: range) -> None:
    connection.post("/v1/chunks", b"".join(wanted[index][0] for index in batch))


def _receive(connection: Connection, intake: Intake, batch: range, *, body: int, missing: list[int]) -> None:
    """The frames of one answer whose body is `body` bytes long. Raises ChunkCorrupt, Garbled, OSError."""
    most = sum(LENGTH_SIZE + intake.named_size(index, connection) + intake.length(index) for index in batch)
    if not LENGTH_SIZE * len(batch) <= body <= most:
        raise Garbled(f"an answer of {body} bytes where at most {most} were asked for")
    left, heads = body, bytearray()
    for index in batch:
        head = _read_head(connection, intake, index, left)
        heads += head
        left -= len(head)
        if head == ABSENT:
            missing.append(index)
            continue
        data = _read(connection, intake.length(index), left)
        left -= len(data)
        intake.take(index, content_of(connection, index - batch.start, head[LENGTH_SIZE:]), data)
    if left:
        raise Garbled(f"{left} bytes follow the last chunk")
    connection.check_body(frames_mark(heads))


def _read_head(connection: Connection, intake: Intake, index: int, left: int) -> bytes:
    """What is before the bytes of the next frame, which should be those of chunk `index`: their length, and what names
    (and proves) the content of an origin key; `ABSENT` if the peer does not have it. `left` bytes remain."""
    length = bytes(_read(connection, LENGTH_SIZE, left))
    if length == ABSENT:
        return length
    intake.check_length(index, int.from_bytes(length, "little"))
    return length + bytes(_read(connection, intake.named_size(index, connection), left - LENGTH_SIZE))


def _read(connection: Connection, count: int, left: int) -> memoryview:
    if count > left:
        raise Garbled("the answer ends before its last chunk does")
    return connection.read(count)
