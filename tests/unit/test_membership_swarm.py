"""The production state machine on many simulated nodes, in virtual time: how fast a death is known, what it costs, and
that nobody who answers is talked out of a view."""

import gc
from collections.abc import Iterator

import pytest

from hoard_p2p.cluster.membership import State
from hoard_p2p.ids import SnapshotId
from hoard_p2p.peer import Rumour, Said
from hoard_p2p.testing.swarm import Swarm

SET = SnapshotId(b"s" * 32)


@pytest.fixture
def without_gc() -> Iterator[None]:
    """A million entries that hold no cycles are not looked through again and again."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_gc")
@pytest.mark.parametrize(("size", "seed"), [(3, 1), (3, 2), (3, 3), (64, 1), (64, 2), (64, 3), (1000, 1)], ids=str)
def test_a_death_is_declared_within_ten_seconds_and_known_to_all_shortly_after(size: int, seed: int) -> None:
    swarm = Swarm(size, seed)
    swarm.run(2.0)
    lost = swarm.nodes[size // 2]
    lost.is_up = False
    died = swarm.now
    assert swarm.run_until(lambda: len(swarm.believers(lost)) < size - 1, 10.0), "somebody declared it"
    assert swarm.run_until(lambda: not swarm.believers(lost), 15.0 - (swarm.now - died)), "all know"
    others = [node for node in swarm.nodes if node is not lost]
    assert all(len(node.members.view().peers) == size - 1 for node in others[:3]), "and it is the only one"


def test_at_rest_a_node_probes_two_peers_a_second_however_many_there_are() -> None:
    for size in (8, 128):
        swarm = Swarm(size, 1)
        swarm.run(20.0)
        assert max(node.probes for node in swarm.nodes) <= 2 * 20 / 0.8 + 2
        assert sum(node.received for node in swarm.nodes) == 0


def test_ten_deaths_at_once_are_known_and_cost_each_node_a_bounded_number_of_probes() -> None:
    swarm = Swarm(100, 4)
    swarm.run(2.0)
    for node in swarm.nodes[:10]:
        node.is_up = False
    assert swarm.run_until(lambda: not any(swarm.believers(node) for node in swarm.nodes[:10]), 25.0)
    assert max(node.probes for node in swarm.nodes) < 600


def test_two_halves_that_cannot_reach_each_other_part_and_meet_again() -> None:
    swarm = Swarm(20, 5)
    swarm.run(2.0)
    swarm.reaches = lambda a, b: (a < 10) == (b < 10)
    assert swarm.run_until(lambda: all(len(node.members.view().peers) == 10 for node in swarm.nodes), 60.0)
    swarm.reaches = lambda a, b: True
    assert swarm.run_until(lambda: all(len(node.members.view().peers) == 20 for node in swarm.nodes), 90.0)


def test_two_nodes_that_cannot_reach_each_other_and_that_others_reach_stay_in_each_others_view() -> None:
    swarm = Swarm(6, 6)
    swarm.reaches = lambda a, b: {a, b} != {0, 1}
    swarm.run(120.0)
    one, other = swarm.nodes[:2]
    assert one.members.state_of(other.peer.node_id) is State.SUSPECT
    assert other.members.suspects() == {one.peer.node_id}
    assert all(len(node.members.view().peers) == 6 for node in swarm.nodes)
    assert all(node.members.suspects() == frozenset() for node in swarm.nodes[2:])


def test_a_node_cut_off_from_all_waits_longer_before_it_gives_the_others_up() -> None:
    swarm = Swarm(8, 7)
    swarm.run(2.0)
    swarm.reaches = lambda a, b: a != 0 and b != 0
    assert swarm.run_until(lambda: not swarm.believers(swarm.nodes[0]), 15.0)
    assert len(swarm.nodes[0].members.view().peers) == 8, "it may be its own network"
    assert swarm.run_until(lambda: len(swarm.nodes[0].members.view().peers) == 1, 90.0)


def test_a_liar_cannot_have_anybody_who_answers_leave_a_view() -> None:
    swarm = Swarm(16, 8)
    swarm.run(2.0)
    victim, liar = swarm.nodes[3], swarm.nodes[9]
    for round_number in range(40):
        for said in (Said.SUSPECT, Said.DEAD, Said.LEFT):
            accusers = tuple(node.peer.node_id for node in swarm.nodes[9:12])
            lie = Rumour(victim.peer, said, round_number, accusers)
            for node in swarm.nodes:
                if node is not liar:
                    node.members.told(lie, swarm.now)
        swarm.run(0.5)
        assert len(swarm.believers(victim)) == 15
    swarm.run(30.0)
    assert not any(node.members.suspects() for node in swarm.nodes)


def test_the_same_seed_gives_the_same_run() -> None:
    def course(seed: int) -> list[tuple[int, int]]:
        swarm = Swarm(12, seed)
        swarm.run(2.0)
        swarm.nodes[4].is_up = False
        swarm.run(12.0)
        return [(node.probes, node.received) for node in swarm.nodes]

    assert course(1) == course(1)
    assert course(1) != course(2)


def test_a_standing_is_known_to_all_of_two_hundred_nodes_within_three_seconds() -> None:
    swarm = Swarm(200, 9)
    swarm.run(1.0)
    swarm.stand(swarm.nodes[7], lambda standings: standings.stand([SET], None))

    def all_know() -> bool:
        return all(set(node.standings.wanting(SET)) == {swarm.nodes[7].peer.node_id} for node in swarm.nodes)

    assert swarm.run_until(all_know, 3.0)


def test_two_hundred_nodes_that_mount_within_a_second_know_of_each_other_soon() -> None:
    swarm = Swarm(200, 10)
    swarm.run(1.0)
    for node in swarm.nodes:
        swarm.stand(node, lambda standings: standings.stand([SET], None))
        swarm.run(0.005)
    assert swarm.run_until(lambda: all(len(node.standings.wanting(SET)) == 200 for node in swarm.nodes), 10.0)
