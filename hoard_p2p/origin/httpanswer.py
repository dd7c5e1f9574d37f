"""HTTP/1.1 for reading objects: one connection, and its answers, whose bodies are received straight into the caller's
buffer.

boto3 takes 1.5 - 2 ms of one core for an object, most of it in layers above the socket; this takes 0.1 ms. Whatever
breaks the protocol raises OriginFailed, silence OriginBusy.
"""

import select
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic

from hoard_p2p.errors import OriginBusy, OriginFailed
from hoard_p2p.printing import printable

LONGEST_LINE = 4096

_WAKE_SECONDS = 1
"""How long one call waits for a buffer to fill: what came by then is told, so that slow is not taken for stuck."""

_AT_ONCE = 1 << 20
"""Received in one call: it waits in the kernel, without the interpreter's lock."""

_LONGEST_HEAD = 64 << 10


class Stale(Exception):
    """A kept connection was closed before it answered."""


class Connection:
    """One connection; used by one thread at a time."""

    def __init__(self, sock: socket.socket, silent: float) -> None:
        """`silent`: seconds without a byte after which the server counts as stuck."""
        self.sock = sock
        self.silent = silent
        self.used = False
        wake = struct.pack("ll", _WAKE_SECONDS, 0)
        sock.settimeout(None)  # with a timeout of Python's each call would be two
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wake)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", max(1, int(silent)), 0))
        self._flags = 0 if isinstance(sock, ssl.SSLSocket) else socket.MSG_WAITALL

    def stale(self) -> bool:
        """Whether the server closed it, or says what nobody asked."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except (BlockingIOError, ssl.SSLWantWriteError) as error:
            raise OriginBusy(f"took no byte of a question for {self.silent:g} s") from error
        except OSError as error:
            raise self._broken(error) from error

    def some(self, size: int, until: float) -> bytes:
        """What has come, at least one byte, empty at the end; until then."""
        while True:
            try:
                return self.sock.recv(size)
            except (BlockingIOError, ssl.SSLWantReadError):
                if monotonic() >= until:
                    raise OriginBusy(f"sent nothing for {self.silent:g} s") from None
            except OSError as error:
                raise self._broken(error) from error

    def fill(self, into: memoryview, moved: Callable[[int], None]) -> None:
        """Exactly as many bytes as `into` has."""
        done, until = 0, monotonic() + self.silent
        while done < len(into):
            try:
                count = self.sock.recv_into(into[done : done + _AT_ONCE], 0, self._flags)
            except (BlockingIOError, ssl.SSLWantReadError):
                if monotonic() >= until:
                    raise OriginBusy(
                        f"stopped after {done} of {len(into)} bytes: nothing for {self.silent:g} s"
                    ) from None
                continue
            except OSError as error:
                raise OriginFailed(f"broke off after {done} of {len(into)} bytes: {error.strerror or error}") from error
            if not count:
                raise OriginFailed(f"ended after {done} of {len(into)} bytes")
            done += count
            until = monotonic() + self.silent
            moved(count)

    def _broken(self, error: OSError) -> Exception:
        return Stale() if self.used else OriginFailed(f"the connection broke: {error.strerror or error}")

    def close(self) -> None:
        with suppress(OSError):
            self.sock.close()

    def interrupt(self) -> None:
        """From another thread: whoever waits for it fails."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


