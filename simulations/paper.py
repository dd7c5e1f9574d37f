"""(a) The set-up of the paper: 4 nodes with 4 accelerators each, one data set of 150 GB, a central store of 10 Gb/s.

Each node runs one job that reads the set in shuffled epochs. The speed-up is the time with direct reading over the time
through Hoard, after 1, 2, 30, 60 and 90 epochs: the first epochs are simulated, the later ones cost what the last one
did. Then: other stores, memory that holds a part of the set, and jobs in another rack than the data.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulations.cluster import in_racks
from simulations.options import add_options
from simulations.table import Table
from simulations.training import JobPlan, Ran, Setting, train


@dataclass(frozen=True)
class Paper:
    """Parameters. Rates in bytes a second. `appetite`: what one node's accelerators take; 660 MB/s are 6,000 records of
    110 KB, as of four with 1,500 images a second each. `room`: of a node, over the set."""

    nodes: int = 4
    size: int = 150_000_000_000
    batch: int = 8 << 20
    segment: int = 16 << 20
    appetite: float = 660e6
    ahead: int = 8
    memory: float = 64e9
    room: float = 1.0
    node_rate: float = 12.5e9
    uplink_rate: float = 5e9
    origin_rate: float = 1.25e9
    disk_rate: float = 2.5e9
    simulated: int = 2
    epochs: tuple[int, ...] = (1, 2, 30, 60, 90)
    origins: tuple[float, ...] = (0.625e9, 1.25e9, 2.5e9, 5e9)
    memories: tuple[float, ...] = (0.0, 0.5, 0.75, 1.05)
    uplinks: tuple[float, ...] = (1.25e9, 2.5e9)
    seed: int = 1

    def setting(self, racks: tuple[int, ...]) -> Setting:
        return Setting(
            racks=racks,
            size=self.size,
            batch=self.batch,
            segment=self.segment,
            appetite=self.appetite,
            ahead=self.ahead,
            memory=self.memory,
            room=(self.room * self.size * (1 + 1e-9),) * len(racks),
            node_rate=self.node_rate,
            uplink_rate=max(self.uplink_rate, self.origin_rate),
            origin_rate=self.origin_rate,
            disk_rate=self.disk_rate,
            seed=self.seed,
        )


@dataclass(frozen=True)
class Compared:
    """The same jobs, directly and through Hoard."""

    direct: Ran
    hoard: Ran

    def speed_up(self, epochs: int) -> float:
        return after(self.direct, epochs) / after(self.hoard, epochs)


def after(ran: Ran, epochs: int) -> float:
    """Seconds for so many epochs: those after the simulated ones cost what the last of these did."""
    simulated = len(ran.epochs[0])
    known = [ran.mean_epoch(number) for number in range(simulated)]
    return sum(known[:epochs]) + max(0, epochs - simulated) * known[-1]


def compare(parameters: Paper) -> Compared:
    setting = parameters.setting((0,) * parameters.nodes)
    plans = [JobPlan(node, 0.0, parameters.simulated) for node in range(parameters.nodes)]
    return Compared(train(setting, plans, hoard=False), train(setting, plans, hoard=True))


def main_table(parameters: Paper) -> Table:
    both = compare(parameters)
    rows = tuple(
        (epochs, after(both.direct, epochs), after(both.hoard, epochs), both.speed_up(epochs))
        for epochs in parameters.epochs
    )
    return Table(
        f"{parameters.nodes} nodes read {parameters.size / 1e9:.0f} GB, directly and through Hoard",
        ("epochs", "direct s", "Hoard s", "speed-up"),
        rows,
        (
            f"origin bytes / set in {parameters.simulated} epochs: directly {both.direct.origin:.3f}, "
            f"through Hoard {both.hoard.origin:.4f}",
        ),
        {
            "origin MB/s": parameters.origin_rate / 1e6,
            "a node takes MB/s": parameters.appetite / 1e6,
            "memory / set": parameters.memory / parameters.size,
            "room / set": parameters.room,
            "seed": parameters.seed,
        },
    )


def by_origin(parameters: Paper) -> Table:
    rows = tuple(_row(rate / 1e6, compare(replace(parameters, origin_rate=rate))) for rate in parameters.origins)
    return Table("The same with another store", ("origin MB/s", *_COMPARED), rows)


def by_memory(parameters: Paper) -> Table:
    rows = tuple(
        _row(share, compare(replace(parameters, memory=share * parameters.size))) for share in parameters.memories
    )
    return Table("The same with other memories", ("memory / set", *_COMPARED), rows)


_COMPARED = (
    "direct epoch 1 s",
    "Hoard epoch 1 s",
    "direct later s",
    "Hoard later s",
    "speed-up 2 epochs",
    "speed-up 90",
)


def _row(name: float, both: Compared) -> tuple[float, ...]:
    return (
        name,
        both.direct.mean_epoch(0),
        both.hoard.mean_epoch(0),
        both.direct.mean_epoch(-1),
        both.hoard.mean_epoch(-1),
        both.speed_up(2),
        both.speed_up(90),
    )


def misplaced(parameters: Paper) -> Table:
    """One rack has the set; a share of the jobs runs in another, with room for a copy or without."""
    nodes = parameters.nodes
    rows = tuple(
        _misplaced(parameters, uplink, away, has_room=has_room)
        for has_room in (True, False)
        for uplink in parameters.uplinks
        for away in (nodes // 2, nodes)
    )
    return Table(
        f"{nodes} jobs, the set on {nodes} nodes of one rack, some jobs in another rack",
        ("jobs away", "room there", "uplink MB/s", "epoch 1 s", "later s", "into their rack / set"),
        rows,
        ("into their rack: in two epochs",),
    )


def _misplaced(parameters: Paper, uplink: float, away: int, *, has_room: bool) -> tuple[str | float, ...]:
    nodes = parameters.nodes
    setting = parameters.setting(in_racks(2 * nodes, nodes))
    rooms = setting.room[:nodes] + (setting.room[0] if has_room else 0.0,) * nodes
    setting = replace(setting, uplink_rate=uplink, room=rooms, warm=tuple(range(nodes)))
    plans = [JobPlan(nodes + n if n < away else n, 0.0, 2) for n in range(nodes)]
    ran = train(setting, plans, hoard=True)
    return away, "yes" if has_room else "no", uplink / 1e6, ran.mean_epoch(0), ran.mean_epoch(1), ran.into_racks[1]


def tables(arguments: argparse.Namespace) -> Sequence[Table]:
    parameters = Paper(**vars(arguments))
    return [main_table(parameters), by_origin(parameters), by_memory(parameters), misplaced(parameters)]


def options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, Paper(), {})
