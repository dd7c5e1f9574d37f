"""The sealed twin of a lazy catalog: the same tree, runs and segments, with chunk ids for origin keys. Pure.

Nothing of versions or of where the objects lie is left, so equal bytes, names and times give the same catalog (I6).
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import BinaryIO

from hoard_p2p.catalog.dedup import fill_canonical
from hoard_p2p.catalog.layout import VERSION_COLUMNS, Column
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.catalog.spill import BLOCK, SpilledBytes, SpilledColumn
from hoard_p2p.catalog.writing import Section, numbers, write_sections
from hoard_p2p.errors import BadRequest
from hoard_p2p.ids import HOLE, ID_SIZE, ChunkId, is_origin_key

Contents = Callable[[Sequence[ChunkId]], Sequence[ChunkId]]
"""For origin keys the ids of the chunks that they were found to be, in order. Raises if one is not known."""

RUNS = 4096
"""Keys that are asked for at once."""

_MADE_ANEW = frozenset((Column.CHUNK_ID, Column.CANONICAL, *VERSION_COLUMNS))


def write_sealed(catalog: Catalog, contents: Contents, spill: Callable[[], BinaryIO], out: BinaryIO) -> int:
    """Write the sealed twin of `catalog` to `out`; returns the bytes of runs that repeat an earlier one. Memory is
    bounded, `spill` as for `CatalogBuilder`. Raises BadRequest if the catalog is not lazy, or for answers that are no
    chunk ids, and what `contents` raises."""
    if not catalog.is_lazy or not catalog.is_placed or catalog.has_holes:
        raise BadRequest("only a lazy snapshot can be sealed")
    with ExitStack() as stack:
        ids = stack.enter_context(closing(SpilledBytes(spill)))
        canonical = stack.enter_context(closing(SpilledColumn("I", spill)))
        for block in _contents(catalog, contents):
            ids.append(block)
        repeated = fill_canonical(canonical, ids, _Ends(catalog.columns[Column.CHUNK_END]), spill)
        kept = [_copied(column, data) for column, data in catalog.columns.items() if column not in _MADE_ANEW]
        made = [Section(Column.CHUNK_ID, len(ids), ids.blocks()), numbers(Column.CANONICAL, canonical)]
        write_sections(out, [*kept, *made], 0)
        return repeated


def _contents(catalog: Catalog, contents: Contents) -> Iterator[bytes]:
    """The ids of the sealed chunk table, in blocks."""
    for first in range(0, catalog.chunks, RUNS):
        keys = [catalog.chunk_id(run) for run in range(first, min(first + RUNS, catalog.chunks))]
        found = contents(keys)
        if len(found) != len(keys):
            raise BadRequest(f"{len(found)} contents for {len(keys)} pieces")
        for key, content in zip(keys, found):
            if len(content) != ID_SIZE or content == HOLE or is_origin_key(content):
                raise BadRequest(f"piece {key.hex()} is told to be {content.hex()}, which is no chunk")
        yield b"".join(found)


def _copied(column: Column, data: memoryview) -> Section:
    whole = data.cast("B")
    blocks = (whole[start : start + BLOCK] for start in range(0, len(whole), BLOCK))
    return Section(column, len(whole), blocks)


class _Ends:
    """The chunk ends of a catalog as `fill_canonical` reads them."""

    def __init__(self, ends: memoryview) -> None:
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    def arrays(self) -> "Iterator[array[int]]":
        for start in range(0, len(self._ends), BLOCK // 8):
            yield array("Q", self._ends[start : start + BLOCK // 8].tobytes())
