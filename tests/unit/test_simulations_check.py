"""Measured cold starts beside simulated ones, and the membership scenario."""

import argparse
import json
from pathlib import Path

import pytest

from simulations.check import compare, read
from simulations.membership import MembershipPlan, tables

CASE = {"racks": [2, 2], "size": 64 << 20, "seconds": 3.0, "origin": 1.0, "into_racks": [0.5, 0.5], "local_origin": 1}


def test_a_measured_case_stands_beside_the_simulated_one(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    path.write_text(json.dumps([CASE]))
    table = compare(read(path))
    assert table.column("origin/set") == table.column("simulated o") == (1.0,)
    assert float(table.column("simulated r")[0]) == pytest.approx(0.5, abs=0.3)
    assert float(table.column("simulated")[0]) > 2, "the settling time is part of it"


def test_racks_of_several_sizes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    path.write_text(json.dumps([{**CASE, "racks": [1, 2]}]))
    with pytest.raises(ValueError, match="racks of one size"):
        read(path)


def test_a_death_is_known_and_a_want_is_told_in_a_few_seconds() -> None:

    (table,) = tables(argparse.Namespace(**vars(MembershipPlan(nodes=(8,)))))
    ((_, probes, told, declared, known),) = table.rows
    assert float(probes) <= 2.5
    assert 0 < float(told) < 5
    assert 0 < float(declared) <= float(known) < 15
