"""(b) Cold start: N nodes want one data set at the same moment, and nobody has any of it.

What it costs the origin, what crosses the racks' uplinks, and how long the last node takes compared with one alone.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from hoard_p2p.fill.quiet import QUIET_SECONDS
from hoard_p2p.fill.window import ASKED_SEGMENTS, WINDOW_BYTES, WINDOW_SEGMENTS
from simulations.cluster import in_racks, keys, peers
from simulations.engine import Engine
from simulations.filling import Filling, Shape
from simulations.network import Network
from simulations.options import add_options
from simulations.routes import ChainRoutes, HomeRoutes, OriginRoutes, Routes
from simulations.table import Cell, Table

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class ColdStart:
    """Parameters. Rates in bytes a second, times in seconds. `local_origin` 1: nodes reach it without their links;
    `asked`: segments that are under way for others at most, 0: any number, but they take places in the window;
    `kill`: a node dies after this share of the time that one needs alone."""

    nodes: tuple[int, ...] = (1, 2, 4, 8, 16, 64, 256, 1024)
    rack_size: int = 16
    size: int = 16 << 30
    segment: int = 8 * MIB
    chunk: int = MIB
    node_rate: float = 1.25e9
    uplink_rate: float = 5e9
    origin_rate: float = 1.25e9
    disk_rate: float = 2e9
    latency: float = 0.0005
    origin_latency: float = 0.005
    window: int = WINDOW_SEGMENTS
    window_bytes: int = WINDOW_BYTES
    asked: int = ASKED_SEGMENTS
    replicas: int = 1
    streams: int = 8
    jitter: float = 1.0
    settle: float = QUIET_SECONDS
    local_origin: int = 0
    how: str = "chain"
    kill: float = 0.0
    seed: int = 1

    def network(self, nodes: int) -> Network:
        return Network(
            in_racks(nodes, self.rack_size),
            node_rate=self.node_rate,
            uplink_rate=self.uplink_rate,
            origin_rate=self.origin_rate,
            disk_rate=self.disk_rate,
            local_origin=bool(self.local_origin),
        )

    def shape(self) -> Shape:
        chunks = self.segment // self.chunk
        segments = max(1, self.size // self.segment)
        window = self.window, self.window_bytes
        return Shape(segments, chunks, self.chunk, *window, self.latency, self.origin_latency, self.asked)


@dataclass(frozen=True)
class Outcome:
    """Of one cold start. `seconds`: from the moment when fill begins to the last node that has all; `first`: to the
    first one. Bytes of the set are 1."""

    nodes: int
    seconds: float
    first: float
    origin: float
    racks: tuple[float, ...]
    sent: tuple[float, ...]
    flights: int
    events: int


def run(parameters: ColdStart, nodes: int) -> Outcome:
    """One cold start. All begin within `jitter` seconds, and nobody fills before nothing changed for `settle` seconds:
    fill begins everywhere within the latency of gossip after that, here at once."""
    shape, network, engine = parameters.shape(), parameters.network(nodes), Engine()
    filling = Filling(engine, network, shape, routes(parameters, nodes))
    random = Random(parameters.seed)
    began = max(random.uniform(0, parameters.jitter) for _ in range(nodes)) + parameters.settle
    for node in range(nodes):
        engine.at(began + random.uniform(0, 0.1), filling.begin, node)
    if parameters.kill and nodes > 1:
        alone = shape.size / min(parameters.node_rate, parameters.origin_rate)
        engine.at(began + parameters.kill * alone, lambda node: filling.kill(node, 1.0), random.randrange(nodes))
    engine.run()
    ended = [done - began for node, done in enumerate(filling.done) if node not in filling.dead]
    of_set = 1 / shape.size
    return Outcome(
        nodes,
        max(ended),
        min(ended),
        network.origin.carried * of_set,
        tuple(pipe.carried * of_set for pipe in network.into),
        tuple(pipe.carried * of_set for pipe in network.up),
        filling.most,
        engine.events,
    )


def routes(parameters: ColdStart, nodes: int) -> Routes:
    if parameters.how == "origin":
        return OriginRoutes()
    shape = parameters.shape()
    kind = HomeRoutes if parameters.how == "homes" else ChainRoutes
    return kind(
        peers(in_racks(nodes, parameters.rack_size), parameters.seed),
        keys(shape.segments, parameters.seed),
        replicas=parameters.replicas,
        streams=parameters.streams,
        fan_out=parameters.how == "fan-out",
    )


def table(parameters: ColdStart) -> Table:
    alone = run(parameters, 1).seconds
    rows = tuple(_row(run(parameters, nodes), alone) for nodes in parameters.nodes)
    return Table(
        f"Cold start of a set of {parameters.shape().size / 1e9:.1f} GB, {parameters.how}",
        (
            "nodes",
            "racks",
            "seconds",
            "t(N)/t(1)",
            "origin/set",
            "into a rack/set, mean",
            "most",
            "sent, most",
            "flights",
        ),
        rows,
        (
            "seconds: from the end of the settling time until the last node has all; t(1): a node that is alone",
            "sent: over the set; flights: segments that were on their way to one node at a time, at most",
        ),
        {
            "rack": parameters.rack_size,
            "node MB/s": parameters.node_rate / 1e6,
            "uplink MB/s": parameters.uplink_rate / 1e6,
            "origin MB/s": parameters.origin_rate / 1e6,
            "chunk KiB": parameters.chunk // KIB,
            "window": parameters.window,
            "replicas": parameters.replicas,
            "origin streams": parameters.streams,
            "seed": parameters.seed,
        },
    )


def _row(outcome: Outcome, alone: float) -> tuple[Cell, ...]:
    into = outcome.racks
    return (
        outcome.nodes,
        len(into),
        outcome.seconds,
        outcome.seconds / alone,
        outcome.origin,
        sum(into) / len(into),
        max(into),
        max(outcome.sent),
        outcome.flights,
    )


def tables(arguments: argparse.Namespace) -> Sequence[Table]:
    parameters = ColdStart(**vars(arguments))
    return [table(parameters)]


def options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, ColdStart(), {"how": ("chain", "fan-out", "homes", "origin")})
