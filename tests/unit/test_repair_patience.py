"""Who counts as a home while it is away, and the pace of repair."""

from dataclasses import replace

from hoard_p2p.peer import ClusterView, NodeId, Peer
from hoard_p2p.repair.patience import Pace, Patience

PEERS = tuple(Peer(NodeId(bytes([n]) * 16), 1, f"n{n}", "", "10.0.0.1", 1, 8) for n in range(4))


def view(*numbers: int) -> ClusterView:
    return ClusterView(PEERS[0].node_id, tuple(PEERS[n] for n in numbers))


def seen(patience: Patience, now: float) -> list[str]:
    shown = patience.view(now)
    assert shown is not None
    return [peer.name for peer in shown.peers]


def test_a_node_that_vanished_keeps_its_shares_for_the_grace_time_from_when_it_vanished() -> None:
    patience = Patience(60)
    assert patience.view(0) is None
    patience.see(view(0, 1, 2), 0)
    patience.see(view(0, 2), 1000)
    assert seen(patience, 1059) == ["n0", "n1", "n2"]
    assert seen(patience, 1061) == ["n0", "n2"]


def test_other_changes_meanwhile_do_not_put_repair_off() -> None:
    patience = Patience(60)
    patience.see(view(0, 1, 2), 0)
    patience.see(view(0, 2), 10)
    patience.see(view(0, 2, 3), 50)
    assert seen(patience, 60) == ["n0", "n1", "n2", "n3"], "who joins counts at once"
    patience.see(view(0, 3), 65)
    assert seen(patience, 71) == ["n0", "n2", "n3"]


def test_a_node_that_comes_back_was_never_away() -> None:
    patience = Patience(60)
    patience.see(view(0, 1), 0)
    patience.see(view(0), 10)
    patience.see(view(0, 1), 30)
    patience.see(view(0), 50)
    assert seen(patience, 100) == ["n0", "n1"]


def test_a_node_that_drained_has_no_shares_to_wait_for() -> None:
    patience = Patience(60)
    patience.see(ClusterView(PEERS[0].node_id, (PEERS[0], replace(PEERS[1], weight=0))), 0)
    patience.see(view(0), 10)
    assert seen(patience, 10) == ["n0"]


def test_the_pace_is_kept_on_average_and_rest_is_not_saved_up() -> None:
    pace = Pace(100)
    assert [pace.wait(50, 0.0) for _ in range(3)] == [0.0, 0.5, 1.0]
    assert pace.wait(50, 100.0) == 0.0
    assert pace.wait(50, 100.0) == 0.5
    assert Pace(0).wait(1 << 40, 0.0) == 0.0
