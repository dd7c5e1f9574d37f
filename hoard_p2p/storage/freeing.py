"""Giving back the space of one slab: whole blocks that hold nothing that somebody needs, or the slab itself.

Where the slab's lock can be had nobody writes it, and whatever the index does not list is garbage. Where somebody
writes it, only the dropped extents themselves are known to be nobody's.
"""

import contextlib
import fcntl
import itertools
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hoard_p2p.errors import Corrupt
from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import Extent, Place, SlabKind
from hoard_p2p.storage import extents as chunks
from hoard_p2p.storage import sidecar
from hoard_p2p.storage.ghosts import Ghosts
from hoard_p2p.storage.healing import Healer
from hoard_p2p.storage.index import Index, Table
from hoard_p2p.storage.layout import DataDir, sidecar_path
from hoard_p2p.storage.limbo import Gone, Limbo
from hoard_p2p.storage.openslab import BLOCK, RESERVE, align, blocks_of
from hoard_p2p.storage.punching import Blocks, Span, covered, is_alone, punch
from hoard_p2p.storage.reader import StoreReader
from hoard_p2p.storage.records import SlabRecord, decode_places
from hoard_p2p.storage.room import Room

log = logging.getLogger(__name__)

PIECE = 4096
"""Extents that are looked up in one transaction."""
ASIDE = 4
"""A shared slab that is being written is put aside when one part in so many of it is dead."""
_ENDED_HARD = b"mounts_ended_hard"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Held(Exception):
    """A slab's space cannot be returned now; the message says why."""


@dataclass(frozen=True, slots=True)
class Slab:
    """A slab that is looked at. `locked`: nobody writes it, and nobody will as long as `fd` is open."""

    number: int
    record: SlabRecord
    path: Path
    fd: int
    locked: bool


@dataclass(slots=True)
class Kept:
    """The blocks of a slab that must stay; how many records its sidecar has, for how many bytes, and how many of them
    are listed, for how many bytes. `sound`: the sidecar was there and undamaged."""

    blocks: Blocks
    records: int = 0
    recorded: int = 0
    listed: int = 0
    listed_bytes: int = 0
    sound: bool = True

    @property
    def empty(self) -> bool:
        return not self.listed and not self.blocks

    def add(self, recorded: Sequence[Extent], listed: Sequence[Extent]) -> None:
        self.records += len(recorded)
        self.recorded += sum(extent.length for extent in recorded)
        self.listed += len(listed)
        self.listed_bytes += sum(extent.length for extent in listed)
        for extent in listed:
            self.blocks.mark(extent.offset, extent.length)


class Cleaned(NamedTuple):
    """Bytes of disk that a slab gave back, and what is left of it."""

    size: int
    kept: Kept


