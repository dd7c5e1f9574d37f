"""What crashes, deletions and drops leave in `slabs/`: found slab by slab, in steps of one slab (10 us of
a processor for each extent in it).
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from hoard_p2p.errors import ChunkCorrupt, StoreFailed
from hoard_p2p.ids import ChunkId, chunk_id
from hoard_p2p.interfaces import Extent, Place
from hoard_p2p.storage import extents as chunks
from hoard_p2p.storage import sidecar
from hoard_p2p.storage.allowance import STEP
from hoard_p2p.storage.freeing import Freeing, Held, Kept, Slab, slab_space, try_lock, unlink_slab
from hoard_p2p.storage.healing import Healer
from hoard_p2p.storage.index import Index
from hoard_p2p.storage.layout import DataDir, sidecar_path
from hoard_p2p.storage.reader import StoreReader
from hoard_p2p.storage.room import Room
from hoard_p2p.storage.writer import ChunkWriter

log = logging.getLogger(__name__)

SLACK = 64
"""Dead records that a sidecar may have besides as many as live ones, before it is rewritten."""
REMAINS = 20
"""A slab of which at most one part in so many is live is emptied by copying that part elsewhere."""
MOST_COPIED = 64 << 20

Unlist = Callable[[list[ChunkId], chunks.Unwanted], object]


class Leftovers:
    """One pass over `slabs/`. For one thread at a time."""

    def __init__(
        self,
        index: Index,
        reader: StoreReader,
        layout: DataDir,
        *,
        freeing: Freeing,
        healer: Healer,
        room: Room,
        unlist: Unlist,
    ) -> None:
        self._index = index
        self._reader = reader
        self._layout = layout
        self._freeing = freeing
        self._healer = healer
        self._room = room
        self._unlist = unlist

    def steps(self, writer: Callable[[], ChunkWriter]) -> Iterator[Callable[[], int]]:
        """Each step returns the bytes of disk that it freed. `writer` gives one for what is copied. The list of slabs
        is made when the first step is asked for: no slab may be half made then. Raises OSError."""
        with self._index.read() as txn:
            rows = chunks.all_slabs(txn)
        known = {self._layout.slab(record.kind, record.start, slab).stem for slab, record in rows.items()}
        strays = {path.stem for path in self._layout.slabs.iterdir() if path.stem.partition(".")[0] not in known}
        strays |= {path.stem for path in self._layout.slabs.glob(f"*{sidecar.FRESH}")}
        yield from (partial(self._remove_stray, stem) for stem in sorted(strays))
        yield from (partial(self._tidy, slab, writer) for slab in sorted(rows))

    def _remove_stray(self, stem: str) -> int:
        """Files that no row names: a slab whose removal was interrupted, a sidecar that was being rewritten. One that
        somebody writes (a process that outlived its node) stays until he is gone."""
        path = self._layout.slabs / stem
        if path.suffix:  # S-1-2.side(.new)
            return self._unlink(path.with_name(path.name + sidecar.FRESH))
        path = path.with_name(path.name + ".slab")
        with suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if not try_lock(fd):
                    return 0
            finally:
                os.close(fd)
        size = slab_space(path)
        unlink_slab(path)
        self._room.freed(size)
        return size

    def _unlink(self, path: Path) -> int:
        with suppress(FileNotFoundError):
            size = path.stat().st_blocks * 512
            path.unlink()
            self._room.freed(size)
            return size
        return 0

    def _tidy(self, number: int, writer: Callable[[], ChunkWriter]) -> int:
        """Everything about one slab that nobody writes."""
        try:
            with self._freeing.opened(number) as slab:
                if slab is None or not slab.locked:
                    return 0
                return self._tidy_slab(slab, writer)
        except FileNotFoundError:  # deleted, or never made: places in it are found missing when they are read
            with self._index.write() as txn:
                record = chunks.get_slab(txn, number)
                chunks.forget_slab(txn, number)
            return self._unlink(sidecar_path(self._layout.slab(record.kind, record.start, number))) if record else 0
        except (OSError, Held) as error:
            log.info("slab %d was not tidied: %s", number, error)
            return 0

    def _tidy_slab(self, slab: Slab, writer: Callable[[], ChunkWriter]) -> int:
        size, kept = self._freeing.clean(slab)
        if kept.empty:
            return size
        if kept.recorded >= REMAINS * kept.listed_bytes > 0 and self._empty(slab, kept, writer):
            return size  # its places are in limbo now
        if not kept.sound or kept.records > 2 * kept.listed + SLACK:
            size += self._rewrite(slab, sound=kept.sound)
        return size

    def _rewrite(self, slab: Slab, *, sound: bool) -> int:
        """Make the sidecar list what the index lists, or may list again; how many bytes of disk that freed."""
        path = sidecar_path(slab.path)
        header = sidecar.SidecarHeader(slab.number, slab.record.start, slab.record.size, slab.record.kind)
        before = slab_space(slab.path)
        with self._healer.watched(slab.number) as healing:
            sidecar.draft(path, header, self._freeing.listable(slab, sound=sound))
            sidecar.settle(path, [Extent(*place[:3], one) for one, place in healing()])
        size = before - slab_space(slab.path)
        self._room.freed(size)
        return size

    def _empty(self, slab: Slab, kept: Kept, writer: Callable[[], ChunkWriter]) -> bool:
        """Copy the few live chunks of a slab elsewhere and unlist them here, so that it can go; whether that was
        done."""
        if kept.listed_bytes > MOST_COPIED or self._room.available < kept.listed_bytes + STEP:
            return False  # a copy that waited for room would wait for us: room is made by giving space back
        extents = [extent for _, listed in self._freeing.listed(slab) for extent in listed]
        try:
            copies = writer()
            if not all(self._copy(extent, copies) for extent in extents):
                return False
            copies.flush()
        except StoreFailed as error:
            log.info("slab %d is not emptied: %s", slab.number, error)
            return False
        self._unlist([extent.chunk_id for extent in extents], partial(chunks.redundant_in, slab.number))
        return True

    def _copy(self, extent: Extent, copies: ChunkWriter) -> bool:
        """Whether the chunk has a good place elsewhere then."""
        for place in self._reader.places_of(extent.chunk_id):
            if place.slab != extent.slab and self._good(extent.chunk_id, place) is not None:
                return True
        data = self._good(extent.chunk_id, Place(*extent[:3], 1))
        if data is not None:
            copies.put_copy(extent.chunk_id, data)
        return data is not None

    def _good(self, identifier: ChunkId, place: Place) -> bytearray | None:
        """The bytes at a place, if they are the chunk."""
        data = bytearray(place.length)
        try:
            self._reader.read_at(place, 0, memoryview(data))
        except ChunkCorrupt:
            return None
        return data if chunk_id(data) == identifier else None
