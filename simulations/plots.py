"""Plots of tables with matplotlib, where it is installed (`pip install --group simulate`): one file for each table, the
first column across, a panel for each other column of numbers."""

from collections.abc import Iterable, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from simulations.table import Table

PANELS_IN_A_ROW = 3


class NoMatplotlib(Exception):
    """It is not installed; the tables do without."""


def draw(tables: Iterable[Table], directory: Path) -> list[Path]:
    """Draw each table into `directory` (made if it is not there) as SVG; the paths. Raises NoMatplotlib."""
    pyplot = _pyplot()
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for table in tables:
        path = directory / f"{_file_name(table.title)}.svg"
        _draw_one(pyplot, table, path)
        paths.append(path)
    return paths


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise NoMatplotlib("matplotlib is not installed; do: pip install --group simulate") from error
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "hoard"  # the same file from the same table
    from matplotlib import pyplot

    return pyplot


def _draw_one(pyplot: Any, table: Table, path: Path) -> None:
    panels = [name for name in table.columns[1:] if all(_is_number(cell) for cell in table.column(name))]
    rows = max(1, ceil(len(panels) / PANELS_IN_A_ROW))
    figure, axes = pyplot.subplots(rows, PANELS_IN_A_ROW, figsize=(12, 3.2 * rows), squeeze=False)
    across = table.column(table.columns[0])
    for place, axis in enumerate(axes.flat):
        if place >= len(panels):
            axis.set_visible(False)
            continue
        _panel(axis, across, table.column(panels[place]))
        axis.set_title(panels[place], fontsize=9)
        axis.set_xlabel(table.columns[0], fontsize=8)
    figure.suptitle(table.title, fontsize=11)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _panel(axis: Any, across: Sequence[Any], values: Sequence[Any]) -> None:
    if all(_is_number(cell) for cell in across):
        axis.plot(across, values, marker="o", markersize=3)
        if min(across) > 0 and max(across) / min(across) > 50:
            axis.set_xscale("log", base=2)
    else:
        axis.bar([str(cell) for cell in across], values)
        axis.tick_params(axis="x", rotation=30, labelsize=7)
    axis.set_ylim(bottom=min(0, *values) if len(values) > 1 else None)
    axis.grid(alpha=0.3)


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float)


def _file_name(title: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in title.lower()).split())[:60]
