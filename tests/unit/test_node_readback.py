"""A node's word that it has segments of a lazy snapshot, checked by reading some of it back."""

import io
import tempfile

import pytest

from hoard_p2p.catalog.builder import CatalogBuilder, Meta
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import Unavailable
from hoard_p2p.ids import ChunkId, chunk_id, origin_key, slot_id
from hoard_p2p.node.namings import Namings
from hoard_p2p.node.readback import read_back
from hoard_p2p.testing.network import MemoryPeers, a_peer

PIECE, OTHER = b"p" * 1000, b"o" * 1000
KEY = origin_key(b"bucket/a", b"1", 0, len(PIECE))


def lazy_catalog() -> Catalog:
    out = io.BytesIO()
    with CatalogBuilder(spill=tempfile.TemporaryFile, keep_owner=False) as builder:
        builder.add_root(Meta(0o755, 1, 0, 0))
        builder.next_directory()
        slots = [slot_id(b"a", 0)]
        builder.add_file(b"a", Meta(0o644, 1, 0, 0), len(PIECE), [(KEY, len(PIECE))], slots=slots, version=b"1")
        builder.finish(out)
    return Catalog(memoryview(out.getvalue()))


def checked(known: dict[ChunkId, ChunkId], given: dict[ChunkId, bytes]) -> None:
    """Read back what a peer gives, as a node that knows so much."""
    namings = Namings("me", known.get, lambda _: None)
    read_back(MemoryPeers({a_peer(2).node_id: given}, namings), a_peer(2), lazy_catalog(), [0])


@pytest.mark.parametrize("known", [{}, {KEY: chunk_id(PIECE)}])
def test_a_node_that_gives_back_the_piece_has_it(known: dict[ChunkId, ChunkId]) -> None:
    checked(known, {KEY: PIECE})


@pytest.mark.expect_warnings
def test_a_node_whose_piece_is_something_else_than_ours_does_not_count() -> None:
    with pytest.raises(Unavailable, match="sends back wrong"):
        checked({KEY: chunk_id(PIECE)}, {KEY: OTHER})


def test_a_node_without_the_piece_does_not_count() -> None:
    with pytest.raises(Unavailable, match="does not have it"):
        checked({KEY: chunk_id(PIECE)}, {})
