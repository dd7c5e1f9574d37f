"""What travels between agents: standings, suspicions, members that somebody missed; and what is not believed."""

import asyncio
from dataclasses import replace

import pytest

from hoard_p2p.cluster.discovery import Address
from hoard_p2p.cluster.membership import State
from hoard_p2p.errors import NotFound
from hoard_p2p.ids import SnapshotId
from hoard_p2p.peer import News, NodeId, OriginId, Rumour, Said, Standing
from tests.unit.cluster_net import A1, A2, A3, Given, Net, Node, addresses, live, peer_at, run, running

SET, OTHER = SnapshotId(b"s" * 32), SnapshotId(b"t" * 32)
ORIGIN = OriginId(b"origin-1")


def some_nodes(net: Net, count: int) -> list[Node]:
    return [Node(net, peer_at(n, Address(f"10.0.0.{n}", 7000)), Given(A1)) for n in range(1, count + 1)]


def ids(*nodes: Node) -> frozenset[NodeId]:
    return frozenset(node.peer.node_id for node in nodes)


def state_of(node: Node, other: Node) -> State:
    return next(m.state for m in node.agent.members() if m.peer.node_id == other.peer.node_id)


def test_what_a_node_wants_and_reads_is_known_to_all_within_a_second_and_so_is_that_it_does_not_any_more() -> None:
    nodes = some_nodes(Net(), 30)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            with running(group, *nodes):
                await asyncio.sleep(5.0)
                nodes[3].agent.stand(wants=[SET], reads=[ORIGIN])
                nodes[8].agent.stand(wants=[SET, OTHER])
                assert nodes[3].agent.wanting(SET) == ids(nodes[3]), "known here at once"
                await asyncio.sleep(1.0)
                for node in nodes:
                    assert node.agent.wanting(SET) == ids(nodes[3], nodes[8])
                    assert node.agent.reading(ORIGIN) == ids(nodes[3])
                nodes[8].agent.stand(wants=[])
                await asyncio.sleep(1.0)
                assert all(node.agent.wanting(SET) == ids(nodes[3]) for node in nodes)
                assert all(node.agent.wanting(OTHER) == frozenset() for node in nodes)

    run(main)


def test_who_joins_later_learns_what_all_others_want() -> None:
    net = Net()
    nodes = some_nodes(net, 6)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            with running(group, *nodes):
                for node in nodes:
                    node.agent.stand(wants=[SET])
                await asyncio.sleep(60.0)
                late = Node(net, peer_at(9, Address("10.0.0.9", 7000)), Given(A2))
                with running(group, late):
                    await asyncio.sleep(1.0)
                    assert late.agent.wanting(SET) == ids(*nodes)

    run(main)


def test_a_node_that_is_gone_wants_nothing() -> None:
    net = Net()
    nodes = some_nodes(net, 3)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            with running(group, *nodes):
                nodes[1].agent.stand(wants=[SET])
                await asyncio.sleep(3.0)
                assert nodes[0].agent.wanting(SET) == ids(nodes[1])
                net.silent.add(A2)
                await asyncio.sleep(15.0)
                assert nodes[0].agent.wanting(SET) == frozenset()
                assert nodes[0].agent.standing(nodes[1].peer.node_id) is not None

    run(main)


def test_a_peer_that_only_others_reach_stays_in_the_view_and_is_asked_last() -> None:
    nodes = some_nodes(Net(), 4)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            with running(group, *nodes):
                await asyncio.sleep(5.0)
                nodes[0].cut.add(nodes[1].address)
                await asyncio.sleep(60.0)
                assert nodes[0].agent.suspects() == ids(nodes[1])
                assert all(len(node.sees()) == 3 for node in nodes)
                nodes[0].cut.clear()
                await asyncio.sleep(3.0)
                assert nodes[0].agent.suspects() == frozenset()

    run(main)


def test_a_death_that_somebody_tells_is_asked_about_and_not_believed() -> None:
    nodes = some_nodes(Net(), 3)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            with running(group, *nodes):
                await asyncio.sleep(5.0)
                victim = nodes[1].peer
                for said in (Said.SUSPECT, Said.DEAD, Said.LEFT):
                    lie = Rumour(victim, said, 9, (nodes[2].peer.node_id,))
                    nodes[0].agent.probed(nodes[2].hello(), News(rumours=(lie,)))
                    await asyncio.sleep(2.0)
                    assert "n2" in nodes[0].sees()
                await asyncio.sleep(20.0)
                assert nodes[0].agent.suspects() == frozenset()

    run(main)


