"""(c) Hyper-parameter search: jobs that share one data set arrive one after the other on the nodes of a cluster."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from simulations.cluster import in_racks
from simulations.options import add_options
from simulations.table import Cell, Table
from simulations.training import JobPlan, Setting, train


@dataclass(frozen=True)
class Search:
    """Parameters. Rates in bytes a second; `every`: mean seconds between two arrivals (0: all at once), which are
    random; a job reads `epochs` epochs on the next node in turn."""

    jobs: int = 16
    nodes: int = 16
    rack_size: int = 8
    size: int = 75_000_000_000
    batch: int = 8 << 20
    segment: int = 16 << 20
    epochs: int = 2
    every: tuple[float, ...] = (0.0, 60.0, 600.0)
    appetite: float = 660e6
    ahead: int = 8
    memory: float = 32e9
    room: float = 1.0
    node_rate: float = 1.25e9
    uplink_rate: float = 5e9
    origin_rate: float = 1.25e9
    disk_rate: float = 2.5e9
    seed: int = 1


def table(search: Search) -> Table:
    setting = Setting(
        racks=in_racks(search.nodes, search.rack_size),
        size=search.size,
        batch=search.batch,
        segment=search.segment,
        appetite=search.appetite,
        ahead=search.ahead,
        memory=search.memory,
        room=(search.room * search.size * (1 + 1e-9),) * search.nodes,
        node_rate=search.node_rate,
        uplink_rate=search.uplink_rate,
        origin_rate=search.origin_rate,
        disk_rate=search.disk_rate,
        seed=search.seed,
    )
    rows = tuple(_row(search, setting, every, hoard=hoard) for every in search.every for hoard in (False, True))
    return Table(
        f"{search.jobs} jobs of {search.epochs} epochs share a set of {search.size / 1e9:.0f} GB",
        ("arrive every s", "how", "a job s, mean", "longest", "origin/set", "into a rack/set, most", "speed-up"),
        _with_speed_up(rows),
        (),
        {"nodes": search.nodes, "origin MB/s": search.origin_rate / 1e6, "node MB/s": search.node_rate / 1e6},
    )


def _row(search: Search, setting: Setting, every: float, *, hoard: bool) -> tuple[Cell, ...]:
    random, now, plans = Random(f"arrivals {search.seed}"), 0.0, []
    for job in range(search.jobs):
        plans.append(JobPlan(job % search.nodes, now, search.epochs))
        now += random.expovariate(1 / every) if every else 0.0
    ran = train(setting, plans, hoard=hoard)
    times = [sum(job) for job in ran.epochs]
    how = "Hoard" if hoard else "direct"
    return every, how, sum(times) / len(times), max(times), ran.origin, max(ran.into_racks)


def _with_speed_up(rows: Sequence[tuple[Cell, ...]]) -> tuple[tuple[Cell, ...], ...]:
    """Rows come in pairs: direct, Hoard."""
    found: list[tuple[Cell, ...]] = []
    for direct, hoard in zip(rows[::2], rows[1::2]):
        found += [(*direct, 1.0), (*hoard, float(direct[2]) / float(hoard[2]))]
    return tuple(found)


def tables(arguments: argparse.Namespace) -> Sequence[Table]:
    return [table(Search(**vars(arguments)))]


def options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, Search(), {})
