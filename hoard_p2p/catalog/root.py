"""The root of a snapshot: the small canonical record whose hash is the snapshot id (docs/formats.md, "Root"). Pure."""

import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

from hoard_p2p.catalog import layout
from hoard_p2p.catalog.layout import Totals
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.chunking import Chunker, ChunkerKind
from hoard_p2p.errors import CatalogCorrupt
from hoard_p2p.ids import HOLE, ID_SIZE, Bytes, ChunkId
from hoard_p2p.limits import MAX_CHUNK

__all__ = [
    "MAX_CATALOG",
    "MAX_INLINE_RUNS",
    "CatalogRun",
    "Root",
    "Totals",
    "check",
    "decode",
    "decode_list",
    "encode",
    "encode_list",
]

MAX_CATALOG = 16 << 30
"""The longest catalog that `decode` accepts by default."""

MAX_INLINE_RUNS = 256
"""A catalog of more runs than this has a list chunk."""

MAGIC = b"hoardrot"
LIST_MAGIC = b"hoardlst"
VERSION = 1

_HEADER = struct.Struct("<8sII 5I I 10Q Q")
"""Magic, version, flags; chunker kind, min, avg, max, hole block; number of runs that follow, 0 for a list chunk;
totals; length of the catalog."""

_LIST_HEADER = struct.Struct("<8sII")
"""Magic, version, number of runs."""

_RUN = struct.Struct(f"<{ID_SIZE}sQ")

_LAZY, _KEEP_OWNER, _KEEP_MTIMES = 1, 2, 4
_FLAGS = _LAZY | _KEEP_OWNER | _KEEP_MTIMES

_BYTES_PER_INODE = 48
_BYTES_PER_RUN = 44
"""What the required columns of a catalog take, at least: a root cannot promise more than its catalog can hold."""


class CatalogRun(NamedTuple):
    """One run of the catalog's own bytes. Holes (id HOLE, any length) occur: long columns of zeros."""

    chunk_id: ChunkId
    length: int


@dataclass(frozen=True, slots=True)
class Root:
    """What a snapshot is. The same tree and the same options give the same record, on any machine (I6).

    `catalog_runs` are the runs of the catalog's bytes; empty if there are more than 256: then `catalog_list` is the
    (id, length) of the list chunk that has them (`decode_list`). Exactly one of the two is there.
    """

    chunker: Chunker
    totals: Totals
    catalog_length: int
    catalog_runs: tuple[CatalogRun, ...]
    catalog_list: CatalogRun | None = None
    lazy: bool = False
    keep_owner: bool = False
    keep_mtimes: bool = True
    version: int = VERSION


def encode(root: Root) -> bytes:
    """The canonical bytes; `ids.snapshot_id` of them is the snapshot id. Raises ValueError for a root that `decode`
    would refuse."""
    if (root.catalog_list is None) != bool(root.catalog_runs):
        raise ValueError(f"a root has catalog runs or a list chunk; {len(root.catalog_runs)} runs")
    try:
        _check(root, MAX_CATALOG)
    except CatalogCorrupt as error:
        raise ValueError(str(error)) from error
    flags = _LAZY * root.lazy | _KEEP_OWNER * root.keep_owner | _KEEP_MTIMES * root.keep_mtimes
    chunker = root.chunker
    header = _HEADER.pack(
        MAGIC,
        root.version,
        flags,
        chunker.kind.value,
        chunker.min_size,
        chunker.avg_size,
        chunker.max_size,
        chunker.hole_block,
        len(root.catalog_runs),
        *astuple(root.totals),
        root.catalog_length,
    )
    return header + _pack_runs((root.catalog_list,) if root.catalog_list else root.catalog_runs)


def decode(data: Bytes, *, max_catalog: int = MAX_CATALOG) -> Root:
    """The root in `data`; `encode(decode(data)) == data`. Raises CatalogCorrupt, also for a catalog longer than
    `max_catalog`: everything is checked before memory is taken for it."""
    view = memoryview(data)
    if not _HEADER.size < len(view) <= _HEADER.size + MAX_INLINE_RUNS * _RUN.size:
        raise CatalogCorrupt(f"root of {len(view)} bytes")
    magic, version, flags, kind, *rest = _HEADER.unpack_from(view)
    if magic != MAGIC or version != VERSION or flags & ~_FLAGS:
        raise CatalogCorrupt(f"no root of version {VERSION}: magic {magic!r}, version {version}, flags {flags:#x}")
    if kind not in {known.value for known in ChunkerKind}:
        raise CatalogCorrupt(f"root with chunker {kind}")
    sizes, inline, totals, catalog_length = rest[:4], rest[4], rest[5:15], rest[15]
    runs = _unpack_runs(view[_HEADER.size :], inline or 1)
    root = Root(
        chunker=Chunker(ChunkerKind(kind), *sizes),
        totals=Totals(*totals),
        catalog_length=catalog_length,
        catalog_runs=runs if inline else (),
        catalog_list=None if inline else runs[0],
        lazy=bool(flags & _LAZY),
        keep_owner=bool(flags & _KEEP_OWNER),
        keep_mtimes=bool(flags & _KEEP_MTIMES),
    )
    _check(root, max_catalog)
    return root


