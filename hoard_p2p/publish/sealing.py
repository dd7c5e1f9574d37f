"""From a lazy snapshot whose pieces are all known to the sealed one: same tree, same segments, ids of bytes."""

from dataclasses import dataclass, replace
from pathlib import Path

from hoard_p2p.catalog.builder import Totals
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.catalog.root import Root, encode
from hoard_p2p.catalog.sealed import Contents, write_sealed
from hoard_p2p.errors import BadRequest, StoreFailed
from hoard_p2p.ids import SnapshotId, snapshot_id
from hoard_p2p.interfaces import ChunkSink
from hoard_p2p.publish.catalogfile import put_catalog
from hoard_p2p.publish.spill import spill_into


@dataclass(frozen=True, slots=True)
class SealedResult:
    """A sealed snapshot; its catalog is in the sink and flushed. `stored`: bytes of it that were not stored before."""

    root: bytes
    snapshot: SnapshotId
    totals: Totals
    stored: int


def seal_catalog(catalog: Catalog, root: Root, contents: Contents, sink: ChunkSink, temp_dir: Path) -> SealedResult:
    """Make the sealed twin of a lazy snapshot. Blocking; memory is bounded, temporary files in `temp_dir` take as much
    as the catalog. Inodes, runs, segments and placement keys keep their numbers and values. `contents` is asked for a
    few thousand keys at once, in chunk-table order; repeated ones too. Raises BadRequest if it is not lazy, or for
    answers that are no chunk ids; StoreFailed; and what `contents` raises."""
    if not root.lazy:
        raise BadRequest("only a lazy snapshot can be sealed")
    spill = spill_into(temp_dir)
    try:
        with spill() as out:
            repeated = write_sealed(catalog, contents, spill, out)
            chunks = put_catalog(out, sink)
    except OSError as error:
        raise StoreFailed(f"sealing needs room for temporary files in {temp_dir}: {error}") from error
    totals = replace(root.totals, unique=root.totals.data - repeated)
    sealed = replace(
        root,
        totals=totals,
        catalog_length=chunks.length,
        catalog_runs=chunks.runs,
        catalog_list=chunks.runs_list,
        lazy=False,
    )
    encoded = encode(sealed)
    sink.flush()
    return SealedResult(encoded, snapshot_id(encoded), totals, chunks.stored)
