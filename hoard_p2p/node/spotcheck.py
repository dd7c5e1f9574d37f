"""Whether an origin has what it had, as far as a look at a few of its objects tells."""

from collections.abc import Sequence

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import Unavailable
from hoard_p2p.objects import Origin
from hoard_p2p.origin.files import FileRead

LOOKED_AT = 16
"""Files that are looked at before copies are dropped because their origin has them."""


def some(catalog: Catalog, segments: Sequence[int]) -> list[int]:
    """About `LOOKED_AT` of the runs of these segments, spread evenly."""
    chosen = segments[:: -(-len(segments) // LOOKED_AT)]
    each = LOOKED_AT // len(chosen)
    ranges = [catalog.segment_runs(number) for number in chosen]
    return [run for runs in ranges for run in runs[:: -(-len(runs) // each)]]


def unchanged(origin: Origin, plan: Sequence[FileRead]) -> bool:
    """Blocking. Whether these objects are there as they were, as far as reading a byte of each tells."""
    into = memoryview(bytearray(1))
    for file in plan:
        try:
            where = file.range_of(file.pieces[0])
            origin.read(where._replace(stop=where.start + 1), into, lambda _: None)
        except Unavailable:
            return False
    return True
