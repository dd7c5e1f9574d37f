"""What to do about a store that is full, in words for people."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hoard_p2p.node.retention import Evictable, Retention
from hoard_p2p.printing import size_text
from hoard_p2p.storage.room import Room

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

NAMED = 3


def advice(candidates: Sequence[Evictable], missing: int) -> str:
    """Which commands free at least `missing` bytes, or as much as can be; empty if nothing can go."""
    named = candidates[:NAMED]
    if not named:
        return ""
    total = sum(candidate.size for candidate in candidates)
    enough = "" if total >= missing else f", all of it {size_text(total)}, which is not enough"
    listed = ", ".join(f"{candidate.action} ({size_text(candidate.size)})" for candidate in named)
    more = f" and {len(candidates) - NAMED} more" if len(candidates) > NAMED else ""
    return f"what could go: {listed}{more}{enough}"


def making_room(retention: Retention, room: Room) -> Retention:
    """Have the room ask it, before anybody is refused."""
    room.relief = retention.relief
    room.advice = lambda missing: advice(retention.candidates(), missing)
    return retention


def could_fit(node: "Node", size: int) -> None:
    """Blocking. Raises StoreFull if `size` new bytes cannot be stored, even if all went that may go by itself."""
    node.store.room.could_fit(size, sum(candidate.size for candidate in node.retention.candidates()))
