"""(d) A large cluster for a week: nodes fail, disks are lost, others make the copies that are missing.

Homes are planned by the production placement in the view of each moment; copies are pulled by who is home now, after a
grace time, at a limited rate. A segment is lost when the last disk with a copy of it is lost; what is only away (a node
that restarts, a rack without power) is not lost.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from hoard_p2p.ids import ChunkId
from hoard_p2p.peer import Peer
from hoard_p2p.placement import homes, rank
from simulations.cluster import in_racks, keys, peers
from simulations.engine import Engine
from simulations.network import Pipe
from simulations.options import add_options
from simulations.table import Cell, Table

HOUR, DAY = 3600.0, 86400.0
CANDIDATES = 64
"""Of each segment's order this many are kept: as long as a rack for each copy is among them, what `homes` says of them
is what it says of all nodes."""


@dataclass(frozen=True)
class Week:
    """Parameters. Rates in bytes a second, times in seconds; `mtbf`: between two failures of one node; `disks_lost`:
    the share of failures that take the disk; `rack_mtbf`: between two power cuts of one rack."""

    nodes: int = 1000
    rack_size: int = 16
    segments: int = 20000
    size: int = 8 << 20
    copies: tuple[int, ...] = (1, 2, 3)
    days: float = 7.0
    mtbf: float = 30 * DAY
    disks_lost: float = 0.2
    away: float = 600.0
    rack_mtbf: float = 365 * DAY
    rack_away: float = HOUR
    replaced: float = DAY
    grace: float = 60.0
    detection: float = 10.0
    rate: float = 50e6
    seed: int = 1


@dataclass
class Node:
    """`holds`: segments on its disk, also while it is away."""

    holds: set[int] = field(default_factory=set)
    alive: bool = True
    pulls: Pipe = field(default_factory=lambda: Pipe("pulls", 1.0))
    start: int = 0


class Cluster:
    """All nodes; every one sees deaths and returns at the same time, `detection` seconds after they happen."""

    def __init__(self, week: Week, copies: int) -> None:
        self.week, self.copies = week, copies
        self.engine, self.random = Engine(), Random(week.seed)
        racks = in_racks(week.nodes, week.rack_size)
        self.peers = peers(racks, week.seed)
        self.racks = racks
        self.numbers = {peer.node_id: n for n, peer in enumerate(self.peers)}
        self.nodes = [Node(pulls=Pipe("pulls", week.rate)) for _ in self.peers]
        self.seen = set(range(week.nodes))
        self.keys: tuple[ChunkId, ...] = keys(week.segments, week.seed)
        self.holders: list[set[int]] = [set() for _ in self.keys]
        self.pulling: set[tuple[int, int]] = set()
        self.lost: set[int] = set()
        self.copied = self.failures = self.disks = 0
        self.short_seconds = 0.0
        self._short: dict[int, float] = {}
        self._near: list[tuple[Peer, ...]] = []
        self.near_of: list[list[int]] = [[] for _ in self.peers]
        for segment, key in enumerate(self.keys):
            self._near.append(tuple(rank(self.peers, key)[:CANDIDATES]))
            for peer in self._near[segment]:
                self.near_of[self.numbers[peer.node_id]].append(segment)
            for home in self.homes(segment):
                self._keep(home, segment)

    # --- plans

    def homes(self, segment: int) -> list[int]:
        """In the view of now."""
        alive = (peer for peer in self._near[segment] if self.numbers[peer.node_id] in self.seen)
        return [self.numbers[peer.node_id] for peer in homes(alive, self.keys[segment], self.copies)]

    def plan(self, touched: int) -> None:
        """The view changed by one node: what it is a candidate for is planned anew, as every node does for itself."""
        for segment in self.near_of[touched]:
            for home in self.homes(segment):
                self.pull(home, segment)

    def pull(self, home: int, segment: int) -> None:
        node = self.nodes[home]
        if not node.alive or segment in node.holds or (home, segment) in self.pulling:
            return
        if not any(self.nodes[n].alive for n in self.holders[segment]):
            return
        self.pulling.add((home, segment))
        pipe, size = node.pulls, self.week.size
        pipe.free = max(pipe.free, self.engine.now) + size / pipe.rate
        self.engine.at(pipe.free, self._pulled, (home, segment, node.start))

    def _pulled(self, what: tuple[int, int, int]) -> None:
        home, segment, start = what
        self.pulling.discard((home, segment))
        node = self.nodes[home]
        if node.start != start or not any(self.nodes[n].alive for n in self.holders[segment]):
            return
        self.copied += self.week.size
        self._keep(home, segment)
        self._give_up_surplus(segment)
        self._note(segment)

    def _give_up_surplus(self, segment: int) -> None:
        """When all homes have it, others may drop theirs: the ordered rule, with all reachable."""
        now = self.homes(segment)
        if all(home in self.holders[segment] for home in now):
            for node in [n for n in self.holders[segment] if n not in now and self.nodes[n].alive]:
                self._drop(node, segment)

    def _keep(self, node: int, segment: int) -> None:
        self.nodes[node].holds.add(segment)
        self.holders[segment].add(node)

    def _drop(self, node: int, segment: int) -> None:
        self.nodes[node].holds.discard(segment)
        self.holders[segment].discard(node)

    def _note(self, segment: int) -> None:
        """Count how long segments have fewer copies on living nodes than they should."""
        now, here = self.engine.now, sum(self.nodes[n].alive for n in self.holders[segment])
        if here < self.copies and segment not in self.lost:
            self._short.setdefault(segment, now)
        else:
            self.short_seconds += now - self._short.pop(segment, now)

    # --- what happens

    def fail(self, node: int) -> None:
        self.failures += 1
        if self.nodes[node].alive:
            lost = self.random.random() < self.week.disks_lost
            self.down(node, self.week.replaced if lost else self.week.away, lost=lost)
        self.engine.after(self.random.expovariate(1 / self.week.mtbf), self.fail, node)

    def cut_power(self, rack: int) -> None:
        for node in (n for n, of in enumerate(self.racks) if of == rack and self.nodes[n].alive):
            self.down(node, self.week.rack_away, lost=False)
        self.engine.after(self.random.expovariate(1 / self.week.rack_mtbf), self.cut_power, rack)

    def down(self, node: int, seconds: float, *, lost: bool) -> None:
        one = self.nodes[node]
        one.alive, one.start = False, one.start + 1
        held = list(one.holds)
        if lost:
            self.disks += 1
            for segment in held:
                self._drop(node, segment)
                if not self.holders[segment]:
                    self.lost.add(segment)
        for segment in held:
            self._note(segment)
        self.engine.after(self.week.detection, self._unseen, (node, one.start))
        self.engine.after(seconds, self._up, node)

    def _unseen(self, what: tuple[int, int]) -> None:
        node, start = what
        if self.nodes[node].start == start and not self.nodes[node].alive:
            self.seen.discard(node)
            self.engine.after(self.week.grace, self._repair_without, what)

    def _repair_without(self, what: tuple[int, int]) -> None:
        node, start = what
        if self.nodes[node].start == start and not self.nodes[node].alive:
            self.plan(node)

    def _up(self, node: int) -> None:
        self.nodes[node].alive = True
        self.seen.add(node)
        for segment in list(self.nodes[node].holds):
            self._note(segment)
            self._give_up_surplus(segment)
        self.plan(node)

    def run(self) -> None:
        for node in range(len(self.nodes)):
            self.engine.at(self.random.expovariate(1 / self.week.mtbf), self.fail, node)
        for rack in sorted(set(self.racks)):
            self.engine.at(self.random.expovariate(1 / self.week.rack_mtbf), self.cut_power, rack)
        self.engine.run(self.week.days * DAY)
        self.short_seconds += sum(self.engine.now - since for since in self._short.values())


def table(week: Week) -> Table:
    rows = tuple(_row(week, copies) for copies in week.copies)
    return Table(
        f"{week.nodes} nodes for {week.days:g} days",
        (
            "copies",
            "failures",
            "disks lost",
            "segments lost",
            "share lost",
            "repair/set",
            "repair MB/s",
            "short of copies",
        ),
        rows,
        (
            "repair/set: bytes copied over bytes of the set (one copy), MB/s in all; short of copies: mean share of "
            "segments that had fewer copies on running nodes than they should",
        ),
        {"segments": week.segments, "grace s": week.grace, "repair MB/s a node": week.rate / 1e6, "seed": week.seed},
    )


def _row(week: Week, copies: int) -> tuple[Cell, ...]:
    cluster = Cluster(week, copies)
    cluster.run()
    whole, seconds = week.segments * week.size, week.days * DAY
    short = cluster.short_seconds / (seconds * week.segments)
    lost = len(cluster.lost)
    return (
        copies,
        cluster.failures,
        cluster.disks,
        lost,
        lost / week.segments,
        cluster.copied / whole,
        cluster.copied / seconds / 1e6,
        short,
    )


def tables(arguments: argparse.Namespace) -> Sequence[Table]:
    return [table(Week(**vars(arguments)))]


def options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, Week(), {})
