"""Agents on a simulated network, in virtual time: real timings, no waiting."""

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import TypeVar

from hoard_p2p.cluster.agent import Answer, ClusterAgent, Greeting
from hoard_p2p.cluster.discovery import Address, Discovery, Found
from hoard_p2p.cluster.membership import IdConflict, Membership
from hoard_p2p.errors import NotFound, PeerUnavailable
from hoard_p2p.peer import ClusterView, News, NodeId, Peer, Standing
from hoard_p2p.testing.network import a_peer
from hoard_p2p.transfer.wire import Hello
from hoard_p2p.transfer.wire_members import ProbeMessage

T = TypeVar("T")


class VirtualSelector(selectors.DefaultSelector):
    """Does not wait: time jumps to the next timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "every task waits for something that will never happen"
            self.now += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.virtual = VirtualSelector()
        super().__init__(self.virtual)

    def time(self) -> float:
        return self.virtual.now


def run(main: Callable[[], Awaitable[T]]) -> T:
    async def until_done() -> T:
        async with asyncio.timeout(10_000):
            return await main()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(until_done())


class Given:
    """A discovery of fixed addresses, which then ends."""

    name = "given"

    def __init__(self, *addresses: Address) -> None:
        self.addresses = addresses

    async def run(self, found: Found) -> None:
        for address in self.addresses:
            found(address)


@dataclass
class Net:
    """Nodes by address, and those that do not answer."""

    nodes: dict[Address, "Node"] = field(default_factory=dict)
    silent: set[Address] = field(default_factory=set)
    asked: list[tuple[float, Address]] = field(default_factory=list)


class Node:
    """An agent at an address of a `Net`, and what it told."""

    def __init__(
        self, net: Net, peer: Peer, *discoveries: Discovery, cluster: str = "c", boot: bytes | None = None
    ) -> None:
        self.net, self.peer, self.cluster = net, peer, cluster
        self.boot = boot or peer.name.encode()
        self.address = Address(peer.host, peer.port)
        net.nodes[self.address] = self
        self.views: list[ClusterView] = []
        self.conflicts: list[IdConflict] = []
        self.greetings: list[Peer] = []
        random = Random(peer.port)
        self.membership = Membership(peer, sample=random.sample, boot=self.boot)
        self.cut: set[Address] = set()
        self.agent = ClusterAgent(
            self.membership,
            discoveries,
            Asking(self),
            cluster=cluster,
            clock=lambda: asyncio.get_running_loop().time(),
            random=random,
            on_greeting=lambda greeting, peer: self.greetings.append(peer),
            on_view=self.views.append,
            on_conflict=self.conflicts.append,
        )

    def hello(self) -> Hello:
        return Hello(self.peer, self.cluster, self.agent.view().others, boot=self.boot)

    async def reach(self, host: str, port: int) -> "Node":
        address = Address(host, port)
        self.net.asked.append((asyncio.get_running_loop().time(), address))
        if address in self.net.silent or address in self.cut:
            await asyncio.Event().wait()
        await asyncio.sleep(0.001)
        other = self.net.nodes.get(address)
        if other is None or self.address in other.cut:
            raise PeerUnavailable(f"nobody listens at {address}")
        return other

    def sees(self) -> set[str]:
        return {peer.name for peer in self.agent.view().others}


class Asking:
    """The questions of one node, answered by the others of its net."""

    def __init__(self, node: Node) -> None:
        self.node = node

    async def hello(self, host: str, port: int) -> Greeting:
        other = await self.node.reach(host, port)
        other.agent.greeted(self.node.hello())
        return other.hello()

    async def probe(self, peer: Peer, news: News) -> Answer:
        other = await self.node.reach(peer.host, peer.port)
        told = other.agent.probed(replace(self.node.hello(), members=()), news)
        return ProbeMessage(replace(other.hello(), members=()), told)

    async def probe_for(self, helper: Peer, node: NodeId) -> bool:
        other = await self.node.reach(helper.host, helper.port)
        try:
            return await other.agent.probe_for(node)
        except NotFound as error:
            raise PeerUnavailable("refused") from error

    async def standings(self, peer: Peer, known: Sequence[Standing]) -> Sequence[Standing]:
        other = await self.node.reach(peer.host, peer.port)
        return other.agent.standings_but([(each.node_id, each.incarnation, each.version) for each in known])[:2]


@contextmanager
def running(group: asyncio.TaskGroup, *nodes: Node) -> Iterator[None]:
    tasks = [group.create_task(node.agent.run()) for node in nodes]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


async def live(seconds: float, *nodes: Node) -> None:
    """Let nodes run for so long, then end them; nothing of theirs may be left."""
    async with asyncio.TaskGroup() as group:
        with running(group, *nodes):
            await asyncio.sleep(seconds)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def addresses(node: Node) -> dict[NodeId, Address]:
    return {peer.node_id: Address(peer.host, peer.port) for peer in node.agent.view().others}


A1, A2, A3 = (Address(f"10.0.0.{number}", 7000) for number in (1, 2, 3))


def peer_at(number: int, address: Address) -> Peer:
    return a_peer(number, address.host, address.port)
