"""Objects with versions, which origins hold: how they are listed and read, and how peers ask for parts of them.

A data set comes from an `Origin`; its implementations are in `hoard_p2p.origin`.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from hoard_p2p.ids import SnapshotId

if TYPE_CHECKING:
    from hoard_p2p.peer import Peer


class Kind(Enum):
    """What an entry of a data set is. Not of one, but listed: SPECIAL (a device, socket or FIFO) and UNREADABLE
    (what is there, and may not be read); `Listed.target` says what or why, for people."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    SPECIAL = "special"
    UNREADABLE = "unreadable"


class Listed(NamedTuple):
    """One entry of an origin's listing. `path`: as the origin names it, relative to it, parts between slashes; it may
    be one that no file can have. `mtime`: ns since the epoch. `mode`: permission bits. `version`: what `Origin.read`
    compares, at most 255 bytes. `target`: of a symlink. `link`: the same for all names of one file with several, else
    empty. Objects of a store are files; a key that ends in a slash keeps it."""

    path: bytes
    kind: Kind
    size: int
    mtime: int
    mode: int
    version: bytes
    uid: int = 0
    gid: int = 0
    target: bytes = b""
    link: bytes = b""
    xattrs: tuple[tuple[bytes, bytes], ...] = ()


class ObjectRange(NamedTuple):
    """Bytes `start` to `stop` of an object that had `size` bytes. `version`: the one it was listed with; empty: any,
    for whoever knows the bytes by their ids."""

    path: bytes
    size: int
    version: bytes
    start: int
    stop: int


class Punctual:
    """Base of an `Origin` whose `read` ends by itself: whatever its server does, after some 20 seconds without a byte,
    and at once when it is closed. So who waits for the bytes may read them in its own thread."""


class Origin(Protocol):
    """Where a data set comes from: objects with versions. Blocking, for use from threads; safe from several.

    Everything raises OriginFailed, whose class says what is worth a retry: `again`, OriginBusy (later, and less),
    OriginRefused (elsewhere), ObjectChanged (never). Messages name the object, never credentials. An answer of another
    length, type or version than asked for is a failure: no such byte is handed out.
    """

    @property
    def url(self) -> str:
        """As in `SnapshotRecord.origin`: names it on every node, holds no secrets."""
        ...

    def identity(self, path: bytes) -> bytes:
        """The whole name of an object, the same whatever part of the store this origin is."""
        ...

    def check(self) -> None:
        """Whether it is there and may be read; raises if not."""
        ...

    def listing(self) -> Iterator[Listed]:
        """Every entry, in any order, in constant memory."""
        ...

    def read(self, wanted: ObjectRange, into: memoryview, moved: Callable[[int], None]) -> None:
        """Fill `into`, as long as the range. `moved` is told of bytes as they come, so that a stall is seen; raising
        there ends the reading. `into` holds nothing of use if this raises."""
        ...

    def close(self) -> None:
        """Give up connections; what runs may end in OriginFailed."""
        ...


class RangeAsk(NamedTuple):
    """A question for `length` bytes from `start` on of the piece that is chunk run `run` of a lazy snapshot. `hops`:
    how often it was passed on already, at most 255; `patience`: seconds after which the peer is to say `pending`."""

    snapshot: SnapshotId
    run: int
    start: int
    length: int
    hops: int
    patience: float


class RangeEnd(NamedTuple):
    """How that ended. `got`: all bytes are here. Else `pending`: the same peer may have them soon, or it cannot get
    them. `reason`: why not, for people."""

    got: bool
    pending: bool
    reason: str


class PeerRanges(Protocol):
    """Parts of pieces that nobody holds whole. Blocking, for use from threads."""

    def range(self, peer: "Peer", ask: RangeAsk, into: memoryview, *, timeout: float) -> RangeEnd:
        """Fill `into`, as long as the range. The bytes are as the peer sent them and cannot be compared with an id: for
        the read at hand, never to be kept as a chunk. `timeout`: seconds beyond the patience without a byte. Raises
        PeerUnavailable, and ChunkCorrupt if they were damaged on the way; then `into` holds nothing of use."""
        ...
