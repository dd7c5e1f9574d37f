"""Sorting out of a walk what the last publish read already and nobody changed since."""

import logging
import os
import stat
import struct
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple, TypeAlias, overload

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import CatalogCorrupt
from hoard_p2p.ids import HOLE, ChunkId
from hoard_p2p.interfaces import ChunkSink
from hoard_p2p.publish.attributes import Attributes, read_attributes
from hoard_p2p.publish.entries import FileRead
from hoard_p2p.publish.stampfs import FileSystems, Trust
from hoard_p2p.publish.stamps import Follower, Known, Stamped, is_racy
from hoard_p2p.publish.stampscan import pack
from hoard_p2p.publish.walk import Begin, Directory, Event, Found

log = logging.getLogger(__name__)

AHEAD = 256
"""Events that the walk is ahead, so that the store is asked for the chunks of many files at once."""

CHUNKS_AHEAD = 16_384
"""Chunks that one such question may be about (and one file more)."""

_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class KnownRuns(Sequence[tuple[ChunkId, int]]):
    """The (id, length) runs of a file, read from the catalog as they are asked for."""

    def __init__(self, catalog: Catalog, runs: range) -> None:
        self._catalog = catalog
        self._runs = runs

    def __len__(self) -> int:
        return len(self._runs)

    @overload
    def __getitem__(self, index: int) -> tuple[ChunkId, int]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[ChunkId, int]]: ...
    def __getitem__(self, index: int | slice) -> tuple[ChunkId, int] | Sequence[tuple[ChunkId, int]]:
        if isinstance(index, slice):
            return KnownRuns(self._catalog, self._runs[index])
        run = self._runs[index]
        return self._catalog.chunk_id(run), self._catalog.length(run)

    def __iter__(self) -> Iterator[tuple[ChunkId, int]]:
        for run in self._runs:
            yield self._catalog.chunk_id(run), self._catalog.length(run)


class Unchanged(NamedTuple):
    """A file that need not be read, and what reading it would give. `found.directory` is open until the next event."""

    found: Found
    file: FileRead


Sifted: TypeAlias = Event | Unchanged


class Sieve:
    """Replaces the files that did not change among the events of one walk. Used from one thread."""

    def __init__(self, known: Known | None, file_systems: FileSystems, sink: ChunkSink) -> None:
        """`sink` is asked whether it has what it had; `known` None: everything is new."""
        self._file_systems = file_systems
        self._sink = sink
        self._known = known
        self._follower = None if known is None else Follower(known.stamps)

    def sifted(self, events: Iterable[Event]) -> Generator[Sifted, None, None]:
        """The events in their order."""
        with closing(_Ahead()) as ahead:
            for event in events:
                ahead.add(event, self._look(event))
                if ahead.is_full:
                    yield from ahead.drain(self._sink)
            yield from ahead.drain(self._sink)

    def _look(self, event: Event) -> FileRead | None:
        """What is known of the file that was found, if it is the same."""
        if isinstance(event, Begin) and event.directory is not None:
            self._file_systems.look_at(event.directory.fd)
            if self._follower is not None:
                self._follower.enter(event.directory.path)
        elif isinstance(event, Found) and self._follower is not None and self._known is not None:
            stamped = self._follower.find(event.name)
            if stamped is not None and stat.S_ISREG(event.status.st_mode):
                return self._same(event, stamped, self._known)
        return None

    def _same(self, found: Found, stamped: Stamped, known: Known) -> FileRead | None:
        trust = self._file_systems.trust(found.status.st_dev)
        meta = known.stamps.meta
        if trust is Trust.NONE or not _equals(found.status, stamped):
            return None
        if is_racy(found.status.st_mtime_ns, found.status.st_ctime_ns, meta.begin, meta.end.wall, trust):
            return None
        try:
            if trust is Trust.REMOTE or known.has_other_attributes:
                attributes = _opened(found, stamped)
            else:
                attributes = Attributes(tuple(sorted(known.catalog.xattrs(stamped.inode).items())))
            return None if attributes is None else _file(found, attributes, known.catalog, stamped.inode)
        except OSError:
            return None  # whoever reads it finds out what that means
        except CatalogCorrupt as error:
            log.warning("what the last publish of this directory remembered is of no use: %s", error)
            self._known = self._follower = None
            return None


def _file(found: Found, attributes: Attributes, catalog: Catalog, inode: int) -> FileRead:
    """The file as the catalog has it. Raises CatalogCorrupt if that is another one."""
    same = catalog.is_file(inode) and catalog.name(inode) == found.name and catalog.size(inode) == found.status.st_size
    if not same:
        raise CatalogCorrupt(f"inode {inode} is not the file {found.name!r}")
    return FileRead(found.name, found.status, attributes, KnownRuns(catalog, catalog.runs(inode)))


def _equals(status: os.stat_result, stamped: Stamped) -> bool:
    try:
        return pack(status) == stamped.raw
    except struct.error:
        return False


def _opened(found: Found, stamped: Stamped) -> Attributes | None:
    """The attributes of the file, opened so that its server is asked; None if it changed. Raises OSError."""
    fd = os.open(found.name, _OPEN_FILE, dir_fd=found.directory.fd)
    try:
        return read_attributes(fd) if _equals(os.fstat(fd), stamped) else None
    finally:
        os.close(fd)


class _Ahead:
    """The events that the walk is ahead, their directories held."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Event, FileRead | None]] = deque()
        self._held: deque[Directory] = deque()
        self._chunks = 0

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= AHEAD or self._chunks >= CHUNKS_AHEAD

    def add(self, event: Event, known: FileRead | None) -> None:
        if isinstance(event, Found):
            event.directory.hold()
            self._held.append(event.directory)
        self._waiting.append((event, known))
        self._chunks += 0 if known is None else len(known.runs)

    def drain(self, sink: ChunkSink) -> Generator[Sifted, None, None]:
        """All that waits; a file whose chunks are not all in the sink is to be read."""
        wanted = {run for _, known in self._waiting if known is not None for run, _ in known.runs} - {HOLE}
        ids = list(wanted)
        here = {chunk for chunk, is_here in zip(ids, sink.has(ids)) if is_here} if ids else set()
        self._chunks = 0
        while self._waiting:
            event, known = self._waiting.popleft()
            if isinstance(event, Found):
                whole = known is not None and all(run in here or run == HOLE for run, _ in known.runs)
                yield Unchanged(event, known) if whole and known is not None else event
                self._held.popleft().release()
            else:
                yield event

    def close(self) -> None:
        """Let go of what was not drained."""
        while self._held:
            self._held.popleft().release()
