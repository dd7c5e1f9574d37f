"""Breaking off a question whose peer brings hardly anything: it would hold a thread and a turn for very long."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from hoard_p2p.fetch.pace import Drag
from hoard_p2p.peer import Peer

T = TypeVar("T")


class _Watch:
    """One question. `begin` is called by the thread that carries it out, everything else on the event loop."""

    def __init__(
        self,
        drag: Drag,
        peer: Peer,
        given: Sequence[int],
        abandon: Callable[[Peer, str], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._drag = drag
        self._peer = peer
        self._given = given
        self._abandon = abandon
        self._loop = loop
        self._began: float | None = None
        self._heard, self._count = 0.0, 0
        self._look = loop.call_later(drag.allowance(peer.node_id), self._looked)

    def begin(self) -> None:
        self._heard = self._began = self._loop.time()

    def end(self) -> None:
        self._look.cancel()
        if self._given and self._began is not None:
            self._drag.came(self._peer.node_id, (self._loop.time() - self._began) / len(self._given))

    def _looked(self) -> None:
        now, allowance = self._loop.time(), self._drag.allowance(self._peer.node_id)
        if self._began is None or len(self._given) > self._count:  # it waits for a thread, or something came
            self._heard, self._count = now, len(self._given)
        elif now - self._heard >= allowance:
            self._drag.broke_off(self._peer.node_id, now)
            self._abandon(self._peer, f"it brought no chunk in {now - self._heard:.0f} s")
            return
        self._look = self._loop.call_later(max(0.1, self._heard + allowance - now), self._looked)


@contextmanager
def watched(
    drag: Drag,
    peer: Peer,
    given: Sequence[int],
    abandon: Callable[[Peer, str], None],
    loop: asyncio.AbstractEventLoop,
) -> Iterator[Callable[[Callable[[], T]], Callable[[], T]]]:
    """Watch a question while the block runs; gives what its work is to be wrapped with. `given` grows with each chunk
    that comes. A peer that drags is abandoned."""
    watch = _Watch(drag, peer, given, abandon, loop)

    def begins(work: Callable[[], T]) -> Callable[[], T]:
        def begun() -> T:
            watch.begin()
            return work()

        return begun

    try:
        yield begins
    finally:
        watch.end()
