"""Who notices a death, and when: the production membership (SWIM) on N nodes that know each other.

One node dies; one begins to want a data set. When does somebody declare the death, when do all know it; when do all
know who wants the set, which is what fill waits for; and how many probes does a node send each second at rest?
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from hoard_p2p.testing.swarm import Swarm, SwarmNode
from simulations.filling import SET
from simulations.options import add_options
from simulations.table import Cell, Table


@dataclass(frozen=True)
class MembershipPlan:
    """Parameters. `rest`: seconds of quiet in which probes are counted; `patience`: seconds until one gives up."""

    nodes: tuple[int, ...] = (3, 16, 64, 256, 1000)
    rest: float = 5.0
    patience: float = 60.0
    seed: int = 1


def _row(parameters: MembershipPlan, size: int) -> tuple[Cell, ...]:
    swarm = Swarm(size, parameters.seed)
    swarm.run(parameters.rest)
    at_rest = sum(node.probes for node in swarm.nodes) / size / parameters.rest
    wanting = _until_told(swarm, swarm.nodes[0], parameters.patience)
    lost = swarm.nodes[size // 2]
    lost.is_up = False
    died = swarm.now
    swarm.run_until(lambda: len(swarm.believers(lost)) < size - 1, parameters.patience)
    declared = swarm.now - died
    swarm.run_until(lambda: not swarm.believers(lost), parameters.patience)
    return size, at_rest, wanting, declared, swarm.now - died


def _until_told(swarm: Swarm, node: SwarmNode, patience: float) -> float:
    began = swarm.now
    swarm.stand(node, lambda standings: standings.stand([SET], None))
    swarm.run_until(lambda: all(_knows(other, node) for other in swarm.nodes), patience)
    return swarm.now - began


def _knows(other: SwarmNode, node: SwarmNode) -> bool:
    return node.peer.node_id in other.standings.wanting(SET)


def tables(arguments: argparse.Namespace) -> Sequence[Table]:
    parameters = MembershipPlan(**vars(arguments))
    table = Table(
        "Membership: one node begins to want a set, then one dies",
        ("nodes", "probes a second and node", "want known to all, s", "death declared, s", "known to all, s"),
        tuple(_row(parameters, size) for size in parameters.nodes),
        ("messages take 1 ms; looked at every 100 ms",),
        {"seed": parameters.seed},
    )
    return [table]


def options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, MembershipPlan(), {})
