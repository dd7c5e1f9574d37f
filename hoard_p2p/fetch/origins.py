"""What a flight asks of whoever reads origins: who reads a segment, reading it here, when a reader may be passed by.

Blind to what an origin is: `node` hands in the lane (CLUSTER 4, "Read once"); `NoOrigin` is one where nothing is read.
"""

from collections.abc import Callable, Container, Sequence
from typing import Protocol

from hoard_p2p.errors import Unavailable
from hoard_p2p.fetch.segment import Segment, Wanted
from hoard_p2p.ids import SnapshotId
from hoard_p2p.peer import NodeId, Peer


class OriginLane(Protocol):
    """The origins of snapshots as one node sees them. All methods but `read` are for the event loop and never block."""

    def reader(self, segment: Segment, without: Container[NodeId]) -> Peer | None:
        """The node that reads `segment` from its origin in this node's view; it may be this node itself. `without`:
        nodes that said they cannot, or are silent. None: the snapshot has no origin, or nobody is left to read it."""
        ...

    def last(self, segment: Segment) -> Peer | None:
        """This node, if it may find what nobody has in the origin of some other snapshot, which `read` looks for."""
        ...

    def read(
        self, segment: Segment, wanted: Sequence[Wanted], deliver: Callable[[int, memoryview], None], *, urgent: bool
    ) -> list[int]:
        """Blocking, from a fetch thread: read chunks here, one at a time delivered from several threads; each that
        matches its id (or whose version the origin vouched for, in a lazy snapshot) goes to `deliver(index, bytes)`,
        which copies what it keeps. `urgent`: a reader waits, so it comes before all that nobody waits for. Returns the
        indexes of those that could not be read (the file changed or is gone). Some may be neither delivered nor named:
        others who read them here landed them. Raises Unavailable: the origin cannot be read at all now; what was
        delivered stays good."""
        ...

    def why(self, segment: Segment) -> str:
        """Why chunks of the segment could not be read here the last time, for people; names the file."""
        ...

    def changed(self, segment: Segment, chunk: Wanted) -> str:
        """Why the chunk cannot come from any origin, as was just seen: the object is another one now. Names it. Empty:
        it may come."""
        ...

    def received(self, snapshot: SnapshotId, size: int) -> None:
        """From any thread: that many bytes of a snapshot came here, from wherever."""
        ...

    def may_bypass(self, segment: Segment, size: int, waited: float) -> bool:
        """Whether a reader here that waited `waited` seconds for `size` bytes of the segment may have them from the
        origin at once, past the segment's reader: true only while this node may read it, and within the budget."""
        ...

    def bypassed(self, segment: Segment, reader: Peer, size: int) -> None:
        """That was done: `size` bytes that `reader` was too late with were read here. Takes them off the budget."""
        ...

    def handed(self, segment: Segment, reader: Peer, chunks: Sequence[Wanted]) -> None:
        """These came, and are here: `reader` need not read them."""
        ...

    def silent(self, reader: Peer) -> None:
        """A reader sent nothing for so long that it was replaced: for a while others are asked before it."""
        ...


class NoOrigin:
    """An `OriginLane` of a node that reads none."""

    def reader(self, segment: Segment, without: Container[NodeId]) -> Peer | None:
        return None

    def last(self, segment: Segment) -> Peer | None:
        return None

    def read(
        self, segment: Segment, wanted: Sequence[Wanted], deliver: Callable[[int, memoryview], None], *, urgent: bool
    ) -> list[int]:
        raise Unavailable("no origin is readable on this node")

    def why(self, segment: Segment) -> str:
        return ""

    def changed(self, segment: Segment, chunk: Wanted) -> str:
        return ""

    def received(self, snapshot: SnapshotId, size: int) -> None:
        return None

    def may_bypass(self, segment: Segment, size: int, waited: float) -> bool:
        return False

    def bypassed(self, segment: Segment, reader: Peer, size: int) -> None:
        return None

    def handed(self, segment: Segment, reader: Peer, chunks: Sequence[Wanted]) -> None:
        return None

    def silent(self, reader: Peer) -> None:
        return None
