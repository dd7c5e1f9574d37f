"""The HTTP server of a node: a thin, bounded door in front of a `PeerService`."""

import asyncio
import logging
import socket
import weakref
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from hoard_p2p.transfer.doorstep import Doorstep, HangUp, host_of
from hoard_p2p.transfer.endpoints import MAX_ANNOUNCEMENT, Endpoints
from hoard_p2p.transfer.guard import Guard, Handler, Limits, http_log, quieten
from hoard_p2p.transfer.keys import OPEN, Security
from hoard_p2p.transfer.service import PeerService
from hoard_p2p.transfer.sessions import PATH as SESSION_PATH
from hoard_p2p.transfer.sessions_server import Sentry

__all__ = ["Limits", "PeerServer", "bind", "make_server"]

log = logging.getLogger(__name__)

UNBOUNDED = frozenset({"/v1/hello", "/v1/probe", "/v1/probe-for"})
"""Answered however busy the node is; the agent bounds what it asks for others."""
GRACE = 0.5
"""Seconds that running requests get when the server stops; aiohttp waits for it up to twice."""
DEFAULT_LIMITS = Limits()


def make_server(service: PeerService, *, limits: Limits = DEFAULT_LIMITS, security: Security = OPEN) -> "PeerServer":
    """A server for `service`, not yet listening."""
    return PeerServer(service, limits, security)


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the first address of `host`, not yet listening. Raises OSError if it is taken."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # `::` takes IPv4 too, whatever the system's default
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


class PeerServer:
    """Made by `make_server`; starts once."""

    def __init__(self, service: PeerService, limits: Limits, security: Security) -> None:
        self._limits = limits
        self._security = security
        self._executor = ThreadPoolExecutor(limits.send_threads, thread_name_prefix="hoard-send")
        names = frozenset({"localhost", socket.gethostname().lower(), *(name.lower() for name in limits.names)})
        guard = Guard(limits, names, UNBOUNDED | {SESSION_PATH}, is_open=security.ring is None)
        sentry = Sentry(security)
        app = web.Application(
            middlewares=[guard.answer_errors, guard.check_origin, sentry.check_proof, _admit, guard.count, guard.send],
            client_max_size=MAX_ANNOUNCEMENT,
        )
        app.on_response_prepare.append(sentry.prove)
        app.add_routes([web.post(SESSION_PATH, sentry.session)])
        app.add_routes(Endpoints(service, limits, self._executor).routes())
        http_log.addFilter(quieten)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=GRACE,
            keepalive_timeout=75.0,
            logger=http_log,
            auto_decompress=False,  # nobody sends what grows
        )
        self._listener: asyncio.Server | None = None
        self._arriving: dict[weakref.ref[Doorstep], float] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (of use if `port` is 0). Raises OSError if the address is taken."""
        listener = bind(host, port)
        await self.serve(listener)
        return int(listener.getsockname()[1])

    async def serve(self, listener: socket.socket) -> None:
        """The same on a socket that is bound already (so that its port is known before); takes the socket."""
        await self._runner.setup()
        tls = self._security.tls
        self._listener = await asyncio.get_running_loop().create_server(
            self._connected,
            sock=listener,
            backlog=512,
            ssl=None if tls is None else tls.server,
            ssl_handshake_timeout=None if tls is None else self._limits.handshake_time,
        )

    async def stop(self) -> None:
        """Close the door: no new connections, a second for running requests, then the end. Idempotent."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self._runner.cleanup()
        await asyncio.to_thread(self._executor.shutdown)

    def _connected(self) -> asyncio.BaseProtocol:
        """The protocol of a new connection: one that hangs up if there are too many. An encrypted connection is not
        made before its handshake, for which asyncio takes a third of a MiB: it is not begun where many are under way.
        """
        server = self._runner.server
        if server is None or len(server.connections) >= self._limits.connections:
            return HangUp()
        doorstep = Doorstep(server(), self._limits.first_request_time, self._is_welcome)
        if self._security.tls is not None:
            self._note_handshake(doorstep)
        return doorstep

    def _note_handshake(self, doorstep: Doorstep) -> None:
        now = asyncio.get_running_loop().time()
        begun = now - self._limits.handshake_time
        self._arriving = {
            one: since
            for one, since in self._arriving.items()
            if since > begun and (it := one()) is not None and not it.is_made
        }
        if len(self._arriving) >= self._limits.handshakes:
            raise ConnectionRefusedError("too many handshakes are under way")  # asyncio drops the socket
        self._arriving[weakref.ref(doorstep)] = now

    def _is_welcome(self, host: str) -> bool:
        """Whether a host may have one more connection."""
        server = self._runner.server
        taken = [] if server is None else [host_of(one.transport) for one in server.connections]
        return taken.count(host) < self._limits.connections_per_host


@web.middleware
async def _admit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A connection that made a request is let in; a handshake is none, since anybody can begin one."""
    protocol = None if request.transport is None else request.transport.get_protocol()
    if isinstance(protocol, Doorstep) and request.path != SESSION_PATH:
        protocol.let_in()
    return await handler(request)
