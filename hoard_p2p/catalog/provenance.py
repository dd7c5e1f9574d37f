"""What a catalog says of where its data came from: the versions of origin objects, and what segments
are placed by. Pure.

Everything is checked at each use, in O(1), like the rest of a catalog (docs/formats.md, "Checks").
"""

from collections.abc import Mapping

from hoard_p2p.catalog.layout import MAX_VERSION, Column
from hoard_p2p.errors import CatalogCorrupt
from hoard_p2p.ids import ID_SIZE, ORIGIN_KEY_TAG, ChunkId

_SCAN = 1 << 20  # bytes of ids that are searched at a time


class Provenance:
    """The columns that only data sets from origins have."""

    def __init__(self, columns: Mapping[Column, memoryview]) -> None:
        self._ids = columns[Column.CHUNK_ID]
        self._keys = columns.get(Column.SEGMENT_KEY)
        self._offsets = columns.get(Column.VERSION)
        self._heap = columns.get(Column.VERSION_HEAP)
        self.is_placed = self._keys is not None
        """Segments have placement keys of their own."""
        self.is_lazy = self._offsets is not None
        """Chunk ids are origin keys, and files have versions."""

    @property
    def has_origin_keys(self) -> bool:
        """Whether any id of the chunk table is an origin key. O(n), at the speed of memory."""
        return any(self._find(start, ORIGIN_KEY_TAG) >= 0 for start in range(0, len(self._ids), _SCAN))

    def run_of(self, identifier: bytes) -> int:
        """A run with this chunk id, -1 if there is none. O(n), at the speed of memory."""
        found = (self._find(start, identifier) for start in range(0, len(self._ids), _SCAN))
        return next((run for run in found if run >= 0), -1)

    def version(self, inode: int) -> bytes:
        """The version of one inode, which is no hard link; empty where there is none. Raises CatalogCorrupt."""
        if self._offsets is None or self._heap is None:
            return b""
        start, stop = self._offsets[inode], self._offsets[inode + 1]
        if not start <= stop <= len(self._heap) or stop - start > MAX_VERSION:
            raise CatalogCorrupt(f"catalog is damaged: inode {inode} has a version from {start} to {stop}")
        return self._heap[start:stop].tobytes()

    def placement_key(self, segment: int) -> ChunkId:
        """What the segment is placed by, where `is_placed`."""
        assert self._keys is not None
        return ChunkId(self._keys[segment * ID_SIZE : (segment + 1) * ID_SIZE].tobytes())

    def _find(self, start: int, prefix: bytes) -> int:
        """The first run from byte `start` of the ids on, in one block, whose id begins so; -1 if there is none."""
        block = self._ids[start : start + _SCAN].tobytes()
        at = block.find(prefix)
        while at >= 0 and at % ID_SIZE:
            at = block.find(prefix, at + 1)
        return (start + at) // ID_SIZE if at >= 0 else -1
