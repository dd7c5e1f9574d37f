"""The agent on a simulated network, in virtual time: real timings, no waiting."""

import asyncio
import logging
from dataclasses import replace

import pytest

from hoard_p2p.cluster.discovery import Address, Found
from hoard_p2p.cluster.membership import State
from hoard_p2p.errors import PeerUnavailable
from tests.unit.cluster_net import A1, A2, A3, Given, Net, Node, addresses, live, peer_at, run, running


def test_one_discovered_address_makes_two_acquaintances_at_once() -> None:
    net = Net()
    first, second = Node(net, peer_at(1, A1), Given(A2)), Node(net, peer_at(2, A2))
    run(lambda: live(0.1, first, second))
    assert (first.sees(), second.sees()) == ({"n2"}, {"n1"})
    assert first.greetings[0].node_id == second.peer.node_id


def test_a_joiner_learns_from_one_peer_of_all_the_others() -> None:
    net = Net()
    nodes = [Node(net, peer_at(n, Address(f"10.0.0.{n}", 7000)), Given(A1)) for n in range(1, 21)]
    run(lambda: live(3.0, *nodes))
    for node in nodes:
        assert len(node.sees()) == 19


def test_a_peer_is_used_at_the_address_it_was_reached_at() -> None:
    net = Net()
    first = Node(net, peer_at(1, A1), Given(A2))
    second = Node(net, replace(peer_at(2, A2), host="0.0.0.0"))
    net.nodes[A2] = second
    run(lambda: live(0.1, first, second))
    assert addresses(first) == {second.peer.node_id: A2}


def test_a_node_of_another_cluster_is_left_alone_and_mentioned_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    net = Net()
    first, stranger = Node(net, peer_at(1, A1), Given(A2)), Node(net, peer_at(2, A2), cluster="other")
    run(lambda: live(200.0, first, stranger))
    assert (first.sees(), stranger.sees()) == (set(), set())
    lines = [record for record in caplog.records if "other" in record.getMessage()]
    assert [record.levelname for record in lines] == ["INFO"]


def test_a_node_of_a_version_too_old_is_left_alone() -> None:
    net = Net()
    old = Node(net, replace(peer_at(2, A2), wire_version=-1))
    first = Node(net, peer_at(1, A1), Given(A2))
    run(lambda: live(5.0, first, old))
    assert first.sees() == set()


def test_my_own_address_found_by_discovery_is_not_a_peer() -> None:
    net = Net()
    alone = Node(net, peer_at(1, A1), Given(A1))
    run(lambda: live(60.0, alone))
    assert alone.sees() == set()
    assert alone.conflicts == []


def test_an_address_that_does_not_answer_is_tried_again_with_back_off_until_it_does() -> None:
    net = Net()
    first = Node(net, peer_at(1, A1), Given(A2))

    async def main() -> float:
        async with asyncio.TaskGroup() as group:
            with running(group, first):
                await asyncio.sleep(100.0)
                tries = len(net.asked)
                second = Node(net, peer_at(2, A2))
                with running(group, second):
                    await asyncio.sleep(17.0)
                    assert first.sees() == {"n2"}
        return tries

    assert 8 <= run(main) <= 15


def test_a_silent_address_costs_two_seconds_and_no_more() -> None:
    net = Net(silent={A2})
    first, third = Node(net, peer_at(1, A1), Given(A2, A3)), Node(net, peer_at(3, A3))
    run(lambda: live(10.0, first, third))
    assert first.sees() == {"n3"}
    assert 2 <= sum(address == A2 for _, address in net.asked) <= 4


def test_a_peer_that_falls_silent_leaves_every_view_and_comes_back_when_it_answers() -> None:
    net = Net()
    nodes = [Node(net, peer_at(n, Address(f"10.0.0.{n}", 7000)), Given(A1)) for n in (1, 2, 3)]

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            with running(group, *nodes):
                await asyncio.sleep(5.0)
                net.silent.add(A2)
                await asyncio.sleep(12.0)
                assert nodes[0].sees() == {"n3"}
                assert nodes[2].sees() == {"n1"}
                net.silent.discard(A2)
                await asyncio.sleep(61.0)
                assert nodes[0].sees() == {"n2", "n3"}

    run(main)


def test_a_reported_failure_makes_a_suspect_until_the_next_answer() -> None:
    net = Net()
    first, second = Node(net, peer_at(1, A1), Given(A2)), Node(net, peer_at(2, A2))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            with running(group, first, second):
                await asyncio.sleep(3.0)
                first.agent.report_failure(second.peer.node_id)
                assert first.agent.suspects() == {second.peer.node_id}
                await asyncio.sleep(2.0)
                assert first.agent.suspects() == frozenset()

    run(main)


