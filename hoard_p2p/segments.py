"""Where a chunk table is cut into segments, the units of placement, transfer and residency.

A segment ends by content, so that a changed version keeps its neighbours' segments and thereby their homes
(docs/formats.md, "Segments"). Pure.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from hoard_p2p.ids import HOLE, ChunkId
from hoard_p2p.limits import MAX_SEGMENT, MAX_SEGMENT_CHUNKS

MIB = 1 << 20

MIN_SEGMENT = MIB
"""Bytes that a segment holds at least before its content may end it."""

MEAN_SEGMENT = 8 * MIB

LARGE_FILE = 8 * MIB
"""A file with more bytes of data than this, holes not counted, has segments and a slab of its own."""


class SegmentTable(NamedTuple):
    """`firsts[s]` is the first run of segment s, with one more entry, the number of runs. `files[s]` is the inode of
    the large file that segment s lies in, 0 for none. `keys`: the placement key of each, 32 bytes, one after the
    other, where slots were given; else empty, and the chunk table tells."""

    firsts: "array[int]"
    files: "array[int]"
    keys: bytes = b""


class Segmenter:
    """Cuts a chunk table into segments while it is made. Memory: 8 bytes a segment, about 1 MB for a
    TB of data; 40 bytes where slots are given, about 5 MB."""

    def __init__(self) -> None:
        self._firsts = array("I", [0])
        self._files = array("I")
        self._keys = bytearray()
        self._key = b""  # of the open segment, where slots are given
        self._run = 0
        self._file = 0  # the large file that is being added
        self._bytes = 0  # of the open segment: data, and chunks
        self._chunks = 0

    def add_file(self, runs: Sequence[tuple[ChunkId, int]], inode: int, slots: Sequence[ChunkId] | None = None) -> None:
        """Add the (id, length) of one file's runs, holes included, in chunk-table order. `slots`: what they are cut and
        placed by in place of their ids; for all files, or for none, and then without holes."""
        large = data_size(runs) > LARGE_FILE
        if large:
            self._end()
            self._file = inode
        for position, (chunk_id, length) in enumerate(runs):
            self._run += 1
            if chunk_id == HOLE:
                continue
            self._bytes += length
            self._chunks += 1
            lot = chunk_id
            if slots is not None:
                lot = slots[position]
                self._key = lot
            if self._full() or self._ends_by_content(lot, length):
                self._end()
        if large:
            self._end()
            self._file = 0

    def finish(self) -> SegmentTable:
        """The table of everything added; the last segment ends here. Nothing may be added afterwards."""
        self._end()
        return SegmentTable(self._firsts, self._files, bytes(self._keys))

    def _full(self) -> bool:
        return self._bytes >= MAX_SEGMENT or self._chunks >= MAX_SEGMENT_CHUNKS

    def _ends_by_content(self, chunk_id: ChunkId, length: int) -> bool:
        """By chance in proportion to the chunk's length, so that boundaries fall by bytes whatever the chunk sizes."""
        lot = int.from_bytes(chunk_id[8:16], "little")
        return self._bytes >= MIN_SEGMENT and lot * MEAN_SEGMENT < length << 64

    def _end(self) -> None:
        if self._run > self._firsts[-1]:
            self._firsts.append(self._run)
            self._files.append(self._file)
            self._keys += self._key
        self._bytes = self._chunks = 0


def data_size(runs: Sequence[tuple[ChunkId, int]]) -> int:
    """Bytes of `runs` without holes."""
    return sum(length for chunk_id, length in runs if chunk_id != HOLE)


def placement_key(ids: Sequence[ChunkId]) -> ChunkId | None:
    """What a segment with these runs is placed by: the id of its last chunk; None if all are holes."""
    return next((chunk_id for chunk_id in reversed(ids) if chunk_id != HOLE), None)
