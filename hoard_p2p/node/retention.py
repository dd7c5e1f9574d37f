"""What lives on this node and what goes: eviction, collection, and room for who waits for it (CLUSTER 3 and 5).

Decides nothing by itself: `storage.eviction` says what goes first, `node.marking` what is still wanted,
`node.vouching` which copies others keep; the store's reclaimer gives the space back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hoard_p2p.ids import SnapshotId

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node


@dataclass(frozen=True, slots=True)
class Evictable:
    """What could go to make room. `action`: the command, for people; `size`: bytes at most, as far as is known."""

    snapshot: SnapshotId
    size: int
    action: str


@dataclass(slots=True)
class Outcome:
    """What was freed, or would be. `kept`: what stays and why, for people."""

    chunks: int = 0
    size: int = 0
    removed: list[SnapshotId] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


class Retention:
    """For the event loop, but for `relief` and `candidates`, which any thread may call."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    async def run(self) -> None:
        """Until cancelled: collects what nobody wants, keeps some room free, renews leases."""

    async def evict(self, snapshot: SnapshotId, *, dry_run: bool = False) -> Outcome:
        """Drop this node's copies of a snapshot. Raises Refused while it is leased or pinned here."""
        return Outcome()

    async def gc(self, *, dry_run: bool = False) -> Outcome:
        """Collect what no living snapshot holds."""
        return Outcome()

    def soon(self) -> None:
        """Something ended: collect before long."""

    def relief(self, size: int) -> bool:
        """Blocking, from any thread but the loop's: try for a few seconds to free `size` bytes."""
        return False

    def candidates(self) -> Sequence[Evictable]:
        """What could be evicted or removed, largest first. Free of I/O but for short index reads."""
        return ()
