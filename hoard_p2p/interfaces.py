"""The few Protocols that the rooms meet at, each with its contract, and the values that pass through them.

A room is handed these; it does not import the room behind them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from hoard_p2p.ids import Bytes, ChunkId, SnapshotId

if TYPE_CHECKING:
    from hoard_p2p.peer import NodeId, Peer


class Place(NamedTuple):
    """Where a chunk's bytes lie on this machine.

    `generation` is 1 - 255 and changes when the bytes at a place were replaced, so that "verified" can be remembered
    per place and not outlive a repair.
    """

    slab: int
    offset: int
    length: int
    generation: int


class Extent(NamedTuple):
    """One chunk written to a slab: the unit of sidecars and of index commits."""

    slab: int
    offset: int
    length: int
    chunk_id: ChunkId


class SlabKind(Enum):
    SHARED = "shared"
    FILE = "file"


class SlabHandle(NamedTuple):
    """A slab made for one writer: two descriptors that the writer owns and closes, and the slab's number."""

    slab: int
    kind: SlabKind
    size: int
    data_fd: int
    sidecar_fd: int


class Grants(Protocol):
    """Room on the disk, from the one owner of the data directory. Blocking; safe from several threads."""

    def grant(self, size: int) -> None:
        """Before bytes are written: may slabs take `size` bytes more of the disk? Raises StoreFull."""
        ...

    def give_back(self, size: int, taken: int = 0) -> None:
        """`size` bytes that were granted are done with: written, or not needed. `taken`: by how much the disk space of
        this writer's slabs changed since it last told (negative where they were cut)."""
        ...


