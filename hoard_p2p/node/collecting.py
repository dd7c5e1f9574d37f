"""Finding what no living snapshot names: the sources of marks, and the way through the index (gc)."""

import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from hoard_p2p.catalog.layout import file_key
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.catalog.root import Root
from hoard_p2p.catalog.root import decode as decode_root
from hoard_p2p.errors import ChunkUnavailable, Corrupt
from hoard_p2p.ids import SnapshotId
from hoard_p2p.node.catalogs import OpenSnapshot
from hoard_p2p.node.course import Course
from hoard_p2p.node.keeping import file_runs
from hoard_p2p.node.marking import Ids, LiveIds, catalog_ids, ids_in, known_ids, load_catalog, stored_ids
from hoard_p2p.storage.reader import StoreReader
from hoard_p2p.storage.reclaim import Dropped
from hoard_p2p.storage.store import Store

PAGE = 4096


class Interrupted(Exception):
    """A mount is coming: it must not find a file whole that is about to be given back. The sweep begins again later;
    `dropped` is what it came to."""

    dropped = Dropped(0, 0)


@dataclass(slots=True)
class Marks:
    """What is to be marked: `count` ids at most. `marked`: the snapshots of which all is. Of the others the catalog
    is not whole here: `unread`, which must be marked, and `partly`, of which only the catalog's own chunks are."""

    sources: list[Ids] = field(default_factory=list)
    count: int = 0
    marked: set[SnapshotId] = field(default_factory=set)
    unread: list[SnapshotId] = field(default_factory=list)
    partly: list[SnapshotId] = field(default_factory=list)
    roots: list[Root] = field(default_factory=list)
    opened: list[OpenSnapshot] = field(default_factory=list)

    def add_open(self, opened: OpenSnapshot) -> None:
        """Mark a snapshot by the catalog that is open; its catalog's chunks, too."""
        self.opened.append(opened)
        self.marked.add(opened.id)
        self.sources.append(partial(ids_of_open, opened))
        self.count += opened.catalog.chunks + len(opened.root.catalog_runs) + 1


def ids_of_open(opened: OpenSnapshot) -> Iterator[bytes]:
    """As `marking.stored_ids`, of a catalog that is open."""
    root = opened.root
    runs = root.catalog_runs if root.catalog_list is None else (root.catalog_list,)
    yield b"".join(run.chunk_id for run in runs)
    mapped = mmap.mmap(opened.fd, root.catalog_length, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
    yield from ids_in(memoryview(mapped))


def marks(store: Store, living: Sequence[SnapshotId], must: set[SnapshotId]) -> Marks:
    """Blocking. How to mark the `living` snapshots of which something may be here. Of one whose catalog is not whole
    here only the catalog's own chunks are marked, unless it is among those that `must` be."""
    found, reader = Marks(), store.reader()
    for snapshot in living:
        encoded = store.root(snapshot)
        root = None if encoded is None else decode_root(encoded)
        if root is not None and _is_readable(root, reader):
            found.roots.append(root)
            found.marked.add(snapshot)
            found.sources.append(partial(stored_ids, root, reader))
            found.count += root.totals.chunks + len(root.catalog_runs) + 1
        elif snapshot in must:
            found.unread.append(snapshot)
        elif root is not None:
            found.partly.append(snapshot)
            found.sources.append(partial(_what_is_known, root, reader))
            found.count += len(root.catalog_runs) + 1
    return found


def _is_readable(root: Root, reader: StoreReader) -> bool:
    try:
        return all(place is not None for place in reader.places(catalog_ids(root, reader)))
    except (ChunkUnavailable, Corrupt):
        return False


def _what_is_known(root: Root, reader: StoreReader) -> Iterator[bytes]:
    """The chunks of a catalog, as far as its list is here."""
    try:
        yield b"".join(catalog_ids(root, reader))
    except (ChunkUnavailable, Corrupt):
        yield b"" if root.catalog_list is None else root.catalog_list.chunk_id


def sweep(store: Store, found: Marks, interrupted: Callable[[], bool], course: Course, *, dry_run: bool) -> Dropped:
    """Blocking. Drop every chunk that is not marked, or count them. Raises Interrupted, what marking raises (then what
    was not looked at yet stays), StoreFailed."""
    live = LiveIds([partial(known_ids, source, store.reader()) for source in found.sources], found.count)
    course.begin("looking through the index, percent", 100)

    def is_live(identifier: bytes) -> bool:
        if interrupted():
            raise Interrupted
        course.passed(identifier)
        return live(identifier)

    if dry_run:
        return _count(store, is_live)
    total = Dropped(0, 0)
    try:
        for dropped in store.reclaimer.sweep_steps(is_live):
            total = total.plus(dropped)
        for _ in store.keybook.sweep_steps(store.healer.damaged):
            if interrupted():
                raise Interrupted
    except Interrupted as interruption:
        interruption.dropped = total
        raise
    return total


def _count(store: Store, is_live: Callable[[bytes], bool]) -> Dropped:
    chunks = size = 0
    after = b""
    while page := store.life.listed(after, PAGE):
        dead = [length for chunk_id, length in page if not is_live(chunk_id)]
        chunks, size, after = chunks + len(dead), size + sum(dead), page[-1][0]
    return Dropped(chunks, size)


def file_keys(store: Store, found: Marks) -> set[bytes]:
    """Blocking. The keys of all large files of the marked snapshots; empty if no file has a slab. Raises what reading
    catalogs raises."""
    if not store.life.file_slabs():
        return set()
    keys = {key for opened in found.opened for key in _keys_in(opened.catalog)}
    for root in found.roots:
        keys.update(_keys_in(Catalog(memoryview(load_catalog(root, store.reader())))))
    return keys | {store.reader().file_name(key) for key in keys}  # a lazy file is recorded under its later name


def _keys_in(catalog: Catalog) -> Iterator[bytes]:
    inodes = {catalog.segment_file(segment) for segment in range(catalog.segments)} - {0}
    for inode in inodes:
        yield file_key(file_runs(catalog, inode))


def drop_redundant(store: Store, living: set[bytes]) -> Dropped:
    """Blocking. From slabs of files that no marked snapshot has, drop what lies elsewhere, too."""
    return store.reclaimer.drop_redundant(slab for key, slab in store.life.file_slabs() if key not in living)


def leftovers(store: Store, course: Course) -> int:
    """Blocking. See `Reclaimer.leftovers`; the bytes that are back on the disk."""
    size = 0
    course.begin("tidying slabs", sum(1 for _ in (store.data_dir / "slabs").glob("*.slab")))
    for number, freed in enumerate(store.reclaimer.leftover_steps(), 1):
        size += freed
        course.rest(number)
    return size
