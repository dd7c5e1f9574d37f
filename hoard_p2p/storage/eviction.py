"""What goes first when room is needed, and how much room is kept free. Pure (CLUSTER 3, "Retention").

Data sets go whole, the one that was used longest ago first: what nobody wants any more before ordinary copies, these
before the copies that this node keeps as a home. What is leased or pinned never goes, so a set that is larger than its
room keeps the part that came first: a shuffled epoch then hits in proportion, where a cache that replaces what was used
longest ago would hit almost never.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from hoard_p2p.ids import SnapshotId

LEAST_HEADROOM = 64 << 20
HEADROOM_SHARE = 100
"""A hundredth of the capacity is kept free for what arrives."""


class Part(IntEnum):
    """Which copies of a set, in the order in which they go."""

    ORDINARY = 0
    HOME = 1


@dataclass(frozen=True, slots=True)
class CachedSet:
    """A snapshot that is living and known here. `last_used`: on this node, nanoseconds since the epoch; `needed`:
    leased or pinned here; `expired`: nothing names it any more and its time is over."""

    snapshot: SnapshotId
    last_used: int
    needed: bool
    expired: bool


class Step(NamedTuple):
    snapshot: SnapshotId
    part: Part


def order(sets: Iterable[CachedSet]) -> list[Step]:
    """What to evict, one step after the other, until there is room enough."""
    going = sorted(
        (one for one in sets if not one.needed), key=lambda one: (not one.expired, one.last_used, one.snapshot)
    )
    return [Step(one.snapshot, part) for part in Part for one in going]


def headroom(capacity: int) -> int:
    """Bytes that are kept available, so that arrivals do not wait; never more than a quarter of a small store."""
    return min(max(LEAST_HEADROOM, capacity // HEADROOM_SHARE), capacity // 4)


def to_free(capacity: int, available: int) -> int:
    """Bytes to evict now: none while the headroom is there, else as many as make it twice as large."""
    least = headroom(capacity)
    return 0 if available >= least else 2 * least - available


def lives_until(*, last_used: int, keep: int, pinned: bool, named: bool) -> int | None:
    """Until when a snapshot lives that is not leased (nanoseconds since the epoch); None: without end."""
    return None if pinned or named else last_used + keep * 1_000_000_000
