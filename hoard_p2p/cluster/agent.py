"""Keeps a membership going: runs discoveries, says hello to what they find, probes, and hands out views.

A node is always used at the address that this node reached it at, never at the one it believes it has.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol, TypeAlias

from hoard_p2p.cluster.addresses import Address, Discovery
from hoard_p2p.cluster.membership import IdConflict, Member, Membership
from hoard_p2p.cluster.standings import Standings
from hoard_p2p.errors import HoardError, PeerUnavailable
from hoard_p2p.ids import SnapshotId
from hoard_p2p.peer import WIRE_VERSION, ClusterView, NodeId, OriginId, Peer, Standing

log = logging.getLogger(__name__)

HELLO_TIME = 2.0
HELLOS_AT_ONCE = 32
MAX_ADDRESSES = 4096
"""Discovered addresses remembered at most."""
AGAIN_AFTER_ANSWER = 30.0
"""A discovered address that answered is asked again then: a clone may have come up behind it."""
AGAIN_MOST = 15.0
"""Longest back-off for a discovered address that does not answer."""
GIVE_UP_AFTER = 600.0
"""A discovered address that never answered for so long is forgotten until it is found again."""
DISCOVERY_RETRY_MOST = 60.0


class Greeting(Protocol):
    """What a node says of itself when asked; `transfer.wire.Hello` is one."""

    @property
    def peer(self) -> Peer: ...
    @property
    def cluster(self) -> str: ...
    @property
    def members(self) -> tuple[Peer, ...]: ...
    @property
    def boot(self) -> bytes: ...


SayHello: TypeAlias = Callable[[str, int], Awaitable[Greeting]]
"""Says hello to host and port (telling about this node) and returns the answer. Raises PeerUnavailable."""


@dataclass(slots=True)
class _Tried:
    """A discovered address: when to say hello to it next, and how it went."""

    found: float
    next_try: float
    failures: int = 0


class ClusterAgent:
    """The one owner of a `Membership`. All methods are for the event loop, none blocks."""

    def __init__(
        self,
        membership: Membership,
        discoveries: Sequence[Discovery],
        say_hello: SayHello,
        *,
        cluster: str,
        clock: Callable[[], float],
        random: Random,
        on_greeting: Callable[[Greeting, Peer], None] | None = None,
        on_view: Callable[[ClusterView], None] | None = None,
        on_conflict: Callable[[IdConflict], None] | None = None,
    ) -> None:
        """`on_greeting` is called with each answer of another node of this cluster and the peer as it was reached (for
        digests of snapshots and refs), `on_view` with each new view and `on_conflict` with each new conflict, soon
        after it came about. None of them may raise."""
        self._membership = membership
        self._discoveries = discoveries
        self._say_hello = say_hello
        self._cluster = cluster
        self._clock = clock
        self._random = random
        self._on_greeting = on_greeting
        self._on_view = on_view
        self._on_conflict = on_conflict
        self._standings = Standings(membership.me)
        self._addresses: dict[Address, _Tried] = {}
        self._asking: set[Address] = set()
        self._strangers: set[Address] = set()
        self._shown = membership.view()
        self._shown_conflicts: frozenset[NodeId] = frozenset()
        self._news = asyncio.Event()
        self._slots = asyncio.Semaphore(HELLOS_AT_ONCE)

    async def run(self) -> None:
        """Work until cancelled; leaves no task behind."""
        async with asyncio.TaskGroup() as group:
            for discovery in self._discoveries:
                group.create_task(self._discover(discovery))
            group.create_task(self._dial_news(group))
            while True:
                for probe in self._membership.tick(self._clock()):
                    self._ask(group, Address(probe.peer.host, probe.peer.port), probe.peer)
                self._dial(group)
                self._show_changes()
                await asyncio.sleep(self._membership.timing.probe_every * self._random.uniform(0.8, 1.2))

    def view(self) -> ClusterView:
        """Who is in the cluster now. Free."""
        return self._membership.view()

    def suspects(self) -> frozenset[NodeId]:
        """Peers of the view that failed lately and have not answered since: ask them last."""
        return self._membership.suspects()

    def members(self) -> tuple[Member, ...]:
        """Every peer known, for status."""
        return self._membership.members()

    def conflicts(self) -> tuple[IdConflict, ...]:
        """Node ids used by two running nodes. One that names `view().me` means that this node or the other must stop:
        the one that started later."""
        return self._membership.conflicts()

    def report_failure(self, node_id: NodeId) -> None:
        """A request to the peer failed: it is suspect from now on, and probed soon."""
        self._membership.contact_failed(node_id, self._clock())

    def found(self, address: Address) -> None:
        """A node may be listening at `address`: it will be said hello to at once, and again until it answers."""
        if address not in self._addresses and len(self._addresses) < MAX_ADDRESSES:
            now = self._clock()
            self._addresses[address] = _Tried(now, now)
            self._news.set()

    def greeted(self, caller: Greeting) -> None:
        """Another node said hello to this one; it will be said hello to at the host and port it named."""
        if self._is_of_us(caller, Address(caller.peer.host, caller.peer.port)):
            self._membership.heard(caller.peer, self._clock())
            self._news.set()

    def left(self, node_id: NodeId, incarnation: int) -> None:
        """A peer said that it leaves."""
        self._membership.left(node_id, incarnation, self._clock())
        self._news.set()

    def members_by_lease(self, leased: frozenset[NodeId] | None) -> None:
        """A registry says which nodes have a lease, and nobody else is a member; None while it cannot be asked."""
        self._membership.by_lease(leased)
        self._news.set()

    def renew(self, me: Peer) -> None:
        """This node's own record changed."""
        self._membership.renew(me)
        self._news.set()

    # --- standings

    def stand(self, *, wants: Collection[SnapshotId] | None = None, reads: Collection[OriginId] | None = None) -> None:
        """From now on this node mounts or warms exactly `wants`, and may and can read exactly `reads` (None: as
        before). Told to all soon. At most 256 of each are told."""
        if self._standings.stand(wants, reads):
            self._news.set()

    def standing(self, node_id: NodeId) -> Standing | None:
        """What a node (or this one) said last of what it has to do with data; None if it never did."""
        return self._standings.of(node_id)

    def wanting(self, snapshot: SnapshotId) -> frozenset[NodeId]:
        """The nodes of the view, this one included, that mount or warm the snapshot."""
        return self._of_view(self._standings.wanting(snapshot))

    def reading(self, origin: OriginId) -> frozenset[NodeId]:
        """The nodes of the view, this one included, that may and can read the origin."""
        return self._of_view(self._standings.reading(origin))

    def _of_view(self, nodes: Collection[NodeId]) -> frozenset[NodeId]:
        known = self._membership.view().by_id
        return frozenset(node_id for node_id in nodes if node_id in known)

    # --- steps

    async def _discover(self, discovery: Discovery) -> None:
        """Run one discovery for ever; when it fails, warn and start it again later."""
        delay, warned = 1.0, ""
        while True:
            try:
                await discovery.run(self.found)
                return
            except (OSError, HoardError) as error:
                if str(error) != warned:
                    log.warning("discovery %s does not work now, it is tried again: %s", discovery.name, error)
                warned = str(error)
            await asyncio.sleep(delay)
            delay = min(2 * delay, DISCOVERY_RETRY_MOST)

    async def _dial_news(self, group: asyncio.TaskGroup) -> None:
        """Say hello to what was just found, without waiting for the next round of probes."""
        while True:
            await self._news.wait()
            self._news.clear()
            for probe in self._membership.due(self._clock()):
                self._ask(group, Address(probe.peer.host, probe.peer.port), probe.peer)
            self._dial(group)
            self._show_changes()

    def _dial(self, group: asyncio.TaskGroup) -> None:
        """Say hello to the discovered addresses whose time has come."""
        now = self._clock()
        for address, tried in list(self._addresses.items()):
            if tried.failures and now - tried.found > GIVE_UP_AFTER:
                del self._addresses[address]
            elif tried.next_try <= now:
                self._ask(group, address, None)

    def _ask(self, group: asyncio.TaskGroup, address: Address, expected: Peer | None) -> None:
        if address not in self._asking:
            self._asking.add(address)
            group.create_task(self._hello(address, expected))

    async def _hello(self, address: Address, expected: Peer | None) -> None:
        try:
            async with self._slots, asyncio.timeout(HELLO_TIME):
                greeting = await self._say_hello(address.host, address.port)
        except (PeerUnavailable, TimeoutError) as error:
            log.debug("no hello from %s port %d: %r", address.host, address.port, error)
            self._failed(address, expected)
        else:
            self._answered(address, greeting, expected)
        finally:
            self._asking.discard(address)
        self._news.set()

    def _failed(self, address: Address, expected: Peer | None) -> None:
        now = self._clock()
        if expected is not None:
            self._membership.contact_failed(expected.node_id, now, at=expected)
        tried = self._addresses.get(address)
        if tried is not None:
            tried.next_try = now + min(AGAIN_MOST, self._membership.timing.retry_first * 2.0 ** min(tried.failures, 10))
            tried.failures += 1

    def _answered(self, address: Address, greeting: Greeting, expected: Peer | None) -> None:
        now = self._clock()
        tried = self._addresses.get(address)
        if tried is not None:
            tried.found, tried.next_try, tried.failures = now, now + AGAIN_AFTER_ANSWER, 0
        peer = replace(greeting.peer, host=address.host, port=address.port)
        is_of_us = self._is_of_us(greeting, address)
        if expected is not None and (not is_of_us or peer.node_id != expected.node_id):
            self._membership.contact_failed(expected.node_id, now, at=expected)
        if not is_of_us:
            return
        self._membership.contact_ok(peer, now, greeting.boot)
        if peer.node_id == self._membership.view().me:
            return
        for member in greeting.members:
            self._membership.heard(member, now)
        if self._on_greeting is not None:
            self._on_greeting(greeting, peer)

    def _is_of_us(self, greeting: Greeting, address: Address) -> bool:
        """Whether a node is of this cluster and speaks a version that we do; said once for each address if not."""
        is_ours = greeting.cluster == self._cluster
        if is_ours and greeting.peer.wire_version >= WIRE_VERSION - 1:
            self._strangers.discard(address)
            return True
        if address not in self._strangers and len(self._strangers) < MAX_ADDRESSES:
            self._strangers.add(address)
            why = f"speaks version {greeting.peer.wire_version}" if is_ours else f"is of cluster {greeting.cluster!r}"
            log.info("the node at %s port %d %s and is left alone", address.host, address.port, why)
        return False

    def _show_changes(self) -> None:
        view = self._membership.view()
        if view is not self._shown:
            for node_id in view.by_id.keys() - self._shown.by_id.keys():
                log.info("%s joined (%s)", view.by_id[node_id].name, view.by_id[node_id].url)
            for node_id in self._shown.by_id.keys() - view.by_id.keys():
                log.info("%s is gone (%s)", self._shown.by_id[node_id].name, self._shown.by_id[node_id].url)
            self._shown = view
            if self._on_view is not None:
                self._on_view(view)
        self._show_conflicts()

    def _show_conflicts(self) -> None:
        conflicts = self._membership.conflicts()
        for conflict in conflicts:
            if conflict.first.node_id not in self._shown_conflicts:
                log.warning(
                    "two nodes have the id %s: %s and %s; stop one and give it an empty data directory",
                    conflict.first.node_id.hex(),
                    conflict.first.url,
                    conflict.second.url,
                )
                if self._on_conflict is not None:
                    self._on_conflict(conflict)
        self._shown_conflicts = frozenset(conflict.first.node_id for conflict in conflicts)
