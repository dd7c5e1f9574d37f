"""Where fetched chunks go on this node: shared slabs, or the slab of the large file they belong to (`fetch.Keeper`).

Thread-safe: fetch threads call it. Also the node's answer to "which segments are here whole" (`Held`).
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from hoard_p2p.catalog.reader import Catalog, file_key
from hoard_p2p.errors import ChunkCorrupt, StoreFailed
from hoard_p2p.fetch.segment import Segment, Wanted
from hoard_p2p.ids import HOLE, ChunkId, SnapshotId, chunk_id, is_origin_key, short
from hoard_p2p.interfaces import Place, Residency
from hoard_p2p.peer import NodeId
from hoard_p2p.storage.claims import Claims
from hoard_p2p.storage.filesink import LingeringSink, SpotTaken
from hoard_p2p.storage.parts import OpenPart
from hoard_p2p.storage.reader import StoreReader
from hoard_p2p.storage.store import Store
from hoard_p2p.storage.writer import ChunkWriter

log = logging.getLogger(__name__)

LOOKED_UP = 1024
"""Chunks that are looked up in one transaction."""
KEPT_NAMES = 1024
"""Large files whose keys are remembered: to compute one takes a look at every run of the file."""
MOST_PARTED = 256
"""Large files whose slabs are held open for pieces that arrive in parts: each takes two descriptors."""

Heal = Callable[[ChunkId, memoryview], Place | None]
"""Write a chunk over its damaged places; where it lies then, None if there is none that could be healed."""


TakeOver = Callable[[bytes, Sequence[tuple[ChunkId, int]]], int | None]
"""`Store.take_over`."""


class StoreKeeper:
    """`fetch.fetcher.Keeper` over the store of this node. Which slabs are open is the writer's business."""

    def __init__(
        self,
        writer: ChunkWriter,
        reader: StoreReader,
        heal: Heal,
        brought: Callable[[Segment], None] = lambda _: None,
        *,
        take_over: TakeOver = lambda _name, _runs: None,
        most_parted: int = MOST_PARTED,
    ) -> None:
        """`brought` is told of each segment of which all chunks are here, after a flight. `take_over` see there.
        `most_parted`: large files that are held open for pieces that arrive in parts."""
        self._take_over = take_over
        self._brought = brought
        self._writer = writer
        self._reader = reader
        self._heal = heal
        self.claims: Claims | None = None
        """While something is collected: what is relied on because it is here is marked before it is looked up."""
        self._files: OrderedDict[tuple[SnapshotId, int], LingeringSink] = OrderedDict()
        self._parts: dict[ChunkId, OpenPart] = {}
        self._parted: dict[tuple[SnapshotId, int], set[ChunkId]] = {}
        self._most_parted = most_parted
        self._lock = threading.Lock()
        self.conflicts = 0
        """Pieces of origins that came as other bytes than before, and were not kept."""

    def content(self, chunk_id: ChunkId) -> ChunkId | None:
        """The id that the bytes of this chunk, or of the piece with this origin key, must have; None if not known."""
        return self._writer.content(chunk_id)

    def missing(self, segment: Segment) -> list[Wanted]:
        if (claims := self.claims) is not None:
            with suppress(ValueError):  # closed just now: nothing is being collected any more
                claims.mark(filter(None, self._writer.contents([chunk.chunk_id for chunk in segment.chunks])))
        here = self._writer.has([chunk.chunk_id for chunk in segment.chunks])
        return [chunk for chunk, present in zip(segment.chunks, here, strict=True) if not present]

    def place(self, chunk_id: ChunkId) -> Place | None:
        return self.places((chunk_id,))[0]

    def places(self, ids: Sequence[ChunkId]) -> list[Place | None]:
        """`place` of each, with one look at the index."""
        ids = [content or HOLE for content in self._writer.contents(ids)]
        waiting = [self._writer.pending(chunk_id) for chunk_id in ids]  # first: what is committed later is in the index
        listed = iter(self._reader.places([one for one, pending in zip(ids, waiting, strict=True) if pending is None]))
        return [pending or next(listed) for pending in waiting]

    def keep(self, segment: Segment, chunk: Wanted, data: memoryview) -> Place:
        (content,) = self._found([(chunk, data)])
        place = self._heal(content, data)
        if place is None:
            if segment.catalog is not None and segment.file:
                offset = segment.catalog.run_offset(segment.file, chunk.run)
                self._put_in_file(segment, segment.catalog, content, data, offset)
            else:
                self._writer.put(content, data)
            place = self._kept(content)
        if content != chunk.chunk_id:
            self._writer.know(chunk.chunk_id, content)
            self.drop_part(chunk)
        return place

    def _put_in_file(self, segment: Segment, catalog: Catalog, content: ChunkId, data: memoryview, offset: int) -> None:
        try:
            self._sink(segment, catalog).put(content, data, offset)
        except SpotTaken as error:  # the origin gave other bytes before, and they were found wrong
            log.info("chunk %s goes to a shared slab: %s", short(content), error)
            self._writer.put(content, data)

    def _found(self, chunks: Sequence[tuple[Wanted, memoryview]]) -> list[ChunkId]:
        """The ids of these bytes, with one look at the index for all that have origin keys. Raises ChunkCorrupt if one
        was found to be others before: somebody lies, or the origin did not keep two versions apart."""
        keys = [chunk.chunk_id for chunk, _ in chunks if is_origin_key(chunk.chunk_id)]
        if not keys:
            return [chunk.chunk_id for chunk, _ in chunks]
        known = dict(zip(keys, self._writer.contents(keys), strict=True))
        return [
            self._agreed(chunk.chunk_id, known[chunk.chunk_id], chunk_id(data))
            if chunk.chunk_id in known
            else chunk.chunk_id
            for chunk, data in chunks
        ]

    def _agreed(self, key: ChunkId, known: ChunkId | None, content: ChunkId) -> ChunkId:
        if known is not None and known != content:
            self.conflicts += 1
            log.log(
                logging.WARNING if self.conflicts == 1 else logging.INFO,
                "piece %s was %s when it was first read, and now it came as %s: that is not kept",
                short(key), short(known), short(content),
            )  # fmt: skip
            raise ChunkCorrupt(f"piece {short(key)} was {short(known)} before, and came as {short(content)}")
        return content

    def keep_many(self, segment: Segment, chunks: Sequence[tuple[Wanted, memoryview]]) -> list[Place]:
        """`keep` for several chunks: those of shared slabs with one look at the index and few writes."""
        if segment.catalog is not None and segment.file:
            return [self.keep(segment, chunk, data) for chunk, data in chunks]
        found = [(content, data) for content, (_, data) in zip(self._found(chunks), chunks, strict=True)]
        healed = {content: self._heal(content, data) for content, data in found}
        self._writer.put_many([(content, data) for content, data in found if healed[content] is None])
        places = [healed[content] or self._kept(content) for content, _ in found]
        for (chunk, _), (content, _) in zip(chunks, found, strict=True):
            if content != chunk.chunk_id:
                self._writer.know(chunk.chunk_id, content)
        return places

    def keep_part(self, segment: Segment, chunk: Wanted, start: int, data: memoryview) -> Place | None:
        """See `ranges.PartStore`. The bytes stay until the piece is kept, or `drop_part`."""
        try:
            part = self._part(segment, chunk)
            if part is not None:
                part.write(data, start)
        except StoreFailed as error:
            log.info("part of piece %s stays in memory: %s", short(chunk.chunk_id), error)
            return None
        return None if part is None else part.place

    def part_at(self, segment: Segment, chunk: Wanted, start: int, into: memoryview) -> bool:
        """See `ranges.PartStore`."""
        part = self._parts.get(chunk.chunk_id)
        try:
            if part is not None:
                part.read(start, into)
        except StoreFailed as error:
            log.info("part of piece %s is lost: %s", short(chunk.chunk_id), error)
            return False
        return part is not None

    def drop_part(self, chunk: Wanted) -> None:
        """Nobody wants the parts of this piece any more: the space that they took is garbage."""
        with self._lock:
            part = self._parts.pop(chunk.chunk_id, None)
            if part is not None:
                self._forget_part(chunk.chunk_id)
        if part is not None:
            part.close()

    def _forget_part(self, key: ChunkId) -> None:
        """Lock held."""
        file = next(file for file, open_here in self._parted.items() if key in open_here)
        self._parted[file].discard(key)
        if not self._parted[file]:
            del self._parted[file]

    def _part(self, segment: Segment, chunk: Wanted) -> OpenPart | None:
        """None: it has no slab of its own to lie in, or too many are open. Raises StoreFailed."""
        part = self._parts.get(chunk.chunk_id)
        if part is not None or segment.catalog is None or not segment.file:
            return part
        file = (segment.snapshot, segment.file)
        if file not in self._parted and len(self._parted) >= self._most_parted:
            return None
        offset = segment.catalog.run_offset(segment.file, chunk.run)
        part = self._sink(segment, segment.catalog).part(offset, chunk.length)
        with self._lock:
            known = self._parts.setdefault(chunk.chunk_id, part)
            if known is part:
                self._parted.setdefault(file, set()).add(chunk.chunk_id)
        if known is not part:  # another thread was faster
            part.close()
        return known

    def _kept(self, chunk_id: ChunkId) -> Place:
        place = self.place(chunk_id)
        if place is None:
            raise StoreFailed(f"chunk {short(chunk_id)} was lost while it was written")
        return place

    def ended(self, segment: Segment, whole: bool) -> None:
        """Finishes a large file when the last of its segments arrived."""
        if whole:
            self._brought(segment)
        catalog = segment.catalog
        if not whole or not segment.file or catalog is None:
            return
        with self._lock:
            sink = self._files.get((segment.snapshot, segment.file))
        # The last segments first: a file that arrives in order is not looked through again for each of them.
        if sink is None or not self._all_here(catalog, catalog.runs(segment.file)):
            return
        with self._lock:
            sink = self._files.pop((segment.snapshot, segment.file), None)
        if sink is not None:
            self._finish(sink, file_runs(catalog, segment.file))

    def _finish(self, sink: LingeringSink, runs: list[tuple[ChunkId, int]]) -> None:
        contents = self._writer.contents([chunk_id for chunk_id, _ in runs])
        found = [(content, length) for content, (_, length) in zip(contents, runs, strict=True) if content is not None]
        if len(found) < len(runs):
            return  # a piece is not known any more
        if found != runs:
            self._writer.know_file(file_key(runs), file_key(found))
        sink.finish(file_key(found), found)

    def _all_here(self, catalog: Catalog, runs: range) -> bool:
        step = 256
        for start in reversed(range(runs.start, runs.stop, step)):
            part = range(start, min(start + step, runs.stop))
            ids = [catalog.chunk_id(run) for run in part if not catalog.is_hole(run)]
            if not all(self._writer.has(ids)):
                return False
        return True

    def _sink(self, segment: Segment, catalog: Catalog) -> LingeringSink:
        """The sink of a large file: a name only, whatever is open for it."""
        key = (segment.snapshot, segment.file)
        sink = self._files.get(key) or self._new_sink(catalog, segment.file)
        with self._lock:
            if (known := self._files.get(key)) is not None:
                sink = known
            else:
                self._files[key] = sink
                if len(self._files) > KEPT_NAMES:
                    self._files.popitem(last=False)
            self._files.move_to_end(key)
            return sink

    def _new_sink(self, catalog: Catalog, inode: int) -> LingeringSink:
        runs = file_runs(catalog, inode)
        name = file_key(runs)
        if catalog.is_placed and not any(is_origin_key(chunk_id) for chunk_id, _ in runs):
            slab = self._take_over(name, runs)
            if slab is not None:  # it was lazy until now, and may be open under its former name
                self._writer.put_aside(slab)
                self._writer.flush(self._writer.mark())
        return self._writer.resume_file(name, catalog.size(inode))


