"""When to compare members and standings with a peer: where digests differ, ever less often, up to once in 30 s."""

from collections.abc import Callable, Collection
from random import Random
from struct import pack

from blake3 import blake3

from hoard_p2p.cluster.membership import Membership
from hoard_p2p.cluster.standings import Standings
from hoard_p2p.peer import ClusterView, NodeId

AGAIN_FIRST = 1.0
AGAIN_MOST = 30.0
DIGEST_SIZE = 8


class Comparing:
    """For one owner, the event loop."""

    def __init__(
        self, membership: Membership, standings: Standings, clock: Callable[[], float], random: Random
    ) -> None:
        self._membership = membership
        self._standings = standings
        self._clock = clock
        self._random = random
        self._next = 0.0
        self._wait = AGAIN_FIRST
        self._digest = b""
        self._of: tuple[ClusterView, int] | None = None

    def digest(self) -> bytes:
        """Stands for the members of the view and what they have to do with data; equal on nodes that know the same."""
        view, changes = self._membership.view(), self._standings.changes
        if self._of is None or self._of[0] is not view or self._of[1] != changes:
            parts = []
            for peer in view.peers:
                standing = self._standings.of(peer.node_id)
                start, version = (0, 0) if standing is None else (standing.incarnation, standing.version)
                parts.append(peer.node_id + pack("<3Q", peer.incarnation, start if version else 0, version))
            self._digest = blake3(b"".join(parts)).digest(length=DIGEST_SIZE)
            self._of = view, changes
        return self._digest

    def is_due(self, theirs: bytes) -> bool:
        """Whether a peer with this digest is to be asked now. A peer that tells none is not."""
        return bool(theirs) and theirs != self.digest() and self._clock() >= self._next

    def begin(self, members: Collection[NodeId]) -> None:
        """A comparison begins; the next has time. Standings of nodes that are no `members` are forgotten."""
        self._next = self._clock() + self._wait * self._random.uniform(0.8, 1.2)
        self._wait = min(AGAIN_MOST, 2 * self._wait)
        self._standings.keep(members)
