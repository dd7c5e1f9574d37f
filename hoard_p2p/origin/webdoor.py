"""Asking web servers, and only those that may be asked: never this machine, its link, or the metadata of a cloud,
wherever names and redirects lead, unless who allowed the origin named that very host.

The address that is checked is the one that is connected to. Proxies of the environment are not used: what they connect
to could not be checked.
"""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, RemoteDisconnected
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from hoard_p2p.errors import OriginFailed, OriginRefused
from hoard_p2p.origin.urls import WEB_PORTS
from hoard_p2p.printing import printable

CONNECT_SECONDS = 5.0
READ_SECONDS = 20.0
MOST_IDLE = 32
"""Connections that are kept for the next question."""

MOST_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

_METADATA = frozenset(map(ip_address, ("fd00:ec2::254", "100.100.100.200")))
"""Of clouds that do not use 169.254.169.254 alone: AWS's IPv6 address, Alibaba's."""

_NAT64 = ip_network("64:ff9b::/96")


class Answer(NamedTuple):
    """`url`: where it came from, after redirects."""

    url: str
    response: HTTPResponse


def is_local(address: str) -> bool:
    """Whether an IP address is this machine, its link, or such as answers for it."""
    parsed = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address):
        inner = _embedded(parsed)
        if inner is not None:
            return is_local(str(inner))
    unusual = parsed.is_unspecified or parsed.is_multicast or parsed.is_reserved or parsed in _METADATA
    return parsed.is_loopback or parsed.is_link_local or unusual or (parsed.version == 4 and int(parsed) >> 24 == 0)


def _embedded(address: IPv6Address) -> IPv4Address | None:
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


def may_ask(address: str, host: str, *, trusted: bool) -> bool:
    """Of a host that was named, its address may be this machine; the machine's link and a cloud's metadata only if the
    address itself was named, since whoever owns a name chooses what it means."""
    if not is_local(address):
        return True
    with suppress(ValueError):
        return trusted and ip_address(host.partition("%")[0]) == ip_address(address.partition("%")[0])
    return trusted and ip_address(address.partition("%")[0]).is_loopback


def connect(host: str, port: int, *, trusted: bool) -> socket.socket:
    """A connection to the first address of the host that answers. Raises OriginRefused if all are local, OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    good = [entry for entry in found if may_ask(str(entry[4][0]), host, trusted=trusted)]
    if not good:
        raise OriginRefused(
            f"{printable(host)} is {found[0][4][0]}, this machine or its link: such hosts are asked only if "
            "--allow-origin names the host itself"
        )
    last = OSError("it has no address")
    for family, kind, protocol, _, where in good:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(CONNECT_SECONDS)
            sock.connect(where)
        except OSError as error:
            sock.close()
            last = error
        else:
            sock.settimeout(READ_SECONDS)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
    raise last


class _Connection(HTTPConnection):
    """One whose socket is made by `connect`."""

    def __init__(self, scheme: str, name: str, trusted: bool, context: ssl.SSLContext | None) -> None:
        super().__init__(name)
        self.place = (scheme, name)
        self.port = urlsplit(f"{scheme}://{name}").port or WEB_PORTS[scheme]
        self._trusted = trusted
        self._context = context
        self.used = False

    def connect(self) -> None:
        sock = connect(self.host, self.port, trusted=self._trusted)
        self.sock = sock if self._context is None else self._context.wrap_socket(sock, server_hostname=self.host)


class WebDoor:
    """For any thread."""

    def __init__(self, trusted: frozenset[str]) -> None:
        """`trusted`: hosts, with their ports where those are unusual, that may be asked though they are local."""
        self._trusted = trusted
        self._context = ssl.create_default_context()
        self._idle: dict[tuple[str, str], list[_Connection]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle = [connection for many in self._idle.values() for connection in many]
            self._idle.clear()
        for connection in idle:
            connection.close()

    @contextmanager
    def ask(self, method: str, url: str, headers: dict[str, str]) -> Iterator[Answer]:
        """The answer, redirects followed. The connection is kept if the body was read to its end. Raises OriginFailed
        for whatever goes wrong on the way, also while the body is read."""
        shown = printable(url)
        try:
            with self._asked(method, url, headers) as answer:
                yield answer
        except TimeoutError as error:
            raise OriginFailed(f"{shown}: no answer within {READ_SECONDS:.0f} s") from error
        except (OSError, HTTPException, UnicodeError) as error:
            raise OriginFailed(f"{shown}: {printable(str(error) or type(error).__name__)}") from error

    @contextmanager
    def _asked(self, method: str, url: str, headers: dict[str, str]) -> Iterator[Answer]:
        for _ in range(MOST_REDIRECTS + 1):
            connection, response = self._answered(method, url, headers)
            try:
                if response.status not in _REDIRECTS:
                    yield Answer(url, response)
                    return
                url = _target(url, response.getheader("Location") or "")
                response.read(1 << 16)
            finally:
                self._keep(connection, response)
        raise OriginFailed(f"{printable(url)}: redirected more than {MOST_REDIRECTS} times")

    def _answered(self, method: str, url: str, headers: dict[str, str]) -> tuple[_Connection, HTTPResponse]:
        split = urlsplit(url)
        path = split.path + (f"?{split.query}" if split.query else "")
        while True:
            connection = self._connection(split.scheme, split.netloc)
            try:
                connection.request(method, path or "/", headers={"Accept-Encoding": "identity", **headers})
                return connection, connection.getresponse()
            except (RemoteDisconnected, ConnectionError):
                connection.close()
                if not connection.used:
                    raise  # a fresh one: else it may have been closed while nobody asked
            except BaseException:
                connection.close()
                raise

    def _connection(self, scheme: str, name: str) -> _Connection:
        with self._lock:
            kept = self._idle.get((scheme, name))
            if kept:
                return kept.pop()
        return _Connection(scheme, name, name in self._trusted, self._context if scheme == "https" else None)

    def _keep(self, connection: _Connection, response: HTTPResponse) -> None:
        if not response.isclosed() or response.will_close or connection.sock is None:
            connection.close()
            return
        connection.used = True
        with self._lock:
            kept = self._idle.setdefault(connection.place, [])
            if len(kept) < MOST_IDLE and not self._closed:
                kept.append(connection)
                return
        connection.close()


def _target(url: str, location: str) -> str:
    """Where a redirect leads. Raises OriginFailed for places that no origin may lead to."""
    target = urljoin(url, location)
    split = urlsplit(target)
    if not location or split.scheme not in WEB_PORTS or "@" in split.netloc or not split.hostname:
        raise OriginFailed(f"{printable(url)}: redirected to what is no page of the web")
    if url.startswith("https:") and split.scheme != "https":
        raise OriginFailed(f"{printable(url)}: redirected from https to http, to {printable(split.netloc)}")
    return split._replace(fragment="", netloc=split.netloc.lower()).geturl()
