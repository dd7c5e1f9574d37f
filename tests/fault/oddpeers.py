"""TCP servers on loopback that answer requests as a test likes, which no real node would."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from hoard_p2p.peer import Peer
from hoard_p2p.testing.network import a_peer

Behave = Callable[[socket.socket, int], None]
"""Handles one request on a connection; the number counts requests of the server from 0."""


def read_request(connection: socket.socket) -> bool:
    """Take one request off the connection; False at its end."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return False
        data += more
    header, _, body = data.partition(b"\r\n\r\n")
    length = int(header.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return True


@contextmanager
def server(behave: Behave) -> Iterator[Peer]:
    """A TCP server on loopback in threads, all of which end with the block."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []
    threads: list[threading.Thread] = []
    count = iter(range(1000))

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError):
            while read_request(connection):
                behave(connection, next(count))

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connections.append(connection)
                threads.append(threading.Thread(target=serve, args=(connection,)))
                threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield a_peer(1, port=listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join(5)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(5)


def says(data: bytes) -> Behave:
    """Answers every request with these bytes, then hangs up."""

    def behave(connection: socket.socket, number: int) -> None:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

    return behave
