"""When a node may drop its copy of a segment (I4). Pure (CLUSTER 3, "Retention").

Only after as many nodes as the snapshot has replicas, all of which come before it in the segment's order, confirmed
theirs from their index just now and promised to keep them for a while. Who promised drops nothing meanwhile. So at the
moment of each drop so many copies are somewhere, and stay: whatever the views, whatever messages are late or lost. In
one view the best-ranked holder never drops. (If each just asked who else has a copy, two that ask at the same time
would both drop: tests/property/test_last_copy_property.py.)
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from hoard_p2p.ids import ChunkId
from hoard_p2p.peer import ClusterView, NodeId
from hoard_p2p.placement import rows

PROMISED_SECONDS = 600.0
FRESH_SECONDS = 10.0
"""An answer that is older is not acted upon. Less than the promise, so that a promise outlives each use of it."""
SPARE_VOUCHERS = 2
"""Nodes that are asked besides as many as must vouch."""


def whom_to_ask(view: ClusterView, keys: Mapping[int, ChunkId], replicas: int) -> dict[NodeId, list[int]]:
    """For each peer the segments to ask it about: the first nodes in the segment's order, where at least `replicas` of
    them come before this one. A node that drains is in no order: all come before it."""
    asked: dict[NodeId, list[int]] = defaultdict(list)
    ranked = rows(view.peers, list(keys.values()), replicas + SPARE_VOUCHERS)
    for segment, row in zip(keys, ranked, strict=True):
        better = row[: row.index(view.me)] if view.me in row else row
        if len(better) >= replicas:
            for node in better:
                asked[node].append(segment)
    return asked


def enough(answers: Iterable[Sequence[int]], replicas: int) -> frozenset[int]:
    """Segments that at least `replicas` of the answers name, each from another node."""
    counts: dict[int, int] = defaultdict(int)
    for answer in answers:
        for segment in set(answer):
            counts[segment] += 1
    return frozenset(segment for segment, count in counts.items() if count >= replicas)


def may_drop(vouched: AbstractSet[int], asked: float, promised: AbstractSet[int], now: float) -> frozenset[int]:
    """What goes of the segments that others vouched for when they were `asked` (before the first question was sent),
    and that this node itself `promised` to nobody. To be decided and done in one step, like vouching itself."""
    return frozenset(vouched - promised) if now - asked <= FRESH_SECONDS else frozenset()
