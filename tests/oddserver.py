"""An HTTP server that answers as a test says: truncated, stalled, with something else than was asked for.

Speaks just enough HTTP/1.1 to be asked by real clients; each question is kept for the test to look at.
"""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import md5
from xml.sax.saxutils import escape


@dataclass(frozen=True)
class Asked:
    """One question. `target`: exactly as it was sent; `headers`: names in lower case."""

    method: str
    target: str
    headers: dict[str, str]

    @property
    def span(self) -> tuple[int, int] | None:
        """The range, end-exclusive."""
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        return (int(found[1]), int(found[2]) + 1) if found else None


@dataclass(frozen=True)
class Said:
    """What is sent. `head`: instead of the status line and headers that would suit; `then`: `close`, `keep`, or `hang`
    (nothing more, until the server ends)."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    length: int | None = None
    then: str = "keep"
    head: bytes = b""


Script = Callable[[Asked], Said]


def etag(data: bytes) -> str:
    return f'"{md5(data).hexdigest()}"'


def a_part(data: bytes, asked: Asked, **other: str) -> Said:
    """The right answer to a GET or HEAD of an object; `other`: headers that differ."""
    start, stop = asked.span or (0, len(data))
    headers = {"ETag": etag(data), "Content-Type": "binary/octet-stream"}
    if asked.span:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
    headers.update({name.replace("_", "-"): value for name, value in other.items()})
    body = b"" if asked.method == "HEAD" else data[start:stop]
    return Said(206 if asked.span else 200, headers, body, None if body else len(data))


def an_error(status: int, code: str, **more: str) -> Said:
    """As S3 tells errors."""
    told = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in {"Code": code, **more}.items())
    return Said(status, {"Content-Type": "application/xml"}, f"<?xml version='1.0'?><Error>{told}</Error>".encode())


def a_page(objects: dict[str, bytes], *, token: str = "", truncated: bool | None = None, quoted: bool = True) -> Said:
    """A page of ListObjectsV2 with these keys, as they are to stand in the XML."""
    rows = "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-30T06:17:38.000Z</LastModified>"
        f"<ETag>{escape(etag(data))}</ETag><Size>{len(data)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for key, data in objects.items()
    )
    more = bool(token) if truncated is None else truncated
    text = (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        + ("<EncodingType>url</EncodingType>" if quoted else "")
        + f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        + (f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else "")
        + rows
        + "</ListBucketResult>"
    )
    return Said(200, {"Content-Type": "application/xml"}, text.encode())


class OddServer:
    """Answers by `script`, which may be replaced."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for one in list(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(10)
        for one in self._open:
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self.connections += 1
                self._open.append(connection)
                self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection.makefile("rb") as stream:
            while asked := _question(stream.readline):
                self.asked.append(asked)
                said = self.script(asked)
                connection.sendall(_encoded(said))
                if said.then == "close":
                    break
                if said.then == "hang":
                    stream.read()
            connection.shutdown(socket.SHUT_RDWR)


def _question(line: Callable[[], bytes]) -> Asked | None:
    first = line().decode().split()
    if len(first) != 3:
        return None
    headers = {}
    while text := line().decode().strip():
        name, _, value = text.partition(":")
        headers[name.lower()] = value.strip()
    return Asked(first[0], first[1], headers)


def _encoded(said: Said) -> bytes:
    if said.head:
        return said.head + said.body
    length = len(said.body) if said.length is None else said.length
    headers = {"Date": formatdate(usegmt=True), "Content-Length": str(length), **said.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {said.status} Odd\r\n{lines}\r\n".encode() + said.body


@contextmanager
def odd_server(script: Script) -> Iterator[OddServer]:
    server = OddServer(script)
    try:
        yield server
    finally:
        server.close()
