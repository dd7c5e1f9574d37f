"""Tables for people (Markdown) and programs (JSON)."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TypeAlias

Cell: TypeAlias = str | int | float


@dataclass(frozen=True)
class Table:
    """What a scenario found. `notes`: lines under the table."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    parameters: dict[str, Cell] = field(default_factory=dict)

    def markdown(self) -> str:
        given = ", ".join(f"{name} {shown(value)}" for name, value in self.parameters.items())
        lines = [
            self.title,
            *([f"({given})"] if given else []),
            "",
            _line(self.columns),
            "|---" * len(self.columns) + "|",
        ]
        lines += [_line(row) for row in self.rows]
        return "\n".join([*lines, *([""] if self.notes else []), *self.notes])

    def json(self) -> str:
        return json.dumps(asdict(self))

    def column(self, name: str) -> tuple[Cell, ...]:
        at = self.columns.index(name)
        return tuple(row[at] for row in self.rows)


def shown(cell: Cell) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.4f}" if abs(cell) < 10 else f"{cell:,.1f}"


def _line(cells: Sequence[Cell]) -> str:
    return "| " + " | ".join(shown(cell) for cell in cells) + " |"
