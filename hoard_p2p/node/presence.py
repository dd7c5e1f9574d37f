"""Whether this node was in touch with the cluster lately, what follows from that when it returns, and which removals
are forgotten (see `node.absence`)."""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor

from hoard_p2p.errors import HoardError
from hoard_p2p.node.absence import decode_contact, encode_contact
from hoard_p2p.node.blocking import in_executor
from hoard_p2p.node.names import CLOCK_AHEAD, Names
from hoard_p2p.node.names_exchange import NameExchange, Unknown
from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.storage.store import Store
from hoard_p2p.transfer.wire_names import Differences

log = logging.getLogger(__name__)

CONTACT = b"contact"
NOTED_EVERY = 3600 * 1000
"""Milliseconds after which a contact is noted again, or so much earlier that a removal counts."""
WITNESSES = 3
RETURN_SECONDS = 30.0
"""Who returns tells nothing for so long, and looks for nodes that can say what was removed."""
DROP_FIRST, DROP_EVERY = 3600.0, 600.0
"""A node that starts keeps old removals for a while: others that start with it may need them."""
MENDED_EVERY = 60.0
MOST_ODD = 1024
"""Nodes that are remembered because their clocks are others."""
DAY_MS = 24 * 3600 * 1000


class Presence:
    """For the event loop, but for `away` and `since`."""

    def __init__(
        self,
        store: Store,
        names: Names,
        executor: Executor,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Blocking. `names` and `store` are written in `executor`."""
        self._store = store
        self._names = names
        self._executor = executor
        self._wall_ns = wall_ns
        value = store.meta(CONTACT)
        self._contact = decode_contact(value, self.now)
        self._noted = self._contact
        if value is None:
            self._store.note({CONTACT: encode_contact(self._contact)})
        self._odd_clocks: set[NodeId] = set()
        self._mended = -MENDED_EVERY
        self._began: float | None = None
        self._witnesses: dict[NodeId, int] = {}
        self._unknown: Unknown | None = None

    @property
    def now(self) -> int:
        """In milliseconds since the epoch."""
        return self._wall_ns() // 1_000_000

    @property
    def away(self) -> bool:
        """Whether this node has not been in touch for so long that it tells nobody what it knows."""
        return self._contact.is_away(self.now)

    @property
    def since(self) -> int:
        """What others are told: see `wire_names.Differences`."""
        return 0 if self.away else self._contact.since

    async def met(self, peer: Peer, told: Differences, exchange: NameExchange) -> None:
        """This node has taken over what a peer knows. Raises Unavailable, StoreFailed."""
        if told.now:
            await self._compare_clocks(peer, told.now - self.now)
        if self.away:
            await self._hear(peer, told.since, exchange)
        else:
            self._contact = self._contact.met(self.now, told.since)
            await self._note()

    async def _note(self) -> None:
        """On disk, once in an hour."""
        if self._contact.last - self._noted.last > NOTED_EVERY or self._contact.since != self._noted.since:
            self._noted = self._contact
            await in_executor(self._executor, self._store.note, {CONTACT: encode_contact(self._contact)})

    # --- clocks

    async def _compare_clocks(self, peer: Peer, ahead: int) -> None:
        """Where another node's clock is as this one's, what was set here while the clock was ahead is set anew."""
        if abs(ahead) > CLOCK_AHEAD * 1000:
            if peer.node_id not in self._odd_clocks and len(self._odd_clocks) < MOST_ODD:
                self._odd_clocks.add(peer.node_id)
                which = "ahead of" if ahead > 0 else "behind"
                log.warning(
                    "the clock of %s (%s) is %.0f s %s this node's: what is published or named where the clock is "
                    "ahead is not taken elsewhere; set the clocks",
                    peer.name, peer.url, abs(ahead) / 1000, which,
                )  # fmt: skip
            return
        self._odd_clocks.discard(peer.node_id)
        if time.monotonic() - self._mended >= MENDED_EVERY:
            self._mended = time.monotonic()
            mended = await in_executor(self._executor, self._names.mend_times)
            if mended:
                log.warning("%d names and snapshots were set while the clock was ahead: they are set as of now", mended)

    # --- returning

    async def _hear(self, peer: Peer, since: int, exchange: NameExchange) -> None:
        """Note what a peer does not know that was there all the time; act once a few of them agree."""
        now = time.monotonic()
        if self._began is None:
            self._began = now
            log.info("this node was not in touch with others for long: it asks them what was removed meanwhile")
        if self._contact.testifies(since) and peer.node_id not in self._witnesses:
            unknown = await exchange.unknown_to(peer)
            self._unknown = unknown if self._unknown is None else self._unknown.both(unknown)
            self._witnesses[peer.node_id] = since
        if len(self._witnesses) >= WITNESSES or now - self._began >= RETURN_SECONDS:
            await self._return()

    async def _return(self) -> None:
        days, taken = abs(self.now - self._contact.last) // DAY_MS, 0
        if self._unknown is not None:
            unknown, until = self._unknown, self._contact.shared_until
            taken = await in_executor(self._executor, self._names.take_away, unknown.snapshots, unknown.refs, until)
        if taken:
            log.warning("%d names and snapshots went, which others removed in the %d days without contact", taken, days)
        self._contact = self._contact.returned(self.now, min(self._witnesses.values(), default=0))
        self._began, self._unknown = None, None
        self._witnesses.clear()
        await self._note()

    # --- forgetting

    async def run(self) -> None:
        """Until cancelled: forgets removals that all had time to learn."""
        await asyncio.sleep(DROP_FIRST)
        while True:
            try:
                if not self.away:
                    await in_executor(self._executor, self._names.drop_tombstones)
            except HoardError as error:
                log.warning("old removals were not forgotten: %s", error)
            await asyncio.sleep(DROP_EVERY)
