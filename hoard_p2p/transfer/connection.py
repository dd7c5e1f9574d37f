"""One kept-alive HTTP/1.1 connection for bulk answers, blocking, with a receive buffer that its reader looks into."""

import re
import socket
import time
from collections.abc import Callable

from hoard_p2p.errors import HoardError
from hoard_p2p.peer import NodeId
from hoard_p2p.transfer import sessions
from hoard_p2p.transfer.keys import OPEN, KeyRing, Security
from hoard_p2p.transfer.sessions import STAY_OUT, Grant, Offer, Session, Unproven, refusal

BUFFER = 4 << 20
"""Enough for the longest chunk that our chunkers cut, most of the time with the header after it."""
MAX_HEADER = 16 << 10
LEAST_PROGRESS = 64 << 10
"""Bytes to arrive in `timeout` seconds of waiting, else the peer counts as silent."""
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_LENGTH = re.compile(rb"\r\nContent-Length: *(\d{1,15}) *\r\n", re.IGNORECASE)
_CODED = re.compile(rb"\r\nTransfer-Encoding:", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\nTransfer-Encoding: *chunked *\r\n", re.IGNORECASE)
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})\r\n")
_BYTES = re.compile(rb"\r\nContent-Type: *application/octet-stream *\r\n", re.IGNORECASE)
_PROOF = re.compile(rb"\r\n" + sessions.HEADER.encode() + rb": ([0-9a-f -]{1,200})\r\n", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nConnection: *close *\r\n", re.IGNORECASE)


class Garbled(HoardError):
    """What arrived is no answer of the protocol."""


class Busy(Garbled):
    """The peer has too much to do, and did nothing of what was asked for."""


class StaleConnection(HoardError):
    """A reused connection turned out to be closed by the peer before anything was received on it."""


def settled() -> None:
    """There is nothing to settle."""


def _check_status(status: int) -> None:
    if status == 503:
        raise Busy("it is busy")
    if status == STAY_OUT:
        raise Garbled(refusal(status))
    if status != 200:
        raise Garbled(f"status {status}")


def _connected(host: str, port: int, timeout: float, security: Security) -> socket.socket:
    """A socket to the peer, encrypted where that is asked for. Raises OSError."""
    plain = socket.create_connection((host, port), timeout=timeout)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return plain if security.tls is None else security.tls.client.wrap_socket(plain)


class Connection:
    """One socket, and one session where there is a key. Used by one thread at a time, but for `abort`."""

    def __init__(
        self,
        host: str,
        port: int,
        connect_timeout: float,
        timeout: float,
        *,
        security: Security = OPEN,
        expected: NodeId = NodeId(b""),  # noqa: B008 - immutable
    ) -> None:
        """Raises OSError if nobody listens there; Garbled, OSError if that is not the node `expected` with our key."""
        self.address = (host, port)
        self._socket = _connected(host, port, connect_timeout, security)
        literal = f"[{host}]" if ":" in host else host
        self._head = f"Host: {literal}:{port}\r\nContent-Type: application/octet-stream\r\n"
        self._buffer = bytearray(BUFFER + MAX_HEADER)
        self._start = self._end = 0
        self._is_reused = False
        self._timeout = timeout
        self._waited = 0.0
        self._arrived = 0
        self._is_kept_alive = True
        self._broken_off = ""
        self.idle_since = 0.0
        self.answered = 0
        """Answers that began since it was taken into use."""
        self.settle: Callable[[], None] = settled
        """Called before what `read` gave since the last call goes; else that is good until the next call of `read`."""
        self._session: Session | None = None
        self._mark = sessions.SELF_PROVING
        if security.ring is not None:
            self._open_session(security.ring, expected)

    @property
    def is_reusable(self) -> bool:
        """Whether another exchange may follow: the peer keeps it open, and sent nothing that was not asked for."""
        return self._is_kept_alive and self._start == self._end

    def reuse(self, timeout: float) -> None:
        """Begin another exchange on it."""
        self._is_reused = True
        self.answered = 0
        self._timeout = timeout
        self._waited, self._arrived = 0.0, 0

    def close(self) -> None:
        self._socket.close()

    def abort(self, reason: str = "") -> None:
        """Make the thread that uses it fail with OSError. For another thread."""
        self._broken_off = reason
        try:
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # an SSLSocket would go on without its encryption
        except OSError:  # not connected any more, which is what was wanted
            return

    def post(self, path: str, body: bytes) -> None:
        """Send a request. Raises OSError, StaleConnection."""
        proof = "" if self._session is None else f"{sessions.HEADER}: {self._session.sign('POST', path, body)}\r\n"
        head = f"POST {path} HTTP/1.1\r\n{self._head}{proof}Content-Length: {len(body)}\r\n\r\n"
        self._socket.settimeout(self._timeout)
        try:
            self._socket.sendall(head.encode() + body)
        except ConnectionError as error:
            raise self._stale_or(error) from error

    def answer(self) -> int:
        """Read the head of an answer; returns the length of its body. Raises OSError, Garbled, StaleConnection."""
        head = self._answer_head()
        length = _LENGTH.search(head)
        if length is None or _CODED.search(head):
            raise Garbled("an answer without a length")
        return int(length[1])

    def answer_in_chunks(self) -> None:
        """Read the head of an answer in chunked transfer coding. Raises as `answer`."""
        head = self._answer_head()
        if not _CHUNKED.search(head) or _LENGTH.search(head):
            raise Garbled("an answer that is not in chunks")

    def chunk_size(self) -> int:
        """The head of the next HTTP chunk: how many bytes it has, 0 for the last. Raises OSError, Garbled."""
        line = self._line(17)
        size = _CHUNK_SIZE.fullmatch(line)
        if size is None:
            raise Garbled(f"{line!r} where an HTTP chunk should begin")
        return int(size[1], 16)

    def end_chunk(self) -> None:
        """What is behind the bytes of an HTTP chunk. Raises OSError, Garbled."""
        if bytes(self.read(2)) != b"\r\n":
            raise Garbled("an HTTP chunk is longer than it said")

    def progressed(self) -> None:
        """What arrived was worth waiting for: the timeout begins again."""
        self._waited, self._arrived = 0.0, 0

    def check_body(self, mark: str) -> None:
        """The body of the answer turned out to have this mark. Raises Garbled if that is not the one of its head, where
        there is a session."""
        if self._session is not None and mark != self._mark:
            raise Garbled("the answer was changed on the way")

    @property
    def seal_size(self) -> int:
        """How many bytes prove the end of a stream here, and what a frame names."""
        return 0 if self._session is None else sessions.MAC_SIZE

    def check_end(self, digest: bytes, seal: bytes) -> None:
        """A stream ended with this seal; `digest` covers its frames. Raises Garbled."""
        try:
            if self._session is not None:
                self._session.check_end(digest, seal)
        except Unproven as error:
            raise Garbled(str(error)) from error

    def check_named(self, at: int, content: bytes, proof: bytes) -> None:
        """A frame names this content for the id or run `at` of the question. Raises Garbled."""
        try:
            if self._session is not None:
                self._session.check_named(at, content, proof)
        except Unproven as error:
            raise Garbled(str(error)) from error

    def read(self, count: int) -> memoryview:
        """The next `count` bytes, valid until `settle` is called. Raises OSError."""
        if self._end - self._start < count:
            self._make_room(count)
            while self._end - self._start < count:
                self._receive()
        start = self._start
        self._start += count
        return memoryview(self._buffer)[start : start + count]

    def _open_session(self, ring: KeyRing, expected: NodeId) -> None:
        """Make the session of this connection; closes it when that fails. Raises OSError, Garbled."""
        offer = Offer.draw(ring)
        try:
            self.post(sessions.PATH, offer.encode())
            grant = bytes(self.read(min(self.answer(), sessions.GRANT_SIZE)))
            self._session = Session(ring, offer, Grant.decode(grant), expected)
            self.answered = 0
        except Unproven as error:
            self.close()
            raise Garbled(f"no session: {error}") from error
        except (OSError, Garbled):
            self.close()
            raise

    def _check_proof(self, session: Session, head: bytes, status: int) -> None:
        """Raises Garbled if the head of this answer is not what the peer said to the request that is its turn."""
        proof = _PROOF.search(head)
        kind = "application/octet-stream" if _BYTES.search(head) else "application/json"
        try:
            self._mark = session.check("" if proof is None else proof[1].decode(), status, kind)
        except Unproven as error:
            raise Garbled(str(error)) from error

    def _answer_head(self) -> bytes:
        """The head of an answer with bytes."""
        try:
            head = self._read_head()
        except ConnectionError as error:
            raise self._stale_or(error) from error
        if self._session is not None and self._is_reused and head.startswith(b"HTTP/1.1 %d " % STAY_OUT):
            raise StaleConnection("the peer does not know our session any more")
        self._is_reused = False
        self.answered += 1
        status = _STATUS.match(head)
        if status is None:
            raise Garbled(f"an answer that begins with {head[:40]!r}")
        if self._session is not None:
            self._check_proof(self._session, head, int(status[1]))
        _check_status(int(status[1]))
        if not _BYTES.search(head):
            raise Garbled("an answer of another type than bytes")
        if _CLOSE.search(head):
            self._is_kept_alive = False
        return head

    def _line(self, most: int) -> bytes:
        """Bytes up to the end of the line, which is at most `most` bytes long; fewer tell that it is longer."""
        while True:
            end = self._buffer.find(b"\n", self._start, min(self._end, self._start + most))
            have = self._end - self._start
            if end >= 0 or have >= most:
                count = have if end < 0 else end + 1 - self._start
                return bytes(self.read(min(count, most)))
            self._make_room(have + 1)
            self._receive()

    def _read_head(self) -> bytes:
        """The head of an answer with its empty line."""
        seen = 0
        while True:
            end = self._buffer.find(b"\r\n\r\n", self._start + max(0, seen - 3), self._end)
            if end >= 0:
                head = bytes(self._buffer[self._start : end + 4])
                self._start = end + 4
                return head
            seen = self._end - self._start
            if seen > MAX_HEADER:
                raise Garbled(f"more than {MAX_HEADER} bytes without the end of a header")
            self._make_room(seen + 1)
            self._receive()

    def _make_room(self, count: int) -> None:
        """Let the buffer have `count` bytes from `_start` on, moving what is in it only when it must."""
        self.settle()
        if self._start + count <= len(self._buffer) and self._start != self._end:
            return
        rest = self._end - self._start
        if count > len(self._buffer):
            self._buffer = self._buffer[self._start : self._end] + bytearray(count - rest)
        elif rest:
            self._buffer[:rest] = self._buffer[self._start : self._end]
        self._start, self._end = 0, rest

    def _receive(self) -> None:
        """Wait for bytes; some arrive, or OSError. Only time spent here counts as waiting for the peer."""
        count = None
        while count is None:
            if self._waited >= self._timeout:
                if self._arrived < LEAST_PROGRESS:
                    raise TimeoutError(f"{self._arrived} bytes in {self._timeout:g} s")
                self._waited, self._arrived = 0.0, 0
            count = self._receive_for(self._timeout - self._waited)
        if not count:
            raise ConnectionResetError(self._broken_off or "the peer closed the connection")
        self._arrived += count
        self._end += count

    def _receive_for(self, seconds: float) -> int | None:
        """Bytes that arrived, None if none did in that time."""
        self._socket.settimeout(seconds)
        begin = time.monotonic()
        try:
            with memoryview(self._buffer) as view:
                return self._socket.recv_into(view[self._end :])
        except TimeoutError:
            return None
        finally:
            self._waited += time.monotonic() - begin

    def _stale_or(self, error: ConnectionError) -> Exception:
        is_untouched = self._is_reused and self._start == self._end and not self._broken_off
        return StaleConnection(str(error)) if is_untouched else error
