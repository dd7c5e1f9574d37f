"""The node among others: its record, the agent that keeps track of the cluster, and what that asks over the wire."""

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hoard_p2p.cluster.agent import Answer, ClusterAgent, Greeting
from hoard_p2p.cluster.discovery import Advert
from hoard_p2p.cluster.membership import IdConflict, Membership
from hoard_p2p.config import NodeSettings
from hoard_p2p.node.registries import make_discoveries
from hoard_p2p.peer import ClusterView, News, NodeId, Peer, Standing
from hoard_p2p.placement import weight_of
from hoard_p2p.storage.store import Store
from hoard_p2p.transfer.control import PeerControl
from hoard_p2p.transfer.wire import Hello
from hoard_p2p.transfer.wire_members import KnownStanding, ProbeMessage

MOST_SECONDS = 10.0
"""A question that the agent did not bound itself ends then."""


@dataclass(frozen=True, slots=True)
class Told:
    """Whom the agent tells of what it sees."""

    greeting: Callable[[Greeting, Peer], None]
    view: Callable[[ClusterView], None]
    conflict: Callable[[IdConflict], None]


def weight_here(store: Store) -> int:
    """The weight of a node with this store, when it does not drain."""
    return weight_of(store.capacity() or 1 << 30)


def own_record(settings: NodeSettings, store: Store, port: int) -> Peer:
    """The membership record of the node that runs on this store and listens on `port`."""
    return Peer(
        node_id=store.node_id,
        incarnation=store.start_number,
        name=settings.name,
        rack=settings.rack,
        host=settings.host,
        port=port,
        weight=weight_here(store),
    )


class WireQuestions:
    """`cluster.questions.Questions` over a `PeerControl`. `hello` says who this node is."""

    def __init__(self, control: PeerControl, hello: Callable[[], Hello]) -> None:
        self._control = control
        self._hello = hello

    async def hello(self, host: str, port: int) -> Greeting:
        return await self._control.hello(host, port, me=self._hello())

    async def probe(self, peer: Peer, news: News) -> Answer:
        message = ProbeMessage(replace(self._hello(), members=()), news)
        return await self._control.probe(peer, message, timeout=MOST_SECONDS)

    async def probe_for(self, helper: Peer, node: NodeId) -> bool:
        return await self._control.probe_for(helper, node, timeout=MOST_SECONDS)

    async def standings(self, peer: Peer, known: Sequence[Standing]) -> Sequence[Standing]:
        asked = [KnownStanding(each.node_id, each.incarnation, each.version) for each in known]
        return await self._control.standings(peer, asked)


def answer_probe(agent: ClusterAgent, hello: Hello, caller: ProbeMessage) -> ProbeMessage:
    """The answer to a probe of another node."""
    return ProbeMessage(replace(hello, members=()), agent.probed(caller.hello, caller.news))


def unknown_standings(agent: ClusterAgent, known: Sequence[KnownStanding]) -> list[Standing]:
    """The standings that who asks does not know."""
    return agent.standings_but([(each.node_id, each.incarnation, each.version) for each in known])


def make_agent(
    me: Peer,
    settings: NodeSettings,
    questions: WireQuestions,
    told: Told,
    made: Callable[[], ClusterAgent],
    *,
    boot: bytes,
    prints: tuple[str, ...],
) -> ClusterAgent:
    """The agent of a node, not yet running; `made` is to give it later on, `prints`: the fingerprints of keys that
    it accepts. Raises BadRequest for a discovery that there is not."""
    advert = Advert(me.node_id, settings.cluster, me.rack, settings.host, me.port, prints)
    draw = random.Random(os.urandom(8))
    return ClusterAgent(
        Membership(me, sample=draw.sample, boot=boot, accusers_needed=1 if settings.cluster_key_file else 2),
        make_discoveries(settings.discovery, advert, made, draw),
        questions,
        cluster=settings.cluster,
        clock=time.monotonic,
        random=draw,
        on_greeting=told.greeting,
        on_conflict=told.conflict,
        on_view=told.view,
    )
