"""What nodes have to do with data: newest wins, bounded, and mine is what I say."""

from dataclasses import replace

from hoard_p2p.cluster.standings import MAX_ITEMS, MAX_WANTS, Standings
from hoard_p2p.ids import SnapshotId
from hoard_p2p.peer import NodeId, OriginId, Standing
from hoard_p2p.testing.network import a_peer

ME, N1, N2 = (a_peer(number) for number in (0, 1, 2))
SET, OTHER = SnapshotId(b"s" * 32), SnapshotId(b"t" * 32)
ORIGIN = OriginId(b"origin-1")


def told(version: int, *wants: SnapshotId, incarnation: int = 1) -> Standing:
    return Standing(N1.node_id, incarnation, version, frozenset(wants))


def test_what_i_want_and_read_is_known_here_at_once_and_each_change_is_a_later_version() -> None:
    standings = Standings(ME)
    assert standings.stand([SET], None)
    assert standings.stand(None, [ORIGIN])
    assert standings.own == Standing(ME.node_id, 1, 2, frozenset([SET]), frozenset([ORIGIN]))
    assert not standings.stand([SET], [ORIGIN])
    assert set(standings.wanting(SET)) == set(standings.reading(ORIGIN)) == {ME.node_id}
    assert standings.stand((), None)
    assert not standings.wanting(SET)


def test_of_two_standings_of_a_node_the_later_counts_in_whatever_order_they_come() -> None:
    standings = Standings(ME)
    assert standings.told(told(2, OTHER))
    assert not standings.told(told(1, SET))
    assert not standings.told(told(2, OTHER))
    assert (set(standings.wanting(SET)), set(standings.wanting(OTHER))) == (set(), {N1.node_id})
    assert standings.told(told(0, SET, incarnation=2))
    assert (set(standings.wanting(SET)), set(standings.wanting(OTHER))) == ({N1.node_id}, set())


def test_what_others_say_of_me_and_is_not_so_is_answered_with_a_later_version() -> None:
    standings = Standings(ME)
    standings.stand([SET], None)
    assert standings.told(Standing(ME.node_id, 1, 7, frozenset([OTHER])))
    assert standings.own == Standing(ME.node_id, 1, 8, frozenset([SET]))
    assert not standings.told(standings.own)
    assert not standings.told(Standing(ME.node_id, 1, (1 << 64) - 1)), "nobody believes that, so it needs no answer"
    assert standings.stand([OTHER], None)
    assert standings.own.version == 9


def test_nobody_can_give_a_node_a_standing_that_it_could_not_take_back() -> None:
    standings = Standings(ME)
    assert standings.told(told(3, SET), latest_start=1)
    for version, start in (((1 << 64) - 1, 1), (1 << 40, 1), (4, 2), (4, (1 << 64) - 1)):
        assert not standings.told(told(version, OTHER, incarnation=start), latest_start=1)
    assert standings.told(told(4, SET, OTHER), latest_start=1)


def test_a_node_itself_is_believed_however_much_of_it_was_missed() -> None:
    standings = Standings(ME)
    assert standings.told(told(3, SET), 1)
    assert standings.told(told(1 << 40, OTHER), 1, first_hand=True)
    assert standings.told(told((1 << 40) + 1, SET), 1)


def test_a_node_that_is_forgotten_wants_nothing_and_i_cannot_be_forgotten() -> None:
    standings = Standings(ME)
    standings.stand([SET], None)
    standings.told(told(1, SET))
    standings.keep({N2.node_id})
    assert set(standings.wanting(SET)) == {ME.node_id}
    assert standings.of(N1.node_id) is None


def test_what_is_remembered_is_bounded() -> None:
    standings = Standings(ME)
    many = [SnapshotId(number.to_bytes(32, "big")) for number in range(MAX_WANTS + 1)]
    standings.stand(many, None)
    assert len(standings.own.wants) == MAX_WANTS
    assert not standings.told(told(1, *many))
    full = Standing(N1.node_id, 1, 1, frozenset(many[:MAX_WANTS]))
    believed = sum(
        standings.told(replace(full, node_id=NodeId(number.to_bytes(16, "big"))))
        for number in range(1, MAX_ITEMS // MAX_WANTS + 10)
    )
    assert believed == MAX_ITEMS // MAX_WANTS - 1


def test_who_asks_is_told_what_is_later_than_it_knows() -> None:
    standings = Standings(ME)
    standings.told(told(3, SET))
    assert standings.but([]) == [told(3, SET)], "a standing that was never set is not told"
    assert standings.but([(N1.node_id, 1, 3)]) == []
    assert standings.but([(N1.node_id, 1, 2), (N2.node_id, 9, 9)]) == [told(3, SET)]
