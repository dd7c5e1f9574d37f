"""A man in the middle: a TCP proxy on loopback that sees every HTTP message whole, and may change what goes on."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


def unchanged(message: bytes) -> list[bytes]:
    return [message]


@dataclass
class Middleman:
    """`requests` and `answers` are what passed, as it came. `to_server` and `to_client` say what is sent instead of a
    message; with `is_blind` bytes are passed on as they come, since they are not HTTP."""

    server: int
    to_server: Callable[[bytes], list[bytes]] = unchanged
    to_client: Callable[[bytes], list[bytes]] = unchanged
    is_blind: bool = False
    requests: list[bytes] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)
    port: int = 0

    def serve(self, client: socket.socket) -> None:
        """One connection of a client, until either side hangs up."""
        with client, suppress(OSError, ValueError), socket.create_connection(("127.0.0.1", self.server), 10) as server:
            server.settimeout(10)
            client.settimeout(10)
            if self.is_blind:
                self._pass_blindly(client, server)
                return
            while request := read_message(client):
                self.requests.append(request)
                for data in self.to_server(request):
                    server.sendall(data)
                    answer = read_message(server)
                    if not answer:
                        return
                    self.answers.append(answer)
                for data in self.to_client(answer):
                    client.sendall(data)

    def _pass_blindly(self, client: socket.socket, server: socket.socket) -> None:
        back = threading.Thread(target=_pump, args=(server, client, self.answers))
        back.start()
        _pump(client, server, self.requests)
        back.join(10)


def _pump(source: socket.socket, sink: socket.socket, seen: list[bytes]) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            seen.append(data)
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def read_message(connection: socket.socket) -> bytes:
    """One whole request or answer, empty at the end."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return b""
        data += more
    head = data.partition(b"\r\n\r\n")[0]
    if b"transfer-encoding: chunked" in head.lower():
        return _whole_chunked(connection, data, len(head) + 4)
    length = int((head.lower() + b"\r\n").partition(b"content-length: ")[2].split(b"\r\n")[0] or b"0")
    while len(data) < len(head) + 4 + length:
        more = connection.recv(65536)
        if not more:
            return b""
        data += more
    return data


def _whole_chunked(connection: socket.socket, data: bytes, at: int) -> bytes:
    """All HTTP chunks of a body that begins at `at`: one of size 0 is the last. Empty at the end."""
    while True:
        end = data.find(b"\r\n", at)
        size = -1 if end < 0 else int(data[at:end], 16)
        if size >= 0 and len(data) >= (after := end + 2 + size + 2):
            if size == 0:
                return data
            at = after
            continue
        more = connection.recv(65536)
        if not more:
            return b""
        data += more


@contextmanager
def between(server: int) -> Iterator[Middleman]:
    """A man in the middle before the server on that port of loopback."""
    listener = socket.create_server(("127.0.0.1", 0))
    middle = Middleman(server, port=listener.getsockname()[1])
    connections: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connections.append(connection)
                threads.append(threading.Thread(target=middle.serve, args=(connection,)))
                threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield middle
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join(5)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(15)
