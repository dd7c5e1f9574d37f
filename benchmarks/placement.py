"""What planning costs: a full plan, and one node that joins or leaves among 1,000. `python -m benchmarks.placement`.

Processor time of one core; the target is that 100,000 segments are re-scored for one joined node in under a second.
"""

import argparse
import time
from collections.abc import Callable
from random import Random

from hoard_p2p.ids import ChunkId
from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.placement import Shares, rows, weight_of

DEPTH = 4
"""Two homes and two nodes to spare."""

FULL_PLAN_KEYS = 1000
"""A full plan of all segments takes minutes; of so many it is measured, and the rest follows."""


def seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--racks", type=int, default=63)
    parser.add_argument("--segments", type=int, default=100_000)
    asked = parser.parse_args()
    random = Random(5)
    peers = [
        Peer(NodeId(random.randbytes(16)), 1, "", f"r{number % asked.racks}", "10.0.0.1", 1, weight_of(1 << 40))
        for number in range(asked.nodes + 1)
    ]
    joiner, members = peers[0], peers[1:]
    keys = [ChunkId(random.randbytes(32)) for _ in range(asked.segments)]
    sample = keys[:FULL_PLAN_KEYS]
    full = seconds(lambda: rows(members, sample, DEPTH)) * asked.segments / len(sample)
    # Any rows do for the cost of a join as long as their scores are as good as real ones: of the best of a subset.
    shares = Shares(members, sample, DEPTH)
    joined = seconds(lambda: shares.follow([*members, joiner])) * asked.segments / len(sample)
    left = seconds(lambda: shares.follow(members)) * asked.segments / len(sample)
    print(f"{asked.nodes} nodes in {asked.racks} racks, {asked.segments:,} segments, rows of {DEPTH}; one core")
    print(f"| full plan | {full:.1f} s | {full / asked.segments / asked.nodes * 1e6:.2f} us a score |")
    print(f"| one node joins | {joined:.2f} s | target: 1 s |")
    print(f"| one node leaves | {left:.2f} s | rows of its segments anew |")


if __name__ == "__main__":
    main()
