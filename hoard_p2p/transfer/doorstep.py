"""What aiohttp does not see of connections: those that have not asked anything yet, since it bounds only the time
between requests, and those whose asker hangs up while it is being answered."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from hoard_p2p.errors import Unavailable


class Doorstep(asyncio.Protocol):
    """Stands before the protocol `inside` and passes everything on until `let_in`; hangs up if that takes too long, and
    at once on who is not welcome.

    Keeps nothing once the connection is gone.
    """

    def __init__(
        self, inside: asyncio.Protocol, seconds: float, is_welcome: Callable[[str], bool] = lambda host: True
    ) -> None:
        self._inside = inside
        self._seconds = seconds
        self._is_welcome = is_welcome
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def let_in(self) -> None:
        """From now on `inside` is the protocol of the connection, which may stay."""
        self._cancel()
        if self._transport is not None:
            self._transport.set_protocol(self._inside)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self._is_welcome(host_of(transport)):
            self._inside = HangUp()
        elif isinstance(transport, asyncio.Transport):
            self._transport = transport
            self._timer = asyncio.get_running_loop().call_later(self._seconds, transport.abort)
        self._inside.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        self._inside.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._inside.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inside.eof_received()

    def pause_writing(self) -> None:
        self._inside.pause_writing()

    def resume_writing(self) -> None:
        self._inside.resume_writing()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def host_of(transport: asyncio.BaseTransport | None) -> str:
    """The other side's address, empty if it is gone."""
    name = None if transport is None else transport.get_extra_info("peername")
    return str(name[0]) if name else ""


class Lookout(asyncio.Protocol):
    """Stands before the protocol `inside`, passes everything on, and calls `lost` when the connection is gone."""

    def __init__(self, inside: asyncio.BaseProtocol, lost: Callable[[], None]) -> None:
        assert isinstance(inside, asyncio.Protocol)
        self._inside = inside
        self._lost = lost
        self._watches = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._inside.connection_lost(exc)
        if self._watches:
            self._lost()

    def leave(self) -> None:
        """From now on pass everything on, and call nobody."""
        self._watches = False

    def data_received(self, data: bytes) -> None:
        self._inside.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inside.eof_received()

    def pause_writing(self) -> None:
        self._inside.pause_writing()

    def resume_writing(self) -> None:
        self._inside.resume_writing()


@asynccontextmanager
async def while_connected(transport: asyncio.Transport | None) -> AsyncIterator[None]:
    """The block is cancelled when the connection is lost, and ends with Unavailable then."""
    if transport is None:
        raise Unavailable("the asker hung up")
    inside = transport.get_protocol()
    try:
        async with asyncio.timeout(None) as scope:
            lookout = Lookout(inside, lambda: scope.reschedule(0))
            transport.set_protocol(lookout)
            try:
                yield
            finally:
                lookout.leave()
                if not transport.is_closing():  # an encrypted one that is gone would take no protocol any more
                    transport.set_protocol(inside)
    except TimeoutError as error:
        if scope.expired():
            raise Unavailable("the asker hung up") from error
        raise


class HangUp(asyncio.Protocol):
    """For a connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            transport.abort()
