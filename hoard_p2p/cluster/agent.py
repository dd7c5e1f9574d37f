"""Keeps a membership going: runs discoveries, says hello to what they find, probes, spreads news, hands out views.

A node is always used at the address that this node reached it at, never at the one it believes it has. What an agent
does in a second does not grow with the number of nodes: members and standings are only compared where a digest that
comes with every probe shows a difference, with one peer at a time, and ever less often.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random

from hoard_p2p.cluster.addresses import Address, Discovery
from hoard_p2p.cluster.comparing import Comparing
from hoard_p2p.cluster.dialling import Dialling
from hoard_p2p.cluster.membership import IdConflict, Member, Membership
from hoard_p2p.cluster.questions import Answer, Greeting, Questions
from hoard_p2p.cluster.reporting import Reporting
from hoard_p2p.cluster.standings import Standings
from hoard_p2p.cluster.strangers import Strangers, discover, is_sayable
from hoard_p2p.errors import NotFound, PeerStrange, PeerUnavailable, Unavailable
from hoard_p2p.ids import SnapshotId
from hoard_p2p.peer import ClusterView, News, NodeId, OriginId, Peer, Rumour, Standing

__all__ = ["Answer", "ClusterAgent", "Greeting", "Questions"]

log = logging.getLogger(__name__)

HELLO_TIME = 2.0
HELLOS_AT_ONCE = 32
PROBES_AT_ONCE = 64
HELPED_AT_ONCE = 32
"""Probes made for others at a time."""
TOLD_AT_ONCE = 16
"""Peers that a change of this node's own is told to at once."""


