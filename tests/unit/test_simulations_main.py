"""The command line of the simulations."""

import json
from pathlib import Path

import pytest

from simulations.__main__ import SCENARIOS, main
from simulations.plots import NoMatplotlib, draw
from simulations.table import Table

SMALL = ["coldstart", "--nodes", "1,2", "--size", "32M"]


def test_a_table_is_printed_for_people_or_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SMALL) == 0
    assert "| nodes |" in capsys.readouterr().out
    assert main([*SMALL, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"]["seed"] == 1


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_scenario_tells_its_parameters(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert left.value.code == 0
    assert "--seed" in capsys.readouterr().out


def test_plots_are_drawn_where_matplotlib_is(tmp_path: Path) -> None:
    table = Table("A plot", ("nodes", "seconds", "how"), ((1, 2.0, "x"), (64, 3.0, "y")))
    try:
        paths = draw([table], tmp_path / "plots")
    except NoMatplotlib as error:
        pytest.skip(str(error))
    assert [path.name for path in paths] == ["a-plot.svg"]
    assert paths[0].read_text().startswith("<?xml")
