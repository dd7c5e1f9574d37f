"""The bounds of the HTTP door: who may ask, how much, how many at once; and how errors become answers.

Everything is refused before memory is taken for it.
"""

import asyncio
import ipaddress
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeAlias

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from hoard_p2p.errors import (
    BadRequest,
    DeadlineExceeded,
    HoardError,
    NotFound,
    Refused,
    StoreFailed,
    Unavailable,
    wire_name,
)
from hoard_p2p.peer import is_near
from hoard_p2p.transfer.sessions import Admitted
from hoard_p2p.transfer.wire import encode_error

log = logging.getLogger(__name__)
http_log = logging.getLogger("hoard_p2p.transfer.http")
"""For aiohttp's server."""

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds taken before memory is. Times in seconds. One host cannot take all `connections`. Of encrypted ones,
    `handshakes` may be under way. Of the requests, `adopts` may pull segments at a time and `adopts_waiting` wait up
    to `answer_time` for their turn; the same of `vouches`, which count segments, and of `sends` of chunks, which wait
    up to `send_wait`, less than askers do. At most `streams` are open. `send_rate`: bytes a second that all of these
    send, 0: no limit. `names`: host names that this node may be asked by, besides IP addresses, `localhost` and the
    machine's own name."""

    connections: int = 1024
    connections_per_host: int = 512
    handshakes: int = 256
    handshake_time: float = 10.0
    requests: int = 512
    adopts: int = 4
    adopts_waiting: int = 32
    vouches: int = 2
    vouches_waiting: int = 32
    first_request_time: float = 30.0
    body_time: float = 30.0
    answer_time: float = 30.0
    adopt_time: float = 900.0
    stall_time: float = 30.0
    sends: int = 128
    sends_waiting: int = 256
    send_wait: float = 2.0
    streams: int = 256
    ranges: int = 64
    ranges_waiting: int = 256
    send_threads: int = 8
    send_rate: int = 0
    names: tuple[str, ...] = ()


STATUS: tuple[tuple[type[HoardError], int], ...] = (
    (DeadlineExceeded, 504),
    (NotFound, 404),
    (BadRequest, 400),
    (Refused, 409),
    (Unavailable, 503),
    (StoreFailed, 507),
    (HoardError, 500),
)
"""The HTTP status of an error: the first row that it is an instance of."""


def error_response(error: HoardError) -> web.Response:
    """The answer to a request that ended in `error`."""
    status = next(status for kind, status in STATUS if isinstance(error, kind))
    return web.Response(
        status=status,
        body=encode_error(wire_name(error), str(error)),
        content_type="application/json",
    )


