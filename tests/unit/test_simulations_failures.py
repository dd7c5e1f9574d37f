"""A week of failures in small: nothing is lost while copies are made in time; the same seed gives the same week."""

from simulations.failures import DAY, HOUR, Week, table

SMALL = Week(nodes=24, rack_size=4, segments=60, copies=(1, 2), days=3, mtbf=2 * DAY, rack_mtbf=4 * DAY, rack_away=HOUR)


def test_disks_that_die_take_single_copies_and_no_segment_that_has_two() -> None:
    found = table(SMALL)
    lost = dict(zip(found.column("copies"), found.column("segments lost")))
    assert int(found.column("disks lost")[0]) > 0
    assert int(lost[1]) > 0
    assert lost[2] == 0
    assert found == table(SMALL)


def test_without_failures_nothing_is_copied() -> None:
    never = 1e12
    found = table(Week(nodes=8, rack_size=2, segments=40, copies=(2,), days=1, mtbf=never, rack_mtbf=never))
    assert found.rows == ((2, 0, 0, 0, 0.0, 0.0, 0.0, 0.0),)


def test_a_node_that_returns_within_the_grace_time_costs_no_copy() -> None:
    short = Week(
        nodes=8,
        rack_size=2,
        segments=40,
        copies=(2,),
        days=1,
        mtbf=DAY,
        rack_mtbf=1e12,
        disks_lost=0,
        away=30,
        grace=60,
    )
    found = table(short)
    assert int(found.column("failures")[0]) > 0
    assert found.column("repair/set") == (0,)
