"""Streams of chunks, `POST /v1/stream`, as the asked node serves them: what its service feeds, framed (wire.md)."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeAlias

from blake3 import blake3

from hoard_p2p.transfer.sending import Body, Prove, Sending, named
from hoard_p2p.transfer.service import Fed, FeedEnd, SendExtent
from hoard_p2p.transfer.sessions import Admitted, prover
from hoard_p2p.transfer.streams import CANNOT, FRAME, LAST, MAX_REASON, PENDING

Item: TypeAlias = "Sequence[Fed] | FeedEnd"
Release: TypeAlias = "Callable[[Sequence[SendExtent], int], None]"


def fed_frames(chunks: Sequence[Fed], heads: Sequence[bytes]) -> Sending:
    """Chunks as frames in one HTTP chunk; `heads` are before their bytes."""
    whole = sum(map(len, heads)) + sum(map(_length, chunks))
    before = b"%x\r\n" % whole

    def head(index: int) -> bytes:
        if index == len(chunks):
            return b"\r\n"
        frame = heads[index] + chunks[index].data
        return before + frame if index == 0 else frame

    return Sending([*(fed.extent for fed in chunks), None], head, len(before) + whole + 2)


def end_frame(end: FeedEnd, seal: Callable[[bytes], bytes]) -> Sending:
    """The last frame, in an HTTP chunk of its own; `seal` proves it."""
    reason = end.reason.encode("utf-8", "backslashreplace")[:MAX_REASON]
    frame = FRAME.pack(LAST, PENDING if end.pending else CANNOT) + reason
    frame += seal(frame)
    data = b"%x\r\n%b\r\n" % (len(frame), frame)
    return Sending([None], lambda _: data, len(data))


def _length(fed: Fed) -> int:
    return len(fed.data) if fed.extent is None else fed.extent.length


def _head(fed: Fed, prove: Prove) -> bytes:
    content = fed.content if fed.extent is None else fed.extent.content
    return FRAME.pack(fed.asked, _length(fed)) + named(fed.asked, content, prove)


class Feed:
    """One answer: what a service feeds, until its end."""

    def __init__(
        self, items: AsyncGenerator[Item, None], release: Release, longest: float, admitted: Admitted | None
    ) -> None:
        """`longest`: seconds in which the next item comes, or something is wrong. `admitted`: the request, where there
        is a key."""
        self._admitted = admitted
        self._prove = prover(admitted)
        self._heads = blake3()
        self._items = items
        self._release = release
        self._longest = longest
        self._first: Item = ()

    async def begin(self) -> None:
        """Wait for the first item, which `close` or `send` releases. Raises TimeoutError, and what the service does."""
        self._first = await self._next()

    async def send(self, body: Body) -> None:
        """Send everything. Each extent is released, however this ends."""
        item, self._first = self._first, ()
        while not isinstance(item, FeedEnd):
            await self._send_chunks(item, body)
            item = await self._next()
        await body.write(end_frame(item, self._seal))

    def close(self) -> None:
        """Release what was not sent. Idempotent."""
        if not isinstance(self._first, FeedEnd):
            self._release([fed.extent for fed in self._first if fed.extent is not None], 0)
        self._first = ()

    def _seal(self, last: bytes) -> bytes:
        self._heads.update(last)
        return b"" if self._admitted is None else self._admitted.seal(self._heads.digest())

    async def _next(self) -> Item:
        async with asyncio.timeout(self._longest):
            return await anext(self._items, FeedEnd(False))

    async def _send_chunks(self, chunks: Sequence[Fed], body: Body) -> None:
        heads = [_head(fed, self._prove) for fed in chunks]
        sending = fed_frames(chunks, heads)
        self._heads.update(b"".join(heads))
        try:
            if chunks:
                await body.write(sending)
        finally:
            self._release([fed.extent for fed in chunks if fed.extent is not None], sending.whole())
