"""The catalog of a data set from an origin as chunks: cut into pieces like the objects, but named by its bytes."""

import os
from dataclasses import dataclass
from typing import BinaryIO

from hoard_p2p.catalog.root import MAX_INLINE_RUNS, CatalogRun, encode_list
from hoard_p2p.chunking import piece_lengths
from hoard_p2p.errors import StoreFailed
from hoard_p2p.ids import chunk_id
from hoard_p2p.interfaces import ChunkSink


@dataclass(frozen=True, slots=True)
class CatalogChunks:
    """What a root says of its catalog, and how many bytes of it were not stored before."""

    length: int
    runs: tuple[CatalogRun, ...]
    runs_list: CatalogRun | None
    stored: int


def put_catalog(catalog: BinaryIO, sink: ChunkSink) -> CatalogChunks:
    """Put the whole file into `sink`, and its list chunk if it needs one. Raises StoreFailed."""
    catalog.flush()
    length = os.fstat(catalog.fileno()).st_size
    runs = []
    stored = offset = 0
    for size in piece_lengths(length):
        run, new = _put(os.pread(catalog.fileno(), size, offset), size, sink)
        runs.append(run)
        stored += size * new
        offset += size
    if len(runs) <= MAX_INLINE_RUNS:
        return CatalogChunks(length, tuple(runs), None, stored)
    data = encode_list(runs)
    runs_list, new = _put(data, len(data), sink)
    return CatalogChunks(length, (), runs_list, stored + len(data) * new)


def _put(data: bytes, size: int, sink: ChunkSink) -> tuple[CatalogRun, bool]:
    """Also whether it is new."""
    if len(data) != size:
        raise StoreFailed(f"a temporary file ended {size - len(data)} bytes early")
    name = chunk_id(data)
    return CatalogRun(name, size), sink.put_many([(name, data)])[0]
