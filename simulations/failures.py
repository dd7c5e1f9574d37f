"""(d) A large cluster for a week: nodes fail, disks are lost, others make the copies that are missing.

Shares of segments follow the view (`placement.Shares`), and every node that a change concerns plans its pulls and what
it releases (`repair.planner`) when the view was the same for the grace time. Pulls have a rate limit; what is released
is gone at once, as if room were short everywhere. A segment is lost when the last disk with a copy of it is lost; what
is only away (a node that restarts, a rack without power) is not lost.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from hoard_p2p.ids import SnapshotId
from hoard_p2p.interfaces import Residency
from hoard_p2p.placement import Row, Shares, rows
from hoard_p2p.repair.planner import SPARE_HOMES, Here, Plan, plan
from simulations.cluster import in_racks, keys, peers
from simulations.engine import Engine
from simulations.network import Pipe
from simulations.options import add_options
from simulations.table import Cell, Table

HOUR, DAY = 3600.0, 86400.0
SET = SnapshotId(b"s" * 32)


@dataclass(frozen=True)
class Week:
    """Parameters. Rates in bytes a second, times in seconds; `mtbf`: between two failures of one node; `disks_lost`:
    the share of failures that take the disk; `rack_mtbf`: between two power cuts of one rack."""

    nodes: int = 1000
    rack_size: int = 16
    segments: int = 10000
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
    """`holds`: segments on its disk, also while it is away; `bits`: the same as its residency record tells it."""

    bits: bytearray
    pulls: Pipe
    holds: set[int] = field(default_factory=set)
    alive: bool = True
    start: int = 0


class Cluster:
    """All nodes; every one sees deaths and returns at the same time, `detection` seconds after they happen."""

    def __init__(self, week: Week, copies: int, planned: list[Row]) -> None:
        """`planned`: the rows of all segments with all nodes, at least `copies` and the spare homes long."""
        self.week, self.copies = week, copies
        self.engine, self.random = Engine(), Random(week.seed)
        self.racks = in_racks(week.nodes, week.rack_size)
        self.peers = peers(self.racks, week.seed)
        self.numbers = {peer.node_id: n for n, peer in enumerate(self.peers)}
        depth = copies + SPARE_HOMES
        self.shares = Shares(self.peers, keys(week.segments, week.seed), depth, [row[:depth] for row in planned])
        size = -(-week.segments // 8)
        self.nodes = [Node(bytearray(size), Pipe("pulls", week.rate)) for _ in self.peers]
        self.seen = set(range(week.nodes))
        self.holders: list[set[int]] = [set() for _ in range(week.segments)]
        self.pulling: set[tuple[int, int]] = set()
        self.lost: set[int] = set()
        self.copied = self.failures = self.disks = 0
        self.short_seconds = 0.0
        self._short: dict[int, float] = {}
        for segment, row in enumerate(self.shares.rows):
            for node in row[:copies]:
                self._keep(self.numbers[node], segment)

    # --- plans

    def follow(self) -> None:
        """The view is another; what is due elsewhere now is planned when it was the same for the grace time."""
        before = list(self.shares.rows)
        self.shares.follow([self.peers[n] for n in sorted(self.seen)])
        moved = [segment for segment, row in enumerate(self.shares.rows) if row is not before[segment]]
        self.engine.after(self.week.grace, self.plan, moved)

    def plan(self, segments: Sequence[int]) -> None:
        """Every node that one of the segments concerns plans for itself, with the production planner."""
        mine: dict[int, list[int]] = {}
        for segment in segments:
            concerned = {self.numbers[node] for node in self.shares.rows[segment]} | self.holders[segment]
            for node in concerned:
                mine.setdefault(node, []).append(segment)
        for node, concerning in sorted(mine.items()):
            if self.nodes[node].alive and node in self.seen:
                self._carry_out(node, self._plan_of(node, concerning))

    def _plan_of(self, node: int, segments: Sequence[int]) -> Plan:
        known = {n for segment in segments for n in self.holders[segment] if n != node and self.nodes[n].alive}
        others = (self.peers[n].node_id for n in sorted(known))
        records = {one: Residency(SET, one, 0, bytes(self.nodes[self.numbers[one]].bits)) for one in others}
        orders = {segment: self.shares.rows[segment] for segment in segments}
        here = Here(self.nodes[node].holds, frozenset(s for s in segments if s in self.nodes[node].holds))
        return plan(self.peers[node].node_id, orders, self.copies, here, records)

    def _carry_out(self, node: int, its: Plan) -> None:
        for segment in its.release:
            self._drop(node, segment)
        for pull in its.pulls:
            self._pull(node, pull.segment, self.numbers[pull.sources[0]])

    def _pull(self, node: int, segment: int, source: int) -> None:
        if (node, segment) in self.pulling:
            return
        self.pulling.add((node, segment))
        one, size = self.nodes[node], self.week.size
        one.pulls.free = max(one.pulls.free, self.engine.now) + size / one.pulls.rate
        starts = (one.start, self.nodes[source].start)
        self.engine.at(one.pulls.free, self._pulled, (node, segment, source, starts))

    def _pulled(self, what: tuple[int, int, int, tuple[int, int]]) -> None:
        node, segment, source, starts = what
        self.pulling.discard((node, segment))
        if starts == (self.nodes[node].start, self.nodes[source].start) and segment in self.nodes[source].holds:
            self.copied += self.week.size
            self._keep(node, segment)
            self._note(segment)
        self.plan([segment])

    def _keep(self, node: int, segment: int) -> None:
        self.nodes[node].holds.add(segment)
        self.nodes[node].bits[segment >> 3] |= 1 << (segment & 7)
        self.holders[segment].add(node)

    def _drop(self, node: int, segment: int) -> None:
        self.nodes[node].holds.discard(segment)
        self.nodes[node].bits[segment >> 3] &= ~(1 << (segment & 7))
        self.holders[segment].discard(node)

    def _note(self, segment: int) -> None:
        """Count how long segments have fewer copies on running nodes than they should."""
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
            self.follow()

    def _up(self, node: int) -> None:
        self.nodes[node].alive = True
        for segment in list(self.nodes[node].holds):
            self._note(segment)
        if node not in self.seen:
            self.seen.add(node)
            self.follow()

    def run(self) -> None:
        for node in range(len(self.nodes)):
            self.engine.at(self.random.expovariate(1 / self.week.mtbf), self.fail, node)
        for rack in sorted(set(self.racks)):
            self.engine.at(self.random.expovariate(1 / self.week.rack_mtbf), self.cut_power, rack)
        self.engine.run(self.week.days * DAY)
        self.short_seconds += sum(self.engine.now - since for since in self._short.values())


def table(week: Week) -> Table:
    placed = peers(in_racks(week.nodes, week.rack_size), week.seed)
    planned = rows(placed, keys(week.segments, week.seed), max(week.copies) + SPARE_HOMES)
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
        tuple(_row(week, copies, planned) for copies in week.copies),
        (
            "repair/set: bytes copied over bytes of the set (one copy), MB/s in all; short of copies: mean share of "
            "segments that had fewer copies on running nodes than they should",
        ),
        {"segments": week.segments, "grace s": week.grace, "repair MB/s a node": week.rate / 1e6, "seed": week.seed},
    )


def _row(week: Week, copies: int, planned: list[Row]) -> tuple[Cell, ...]:
    cluster = Cluster(week, copies, planned)
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
