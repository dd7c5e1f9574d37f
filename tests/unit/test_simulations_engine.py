"""The virtual clock and the pipes."""

import json

import pytest

from simulations.engine import Engine
from simulations.network import Network, Pipe, carry
from simulations.table import Table


def test_actions_come_in_the_order_of_their_times_and_ties_in_the_order_of_planning() -> None:
    engine, seen = Engine(), list[object]()
    for when, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        engine.at(when, seen.append, name)
    engine.run()
    assert seen == ["a", "b", "c"]
    assert engine.now == 2.0


def test_a_run_ends_at_its_time_and_leaves_the_rest() -> None:
    engine, seen = Engine(), list[object]()
    engine.at(1.0, seen.append, "a")
    engine.at(3.0, seen.append, "b")
    engine.run(until=2.0)
    assert (seen, engine.now) == (["a"], 2.0)


def test_a_transfer_takes_as_long_as_in_its_slowest_pipe_and_queues_in_each() -> None:
    slow, fast = Pipe("slow", 10.0), Pipe("fast", 100.0)
    assert carry(0.0, 100, [slow, fast]) == pytest.approx(10)
    assert carry(0.0, 100, [fast]) == pytest.approx(2), "the fast one was busy for a second alone"
    assert carry(0.0, 100, [slow]) == pytest.approx(20)
    assert (slow.carried, fast.carried) == (200, 200)


def test_only_what_crosses_racks_passes_their_uplinks() -> None:
    network = Network([0, 0, 1], node_rate=1.0, uplink_rate=1.0, origin_rate=1.0, disk_rate=1.0)
    assert network.into[1] in network.between(0, 2)
    assert not {*network.into, *network.out} & {*network.between(0, 1)}
    assert network.into[0] in network.from_origin(1)


def test_a_table_is_written_for_people_and_programs() -> None:
    table = Table("T", ("a", "b"), ((1, 0.5), ("x", 1234.5)), ("note",), {"seed": 1})
    assert table.markdown() == "T\n(seed 1)\n\n| a | b |\n|---|---|\n| 1 | 0.5000 |\n| x | 1,234.5 |\n\nnote"
    assert json.loads(table.json())["rows"] == [[1, 0.5], ["x", 1234.5]]
    assert table.column("b") == (0.5, 1234.5)
