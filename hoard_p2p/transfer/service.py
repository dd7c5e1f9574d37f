"""What the HTTP server needs from a node. The node implements it; the server knows nothing else of the node."""

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from hoard_p2p.config import Json
from hoard_p2p.ids import ChunkId, SnapshotId
from hoard_p2p.interfaces import Residency, SegmentAsk
from hoard_p2p.objects import RangeAsk
from hoard_p2p.peer import NodeId, Standing
from hoard_p2p.transfer.wire import AdoptReply, AdoptRequest, Announcement, Hello, Record
from hoard_p2p.transfer.wire_contents import ContentsRequest
from hoard_p2p.transfer.wire_life import Handed, Use, VouchRequest
from hoard_p2p.transfer.wire_members import KnownStanding, ProbeMessage
from hoard_p2p.transfer.wire_names import Comparison, Differences, Lack, Supply


class SendExtent(NamedTuple):
    """Where a chunk's bytes lie, open for reading. `fd` stays valid until the extent is given to `release`; the server
    reads it with `pread` and `sendfile` only, so several extents may share one descriptor. `content`: the content id,
    if it was asked for by an origin key; else empty."""

    fd: int
    offset: int
    length: int
    content: bytes = b""


Located: TypeAlias = Sequence[SendExtent | None]
"""For each chunk asked for where it lies, None if it is not here."""


class Fed(NamedTuple):
    """One chunk of a stream: that of `ask.runs[asked]`. `extent` None: it could not be stored (or is
    empty), and `data` has its bytes, and `content` is as in an extent."""

    asked: int
    extent: SendExtent | None
    data: bytes = b""
    content: bytes = b""


class FeedEnd(NamedTuple):
    """The last word of a stream. `pending`: what did not come may come soon, from this node; else it cannot get it.
    `reason`: why not, for people."""

    pending: bool
    reason: str = ""


class PeerService(Protocol):
    """A node, as its HTTP server sees it. All methods but `locate` are called on the event loop; none may block it.

    Methods may raise any `HoardError`; it crosses the wire by name and message. Requests are already bounded and
    parsed; whether their content is believed is for the service to decide.
    """

    def hello(self) -> Hello:
        """This node, the members it believes alive (itself not among them), and digests of what it knows."""
        ...

    def greeted(self, caller: Hello) -> None:
        """Another node said hello; its record's host is an address that it can be tried at. Not proven: it is hearsay
        until this node reached it there. Called for callers of any cluster."""
        ...

    def probed(self, caller: ProbeMessage) -> ProbeMessage:
        """Another node asks whether this one is there, and tells its news. As `greeted`; must cost next to nothing."""
        ...

    async def probe_for(self, node: NodeId) -> bool:
        """Whether this node gets an answer from another of its view. Raises NotFound, Unavailable."""
        ...

    def standings(self, known: Sequence[KnownStanding]) -> Sequence[Standing]:
        """What nodes have to do with data, where it is not `known` to the asker."""
        ...

    def status(self) -> Json:
        """What a person wants to see of this node."""
        ...

    def metrics(self) -> bytes:
        """Counters in the Prometheus text format."""
        ...

    async def root(self, snapshot: SnapshotId) -> bytes | None:
        """The encoded root of a snapshot, None if it is unknown here."""
        ...

    async def snapshots(self) -> Sequence[Record]:
        """One record per snapshot known here."""
        ...

    async def refs(self) -> Sequence[Record]:
        """One record per ref known here, tombstones included."""
        ...

    async def compare(self, comparison: Comparison) -> Differences:
        """In which parts snapshots and refs here are others than at the asker."""
        ...

    async def supply(self, lack: Lack) -> Supply:
        """Records of some parts that the asker does not know; at most about `MAX_SUPPLIED` bytes."""
        ...

    async def residency(self, snapshot: SnapshotId) -> Residency | None:
        """Which segments of the snapshot are here whole, None if the snapshot is unknown here."""
        ...

    def locate(self, ids: Sequence[ChunkId]) -> Located:
        """Blocking; called from several threads. Every extent is given back to `release` exactly once. An origin key is
        located if it is known here what its piece is: then the extent has the content id."""
        ...

    def release(self, extents: Sequence[SendExtent], sent: int) -> None:
        """The server is done with these extents of one `locate`: the first `sent` went out whole, the others not."""
        ...

    def feed(self, ask: SegmentAsk, patience: float) -> AsyncGenerator[Sequence[Fed] | FeedEnd, None]:
        """Chunks of a segment for a peer: those on disk first, then others as they land here; then one `FeedEnd`, and
        nothing behind it: when all have come, when the others cannot be got, or, pending, when none came for `patience`
        seconds. No chunk comes twice.

        What it raises before its first item is the answer. Extents are given to `release`, those of one item together
        and exactly once. It is closed early when the asker hangs up.
        """
        ...

    async def range(self, ask: RangeAsk) -> bytes | FeedEnd:
        """That part of a piece of a lazy snapshot, from here or from its origin if this node reads it; else why not,
        or, when it takes longer than `ask.patience`, that it is pending. Cancelled when the asker hangs up."""
        ...

    async def contents(self, request: ContentsRequest) -> Sequence[bytes]:
        """For each segment the content ids of its chunks in the catalog's order, 32 bytes each, zeros where it is not
        known here what the piece is. Raises SnapshotUnknown, BadRequest for a segment that there is not."""
        ...

    async def adopt(self, request: AdoptRequest) -> AdoptReply:
        """Pull segments that this node is home of from `request.source`; returns when they are durable here, or
        cannot be. Cancelled when the server's time for it is over."""
        ...

    async def uses(self, snapshots: Sequence[SnapshotId]) -> Sequence[Use]:
        """Who uses these snapshots on this machine, and when they were used last; one for each, in order."""
        ...

    async def vouch(self, request: VouchRequest) -> Sequence[int]:
        """Which of the segments are here whole, and will stay for a while whatever happens."""
        ...

    def handed(self, handed: Handed) -> None:
        """A peer read something from an origin in the place of this node, and has it."""
        ...

    async def announce(self, announcement: Announcement) -> None:
        """A peer has new snapshots or refs."""
        ...

    async def left(self, node: NodeId, incarnation: int) -> None:
        """A peer says that it (in this incarnation) leaves."""
        ...