def test_news_of_another_cluster_are_not_taken() -> None:
    net = Net()
    node, stranger = Node(net, peer_at(1, A1)), Node(net, peer_at(2, A2), cluster="other")
    standing = Standing(stranger.peer.node_id, 1, 1, frozenset([SET]))
    rumour = Rumour(peer_at(3, A3), Said.ALIVE, 1)
    assert node.agent.probed(stranger.hello(), News(rumours=(rumour,), standings=(standing,))) == News()
    assert node.agent.members() == ()
    assert node.agent.standing(stranger.peer.node_id) is None


def test_a_node_probes_for_others_only_whom_it_knows() -> None:
    net = Net()
    nodes = some_nodes(net, 3)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            with running(group, *nodes):
                await asyncio.sleep(2.0)
                assert await nodes[0].agent.probe_for(nodes[1].peer.node_id)
                net.silent.add(A2)
                assert not await nodes[0].agent.probe_for(nodes[1].peer.node_id)
                for unknown in (peer_at(99, A3).node_id, nodes[0].peer.node_id):
                    with pytest.raises(NotFound):
                        await nodes[0].agent.probe_for(unknown)

    run(main)


def test_a_changed_record_is_known_to_all_within_two_seconds() -> None:
    nodes = some_nodes(Net(), 12)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            with running(group, *nodes):
                await asyncio.sleep(5.0)
                nodes[4].peer = replace(nodes[4].peer, weight=0)
                nodes[4].agent.renew(nodes[4].peer)
                await asyncio.sleep(2.0)
                for node in nodes:
                    assert node.agent.view().by_id[nodes[4].peer.node_id].weight == 0

    run(main)


def test_a_goodbye_told_to_one_peer_is_known_to_all() -> None:
    net = Net()
    nodes = some_nodes(net, 12)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            with running(group, *nodes[:5], *nodes[6:]):
                with running(group, nodes[5]):
                    await asyncio.sleep(5.0)
                nodes[0].agent.left(nodes[5].peer.node_id, 1)
                del net.nodes[nodes[5].address]
                await asyncio.sleep(4.0)
                for node in nodes[:5]:
                    assert state_of(node, nodes[5]) is State.LEFT

    run(main)


def test_what_a_node_asks_at_rest_does_not_grow_with_the_discovered_addresses() -> None:
    net = Net()
    everybody = [Address(f"10.0.0.{n}", 7000) for n in range(1, 31)]
    nodes = [Node(net, peer_at(n, address), Given(*everybody)) for n, address in enumerate(everybody, 1)]

    async def main() -> float:
        async with asyncio.TaskGroup() as group:
            with running(group, *nodes):
                await asyncio.sleep(20.0)
                assert all(len(node.sees()) == 29 for node in nodes)
                begun = len(net.asked)
                await asyncio.sleep(60.0)
                return (len(net.asked) - begun) / 60.0 / len(nodes)

    assert run(main) < 3.5


def test_an_agent_that_stops_leaves_nothing_running_while_it_probes() -> None:
    net = Net(silent={A2})
    nodes = [Node(net, peer_at(1, A1), Given(A2, A3)), Node(net, peer_at(3, A3))]

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            with running(group, *nodes):
                nodes[0].agent.greeted(Node(net, peer_at(2, A2)).hello())
                await asyncio.sleep(0.3)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)


def test_nodes_of_one_name_are_two_nodes() -> None:
    net = Net()
    nodes = some_nodes(net, 3)
    for node in nodes[1:]:
        node.peer = replace(node.peer, name="twin")
    run(lambda: live(5.0, *nodes))
    assert ids(*nodes) == frozenset(peer.node_id for peer in nodes[0].agent.view().peers)
    assert not nodes[0].conflicts


def test_a_peer_that_was_reached_in_two_ways_is_used_in_the_other_when_one_fails() -> None:
    net = Net()
    nodes = some_nodes(net, 2)
    other_way = Address("192.168.0.2", 7000)
    net.nodes[other_way] = nodes[1]

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            with running(group, *nodes):
                nodes[0].agent.found(other_way)
                await asyncio.sleep(5.0)
                used = addresses(nodes[0])[nodes[1].peer.node_id]
                assert used in (A2, other_way)
                net.silent.add(used)
                await asyncio.sleep(5.0)
                assert addresses(nodes[0])[nodes[1].peer.node_id] == (other_way if used == A2 else A2)
                assert nodes[0].agent.suspects() == frozenset()

    run(main)