def quieten(record: logging.LogRecord) -> bool:
    """A filter for `http_log`: aiohttp reports what is no HTTP, and callers that hang up inside of a request, as errors
    with a traceback, though any stranger can do that as often as he likes; there is nothing in it for our operator."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ConnectionError) or http_log.isEnabledFor(logging.DEBUG)


class Guard:
    """The middlewares of one server, with the count of its requests in flight."""

    def __init__(
        self, limits: Limits, names: frozenset[str], unbounded: frozenset[str], *, is_open: bool = True
    ) -> None:
        """`unbounded`: paths that are answered however busy the node is (probes). `is_open`: there is no key."""
        self._limits = limits
        self._is_open = is_open
        self._names = names
        self._unbounded = unbounded
        self._in_flight = 0

    @web.middleware
    async def answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Every failure becomes a JSON answer of the table."""
        try:
            return await handler(request)
        except HoardError as error:
            return error_response(error)
        except TimeoutError:
            return error_response(DeadlineExceeded(f"{request.path} took too long, try again later"))
        except web.HTTPException as error:
            body = encode_error("BadRequest", f"{request.method} {request.path}: {error.reason}")
            return web.Response(status=error.status, body=body, content_type="application/json")
        except ConnectionError:
            raise  # the asker went away; aiohttp closes
        except Exception:  # the door: a bug must not take the connection's task with it unseen
            log.exception("%s %s failed", request.method, request.path)
            return error_response(HoardError("internal error, see the log of the node"))

    @web.middleware
    async def check_origin(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Only near addresses may talk to a node without a key, and no browser page: neither a foreign one, nor one
        whose name was made to resolve to us."""
        if self._is_open and not is_near(request.remote or ""):
            body = encode_error("Refused", f"{request.remote} is a public address; nodes without a key serve none")
            return web.Response(status=403, body=body, content_type="application/json")
        if "Origin" in request.headers or not self._is_known(request.headers.get("Host", "")):
            body = encode_error("Refused", "address the node by its IP address, and not from a web page")
            return web.Response(status=403, body=body, content_type="application/json")
        return await handler(request)

    @web.middleware
    async def count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Bounds requests in flight."""
        if request.path in self._unbounded:
            return await handler(request)
        if self._in_flight >= self._limits.requests:
            raise Unavailable(f"{self._in_flight} requests are in flight here, try again later")
        self._in_flight += 1
        try:
            return await handler(request)
        finally:
            self._in_flight -= 1

    @web.middleware
    async def send(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """An answer that is in memory is sent here, so that it counts as in flight until it is gone."""
        response = await handler(request)
        if isinstance(response, web.Response):
            await send(request, response, self._limits.answer_time)
        return response

    def _is_known(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
        if name.lower().rstrip(".") in self._names:
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True


class Turns:
    """Lets a few of one costly kind of request run at a time; some more wait for their turn, for a while."""

    def __init__(self, most: int, waiting: int, seconds: float) -> None:
        self._free = asyncio.Semaphore(most)
        self._most_waiting = waiting
        self._waiting = 0
        self._seconds = seconds

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Raises Unavailable if too many wait already, or when the turn has not come in time."""
        await self._wait()
        try:
            yield
        finally:
            self._free.release()

    async def _wait(self) -> None:
        if self._free.locked() and self._waiting >= self._most_waiting:
            raise Unavailable(f"as many such requests as may are here already, {self._waiting} of them waiting")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._seconds):
                await self._free.acquire()
        except TimeoutError as error:
            raise Unavailable(f"busy with other such requests for {self._seconds:g} s, try again later") from error
        finally:
            self._waiting -= 1


_admission: ContextVar[tuple[web.BaseRequest, Admitted] | None] = ContextVar("admission", default=None)
"""Of the request that the task works on: aiohttp has no place in a request that all its versions agree on."""


def admit(request: web.BaseRequest, admitted: Admitted) -> None:
    """The head of the request is proven."""
    _admission.set((request, admitted))


def admission(request: web.BaseRequest) -> Admitted | None:
    """What the head of the request is proof of, None where there is no key."""
    found = _admission.get()
    return found[1] if found is not None and found[0] is request else None


def timed(handler: Handler, seconds: float) -> Handler:
    """`handler` with a deadline."""

    async def with_deadline(request: web.Request) -> web.StreamResponse:
        async with asyncio.timeout(seconds):
            return await handler(request)

    return with_deadline


async def send(request: web.Request, response: web.Response, seconds: float) -> None:
    """Send an answer whole; who does not take it in time is hung up on, since aiohttp would wait for ever."""
    try:
        async with asyncio.timeout(seconds):
            await response.prepare(request)
            await response.write_eof()
    except BaseException as error:  # too late, or cancelled: no other answer may follow the half of this one
        if request.transport is not None:
            request.transport.abort()
        if isinstance(error, TimeoutError):
            raise ConnectionResetError(f"{request.remote} did not take an answer in {seconds} s") from error
        raise


async def read_body(request: web.Request, most: int, seconds: float) -> bytes:
    """The whole body, if it is at most `most` bytes long, arrives in time, and is the one that the head is proof of.
    Raises BadRequest."""
    if (request.content_length or 0) > most:
        raise BadRequest(f"a body of {request.content_length} bytes, at most {most} are taken")
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for data in request.content.iter_any():
                body += data
                if len(body) > most:
                    raise BadRequest(f"a body of more than {most} bytes")
    except TimeoutError as error:
        raise BadRequest(f"the body did not arrive in {seconds} s") from error
    admitted = admission(request)
    if admitted is not None:
        admitted.check_body(body)
    return bytes(body)