def test_a_goodbye_takes_effect_as_soon_as_the_node_does_not_answer() -> None:
    net = Net()
    first, second = Node(net, peer_at(1, A1), Given(A2)), Node(net, peer_at(2, A2))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            with running(group, first, second):
                await asyncio.sleep(3.0)
                first.agent.left(second.peer.node_id, second.peer.incarnation)
                await asyncio.sleep(0.5)
                del net.nodes[A2]
                await asyncio.sleep(1.5)
                assert first.sees() == set()
                assert [member.state for member in first.agent.members()] == [State.LEFT]
                await asyncio.sleep(60.0)
                assert first.sees() == set()

    run(main)


def test_a_goodbye_in_the_name_of_a_node_that_answers_evicts_nobody() -> None:
    net = Net()
    first, second = Node(net, peer_at(1, A1), Given(A2)), Node(net, peer_at(2, A2))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            with running(group, first, second):
                await asyncio.sleep(3.0)
                for _ in range(20):
                    first.agent.left(second.peer.node_id, second.peer.incarnation)
                    await asyncio.sleep(0.5)
                    assert first.sees() == {"n2"}
                    assert first.agent.suspects() == frozenset()

    run(main)


def test_another_node_at_the_address_of_a_dead_one_takes_its_place_and_not_its_name() -> None:
    net = Net()
    first, second = Node(net, peer_at(1, A1), Given(A2)), Node(net, peer_at(2, A2))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            with running(group, first):
                with running(group, second):
                    await asyncio.sleep(3.0)
                heir = Node(net, peer_at(3, A2))
                with running(group, heir):
                    await asyncio.sleep(30.0)
                    assert first.sees() == {"n3"}

    run(main)


@pytest.mark.expect_warnings
def test_a_cloned_node_is_reported_by_both_clones_and_by_a_third() -> None:
    net = Net()
    third = Node(net, peer_at(3, A3), Given(A1, A2))
    clones = [Node(net, peer_at(1, address), Given(A1, A2), boot=address.host.encode()) for address in (A1, A2)]
    run(lambda: live(10.0, third, *clones))
    for node in (third, *clones):
        (conflict,) = node.conflicts
        assert {conflict.first.host, conflict.second.host} == {A1.host, A2.host}
    assert len(net.asked) < 100  # to find out about a conflict must not become a storm


class Failing:
    """A discovery that cannot work the first times."""

    name = "failing"

    def __init__(self, error: Exception, times: int, *addresses: Address) -> None:
        self.error, self.times, self.addresses = error, times, addresses

    async def run(self, found: Found) -> None:
        if self.times:
            self.times -= 1
            raise self.error
        await Given(*self.addresses).run(found)


@pytest.mark.expect_warnings
@pytest.mark.parametrize("error", [OSError("no network"), PeerUnavailable("no multicast")])
def test_a_failing_discovery_is_one_warning_and_is_started_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    net = Net()
    first, second = Node(net, peer_at(1, A1), Failing(error, 3, A2)), Node(net, peer_at(2, A2))
    run(lambda: live(15.0, first, second))
    assert first.sees() == {"n2"}
    assert [record.levelname for record in caplog.records if "failing" in record.getMessage()] == ["WARNING"]


def test_a_death_among_forty_is_known_to_all_within_half_a_minute() -> None:
    net = Net()
    nodes = [Node(net, peer_at(n, Address(f"10.0.0.{n}", 7000)), Given(A1)) for n in range(1, 41)]

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            with running(group, *nodes):
                await asyncio.sleep(10.0)
                assert all(len(node.sees()) == 39 for node in nodes)
                net.silent.add(nodes[21].address)
                await asyncio.sleep(32.0)
                assert all("n22" not in node.sees() for node in nodes if node is not nodes[21])

    run(main)


def test_two_nodes_at_rest_say_hello_about_once_a_second() -> None:
    net = Net()
    nodes = Node(net, peer_at(1, A1), Given(A2)), Node(net, peer_at(2, A2), Given(A1))
    run(lambda: live(60.0, *nodes))
    assert len(net.asked) < 2 * 60 * 1.5


def test_status_shows_members_with_state_and_last_contact() -> None:
    net = Net()
    first, second = Node(net, peer_at(1, A1), Given(A2)), Node(net, peer_at(2, A2))
    run(lambda: live(1.0, first, second))
    (member,) = first.agent.members()
    assert member.peer.name == "n2"
    assert member.state is State.ALIVE
    assert member.last_contact is not None
    assert member.last_contact <= 1.0
