"""HTTP/1.1 for reading objects: connections that are kept, to some hosts, perhaps through proxies.

Nothing is retried, but for a kept connection that its server closed meanwhile. Knows nothing of S3.
"""

import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from hoard_p2p.errors import OriginBusy, OriginFailed
from hoard_p2p.origin.httpanswer import LONGEST_LINE, Answer, Connection, Stale, parse_head
from hoard_p2p.origin.s3places import Base
from hoard_p2p.printing import printable

CONNECT_SECONDS = 5.0

SILENT_SECONDS = 20.0
"""Without a byte for so long, a server counts as stuck."""

KEPT = 64
"""Idle connections to one host."""

_PORTS = {"http": 80, "https": 443}


class Http:
    """Kept connections to some hosts. For any thread. Proxies as in `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`."""

    def __init__(self, silent: float = SILENT_SECONDS) -> None:
        self._silent = silent
        self._ca_bundle = ""
        self._tls: ssl.SSLContext | None = None
        self._lock = threading.Lock()
        self._idle: dict[Base, list[Connection]] = {}
        self._busy: set[Connection] = set()
        self._proxies: dict[Base, SplitResult | None] = {}
        self._closed = False

    @contextmanager
    def ask(self, base: Base, method: str, target: str, headers: dict[str, str]) -> Iterator[Answer]:
        """One question without a body. `target`: the path and query. Take the body of the answer inside."""
        proxy = self._proxy(base)
        if proxy and base.scheme == "http":
            target = f"http://{base.host}{target}"
            if proxy.username:
                headers = {**headers, "proxy-authorization": _basic(proxy)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        question = f"{method} {target} HTTP/1.1\r\nhost: {base.host}\r\naccept-encoding: identity\r\n{lines}\r\n"
        connection, answer = self._answered(base, proxy, method, question.encode("latin-1"))
        kept = False
        try:
            yield answer
            kept = answer.reusable
        finally:
            self._done(base, connection, kept)

    def trust(self, ca_bundle: str) -> None:
        """Before the first question: which certificates."""
        self._ca_bundle = ca_bundle

    def close(self) -> None:
        """What runs fails; nothing can be asked any more."""
        with self._lock:
            self._closed = True
            idle = [one for kept in self._idle.values() for one in kept]
            self._idle.clear()
            for one in self._busy:
                one.interrupt()
        for one in idle:
            one.close()

    def _proxy(self, base: Base) -> SplitResult | None:
        if base not in self._proxies:
            self._proxies[base] = _proxy(base)
        return self._proxies[base]

    def _answered(
        self, base: Base, proxy: SplitResult | None, method: str, question: bytes
    ) -> tuple[Connection, Answer]:
        connection = self._kept(base) or self._fresh(base, proxy)
        while True:
            try:
                connection.send(question)
                return connection, Answer(connection, method)
            except Stale:
                self._done(base, connection, False)
                connection = self._fresh(base, proxy)
            except BaseException:
                self._done(base, connection, False)
                raise

    def _kept(self, base: Base) -> Connection | None:
        while True:
            with self._lock:
                idle = self._idle.get(base)
                if not idle:
                    return None
                connection = idle.pop()
                self._busy.add(connection)
            if not connection.stale():
                connection.used = True
                return connection
            self._done(base, connection, False)

    def _done(self, base: Base, connection: Connection, kept: bool) -> None:
        with self._lock:
            self._busy.discard(connection)
            idle = self._idle.setdefault(base, [])
            if kept and not self._closed and len(idle) < KEPT:
                idle.append(connection)
                return
        connection.close()

    def _fresh(self, base: Base, proxy: SplitResult | None) -> Connection:
        address = urlsplit(f"//{base.host}")
        host, port = address.hostname or "", address.port or _PORTS[base.scheme]
        to = (proxy.hostname or "", proxy.port or _PORTS.get(proxy.scheme, 80)) if proxy else (host, port)
        sock = _dialled(to, f"the proxy {to[0]}" if proxy else base.host)
        try:
            if base.scheme == "https":
                if proxy:
                    _tunnel(sock, proxy, host, port)
                sock = self._context().wrap_socket(sock, server_hostname=host)
            connection = Connection(sock, self._silent)
        except OSError as error:
            sock.close()
            raise OriginFailed(f"{base.host}: no secure connection: {error.strerror or error}") from error
        except BaseException:
            sock.close()
            raise
        with self._lock:
            if not self._closed:
                self._busy.add(connection)
                return connection
        connection.close()
        raise OriginFailed(f"{base.host}: is no longer read here")

    def _context(self) -> ssl.SSLContext:
        with self._lock:
            if self._tls is None:
                try:
                    self._tls = ssl.create_default_context(cafile=self._ca_bundle or None)
                except OSError as error:
                    raise OriginFailed(f"the CA bundle {printable(self._ca_bundle)} cannot be read: {error}") from error
            return self._tls


def _dialled(to: tuple[str, int], name: str) -> socket.socket:
    try:
        sock = socket.create_connection(to, CONNECT_SECONDS)
    except TimeoutError as error:
        raise OriginBusy(f"{name} does not answer: no connection in {CONNECT_SECONDS:.0f} s") from error
    except (OSError, UnicodeError) as error:
        raise OriginFailed(f"{name} cannot be reached: {getattr(error, 'strerror', None) or error}") from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _proxy(base: Base) -> SplitResult | None:
    proxies = getproxies_environment()
    told = proxies.get(base.scheme)
    if not told or proxy_bypass(base.host, proxies):
        return None
    return urlsplit(told if "://" in told else f"http://{told}")


def _basic(proxy: SplitResult) -> str:
    return "Basic " + b64encode(f"{unquote(proxy.username or '')}:{unquote(proxy.password or '')}".encode()).decode()


def _tunnel(sock: socket.socket, proxy: SplitResult, host: str, port: int) -> None:
    """RFC 9110, 9.3.6. The socket has the timeout for connecting."""
    name = f"[{host}]" if ":" in host else host
    told = f"proxy-authorization: {_basic(proxy)}\r\n" if proxy.username else ""
    sock.sendall(f"CONNECT {name}:{port} HTTP/1.1\r\nhost: {name}:{port}\r\n{told}\r\n".encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        part = sock.recv(1)  # not a byte of what follows
        if not part or len(head) > LONGEST_LINE:
            raise OriginFailed(f"the proxy {proxy.hostname} makes no tunnel")
        head += part
    status, _ = parse_head(head.decode("latin-1").rstrip())
    if status != 200:
        raise OriginFailed(f"the proxy {proxy.hostname} makes no tunnel: status {status}")
