"""Connections that have not asked anything yet: aiohttp bounds only the time between requests."""

import asyncio


class Doorstep(asyncio.Protocol):
    """Stands before the protocol `inside` and passes everything on until `let_in`; hangs up if that takes too long.

    Keeps nothing once the connection is gone.
    """

    def __init__(self, inside: asyncio.Protocol, seconds: float) -> None:
        self._inside = inside
        self._seconds = seconds
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def let_in(self) -> None:
        """From now on `inside` is the protocol of the connection, which may stay."""
        self._cancel()
        if self._transport is not None:
            self._transport.set_protocol(self._inside)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
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


class HangUp(asyncio.Protocol):
    """For a connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            transport.abort()
