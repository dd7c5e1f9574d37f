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
        return any(self._has_keys(start) for start in range(0, len(self._ids), _SCAN))

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

    def _has_keys(self, start: int) -> bool:
        block = self._ids[start : start + _SCAN].tobytes()
        at = block.find(ORIGIN_KEY_TAG)
        while at >= 0 and at % ID_SIZE:
            at = block.find(ORIGIN_KEY_TAG, at + 1)
        return at >= 0
