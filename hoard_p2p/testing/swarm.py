"""Many memberships on a simulated network, in virtual time: the production state machine, its news and its probes.

Deterministic: the same seed gives the same run. Messages take a millisecond; what does not arrive is noticed after the
times of `Timing`, as the agent does it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random

from hoard_p2p.cluster.membership import Membership, Probe, State
from hoard_p2p.cluster.standings import Standings
from hoard_p2p.peer import NodeId, Peer, Rumour, Standing

FLIGHT = 0.001


@dataclass
class SwarmNode:
    """One node. `is_up`: it answers and works; `probes` that it made, those for others included; news `received`; whom
    it is `probing` now and got no answer from yet."""

    number: int
    members: Membership
    standings: Standings
    is_up: bool = True
    is_spreading: bool = False
    probes: int = 0
    received: int = 0
    probing: set[int] = field(default_factory=set)

    @property
    def peer(self) -> Peer:
        return self.members.me


def swarm_peer(number: int) -> Peer:
    """The record of a simulated node."""
    node_id = NodeId(number.to_bytes(16, "big"))
    return Peer(node_id, 1, f"n{number}", f"r{number // 16}", f"10.{number >> 8}.{number & 255}.1", 7440, 1 << 16)


class Swarm:
    """`size` nodes that know each other already. `reaches(a, b)` says whether messages get from one to the other;
    a test may set it."""

    def __init__(self, size: int, seed: int) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self.reaches: Callable[[int, int], bool] = lambda a, b: True
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        peers = [swarm_peer(number) for number in range(size)]
        self.nodes = [self._make(number, peer) for number, peer in enumerate(peers)]
        self._by_id = {node.peer.node_id: node for node in self.nodes}
        for node in self.nodes:
            node.members.acquaint(peers, 0.0)
            self._at(self.random.random(), lambda node=node: self._tick(node))  # type: ignore[misc]

    def _make(self, number: int, peer: Peer) -> SwarmNode:
        draw = Random(self.random.getrandbits(64))
        return SwarmNode(number, Membership(peer, sample=draw.sample), Standings(peer))

    def run(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.run_until(lambda: False, seconds)

    def run_until(self, is_so: Callable[[], bool], seconds: float) -> bool:
        """Let virtual time pass until something is so, looked at every 100 ms. Returns whether it came about."""
        end, look = self.now + seconds, self.now
        while self._events and self._events[0][0] <= end:
            self.now, _, happen = heappop(self._events)
            happen()
            if self.now >= look:
                if is_so():
                    return True
                look = self.now + 0.1
        self.now = end
        return is_so()

    def stand(self, node: SwarmNode, standing: Callable[[Standings], bool]) -> None:
        """Change a node's standing and let it be told."""
        if standing(node.standings):
            node.members.tell(node.standings.own)
            self._spread_soon(node)

    def believers(self, lost: SwarmNode) -> list[SwarmNode]:
        """Nodes that still have `lost` in their view."""
        known = lost.peer.node_id
        others = (node for node in self.nodes if node is not lost and node.is_up)
        return [node for node in others if node.members.state_of(known) in (State.ALIVE, State.SUSPECT)]

    # --- steps

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        heappush(self._events, (when, next(self._order), happen))

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        self._at(self.now + seconds, happen)

    def _tick(self, node: SwarmNode) -> None:
        if node.is_up:
            for probe in node.members.tick(self.now):
                self._probe(node, probe)
            self._spread_soon(node)
        self._after(node.members.timing.probe_every * self.random.uniform(0.8, 1.2), lambda: self._tick(node))

    def _spread_soon(self, node: SwarmNode) -> None:
        if not node.is_spreading:
            node.is_spreading = True
            self._after(node.members.timing.spread_every, lambda: self._spread(node))

    def _spread(self, node: SwarmNode) -> None:
        node.is_spreading = False
        probes = [*node.members.due(self.now), *node.members.spread(node.members.timing.spread)] if node.is_up else []
        for probe in probes:
            self._probe(node, probe)
        if probes:
            self._spread_soon(node)

    def _connects(self, one: SwarmNode, other: SwarmNode) -> bool:
        there, back = self.reaches(one.number, other.number), self.reaches(other.number, one.number)
        return one.is_up and other.is_up and there and back

    def _probe(self, node: SwarmNode, probe: Probe) -> None:
        target = self._by_id[probe.peer.node_id]
        if target.number in node.probing:
            return
        node.probes += 1
        if self._connects(node, target):
            self._after(FLIGHT, lambda: self._exchange(node, target))
        else:
            node.probing.add(target.number)
            self._after(node.members.patience(target.peer), lambda: self._missed(node, target))

    def _exchange(self, node: SwarmNode, target: SwarmNode) -> None:
        asked = node.members.news(target.peer.node_id)
        target.members.heard(node.peer, self.now, spread=True)
        self._take(target, asked)
        answer = target.members.news(node.peer.node_id)
        node.members.contact_ok(target.peer, self.now)
        self._take(node, answer)

    def _take(self, node: SwarmNode, items: list[Rumour | Standing]) -> None:
        node.received += len(items)
        for item in items:
            if isinstance(item, Rumour):
                node.members.told(item, self.now)
            elif node.standings.told(item):
                of_me = item.node_id == node.peer.node_id
                node.members.tell(node.standings.own if of_me else item)
        if items:
            self._spread_soon(node)

    def _missed(self, node: SwarmNode, target: SwarmNode) -> None:
        if not node.is_up:
            return
        node.probing.discard(target.number)
        helpers = node.members.missed(target.peer, self.now)
        if not helpers:
            node.members.contact_failed(target.peer.node_id, self.now, at=target.peer)
            return
        able = [self._by_id[helper.node_id] for helper in helpers]
        if not any(self._connects(node, helper) for helper in able):
            node.members.unheard()
        node.probing.add(target.number)
        reached = [self._helps(node, helper, target) for helper in able]
        wait = FLIGHT if any(reached) else node.members.relay_patience()
        self._after(wait, lambda: self._conclude(node, target, is_there=any(reached)))

    def _helps(self, node: SwarmNode, helper: SwarmNode, target: SwarmNode) -> bool:
        helper.probes += 1
        return self._connects(node, helper) and self._connects(helper, target)

    def _conclude(self, node: SwarmNode, target: SwarmNode, *, is_there: bool) -> None:
        node.probing.discard(target.number)
        if is_there:
            node.members.vouched(target.peer.node_id, self.now)
        else:
            node.members.contact_failed(target.peer.node_id, self.now, at=target.peer)
        self._spread_soon(node)
