"""Roots of snapshots whose catalogs nobody has."""

from hoard_p2p.catalog.layout import Totals
from hoard_p2p.catalog.root import CatalogRun, Root, encode
from hoard_p2p.chunking import FASTCDC
from hoard_p2p.ids import chunk_id


def a_root(seed: int) -> bytes:
    """A root of its own for each seed."""
    totals = Totals(
        files=1,
        directories=1,
        symlinks=0,
        hard_links=0,
        size=9,
        data=9,
        unique=9,
        chunks=1,
        segments=1,
        inodes=2,
    )
    return encode(Root(FASTCDC, totals, 1000, (CatalogRun(chunk_id(b"%d" % seed), 1000),)))