class ClusterAgent:
    """The one owner of a `Membership`. All methods are for the event loop, none blocks."""

    def __init__(
        self,
        membership: Membership,
        discoveries: Sequence[Discovery],
        questions: Questions,
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
        self._questions = questions
        self._clock = clock
        self._random = random
        self._on_greeting = on_greeting
        self._reporting = Reporting(membership, on_view, on_conflict)
        self._standings = Standings(membership.me)
        self._comparing = Comparing(membership, self._standings, clock, random)
        self._dialling = Dialling(clock)
        self._asking: set[Address] = set()
        self._probing: set[Address] = set()
        self._strangers = Strangers(cluster)
        self._helping = 0
        self._to_tell = 0
        self._news = asyncio.Event()
        self._hearsay = asyncio.Event()
        self._hellos = asyncio.Semaphore(HELLOS_AT_ONCE)
        self._probes = asyncio.Semaphore(PROBES_AT_ONCE)
        self._strange_probes = asyncio.Semaphore(PROBES_AT_ONCE)

    async def run(self) -> None:
        """Work until cancelled; leaves no task behind."""
        async with asyncio.TaskGroup() as group:
            for discovery in self._discoveries:
                group.create_task(discover(discovery, self.found))
            group.create_task(self._ask_news(group))
            group.create_task(self._spread_news(group))
            while True:
                for probe in self._membership.tick(self._clock()):
                    self._probe(group, probe.peer)
                self._dial(group)
                self._reporting.show()
                self._hearsay.set()
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

    def some(self, count: int) -> list[Peer]:
        """Random peers of the view that are not suspected, at most `count`."""
        return self._membership.some(count)

    def conflicts(self) -> tuple[IdConflict, ...]:
        """Node ids used by two running nodes. One that names `view().me` means that this node or the other must stop:
        the one that started later."""
        return self._membership.conflicts()

    def report_failure(self, node_id: NodeId) -> None:
        """A request to the peer failed: it is suspect from now on, and probed soon."""
        self._membership.contact_failed(node_id, self._clock())

    def found(self, address: Address) -> None:
        """A node may be listening at `address`: it will be said hello to at once, and again until it answers."""
        if self._dialling.found(address):
            self._news.set()

    def members_by_lease(self, leased: frozenset[NodeId] | None) -> None:
        """A registry says which nodes have a lease, and nobody else is a member; None while it cannot be asked."""
        self._membership.by_lease(leased)
        self._news.set()

    def left(self, node_id: NodeId, incarnation: int) -> None:
        """A peer said that it leaves."""
        self._membership.left(node_id, incarnation, self._clock())
        self._news.set()

    def renew(self, me: Peer) -> None:
        """This node's own record changed; told to all soon."""
        self._membership.renew(me)
        self._tell_at_once()

    # --- what others ask

    def greeted(self, caller: Greeting) -> None:
        """Another node said hello to this one; it will be probed at the host and port it named."""
        if self._strangers.is_of_us(caller, Address(caller.peer.host, caller.peer.port)):
            self._membership.called(caller.peer, self._clock())
            self._news.set()

    def probed(self, caller: Greeting, news: News) -> News:
        """Another node probed this one: take its news, and say ours."""
        self.greeted(caller)
        if not self._strangers.is_of_us(caller, Address(caller.peer.host, caller.peer.port)):
            return News()
        self._take(news, caller.peer)
        return self._news_for(caller.peer.node_id)

    async def probe_for(self, node_id: NodeId) -> bool:
        """Whether a peer of this node's view answers; for another node that it does not answer. Raises NotFound if it
        is not in the view (nobody can have this node call strangers), Unavailable."""
        view = self.view()
        peer = view.by_id.get(node_id)
        if peer is None or node_id == view.me:
            raise NotFound(f"node {node_id.hex()} is not in the view of {self._membership.me.name}")
        if self._helping >= HELPED_AT_ONCE:
            raise Unavailable(f"{self._helping} nodes are probed for others here, try again later")
        self._helping += 1
        try:
            return await self._is_there(peer)
        finally:
            self._helping -= 1

    def standings_but(self, known: Collection[tuple[NodeId, int, int]]) -> list[Standing]:
        """The standings that are later than those `known` (node, incarnation, version)."""
        return self._standings.but(known)

    # --- standings

    def stand(self, *, wants: Collection[SnapshotId] | None = None, reads: Collection[OriginId] | None = None) -> None:
        """From now on this node mounts or warms exactly `wants`, and may and can read exactly `reads` (None: as
        before). Told to all soon. At most 256 of each are told."""
        if self._standings.stand(wants, reads):
            self._membership.tell(self._standings.own)
            self._tell_at_once()

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

    # --- tasks

    async def _ask_news(self, group: asyncio.TaskGroup) -> None:
        """Ask who was just found or named, without waiting for the next tick."""
        while True:
            await self._news.wait()
            self._news.clear()
            for probe in self._membership.due(self._clock()):
                self._probe(group, probe.peer)
            self._dial(group)
            self._reporting.show()
            self._hearsay.set()

    async def _spread_news(self, group: asyncio.TaskGroup) -> None:
        """While there are news that not everybody may have, tell them to a few random peers a few times a second."""
        timing = self._membership.timing
        while True:
            await self._hearsay.wait()
            self._hearsay.clear()
            count, self._to_tell = max(timing.spread, self._to_tell), 0
            told = self._membership.spread(count)
            for probe in told:
                self._probe(group, probe.peer)
            if told:
                await asyncio.sleep(timing.spread_every)
                self._hearsay.set()

    def _tell_at_once(self) -> None:
        self._to_tell = TOLD_AT_ONCE
        self._news.set()

    # --- hellos

    def _dial(self, group: asyncio.TaskGroup) -> None:
        """Say hello to the discovered addresses whose time has come."""
        for address in self._dialling.due():
            if address not in self._asking:
                self._asking.add(address)
                group.create_task(self._hello(address))

    async def _hello(self, address: Address) -> None:
        try:
            async with self._hellos, asyncio.timeout(HELLO_TIME):
                await self._greet(address)
        except (PeerUnavailable, TimeoutError) as error:
            log.debug("no hello from %s port %d: %r", address.host, address.port, error)
            if isinstance(error, PeerStrange):
                self._strangers.cannot_talk(address, error)
            self._dialling.failed(address)
        finally:
            self._asking.discard(address)
        self._news.set()

    async def _greet(self, address: Address) -> None:
        """Ask who is there: for all that it knows if that is new, for no more than its name later on."""
        if self._dialling.has_answered(address):
            unknown = Peer(NodeId(b""), 0, "", "", address.host, address.port, 0)
            self._met(address, (await self._questions.probe(unknown, News())).hello)
            self._dialling.answered(address)
            return
        peer = self._met(address, await self._questions.hello(address.host, address.port))
        self._dialling.answered(address)
        if peer is not None:
            await self._ask_standings(peer)

    def _met(self, address: Address, greeting: Greeting) -> Peer | None:
        """A node answered: its record as reached, None if it is not another one of this cluster."""
        now = self._clock()
        peer = replace(greeting.peer, host=address.host, port=address.port)
        if not self._strangers.is_of_us(greeting, address):
            return None
        self._membership.contact_ok(peer, now, greeting.boot)
        if peer.node_id == self._membership.me.node_id:
            return None
        for member in greeting.members:
            if is_sayable(member, by=peer):
                self._membership.heard(member, now)
        if self._on_greeting is not None:
            self._on_greeting(greeting, peer)
        return peer

    # --- probes

    def _probe(self, group: asyncio.TaskGroup, peer: Peer) -> None:
        address = Address(peer.host, peer.port)
        if address not in self._probing:
            self._probing.add(address)
            group.create_task(self._probed(address, peer))

    async def _probed(self, address: Address, peer: Peer) -> None:
        try:
            if not await self._is_there(peer):
                await self._missed(peer)
        finally:
            self._probing.discard(address)
        self._news.set()

    async def _is_there(self, peer: Peer) -> bool:
        """Probe a peer directly; whether that very node answered."""
        news = self._news_for(peer.node_id)
        try:
            async with self._turn_of(peer), asyncio.timeout(self._membership.patience(peer)):
                answer = await self._questions.probe(peer, news)
        except (PeerUnavailable, TimeoutError) as error:
            log.debug("no answer from %s: %r", peer.url, error)
            return False
        met = self._met(Address(peer.host, peer.port), answer.hello)
        if met is None:
            return False
        self._take(answer.news, met, met.node_id)
        if self._comparing.is_due(answer.news.digest):
            await self._compare(met)
        return met.node_id == peer.node_id

    def _turn_of(self, peer: Peer) -> asyncio.Semaphore:
        """Who may never have existed does not keep those of the view waiting."""
        return self._probes if peer.node_id in self._membership.view().by_id else self._strange_probes

    async def _missed(self, peer: Peer) -> None:
        """A peer did not answer: ask it through others before it becomes a suspect."""
        helpers = self._membership.missed(peer, self._clock())
        reached = await self._reached_by(helpers, peer.node_id)
        if helpers and not reached:
            self._membership.unheard()
        if any(reached):
            self._membership.vouched(peer.node_id, self._clock())
        else:
            self._membership.contact_failed(peer.node_id, self._clock(), at=peer)

    async def _reached_by(self, helpers: Sequence[Peer], node_id: NodeId) -> list[bool]:
        """What the helpers found that answered in time."""
        found: list[bool] = []

        async def ask(helper: Peer) -> None:
            with suppress(PeerUnavailable, TimeoutError):
                async with asyncio.timeout(self._membership.relay_patience()):
                    found.append(await self._questions.probe_for(helper, node_id))

        async with asyncio.TaskGroup() as group:
            for helper in helpers:
                group.create_task(ask(helper))
        return found

    # --- news

    def _news_for(self, node_id: NodeId) -> News:
        items = self._membership.news(node_id)
        return News(
            self._membership.refutation,
            self._comparing.digest(),
            tuple(item for item in items if isinstance(item, Rumour)),
            tuple(item for item in items if isinstance(item, Standing)),
        )

    def _take(self, news: News, sender: Peer, first_hand: NodeId | None = None) -> None:
        """Believe what there is to believe; the rest makes us ask. What a node tells of itself it tells as it was
        reached. `first_hand`: the node that answered this one, and so is who it says."""
        now = self._clock()
        for rumour in news.rumours:
            if rumour.peer.node_id == sender.node_id:
                rumour = replace(rumour, peer=replace(rumour.peer, host=sender.host, port=sender.port))  # noqa: PLW2901
            if is_sayable(rumour.peer, by=sender):
                self._membership.told(rumour, now)
        self._learn(news.standings, first_hand)
        if news.rumours or news.standings:
            self._news.set()

    def _learn(self, standings: Sequence[Standing], first_hand: NodeId | None) -> None:
        for standing in standings:
            start = self._membership.incarnation_of(standing.node_id)
            if self._standings.told(standing, start, first_hand=standing.node_id == first_hand):
                latest = self._standings.of(standing.node_id)
                self._membership.tell(latest or standing)

    async def _compare(self, peer: Peer) -> None:
        """Take over the members and standings that a peer knows and this node does not."""
        try:
            async with self._hellos, asyncio.timeout(HELLO_TIME):
                greeting = await self._questions.hello(peer.host, peer.port)
        except (PeerUnavailable, TimeoutError) as error:
            log.debug("%s told no members: %r", peer.name, error)
            return
        if self._met(Address(peer.host, peer.port), greeting) is not None:
            await self._ask_standings(peer)

    async def _ask_standings(self, peer: Peer) -> None:
        self._comparing.begin(self._membership.known())
        with suppress(PeerUnavailable, TimeoutError):
            async with asyncio.timeout(HELLO_TIME):
                while told := await self._questions.standings(peer, self._standings.all()):
                    if not any(self._standings.is_later(standing) for standing in told):
                        break
                    self._learn(told, peer.node_id)
