"""When a node was away for so long that others may have forgotten what they removed meanwhile. Pure (CLUSTER 5).

Removals are remembered for 30 days. A node that was away for longer takes the cluster's names: what it knew when it was
last in touch and what the others do not know any more was removed. Only who was there all the time can say so: a node
that is new knows nothing, and that tells nothing. Who has never met another node was not away.
"""

import struct
from dataclasses import dataclass, replace

from hoard_p2p.node.merging import DAY_NS, TOMBSTONE_DAYS

AWAY_MS = (TOMBSTONE_DAYS - 1) * DAY_NS // 1_000_000
MARGIN_MS = 3600 * 1000
"""What was set in the last hour before this node was away may not have reached any other: it stays."""
_CONTACT = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class Contact:
    """In milliseconds since the epoch. `last`: when this node's names were last compared with another's, 0: never.
    `since`: what the cluster knew at that time or later and this node does not know was removed."""

    last: int
    since: int

    def is_away(self, now: int) -> bool:
        """Whether what this node knows may have been removed and forgotten. Also where the clock was set back."""
        return self.last > 0 and abs(now - self.last) > AWAY_MS

    def testifies(self, since: int) -> bool:
        """Whether another node with that `since` was there when this one was last in touch."""
        return 0 < since <= self.last

    @property
    def shared_until(self) -> int:
        """Nanoseconds: what is older was known to others, too."""
        return max(0, self.last - MARGIN_MS) * 1_000_000

    def met(self, now: int, since: int) -> "Contact":
        """After taking over all that another node knows, whose `since` is told (0: none)."""
        return Contact(max(self.last, now), min(self.since, since or self.since))

    def returned(self, now: int, since: int) -> "Contact":
        """After the absence; `since`: the earliest of those whose word was taken (0: of none)."""
        return replace(self, last=now, since=since or now)


def encode_contact(contact: Contact) -> bytes:
    return _CONTACT.pack(contact.last, contact.since)


def decode_contact(value: bytes | None, now: int) -> Contact:
    """`now`: for a node that has none yet."""
    return Contact(0, now) if value is None or len(value) != _CONTACT.size else Contact(*_CONTACT.unpack(value))
