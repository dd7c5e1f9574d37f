"""News on their way: each is sent along with so many messages that all nodes hear of it, and then no more. Pure.

SWIM (Das, Gupta, Motivala 2002), section 4.1: an item that each node tells lambda * log(n) times reaches all n but for
n^-(2 * lambda - 2) of them.
"""

from dataclasses import dataclass
from typing import TypeAlias

from hoard_p2p.peer import NodeId, Rumour, Standing

BUDGET = 14 << 10
"""Bytes of news in one message, estimated from above; one item is always taken. A message has at most 16 KiB."""
MOST_RUMOURS = 48
MAX_WAITING = 16384
TELL = 3
"""Times log2(n) that an item is told."""
RUMOUR_SIZE = 400

Item: TypeAlias = Rumour | Standing
Key: TypeAlias = tuple[type[Item], NodeId]


@dataclass(slots=True)
class _Waiting:
    item: Item
    told: int = 0


class Outbox:
    """At most one rumour and one standing of each node: the latest."""

    def __init__(self) -> None:
        self._waiting: dict[Key, _Waiting] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, item: Item) -> None:
        """To be told from now on, in place of an earlier one of the same node."""
        key = _key(item)
        if key in self._waiting or len(self._waiting) < MAX_WAITING:
            self._waiting[key] = _Waiting(item)

    def take(self, nodes: int, to: NodeId | None) -> list[Item]:
        """What to tell a peer now in a cluster of so many nodes: first what is told of itself, so that it can answer a
        suspicion, then what was told least often."""
        most = TELL * max(1, nodes.bit_length())
        chosen: list[Item] = []
        room = BUDGET
        for key, waiting in self._in_order(to):
            size = _size(waiting.item)
            if chosen and (size > room or len(chosen) >= MOST_RUMOURS):
                break
            chosen.append(waiting.item)
            room -= size
            waiting.told += 1
            if waiting.told >= most:
                del self._waiting[key]
        return chosen

    def _in_order(self, to: NodeId | None) -> list[tuple[Key, _Waiting]]:
        if len(self._waiting) <= 1:
            return list(self._waiting.items())
        return sorted(self._waiting.items(), key=lambda each: (each[0][1] != to, each[1].told))


def _key(item: Item) -> Key:
    return (Rumour, item.peer.node_id) if isinstance(item, Rumour) else (Standing, item.node_id)


def _size(item: Item) -> int:
    return RUMOUR_SIZE if isinstance(item, Rumour) else 160 + 43 * len(item.wants) + 11 * len(item.reads)