class Answer:
    """The head of an answer, and its body as long as it was not taken."""

    def __init__(self, connection: Connection, method: str) -> None:
        self._connection = connection
        self._rest = b""
        self.status, self.headers = self._head()
        while 100 <= self.status < 200:
            self.status, self.headers = self._head()
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        self.length = self._length(method)
        """Of the body; None if it is not told."""
        self._taken = self.length == 0

    @property
    def reusable(self) -> bool:
        return self._taken and not self._rest and self.headers.get("connection", "").lower() != "close"

    def read_into(self, into: memoryview, moved: Callable[[int], None]) -> None:
        """The body, which is as long as `into`. Raises OriginFailed if it is not."""
        if self.length != len(into):
            raise OriginFailed(
                f"sends {'an unknown number of' if self.length is None else self.length} bytes, not {len(into)}"
            )
        first = len(self._rest)
        if first > len(into):
            raise OriginFailed(f"sent more than the {len(into)} bytes that it told")
        if first:
            into[:first] = self._rest
            self._rest = b""
            moved(first)
        self._connection.fill(into[first:], moved)
        self._taken = True

    def read_all(self, limit: int) -> bytes:
        """The body, if it has at most `limit` bytes. Raises OriginFailed."""
        if self.length is not None:
            if self.length > limit:
                raise OriginFailed(f"sends {self.length} bytes where at most {limit} are expected")
            body = bytearray(self.length)
            self.read_into(memoryview(body), _ignore)
            return bytes(body)
        body = bytearray()
        for part in self._chunks() if self._chunked else self._to_the_end():
            body += part
            if len(body) > limit:
                raise OriginFailed(f"sends more than {limit} bytes")
        return bytes(body)

    def _length(self, method: str) -> int | None:
        if method == "HEAD" or self.status in (204, 304):
            return 0
        told = self.headers.get("content-length")
        if self._chunked or told is None:
            return None
        if not told.isascii() or not told.isdigit():
            raise OriginFailed(f"tells the length {printable(told[:64])}")
        return int(told)

    def _head(self) -> tuple[int, dict[str, str]]:
        data, until = self._rest, monotonic() + self._connection.silent
        while (end := data.find(b"\r\n\r\n")) < 0:
            if len(data) > _LONGEST_HEAD:
                raise OriginFailed("sends what is no HTTP, or more than 64 KiB of headers")
            part = self._connection.some(LONGEST_LINE, until)
            if not part:
                if not data and self._connection.used:
                    raise Stale
                raise OriginFailed("closed the connection without an answer")
            data += part
            if monotonic() >= until:
                raise OriginBusy(f"did not finish the head of its answer in {self._connection.silent:g} s")
        self._connection.used = False  # it answers: what breaks now is no old connection
        self._rest = data[end + 4 :]
        return parse_head(data[:end].decode("latin-1"))

    def _line(self) -> bytes:
        until = monotonic() + self._connection.silent
        while (end := self._rest.find(b"\r\n")) < 0:
            if len(self._rest) > LONGEST_LINE:
                raise OriginFailed("sends chunks that cannot be read")
            part = self._connection.some(LONGEST_LINE, until)
            if not part:
                raise OriginFailed("ended in the middle of an answer")
            self._rest += part
        line, self._rest = self._rest[:end], self._rest[end + 2 :]
        return line

    def _chunks(self) -> Iterator[bytes]:
        """RFC 9112, 7.1."""
        while True:
            told = self._line().partition(b";")[0].strip()
            try:
                size = int(told, 16) if len(told) <= 8 else -1
            except ValueError:
                size = -1
            if size < 0:
                raise OriginFailed("sends chunks that cannot be read")
            if not size:
                break
            yield from self._exactly(size)
            self._line()
        while self._line():
            pass
        self._taken = True

    def _exactly(self, size: int) -> Iterator[bytes]:
        while size:
            if not self._rest:
                self._rest = self._connection.some(min(size, 1 << 16), monotonic() + self._connection.silent)
                if not self._rest:
                    raise OriginFailed("ended in the middle of an answer")
            part, self._rest = self._rest[:size], self._rest[size:]
            size -= len(part)
            yield part

    def _to_the_end(self) -> Iterator[bytes]:
        part, self._rest = self._rest, b""
        yield part
        while part := self._connection.some(1 << 16, monotonic() + self._connection.silent):
            yield part


def _ignore(count: int) -> None:
    del count


def parse_head(head: str) -> tuple[int, dict[str, str]]:
    first, *lines = head.split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isascii() or not rest[:3].isdigit():
        raise OriginFailed(f"sends what is no HTTP: {printable(first[:80])}")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip()
        if name == "content-length" and headers.get(name, value) != value:
            raise OriginFailed("tells two lengths")
        headers[name] = value
    if version == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return int(rest[:3]), headers
