"""Looking names up: for static lists, and for the discovery `dns:NAME:PORT` (a headless service in Kubernetes)."""

import asyncio
import ipaddress
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

from hoard_p2p.errors import Unavailable

RESOLVE_TIME = 5.0

_Answer: TypeAlias = "Future[list[str]]"


class Resolver:
    """Asks the system's resolver in a thread of its own: one that hangs keeps neither the event loop nor its threads.
    A context manager."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "resolve")
        self._pending: _Answer | None = None

    def __enter__(self) -> "Resolver":
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def resolve(self, host: str) -> list[str]:
        """All IPv4 and IPv6 addresses of a name, in `RESOLVE_TIME`; a literal is itself. Raises Unavailable."""
        if _is_literal(host):
            return [host]
        if self._pending is not None and not self._pending.done():
            raise Unavailable("the resolver does not answer")
        self._pending = self._thread.submit(_look_up, host)
        try:
            async with asyncio.timeout(RESOLVE_TIME):
                return await asyncio.shield(asyncio.wrap_future(self._pending))
        except (OSError, UnicodeError) as error:  # TimeoutError is an OSError; UnicodeError: it cannot be a name
            raise Unavailable(f"{host} does not resolve: {getattr(error, 'strerror', None) or error}") from error


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _look_up(host: str) -> list[str]:
    answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))