def settle_file(store: Store, writer: ChunkWriter, catalog: Catalog, inode: int) -> bool:
    """`Store.settle_file` of a large file, whether its snapshot is lazy or not. Blocking."""
    runs = file_runs(catalog, inode)
    contents = writer.contents([chunk_id for chunk_id, _ in runs])
    found = [(content, length) for content, (_, length) in zip(contents, runs, strict=True) if content is not None]
    if len(found) < len(runs):
        return False
    name = file_key(found)
    if found != runs:
        writer.know_file(file_key(runs), name)
        writer.flush(writer.mark())
    return store.settle_file(name, found, writer)


def file_runs(catalog: Catalog, inode: int) -> list[tuple[ChunkId, int]]:
    """(id, length) of a file's runs in order, holes included."""
    return [(catalog.chunk_id(run), catalog.length(run)) for run in catalog.runs(inode)]


class Held:
    """Which segments of a snapshot this node holds whole, from the index (I12). Blocking, thread-safe.

    A segment that was whole is not looked at again until `forget` (a chunk was quarantined).
    """

    def __init__(self, node: NodeId, reader: StoreReader) -> None:
        self._node = node
        self._reader = reader
        self._lock = threading.Lock()
        self._known: dict[SnapshotId, tuple[int, bytearray]] = {}

    def residency(self, snapshot: SnapshotId, catalog: Catalog) -> Residency:
        with self._lock:
            version, bits = self._known.get(snapshot, (0, bytearray((catalog.segments + 7) // 8)))
            unknown = [segment for segment in range(catalog.segments) if not bits[segment >> 3] >> (segment & 7) & 1]
            whole = [segment for segment in self._likely(catalog, unknown) if self.whole(catalog, segment)]
            for segment in whole:
                bits[segment >> 3] |= 1 << (segment & 7)
            version += bool(whole)
            self._known[snapshot] = (version, bits)
            return Residency(snapshot, self._node, version, bytes(bits))

    def _likely(self, catalog: Catalog, segments: Sequence[int]) -> Iterator[int]:
        """Those whose last chunk is here: a node that has little of a large set is asked often, and listing all chunks
        of 18,000 segments takes seconds."""
        for at in range(0, len(segments), LOOKED_UP):
            part = [(segment, _last_chunk(catalog, segment)) for segment in segments[at : at + LOOKED_UP]]
            places = iter(self._reader.places([last for _, last in part if last is not None]))
            yield from (segment for segment, last in part if last is None or next(places) is not None)

    def whole(self, catalog: Catalog, segment: int) -> bool:
        """Whether every chunk of the segment is in the index."""
        ids = [chunk_id for _, chunk_id, _ in catalog.segment_chunks(segment)]
        return all(place is not None for place in self._reader.places(ids))

    def forget(self) -> None:
        with self._lock:
            self._known.clear()


def _last_chunk(catalog: Catalog, segment: int) -> ChunkId | None:
    """The last chunk that belongs to the segment, as its first occurrence; None if none does."""
    runs = reversed(catalog.segment_runs(segment))
    own = (run for run in runs if catalog.canonical(run) == run and not catalog.is_hole(run))
    last = next(own, None)
    return None if last is None else catalog.chunk_id(last)