def encode_list(runs: Sequence[CatalogRun]) -> bytes:
    """The list chunk of a catalog with these runs. Raises ValueError if it would be longer than a chunk may be."""
    encoded = _LIST_HEADER.pack(LIST_MAGIC, VERSION, len(runs)) + _pack_runs(runs)
    if len(runs) <= MAX_INLINE_RUNS or len(encoded) > MAX_CHUNK:
        raise ValueError(f"a catalog of {len(runs)} runs has no list chunk")
    return encoded


def decode_list(data: Bytes, root: Root) -> tuple[CatalogRun, ...]:
    """The runs in a list chunk, which add up to the root's catalog length. Raises CatalogCorrupt."""
    view = memoryview(data)
    if not _LIST_HEADER.size < len(view) <= MAX_CHUNK:
        raise CatalogCorrupt(f"list chunk of {len(view)} bytes")
    magic, version, count = _LIST_HEADER.unpack_from(view)
    if magic != LIST_MAGIC or version != VERSION or count <= MAX_INLINE_RUNS:
        raise CatalogCorrupt(f"no list chunk of version {VERSION}: magic {magic!r}, version {version}, {count} runs")
    runs = _unpack_runs(view[_LIST_HEADER.size :], count)
    _check_runs(runs, root.catalog_length)
    return runs


def check(root: Root, catalog: Catalog) -> None:
    """Raises CatalogCorrupt unless the catalog has as many inodes, runs and segments as its root says."""
    totals = root.totals
    found = (catalog.inodes, catalog.chunks, catalog.segments, catalog.has_owner)
    if found != (totals.inodes, totals.chunks, totals.segments, root.keep_owner):
        raise CatalogCorrupt(f"catalog of {found[0]} inodes, {found[1]} runs, {found[2]} segments; root: {totals}")
    if (
        catalog.is_lazy != root.lazy
        or catalog.is_placed != (root.chunker.kind is ChunkerKind.PIECES)
        or (catalog.is_lazy and not catalog.is_placed)
    ):
        raise CatalogCorrupt("catalog and root differ about whether it comes from an origin, or is lazy")
    if catalog.is_placed and catalog.has_holes:
        raise CatalogCorrupt("catalog with holes, of a data set from an origin")
    if not root.lazy and catalog.provenance.has_origin_keys:
        raise CatalogCorrupt("catalog with origin keys, of a snapshot that is not lazy")


def _pack_runs(runs: Sequence[CatalogRun]) -> bytes:
    return b"".join(_RUN.pack(*run) for run in runs)


def _unpack_runs(data: memoryview, count: int) -> tuple[CatalogRun, ...]:
    if len(data) != count * _RUN.size:
        raise CatalogCorrupt(f"{count} catalog runs in {len(data)} bytes")
    return tuple(CatalogRun(ChunkId(chunk_id), length) for chunk_id, length in _RUN.iter_unpack(data))


def _check(root: Root, max_catalog: int) -> None:
    _check_chunker(root.chunker)
    _check_totals(root.totals, root.catalog_length)
    if root.version != VERSION or root.catalog_length > max_catalog:
        raise CatalogCorrupt(f"root of version {root.version}, catalog of {root.catalog_length} bytes")
    if root.catalog_list:
        if root.catalog_list.chunk_id == HOLE or not 1 <= root.catalog_list.length <= MAX_CHUNK:
            raise CatalogCorrupt(f"root with a list chunk of {root.catalog_list.length} bytes")
        return
    if len(root.catalog_runs) > MAX_INLINE_RUNS:
        raise CatalogCorrupt(f"root with {len(root.catalog_runs)} catalog runs, more than {MAX_INLINE_RUNS}")
    _check_runs(root.catalog_runs, root.catalog_length)


def _check_chunker(chunker: Chunker) -> None:
    sizes = (1, chunker.min_size, chunker.avg_size, chunker.max_size, MAX_CHUNK)
    if list(sizes) != sorted(sizes) or not 1 <= chunker.hole_block <= MAX_CHUNK:
        raise CatalogCorrupt(f"root with {chunker}")


def _check_totals(totals: Totals, catalog_length: int) -> None:
    entries = totals.files + totals.directories + totals.symlinks + totals.hard_links
    if totals.inodes != entries or totals.directories < 1 or totals.inodes > layout.MAX_INODES:
        raise CatalogCorrupt(f"root with {totals}")
    if not totals.unique <= totals.data <= totals.size < layout.MAX_SIZE or totals.segments > totals.chunks:
        raise CatalogCorrupt(f"root with {totals}")
    if totals.inodes * _BYTES_PER_INODE + totals.chunks * _BYTES_PER_RUN > catalog_length:
        raise CatalogCorrupt(f"root with {totals} in a catalog of {catalog_length} bytes")


def _check_runs(runs: Sequence[CatalogRun], catalog_length: int) -> None:
    for chunk_id, length in runs:
        if length < 1 or (length > MAX_CHUNK and chunk_id != HOLE):
            raise CatalogCorrupt(f"catalog run of {length} bytes")
    if sum(length for _, length in runs) != catalog_length:
        raise CatalogCorrupt(f"catalog runs do not add up to {catalog_length} bytes")
