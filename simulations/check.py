"""The simulator beside real nodes: cold starts that were measured, and what the simulator says of the same ones.

`--measured FILE`: JSON, one object for each case in a list. `racks` (nodes in each), `size`, `seconds`, `origin` and
`into_racks` (bytes over the bytes of the set), and the parameters of `coldstart` that were other than its defaults,
as `node_rate`. `benchmarks/coldcheck.py` makes such a file with real nodes in network namespaces.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simulations.coldstart import ColdStart, run
from simulations.table import Cell, Table


@dataclass(frozen=True)
class Measured:
    """One cold start of real nodes."""

    racks: tuple[int, ...]
    seconds: float
    origin: float
    into_racks: tuple[float, ...]
    parameters: ColdStart


def read(path: Path) -> list[Measured]:
    return [_case(given) for given in json.loads(path.read_text())]


def _case(given: dict[str, object]) -> Measured:
    racks = _numbers(given.pop("racks"))
    into = _numbers(given.pop("into_racks"))
    seconds, origin = float(str(given.pop("seconds"))), float(str(given.pop("origin")))
    sizes = tuple(map(int, racks))
    if len(set(sizes)) > 1:
        raise ValueError(f"racks of one size can be compared, not {sizes}")
    settings = {name: type(getattr(ColdStart, name))(value) for name, value in given.items()}
    return Measured(sizes, seconds, origin, into, ColdStart(rack_size=sizes[0], **settings))


def _numbers(value: object) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise ValueError(f"a list of numbers, not {value!r}")
    return tuple(float(one) for one in value)


def compare(cases: Sequence[Measured]) -> Table:
    return Table(
        "Cold starts: real nodes and the simulator",
        ("racks", "seconds", "simulated", "origin/set", "simulated o", "into a rack, most", "simulated r"),
        tuple(_row(case) for case in cases),
        ("real nodes on one machine also share its processors, which the simulator does not know",),
    )


def _row(case: Measured) -> tuple[Cell, ...]:
    found = run(case.parameters, sum(case.racks))
    racks = "+".join(map(str, case.racks))
    return (
        racks,
        case.seconds,
        found.seconds + case.parameters.settle,
        case.origin,
        found.origin,
        max(case.into_racks),
        max(found.racks),
    )


def tables(arguments: argparse.Namespace) -> Sequence[Table]:
    return [compare(read(arguments.measured))]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--measured", type=Path, required=True, metavar="FILE")
    parser.add_argument("--seed", type=int, default=1, metavar="SEED", help="default: 1")
