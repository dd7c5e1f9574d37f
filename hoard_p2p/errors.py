"""Every error that Hoard raises on purpose.

One tree under `HoardError`. Not found, corrupt and unavailable are three branches, because callers act differently on
each: give up, fetch again, wait. A message is lower case, holds the values, and says what to do next. The doors (FUSE,
HTTP, the command line, the unix socket) map the branches in one table each; `WIRE_NAMES` lists the classes that can
cross a process boundary by name.
"""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote


class HoardError(Exception):
    """The root of the tree; `str(error)` is the message for the user."""


# --- not found: the thing does not exist; asking again will not help


class NotFound(HoardError):
    """No such snapshot, ref or path."""


class SnapshotUnknown(NotFound):
    """No snapshot, prefix or ref of that name is known here or at any peer."""


class SnapshotAmbiguous(NotFound):
    """A prefix fits several snapshots."""


class PathNotFound(NotFound):
    """The snapshot has no such path."""


# --- integrity: the bytes are there and wrong


class Corrupt(HoardError):
    """Bytes do not match what their name or format promises."""


class ChunkCorrupt(Corrupt):
    """A chunk's bytes do not hash to its id."""


class CatalogCorrupt(Corrupt):
    """A catalog or root breaks its format; `docs/formats.md` lists the checks."""


# --- unavailable: it exists, but not here and now


class Unavailable(HoardError):
    """Peers or an origin could not be reached or did not have it; trying later may help."""


class ChunkUnavailable(Unavailable):
    """No reachable peer holds the chunk."""


class PeerUnavailable(Unavailable):
    """One peer did not answer, or answered badly; the caller tries the next."""


class PeerStrange(PeerUnavailable):
    """Something answers there, and it is no node that this one can talk to: another key, encryption, or no node."""


class PeerBusy(PeerUnavailable):
    """One peer has too much to do now, and says so: it is there, and may be asked again."""


class DeadlineExceeded(Unavailable):
    """Our own deadline passed."""


class OriginFailed(Unavailable):
    """An origin did not give what was asked of it. `again`: the same question may well be answered a moment later."""

    again = True


class OriginBusy(OriginFailed):
    """It asks to be asked less (503 SlowDown, 429), or is slow: fewer questions at a time, and again."""


class OriginRefused(OriginFailed):
    """This node may not read it: no, wrong or expired credentials. Another node may."""

    again = False


class ObjectChanged(OriginFailed):
    """An object is not the version that was listed, or is gone; the message names the object, both versions, and to
    publish again."""

    again = False


# --- this machine


class NoNode(HoardError):
    """No node is running on this data directory."""


class NodeRunning(HoardError):
    """A node already runs on this data directory."""

    def __init__(self, data_dir: Path | str, pid: int) -> None:
        seen = f"pid {pid}" if pid else "it cannot be seen from here: it is in another container, or on another machine"
        super().__init__(
            f"a node already runs on {data_dir} ({seen}); stop it with: hoard down --data-dir {quote(str(data_dir))}"
        )
        self.pid = pid


class StoreFailed(HoardError):
    """The store could not keep something: disk full, read-only, I/O error."""


class StoreFull(StoreFailed):
    """No room: the capacity, the free-space floor or the disk allows no more; the message says how much is missing."""


class IndexLost(StoreFailed):
    """There are slabs here and no index that could be read; the message names the command that makes it again."""


class StoreFormatUnknown(HoardError):
    """The data directory was written by a version that this one cannot read."""


class MountFailed(HoardError):
    """The kernel or fusermount3 refused a mount or an unmount."""


class MountBusy(MountFailed):
    """A mount has users; the message names them."""


# --- the caller's request


class BadRequest(HoardError):
    """Arguments that cannot mean anything; the message says what would."""


class Refused(HoardError):
    """Understood and not allowed in this state; the message says which state."""


class SourceUnreadable(HoardError):
    """Paths of a source that could not be read."""

    def __init__(self, failures: Sequence[str]) -> None:
        shown = "\n".join(f"  {line}" for line in failures)
        super().__init__(
            f"{len(failures)} paths could not be read, nothing was published "
            f"(repair them, or leave them out with --skip-unreadable):\n{shown}"
        )
        self.failures = tuple(failures)


class SourceUnmappable(HoardError):
    """Entries of an origin that cannot be in a snapshot: `count`, and the first of them with the reasons."""

    def __init__(self, count: int, first: Sequence[str]) -> None:
        shown = "\n".join(f"  {line}" for line in first)
        more = f"\n  and {count - len(first)} more" if count > len(first) else ""
        super().__init__(
            f"{count} entries of the origin cannot be in a snapshot, nothing was published "
            f"(leave them out with --skip-unmappable or --exclude):\n{shown}{more}"
        )
        self.count = count
        self.first = tuple(first)


class SourceChanging(HoardError):
    """A file kept changing while it was read."""


WIRE_NAMES: dict[str, type[HoardError]] = {
    cls.__name__: cls
    for cls in (
        HoardError,
        NotFound,
        SnapshotUnknown,
        SnapshotAmbiguous,
        PathNotFound,
        Corrupt,
        ChunkCorrupt,
        CatalogCorrupt,
        Unavailable,
        ChunkUnavailable,
        PeerUnavailable,
        DeadlineExceeded,
        OriginFailed,
        OriginBusy,
        OriginRefused,
        ObjectChanged,
        StoreFailed,
        StoreFull,
        IndexLost,
        StoreFormatUnknown,
        MountFailed,
        MountBusy,
        BadRequest,
        Refused,
        SourceChanging,
    )
}


def wire_name(error: HoardError) -> str:
    """The most specific name in `WIRE_NAMES` for `error`, for a peer process that has the same table."""
    return next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in WIRE_NAMES)


def from_wire(name: str, message: str) -> HoardError:
    """The error that `wire_name` named; an unknown name (a newer version) becomes a plain `HoardError`."""
    return WIRE_NAMES.get(name, HoardError)(message)
