"""The cold start: bytes are conserved, the same seed gives the same table, small clusters behave as one can reckon."""

from dataclasses import replace

import pytest

from simulations.coldstart import ColdStart, run, table

SMALL = ColdStart(size=128 << 20, nodes=(1, 4, 8), rack_size=4)
RECKONED = SMALL.size / SMALL.origin_rate


def test_the_same_seed_gives_the_same_table_and_another_seed_another() -> None:
    assert table(SMALL) == table(SMALL)
    assert table(SMALL).rows != table(replace(SMALL, seed=2)).rows


def test_a_node_alone_reads_at_the_speed_of_the_origin() -> None:
    outcome = run(SMALL, 1)
    assert outcome.seconds == pytest.approx(RECKONED, abs=0.12), "it begins within 0.1 s"
    assert outcome.origin == 1
    assert outcome.sent == (0,)


@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_each_byte_is_read_once_and_enters_each_rack_once_and_each_other_node_by_one_other_node(nodes: int) -> None:
    outcome = run(SMALL, nodes)
    assert outcome.origin == 1
    assert outcome.racks == (1,) * len(outcome.racks)
    assert sum(outcome.sent) == pytest.approx(nodes - 1)


def test_without_cooperation_the_origin_is_read_by_every_node_and_takes_as_much_longer() -> None:
    outcome = run(replace(SMALL, how="origin"), 8)
    assert outcome.origin == 8
    assert outcome.seconds == pytest.approx(8 * RECKONED, rel=0.15)


def test_each_rack_is_entered_once_however_few_nodes_read_the_origin() -> None:
    outcome = run(replace(SMALL, streams=1), 8)
    assert outcome.origin == 1
    assert outcome.racks == (1, 1)
    assert sum(outcome.sent) == pytest.approx(7)


def test_no_more_is_under_way_than_the_window_and_what_others_may_ask_for() -> None:
    parameters = replace(SMALL, size=512 << 20, window=2, asked=3)
    outcome = run(parameters, 8)
    assert outcome.flights == 5
    assert outcome.racks == (1, 1)


@pytest.mark.parametrize("seed", range(4))
def test_when_a_node_dies_half_way_all_others_end_with_the_whole_set(seed: int) -> None:
    outcome = run(replace(SMALL, kill=0.5, seed=seed), 8)
    assert outcome.seconds < float("inf")
    assert outcome.origin <= 1.2


def test_homes_that_serve_everybody_take_longer_than_chains() -> None:
    assert run(replace(SMALL, how="homes"), 8).seconds > run(SMALL, 8).seconds