class SlabBroker(Grants, Protocol):
    """What a writer of slabs needs from the one owner of the index. Blocking; safe from several threads.

    The node's store is one; a worker process has one that asks the node over its socket.
    """

    def new_slab(self, kind: SlabKind, size: int) -> SlabHandle:
        """A fresh, empty slab. `size`: for FILE the file's exact length, for SHARED ignored. Raises StoreFailed."""
        ...

    def resume_slab(self, file_key: bytes, size: int) -> SlabHandle:
        """The unfinished FILE slab of `file_key` if nobody writes it now, else a fresh one, recorded under that key as
        incomplete. Raises StoreFailed."""
        ...

    def commit(self, extents: Sequence[Extent], known: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Record extents whose bytes and sidecar are already synced (I2), and what origin keys were found to be (the
        first word on a key counts); returns once they are durable."""
        ...

    def complete_file(self, file_key: bytes, slab: int, complete: bool) -> None:
        """Record that file slab `slab` holds the file of `file_key`; `complete`: every byte that is not a hole."""
        ...


class FileSink(Protocol):
    """Where the chunks of one large file go. Created by `ChunkSink.open_file`. `put` is safe from several threads."""

    def put(self, chunk_id: ChunkId, data: Bytes, offset: int) -> None:
        """Keep a chunk that lies at `offset` of the file. Does nothing if the chunk is stored already."""
        ...

    def finish(self, file_key: bytes, runs: Sequence[tuple[ChunkId, int]]) -> None:
        """The file is whole: `runs` are its (id, length) in order, holes included. Completes its slab where that is
        worth the copies, records it under `file_key`, and frees what the sink held."""
        ...

    def abandon(self) -> None:
        """The file was not finished (it changed, or could not be read); what was put stays usable as chunks."""
        ...


class ChunkSink(Protocol):
    """Where new chunks go: the writing side of a store. Safe from several threads; blocking."""

    def has(self, ids: Sequence[ChunkId]) -> list[bool]:
        """For each id, whether the chunk is stored or on its way (put, not yet flushed)."""
        ...

    def put(self, chunk_id: ChunkId, data: Bytes) -> None:
        """Keep a chunk in a shared slab. Does nothing if it is stored already. `data` may be reused after return.
        The caller has hashed `data`. Raises StoreFailed."""
        ...

    def put_many(self, chunks: Sequence[tuple[ChunkId, Bytes]]) -> list[bool]:
        """`put` for several chunks, cheaper; for each whether it was new, so false for the second of two equal ones."""
        ...

    def open_file(self, size: int) -> FileSink:
        """A sink for a large file of `size` bytes, which gets a slab of its own when its first new chunk arrives."""
        ...

    def flush(self) -> None:
        """Return once everything put so far is durable and in the index. Raises StoreFailed."""
        ...


class LocalChunks(Protocol):
    """The reading side of a store, from any process of this machine. Everywhere an origin key of a lazy snapshot may
    stand for the chunk that its piece was found to be, if this store knows (`content`)."""

    def place(self, chunk_id: ChunkId) -> Place | None:
        """Where the chunk lies, None if it is not stored here."""
        ...

    def content(self, chunk_id: ChunkId) -> ChunkId | None:
        """The id that the bytes must have: `chunk_id` itself, or what an origin key was found to be; None if that is
        not known here."""
        ...

    def contents(self, ids: Sequence[ChunkId]) -> list[ChunkId | None]:
        """`content` for many ids, in one transaction."""
        ...

    def places(self, ids: Sequence[ChunkId]) -> list[Place | None]:
        """`place` for many ids, in one transaction."""
        ...

    def read_into(self, chunk_id: ChunkId, start: int, into: memoryview) -> Place | None:
        """Fill `into` with the chunk's bytes from `start`; None if it is not stored here. One index transaction is
        held until the bytes are copied. Raises ChunkCorrupt if the slab is shorter than the index says."""
        ...

    def read_at(self, place: Place, start: int, into: memoryview) -> None:
        """The same at a place already known (for instance one not yet in the index). Raises ChunkCorrupt."""
        ...


class FileSlabs(Protocol):
    """The slabs of large files, which can be read as a whole: by the kernel itself, or to verify them."""

    def file_slab(self, file_key: bytes) -> tuple[int, bool] | None:
        """The slab of the large file with that key (`catalog.file_key`), and whether it is complete: then every run
        of the file that is no hole lies in it at the file's own offset, durably. None if there is no slab."""
        ...

    def open_slab(self, slab: int) -> int:
        """A fresh descriptor of the slab's data file, open for reading, which the caller closes. Raises ChunkCorrupt if
        the slab is not there, StoreFailed if it cannot be opened."""
        ...


class ListedSlabs(FileSlabs, Protocol):
    """What one must know to verify slabs: also the places of a chunk that nobody reads now."""

    def places_of(self, chunk_id: ChunkId) -> list[Place]:
        """Every listed place of a chunk, first the one that `LocalChunks` reads."""
        ...


class Found(NamedTuple):
    """An answer about a missing chunk run: where it lies now. `place` None: it could not be stored, `data` has it.

    `span` (lazy snapshots only): just these bytes of the run, (start, stop) as they were asked for, are here; `place`
    is where the run would lie as a whole, and `data`, if there is no place, holds the span alone. An ask for a span may
    be answered with the whole run.

    `content` (lazy snapshots only): what the run's origin key was found to be, which the index may learn a moment
    later; None if the node does not know it either."""

    run: int
    place: Place | None
    data: bytes
    span: tuple[int, int] | None = None
    content: ChunkId | None = None


class MissFailed(NamedTuple):
    """An answer about a missing chunk run: why nobody has it. `message` names the peers that were tried. `span`: as it
    was asked for."""

    run: int
    message: str
    span: tuple[int, int] | None = None


class MissChannel(Protocol):
    """How a mount worker asks its node for chunks it does not have. Non-blocking; used from one thread.

    It reconnects by itself, and asks again for what is outstanding, when the node went away and came back.
    """

    def fileno(self) -> int:
        """A descriptor to poll for reading, -1 while there is no connection. May change after `tend`."""
        ...

    def ask(self, run: int, span: tuple[int, int] | None = None) -> None:
        """Ask for a chunk run of this mount's snapshot (a second ask for one that is outstanding is dropped). `span`,
        for a lazy snapshot: these bytes of it are enough; then it is outstanding once for each span."""
        ...

    def distrust(self, run: int, place: Place) -> None:
        """Tell that the bytes at `place` are wrong, and ask for good ones. Answered like `ask`."""
        ...

    def touch(self, run: int) -> None:
        """Tell that a reader is at this run now, and likely to go on behind it: the node may fetch ahead. Never
        answered; dropped while there is no connection."""
        ...

    def answers(self) -> list[Found | MissFailed]:
        """What has arrived; empty if nothing."""
        ...

    def trouble(self) -> str:
        """Why there is no connection, in words for a log; empty while there is one."""
        ...

    def tend(self) -> None:
        """Called about once a second and when `fileno` is ready: reconnect and ask again where needed."""
        ...


class NodeLine(Protocol):
    """How a mount's supervisor makes itself known to its node, which keeps copies of the mount's descriptors and
    revives a mount whose processes are all dead. Non-blocking, never raises; used from one thread."""

    def fileno(self) -> int:
        """A descriptor to poll for reading, -1 while there is no connection. May change after `tend`."""
        ...

    def tend(self) -> None:
        """Called about once a second and when `fileno` is ready: connect and attach the mount where needed."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class PeerChunks(Protocol):
    """Bulk reading from one peer. Blocking, for use from threads; each call has its own deadline."""

    def fetch(
        self,
        peer: "Peer",
        wanted: Sequence[tuple[ChunkId, int]],
        deliver: Callable[[int, memoryview], None],
        *,
        timeout: float,
    ) -> list[int]:
        """Ask `peer` for chunks of known (id, length), in order. Each is received into a reused buffer, hashed, and
        handed to `deliver(index, bytes)`, which must copy what it keeps. Returns the indexes the peer does not have.
        `timeout`: seconds without progress. Raises PeerUnavailable (also for half-way failures: what was delivered
        stays good) and ChunkCorrupt (wrong bytes: the peer is to be shunned)."""
        ...

    def abandon(self, peer: "Peer", reason: str) -> None:
        """Break off what is being asked of `peer`, in whatever thread: that raises PeerUnavailable with `reason`. Does
        not wait for it."""
        ...


@runtime_checkable
class Gathering(Protocol):
    """A `deliver` of `PeerChunks` or `PeerSegments` that would rather take several chunks at once. A client that calls
    `gather` before the first chunk promises that what it delivers stays good until `settle`, which it calls before it
    reuses the buffer, and at the end, however that comes about."""

    def __call__(self, index: int, data: memoryview) -> None: ...

    def gather(self) -> None: ...

    def settle(self) -> None: ...


class AskMode(Enum):
    """What a node may do for who asks it for chunks of a segment that it does not have.

    GATE: it is the gateway of the asker's rack: it gets them itself, as for a reader of its own. CHAIN: it comes before
    the asker in the chain of the segment: it fills the segment, and passes each chunk on as it lands. FETCH: it is the
    reader of the origin: it may read them there. (HAVE, nothing: that is `PeerChunks`.)
    """

    GATE = 1
    CHAIN = 2
    FETCH = 3


@dataclass(frozen=True, slots=True)
class SegmentAsk:
    """A question for chunks of one segment. `runs`: canonical chunk runs of the segment, in the order wanted; `hops`:
    how often the question was passed on already (FETCH), or the asker's place in the chain (CHAIN), at most 255."""

    snapshot: SnapshotId
    segment: int
    mode: AskMode
    hops: int
    runs: tuple[int, ...]


class StreamEnd(NamedTuple):
    """How an answer ended. `absent`: indexes of the asked runs that did not come; `pending`: they may soon, from the
    same peer; else it cannot get them. `reason`: why not, for people."""

    absent: list[int]
    pending: bool
    reason: str


class PeerSegments(Protocol):
    """Chunks that a peer gets while it is being asked. Blocking, for use from threads."""

    def stream(
        self,
        peer: "Peer",
        ask: SegmentAsk,
        wanted: Sequence[tuple[ChunkId, int]],
        deliver: Callable[[int, memoryview], None],
        *,
        patience: float,
        timeout: float,
    ) -> StreamEnd:
        """Ask `peer` for `ask.runs`, whose (id, length) are `wanted`. Each chunk is sent as soon as the peer has it, in
        any order; received into a reused buffer, hashed, and handed to `deliver(index, bytes)`. `patience`: seconds
        without a chunk after which the peer is to end its answer; `timeout`: seconds without a byte after which it
        counts as unavailable. Raises PeerUnavailable and ChunkCorrupt as `PeerChunks.fetch`."""
        ...


class Residency(NamedTuple):
    """Which segments of a snapshot a node holds whole, counted from disk (I12). Bit i of `bits` (byte i // 8, bit
    i % 8) is segment i; catalog segments are not counted. `full`: it takes no copies now, for want of room."""

    snapshot: SnapshotId
    node: "NodeId"
    version: int
    bits: bytes
    full: bool = False

    def holds(self, segment: int) -> bool:
        byte = segment >> 3
        return 0 <= byte < len(self.bits) and bool(self.bits[byte] >> (segment & 7) & 1)


class MountOptions(NamedTuple):
    """What the user asked of a mount. `workers` 0: as many as suit; `verify`: `first`, `arrival` or `always`; `io`:
    `auto`, `passthrough` or `no-open`; `fill`: whether the node may fetch ahead of readers."""

    mountpoint: Path
    workers: int
    timeout: float
    verify: str = "first"
    io: str = "auto"
    fill: bool = True
