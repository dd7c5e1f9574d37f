"""One round of demand: each source in turn, and the next one besides it where one is slow."""

import asyncio
import logging

from hoard_p2p.errors import HoardError
from hoard_p2p.fetch.asking import Lane
from hoard_p2p.fetch.flight import LULL, Flight
from hoard_p2p.fetch.lanes import Drain, demand_of
from hoard_p2p.fetch.pace import Pace
from hoard_p2p.fetch.sources import Source, Sources
from hoard_p2p.ids import short
from hoard_p2p.interfaces import AskMode
from hoard_p2p.peer import NodeId

log = logging.getLogger(__name__)

HINT_SECONDS = 0.5
"""A source that gets what it lacks is waited for a little longer than it is allowed to be silent: it is left then."""


class Rounds:
    """For the event loop. Questions under way are tasks of the group handed in."""

    def __init__(self, group: asyncio.TaskGroup, sources: Sources, drain: Drain, lane: Lane, me: NodeId) -> None:
        self._group = group
        self._sources = sources
        self._drain = drain
        self._lane = lane
        self._me = me
        self._pace = Pace()

    async def demand(self, flight: Flight) -> bool:
        """Ask each source in turn. One that is slow goes on while the next one is asked too; nobody is given up before
        all have answered. Returns false if some were not asked, since the fill lane was bringing all that is waited
        for: it may yet fail to."""
        slow: set[asyncio.Task[None]] = set()
        async for source in self._sources.demand(flight):
            if not flight.due():
                return False
            task = self._group.create_task(self._drained(flight, source))
            task.add_done_callback(lambda _: flight.stir())
            if source.mode is AskMode.FETCH and source.peer.node_id == self._me:
                await task  # this node reads the origin, and nobody reads it besides
            elif not await self._keeps_pace(flight, task, source):
                slow.add(task)
                if source.mode is AskMode.FETCH:
                    flight.without.add(source.peer.node_id)
        while flight.due() and (slow := {task for task in slow if not task.done()}):
            await flight.stirred(LULL)
        return True

    async def _drained(self, flight: Flight, source: Source) -> None:
        try:
            await self._drain.drain(demand_of(flight, self._lane), source)
        except HoardError as error:
            log.warning("segment %d of %s: %s", flight.segment.number, short(flight.segment.snapshot), error)
        except Exception:  # the door of this task: a bug must not end the group, and the node with it
            log.exception("asking %s for segment %d failed", source.peer.name, flight.segment.number)

    async def _keeps_pace(self, flight: Flight, task: "asyncio.Task[None]", source: Source) -> bool:
        """Wait for a source; false once it has brought nothing for longer than it usually takes, or, if it is one that
        gets things itself, than it may say nothing."""
        loop, node = asyncio.get_running_loop(), source.peer.node_id
        began = since = loop.time()
        before = flight.landings
        while not task.done():
            left = since + self._patience(source) - loop.time()  # longer, if it gives something of other segments now
            if left <= 0:
                return False
            await asyncio.wait({task}, timeout=left)
            if flight.landings != before:
                before, since = flight.landings, loop.time()
        if source.mode is None:
            self._pace.took(node, loop.time() - began)
        return True

    def _patience(self, source: Source) -> float:
        """Seconds without a chunk after which the next source is asked besides."""
        node = source.peer.node_id
        if source.mode is None:
            return self._pace.patience(node)
        now = asyncio.get_running_loop().time()
        return self._lane.silence.allowed(node, source.mode, source.place, now) + HINT_SECONDS
