"""(f) Views that disagree: each node misses some of its peers. How often is the origin read, does a segment
enter a rack more than once, do chains close to rings?

Everybody wants the set at the same time and nobody has any of it, so nothing is found by residency. For each segment
every node decides in its own view, by the production code, whom it asks.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from hoard_p2p.fill.chain import chain, predecessor
from hoard_p2p.origin.readers import reader_set, readers
from hoard_p2p.peer import Peer
from simulations.cluster import in_racks, keys, peers
from simulations.options import add_options
from simulations.routes import ORIGIN_ID
from simulations.table import Cell, Table

NOT_ASKED = -1


@dataclass(frozen=True)
class Disagreement:
    """Parameters. `missing`: the shares of other nodes that each view lacks; `hops`: how often a question that reaches
    a node which is not the reader in its own view is passed on, 0: that node reads."""

    nodes: int = 64
    rack_size: int = 16
    segments: int = 300
    missing: tuple[float, ...] = (0.0, 0.01, 0.02, 0.05, 0.1)
    hops: tuple[int, ...] = (0, 1, 2)
    streams: tuple[int, ...] = (8, 64)
    replicas: int = 1
    seed: int = 1


class Views:
    """What each node sees, and whom it asks for each segment."""

    def __init__(self, parameters: Disagreement, missing: float) -> None:
        self.peers = peers(in_racks(parameters.nodes, parameters.rack_size), parameters.seed)
        self.numbers = {peer.node_id: n for n, peer in enumerate(self.peers)}
        self.keys = keys(parameters.segments, parameters.seed)
        self.replicas = parameters.replicas
        random = Random(f"views {parameters.seed} {missing}")
        self.views = [
            tuple(peer for peer in self.peers if peer is me or random.random() >= missing) for me in self.peers
        ]

    def predecessors(self, segment: int, reader_of: Sequence[int]) -> list[int]:
        """Of each node in its own view, where `reader_of` says who reads the origin; NOT_ASKED if it is first there."""
        heads = [self.peers[reader] for reader in reader_of]
        return [self._before(view, me, segment, head) for view, me, head in zip(self.views, self.peers, heads)]

    def _before(self, view: Sequence[Peer], me: Peer, segment: int, reader: Peer) -> int:
        order = chain(view, self.numbers, self.keys[segment], self.replicas, reader)
        before = predecessor(order, me.node_id)
        return NOT_ASKED if before is None else self.numbers[before.node_id]

    def readers(self, segment: int, streams: int) -> list[int]:
        """In the view of each node."""
        sets = (reader_set(view, self.numbers, ORIGIN_ID, streams) for view in self.views)
        return [self.numbers[readers(members, self.keys[segment])[0].node_id] for members in sets]


def who_reads(reader_of: Sequence[int], askers: Iterator[int], hops: int) -> set[int]:
    """The nodes that end up reading the origin for a segment, each of which reads it whole."""
    found = set()
    for asker in askers:
        asked, left = reader_of[asker], hops
        while reader_of[asked] != asked and left:
            asked, left = reader_of[asked], left - 1
        found.add(asked)
    return found


def rings(before: Sequence[int]) -> int:
    """Nodes that wait for themselves in the end, or for those that do."""
    good: set[int] = set()
    for node in range(len(before)):
        way, at = set[int](), node
        while at != NOT_ASKED and at not in way and at not in good:
            way.add(at)
            at = before[at]
        if at == NOT_ASKED or at in good:
            good |= way
    return len(before) - len(good)


def origin_table(parameters: Disagreement) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for missing in parameters.missing:
        views = Views(parameters, missing)
        for streams in parameters.streams:
            reader_of = [views.readers(segment, streams) for segment in range(parameters.segments)]
            before = [views.predecessors(segment, of) for segment, of in enumerate(reader_of)]
            for hops in parameters.hops:
                demand = sum(len(who_reads(of, iter(range(len(of))), hops)) for of in reader_of)
                fill = sum(len(who_reads(of, _heads(one), hops)) for of, one in zip(reader_of, before))
                rows.append((missing, streams, hops, demand / parameters.segments, fill / parameters.segments))
    return Table(
        f"{parameters.nodes} nodes, each view lacks some: how often the origin is read",
        ("missing", "origin streams", "hops", "all ask their reader", "firsts of chains ask"),
        tuple(rows),
        ("origin bytes / set; hops: how often a question is passed on by who is not the reader in its own view",),
        {"segments": parameters.segments, "rack": parameters.rack_size, "seed": parameters.seed},
    )


def _heads(before: Sequence[int]) -> Iterator[int]:
    return (node for node, asked in enumerate(before) if asked == NOT_ASKED)


def chain_table(parameters: Disagreement) -> Table:
    rows = tuple(
        _chains(parameters, missing, streams) for missing in parameters.missing for streams in parameters.streams
    )
    return Table(
        f"{parameters.nodes} nodes, each view lacks some: what becomes of chains",
        (
            "missing",
            "origin streams",
            "firsts of a chain",
            "into a rack/set, mean",
            "most successors",
            "in or behind rings",
        ),
        rows,
        ("in or behind rings: share of (node, segment) that waits for its predecessor in vain, and asks home 1",),
    )


def _chains(parameters: Disagreement, missing: float, streams: int) -> tuple[Cell, ...]:
    views = Views(parameters, missing)
    rack = [peer.rack for peer in views.peers]
    racks = len(set(rack))
    heads = crossings = waiting = most = 0
    for segment in range(parameters.segments):
        before = views.predecessors(segment, views.readers(segment, streams))
        asked = [one for one in before if one != NOT_ASKED]
        heads += len(before) - len(asked)
        crossings += sum(one == NOT_ASKED or rack[one] != rack[node] for node, one in enumerate(before))
        most = max(most, *(asked.count(one) for one in set(asked)))
        waiting += rings(before)
    count = parameters.segments
    return missing, streams, heads / count, crossings / count / racks, most, waiting / count / parameters.nodes


def tables(arguments: argparse.Namespace) -> Sequence[Table]:
    parameters = replace(Disagreement(), **vars(arguments))
    return [origin_table(parameters), chain_table(parameters)]


def options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, Disagreement(), {})