class Freeing:
    """For one thread at a time."""

    def __init__(
        self, index: Index, reader: StoreReader, layout: DataDir, *, healer: Healer, limbo: Limbo, room: Room
    ) -> None:
        self._index = index
        self._reader = reader
        self._layout = layout
        self._healer = healer
        self._limbo = limbo
        self._room = room
        self.sends: Counter[tuple[int, int, int]] = Counter()
        """How often an extent (slab, offset, length) is being sent."""
        self.ghosts = Ghosts(room)

    # --- what mounts may still have

    def note_hard_end(self) -> None:
        """A mount was ended under its users: until the machine starts again, mappings of files that it had opened may
        be left, which nothing but the files themselves can tell."""
        with self._index.write() as txn:
            txn.put(Table.META, _ENDED_HARD, _boot_id())

    def _may_punch(self, slab: Slab, kept: Kept | None = None) -> bool:
        """Whether no mount reads what is to go of a file slab. One whose snapshot nobody leases is no backing file,
        unless a mount was ended the hard way since this machine started. Without its sidecar nobody knows what one that
        is may read besides what is listed."""
        if kept is not None and not kept.sound:
            return self.is_alone(slab)
        with self._index.read() as txn:
            suspicious = txn.get(Table.META, _ENDED_HARD) == _boot_id()
        return not suspicious or self.is_alone(slab)

    def is_alone(self, slab: Slab) -> bool:
        self._reader.forget_slab(slab.number)
        return is_alone(slab.fd)

    # --- one slab

    @contextlib.contextmanager
    def opened(self, number: int) -> Iterator[Slab | None]:
        """None if the index does not list it. Raises OSError."""
        with self._index.read() as txn:
            record = chunks.get_slab(txn, number)
        if record is None:
            yield None
            return
        path = self._layout.slab(record.kind, record.start, number)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            yield Slab(number, record, path, fd, try_lock(fd))
        finally:
            os.close(fd)

    def is_worth_asking(self, slab: Slab) -> bool:
        """Whether so much of a slab is dead that its writer should put it aside."""
        size = self._limbo.size_free_in(slab.number)
        return slab.record.kind is SlabKind.FILE or size * ASIDE >= os.fstat(slab.fd).st_blocks * 512 - RESERVE

    def free(self, slab: Slab, dead: Iterable[Gone]) -> int:
        """Give back what `dead` extents, which nobody reads any more, took. Raises OSError, and Held."""
        if slab.locked:
            wanted = Blocks(os.fstat(slab.fd).st_size)
            for gone in dead:
                wanted.mark(gone.place.offset, gone.place.length)
            return self.clean(slab, wanted).size
        if slab.record.kind is SlabKind.FILE:
            raise Held(f"slab {slab.number} is being written")
        return punch(slab.fd, covered(_with_rest(gone.place) for gone in dead))

    def clean(self, slab: Slab, wanted: Blocks | None = None) -> Cleaned:
        """Give back the blocks that hold nothing (of those that `wanted` touches, if given), or all of the slab if
        it holds nothing. For a locked slab. Raises OSError, and Held."""
        with self._healer.watched(slab.number) as healing:
            kept = self._kept(slab)
            for _, place in healing():
                kept.blocks.mark(place.offset, place.length)
        if kept.empty:
            return Cleaned(self._remove(slab), kept)
        spans = [span for span in kept.blocks.gaps() if wanted is None or wanted.touches(span)]
        if spans and slab.record.kind is SlabKind.FILE and not self._may_punch(slab, kept):
            raise Held(f"a mount, or what a mount that was ended by force left, may use slab {slab.number}")
        size = punch(slab.fd, spans)
        self._room.freed(size)  # of a slab that is being written its writer tells
        return Cleaned(size, kept)

    def _kept(self, slab: Slab) -> Kept:
        """What must stay of a locked slab: what is listed, may be seen by a reader, or is being sent."""
        kept = None if self._is_whole(slab) else self._scan(slab)
        if kept is None or self._is_whole(slab):  # perhaps by now: also what the index has no room to list stays
            size = os.fstat(slab.fd).st_size
            kept = Kept(Blocks(size))
            kept.blocks.mark(0, size)
        return kept

    def _scan(self, slab: Slab) -> Kept:
        kept = Kept(Blocks(os.fstat(slab.fd).st_size))
        for recorded, listed in self.listed(slab, kept):  # before limbo: what leaves the index enters limbo first
            kept.add(recorded, listed)
        for gone in self._limbo.waiting_in(slab.number):
            kept.blocks.mark(gone.place.offset, gone.place.length)
        for number, offset, length in list(self.sends):
            if number == slab.number:
                kept.blocks.mark(offset, length)
        return kept

    def _is_whole(self, slab: Slab) -> bool:
        return self.is_complete(slab) or self._healer.was_complete(slab.number)

    def is_complete(self, slab: Slab) -> bool:
        """Whether it has all of a large file."""
        if slab.record.kind is not SlabKind.FILE:
            return False
        with self._index.read() as txn:
            return chunks.is_complete(txn, slab.number)

    def listable(self, slab: Slab, *, sound: bool) -> Iterator[Sequence[Extent]]:
        """The extents of a locked slab that are listed or may be listed again, piece by piece, but for the damaged
        ones: see `Healer.watched`. `sound`: see Kept."""
        by_sidecar = (extents for _, extents in self.listed(slab))
        yield from by_sidecar if sound else self._listed_by_index(slab.number)
        yield [Extent(*gone.place[:3], gone.chunk_id) for gone in self._limbo.waiting_in(slab.number)]  # see `_kept`

    def listed(self, slab: Slab, told: Kept | None = None) -> Iterator[tuple[Sequence[Extent], Sequence[Extent]]]:
        """What the sidecar of a slab has, and what of that the index lists, piece by piece. The sidecar never omits
        what the index lists; if it is damaged the whole index is looked through, too, and `told` is told. What a mount
        may read of a file slab counts as listed as long as somebody has it open."""
        count, repeats = 0, slab.record.kind is SlabKind.FILE and not self.is_alone(slab)
        try:
            with sidecar_path(slab.path).open("rb") as file:
                rest = sidecar.scan(file.fileno())
                while piece := list(itertools.islice(rest, PIECE)):
                    count += len(piece)
                    yield piece, self._reader.committed(piece, repeats=repeats)
                if count == sidecar.count(file.fileno()):
                    return
                log.info("%d records of the sidecar of slab %d count", count, slab.number)
        except (FileNotFoundError, Corrupt) as error:
            log.info("the sidecar of slab %d cannot be used: %s", slab.number, error)
        if told is not None:
            told.sound = False
        for extents in self._listed_by_index(slab.number):
            yield extents, extents

    def _listed_by_index(self, slab: int) -> Iterator[list[Extent]]:
        for rows in self._index.pages(Table.CHUNKS):
            yield [
                Extent(slab, place.offset, place.length, ChunkId(chunk_id))
                for chunk_id, raw in rows
                for place in decode_places(raw)
                if place.slab == slab
            ]

    def _remove(self, slab: Slab) -> int:
        """Unlist and unlink a slab that holds nothing. The row first: from then on nobody lists a place in it, and a
        file without a row is removed by the next `leftovers`."""
        with self._index.write() as txn:
            chunks.forget_slab(txn, slab.number)
        self._reader.forget_slab(slab.number)
        size = slab_space(slab.path)
        with contextlib.suppress(OSError):  # what others still have open takes no room then
            if slab.record.kind is SlabKind.SHARED or self._may_punch(slab):
                punch(slab.fd, [Span(0, max(BLOCK, align(os.fstat(slab.fd).st_size)))])
        held = 0 if is_alone(slab.fd) else blocks_of(slab.fd)
        unlink_slab(slab.path)
        self._room.freed(size - held)
        if held:
            self.ghosts.keep(os.dup(slab.fd))
        return size - held


def slab_space(path: Path) -> int:
    """What a slab and its sidecar take on the disk, as far as they are there."""
    size = 0
    for name in (path, sidecar_path(path)):
        with contextlib.suppress(FileNotFoundError):
            size += name.stat().st_blocks * 512
    return size


def unlink_slab(path: Path) -> None:
    """The data file first: a sidecar without one says nothing. Raises OSError."""
    for name in (path, sidecar_path(path)):
        with contextlib.suppress(FileNotFoundError):
            name.unlink()


def _with_rest(place: Place) -> Span:
    """A place in a shared slab, with the rest of its last block if nobody else can have that."""
    end = place.offset + place.length
    return Span(place.offset, end if place.length < BLOCK else align(end))


def try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _boot_id() -> bytes:
    return _BOOT_ID.read_bytes().strip()
