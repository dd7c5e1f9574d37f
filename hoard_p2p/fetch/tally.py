"""Where what came here came from, in bytes: how it was asked for, and whether it crossed from another rack.

What the cluster promises of each rack (it is crossed once) is seen in these, summed over the rack's nodes.
"""

import threading
from enum import StrEnum

from hoard_p2p.interfaces import AskMode


class Way(StrEnum):
    """How a chunk came: a gateway of the rack got it meanwhile, the predecessor in the chain passed it on, the origin's
    reader read it meanwhile, a peer had it, this node read it from the origin."""

    GATEWAY = "gateway"
    CHAIN = "chain"
    READER = "reader"
    HOLDER = "holder"
    ORIGIN = "origin"


def way_of(mode: AskMode | None) -> Way:
    """The way of what a peer gave that was asked in this mode; None: for what it has."""
    return _WAYS[mode]


_WAYS = {None: Way.HOLDER, AskMode.GATE: Way.GATEWAY, AskMode.CHAIN: Way.CHAIN, AskMode.FETCH: Way.READER}


class Tally:
    """Bytes since the start. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ways = dict.fromkeys(Way, 0)
        self._far = self._again = 0

    def note(self, way: Way, size: int, *, far: bool, again: bool) -> None:
        """A chunk of `size` bytes came. `far`: from a peer in another rack; `again`: it was here already."""
        with self._lock:
            self._ways[way] += size
            self._far += size * far
            self._again += size * again

    @property
    def total(self) -> int:
        with self._lock:
            return sum(self._ways.values())

    def told(self) -> dict[str, int]:
        """By way; and of all that `other_racks`, and what came `again`."""
        with self._lock:
            return {**{way.value: size for way, size in self._ways.items()}, "other_racks": self._far,
                    "again": self._again}  # fmt: skip
