"""A small data set of an origin, lazy and sealed, and a store that its pieces come to."""

import io
import tempfile
from pathlib import Path
from random import Random

from hoard_p2p.catalog.builder import CatalogBuilder, Meta
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.catalog.sealed import write_sealed
from hoard_p2p.fetch.segment import Segment, Wanted, segment_of
from hoard_p2p.ids import ChunkId, SnapshotId, chunk_id
from hoard_p2p.node.keeping import StoreKeeper, file_runs
from hoard_p2p.publish.pieces import piece_runs, piece_slots
from hoard_p2p.storage.store import Store
from hoard_p2p.storage.writer import ChunkWriter

MIB = 1 << 20
SMALL, BIG = b"small", b"big"
OBJECTS = {SMALL: Random(1).randbytes(70_000), BIG: Random(2).randbytes(9 * MIB + 5)}
LAZY, SEALED = SnapshotId(bytes(31) + b"l"), SnapshotId(bytes(31) + b"s")


def lazy_bytes(version: bytes = b"v") -> bytes:
    out = io.BytesIO()
    with CatalogBuilder(spill=tempfile.TemporaryFile, keep_owner=False, lazy=True) as builder:
        builder.add_root(Meta(0o755, 0, 0, 0))
        builder.next_directory()
        for name, data in sorted(OBJECTS.items()):
            runs = piece_runs(b"s3://b/" + name, version, len(data))
            slots = piece_slots(name, len(data))
            builder.add_file(name, Meta(0o644, 0, 0, 0), len(data), runs, slots=slots, version=version)
        builder.finish(out)
    return out.getvalue()


def pieces(catalog: Catalog) -> dict[ChunkId, bytes]:
    """What each id of the chunk table stands for."""
    found: dict[ChunkId, bytes] = {}
    for inode in range(catalog.inodes):
        at = 0
        for identifier, length in file_runs(catalog, inode):
            found[identifier] = OBJECTS[catalog.path_of(inode)][at : at + length]
            at += length
    return found


def sealed(catalog: Catalog) -> Catalog:
    data, out = pieces(catalog), io.BytesIO()
    write_sealed(catalog, lambda keys: [chunk_id(data[key]) for key in keys], tempfile.TemporaryFile, out)
    return Catalog(memoryview(out.getvalue()))


def inode_of(catalog: Catalog, name: bytes) -> int:
    return next(inode for inode in range(catalog.inodes) if catalog.path_of(inode) == name)


def segments(catalog: Catalog, snapshot: SnapshotId = LAZY) -> list[Segment]:
    return [segment_of(catalog, snapshot, number) for number in range(catalog.segments)]


def bring(keeper: StoreKeeper, catalog: Catalog, snapshot: SnapshotId = LAZY, *, most: int = 99) -> int:
    """What a fetch does for all segments, the first `most` chunks of it; how many were kept."""
    data, kept = pieces(catalog), 0
    for segment in segments(catalog, snapshot):
        for chunk in keeper.missing(segment):
            if kept < most:
                keeper.keep(segment, chunk, memoryview(data[chunk.chunk_id]))
                kept += 1
        keeper.ended(segment, not keeper.missing(segment))
    return kept


def large(catalog: Catalog) -> tuple[Segment, Wanted]:
    """The first piece of the large object."""
    segment = next(segment for segment in segments(catalog) if segment.file)
    return segment, segment.chunks[0]


class Bench:
    """A store and its keeper."""

    def __init__(self, path: Path) -> None:
        self.store = Store.open(path)
        self.writer: ChunkWriter = self.store.writer()
        self.reader = self.store.reader()
        self.keeper = StoreKeeper(self.writer, self.reader, self.store.heal, take_over=self.store.take_over)

    def close(self) -> None:
        self.writer.close()
        self.store.close()
