"""Extents on their way from an ingest process to the node: fixed records in a memfd. Pure."""

import struct
from collections.abc import Sequence

from hoard_p2p.errors import BadRequest
from hoard_p2p.ids import Bytes, ChunkId
from hoard_p2p.interfaces import Extent

_EXTENT = struct.Struct("<IQI32s")


def encode_extents(extents: Sequence[Extent]) -> bytes:
    return b"".join(_EXTENT.pack(*extent) for extent in extents)


def decode_extents(data: Bytes) -> list[Extent]:
    """Raises BadRequest if `data` is no whole number of records."""
    if len(data) % _EXTENT.size:
        raise BadRequest(f"{len(data)} bytes of extents are no whole number of records")
    return [
        Extent(slab, offset, length, ChunkId(identifier))
        for slab, offset, length, identifier in _EXTENT.iter_unpack(data)
    ]
