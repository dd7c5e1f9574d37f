"""`python -m simulations SCENARIO [--help]`: prints the tables of a scenario; the same seed gives the same tables."""

import argparse
import resource
import sys
import time
from pathlib import Path

from simulations import check, coldstart, disagreement, failures, membership, paper, plots, retention, search
from simulations.table import Table

SCENARIOS = {
    "paper": (paper, "(a) four nodes, 150 GB, a central store of 10 Gb/s"),
    "coldstart": (coldstart, "(b) N nodes want one data set at the same moment"),
    "search": (search, "(c) many jobs that share a data set arrive over time"),
    "failures": (failures, "(d) a thousand nodes, a week, failures"),
    "retention": (retention, "(e) a set larger than its room"),
    "disagreement": (disagreement, "(f) nodes that do not see the same peers"),
    "membership": (membership, "who notices a death, and when"),
    "check": (check, "the simulator beside real nodes"),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulations", description=__doc__)
    scenarios = parser.add_subparsers(dest="scenario", required=True)
    for name, (module, what) in SCENARIOS.items():
        one = scenarios.add_parser(name, help=what, description=module.__doc__)
        module.options(one)
        one.add_argument("--json", action="store_true", help="tables as JSON, one a line")
        one.add_argument("--plot", type=Path, metavar="DIRECTORY", help="also draw them there (needs matplotlib)")
    given = vars(parser.parse_args(arguments))
    module, _ = SCENARIOS[given.pop("scenario")]
    as_json, directory = given.pop("json"), given.pop("plot")
    began = time.process_time()
    found = module.tables(argparse.Namespace(**given))
    for table in found:
        print(table.json() if as_json else table.markdown() + "\n")
    _tell_cost(time.process_time() - began)
    return _draw(found, directory) if directory is not None else 0


def _tell_cost(seconds: float) -> None:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{seconds:.1f} s of processor time, {memory:.0f} MiB at most", file=sys.stderr)


def _draw(tables: "list[Table] | tuple[Table, ...]", directory: Path) -> int:
    try:
        for path in plots.draw(tables, directory):
            print(f"drawn: {path}", file=sys.stderr)
    except plots.NoMatplotlib as error:
        print(f"no plots: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
