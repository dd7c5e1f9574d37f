"""What a publish is asked, what it tells meanwhile, and what it gives: the values at the edge of this room."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from hoard_p2p.catalog.builder import Totals
from hoard_p2p.chunking import Chunker
from hoard_p2p.ids import SnapshotId

NAMED = 1000
"""Paths that a list of left-out things names; beyond that they are only counted."""


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """What the user asked of a publish.

    `exclude`: patterns, see `exclude.Rules`. `temp_dir`: where intermediate files go (unlinked from the start), inside
    the data directory; they take about 100 bytes a file and 40 a chunk. `own_data`: (device, inode) of the node's data
    directory, which is never read. `threads` 0: as many as this process may use cores. `fits`: raises StoreFull if so
    many new bytes cannot be stored here (see `estimate`); None: whoever publishes wants to try.
    """

    chunker: Chunker
    temp_dir: Path
    exclude: tuple[bytes, ...] = ()
    preserve_owner: bool = False
    reproducible: bool = False
    skip_unreadable: bool = False
    own_data: tuple[int, int] | None = None
    threads: int = 0
    fits: Callable[[int], None] | None = None


class Phase(Enum):
    """`LISTING` of an origin; `READING` of a directory."""

    LISTING = "listing"
    READING = "reading"
    CATALOG = "catalog"
    SYNC = "sync"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a publish stands. `files` and `bytes` are regular files done (a hard link counts like its target), `bytes`
    moves within large files too. `deduplicated`: bytes among them that were stored already or came twice. The totals
    are None until the tree was counted, which runs beside the reading and may never get ahead of it."""

    phase: Phase
    files: int
    bytes: int
    total_files: int | None
    total_bytes: int | None
    deduplicated: int


@dataclass(frozen=True, slots=True)
class Named:
    """Things that were left out: how many, and the first of them, each a printable line."""

    count: int = 0
    first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Skipped:
    """What is not in the snapshot although the tree had it. `special`: FIFOs, sockets, devices. `vanished`: removed
    between the listing and the reading. `unreadable`: only with `skip_unreadable`. `own_data`: the node's own data
    directory."""

    special: Named = field(default_factory=Named)
    vanished: Named = field(default_factory=Named)
    unreadable: Named = field(default_factory=Named)
    own_data: Named = field(default_factory=Named)


@dataclass(frozen=True, slots=True)
class NotKept:
    """An extended attribute that snapshots do not keep, or `mtime` for times outside of 64 bits of nanoseconds: on how
    many files it was, and one of them (printable)."""

    name: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class PublishResult:
    """A finished publish; everything it names is in the sink and flushed.

    `stored`: bytes put that were not stored before, the catalog's included. `deduplicated`: bytes of files that were
    stored already or came twice. Holes are in neither. `unmatched_excludes`: patterns that left out nothing.
    `unchanged`: files that did not have to be read.
    """

    root: bytes
    snapshot: SnapshotId
    totals: Totals
    stored: int
    deduplicated: int
    skipped: Skipped
    not_kept: tuple[NotKept, ...]
    unmatched_excludes: tuple[bytes, ...] = ()
    unchanged: int = 0
