"""A home's word that it stored segments is checked: the publisher reads some of their chunks back from it.

A home that lies, or whose disk lost what was written, is so found out while the publisher still has everything. The
chunks are chosen at random after it answered, so it cannot know which to keep.
"""

import random
from collections.abc import Sequence

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import ChunkCorrupt, Unavailable
from hoard_p2p.ids import ChunkId, short
from hoard_p2p.interfaces import PeerChunks
from hoard_p2p.peer import Peer

CHECKED = 2
"""Chunks of each answer, which is of at most 16 segments: of 128 MiB about one percent are sent back."""
TIMEOUT = 20.0

_draw = random.SystemRandom()


def read_back(peers: PeerChunks, peer: Peer, catalog: Catalog, segments: Sequence[int]) -> None:
    """Blocking. Raises Unavailable if `peer` cannot give back what it says it stored."""
    wanted = [_some_chunk(catalog, segment) for segment in _draw.sample(segments, min(CHECKED, len(segments)))]
    asked = [chunk for chunk in wanted if chunk is not None]
    try:
        missing = peers.fetch(peer, asked, lambda index, data: None, timeout=TIMEOUT)
    except ChunkCorrupt as error:
        raise Unavailable(f"{peer.name} says that it stored chunks which it sends back wrong: {error}") from error
    if missing:
        lost = short(asked[missing[0]][0])
        raise Unavailable(
            f"{peer.name} says that it stored chunk {lost}, and does not have it; its copies do not count"
        )


def _some_chunk(catalog: Catalog, segment: int) -> tuple[ChunkId, int] | None:
    """Id and length of one chunk of the segment; None if it has none."""
    chunks = catalog.segment_chunks(segment)
    if not chunks:
        return None
    _, chunk, length = _draw.choice(chunks)
    return chunk, length
