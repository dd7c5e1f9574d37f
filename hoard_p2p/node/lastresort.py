"""Chunks that all their holders lost, read again from an origin of any other snapshot that names them (CLUSTER 4, "Last
resort"). Promises: bytes are given only if they match their id. Bounded: a few snapshots are looked through, each at
the speed of memory.
"""

from collections.abc import Callable, Iterable, Sequence

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import CatalogCorrupt, Unavailable
from hoard_p2p.fetch.segment import Wanted
from hoard_p2p.ids import ChunkId, chunk_id, is_origin_key
from hoard_p2p.objects import ObjectRange, Origin
from hoard_p2p.origin.files import reads

MOST_SEARCHED = 16
"""Snapshots that are looked through for one reading."""

Named = tuple[Catalog, Origin]
"""A snapshot whose catalog is here, and its origin, which can be read here."""


def recover(
    wanted: Sequence[Wanted],
    numbers: Iterable[int],
    others: Iterable[Named],
    fetch: Callable[[Origin, ObjectRange], bytes],
    give: Callable[[int, memoryview], None],
) -> set[int]:
    """Blocking. Those of the chunks `numbers` of `wanted` that were given: an origin of `others` had them. Chunks that
    have no id yet are nowhere else. `fetch` raises Unavailable."""
    left = {wanted[number].chunk_id: number for number in numbers if not is_origin_key(wanted[number].chunk_id)}
    given = set[int]()
    for catalog, origin in others:
        for identifier in list(left):
            data = _read(catalog, origin, identifier, fetch)
            if data is not None:
                given.add(number := left.pop(identifier))
                give(number, memoryview(data))
        if not left:
            break
    return given


def _read(
    catalog: Catalog, origin: Origin, identifier: ChunkId, fetch: Callable[[Origin, ObjectRange], bytes]
) -> bytes | None:
    try:
        run = catalog.provenance.run_of(identifier)
        if run < 0:
            return None
        (file,) = reads(catalog, [run])
        data = fetch(origin, file.range_of(file.pieces[0]))
    except (CatalogCorrupt, Unavailable):
        return None
    return data if chunk_id(data) == identifier else None
