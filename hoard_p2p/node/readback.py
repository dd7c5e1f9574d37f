"""A node's word that it has segments is checked by who relies on it, the publisher and who drops its own copies: some
of their chunks are read back.

A node that lies, or whose disk lost what was written, is so found out while there is another copy. The chunks are
chosen at random after it answered, so it cannot know which to keep.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import ChunkCorrupt, PeerUnavailable, Unavailable
from hoard_p2p.ids import ChunkId, SnapshotId, short
from hoard_p2p.interfaces import PeerChunks
from hoard_p2p.node.vouching import Ask
from hoard_p2p.peer import Peer
from hoard_p2p.transfer.control import PeerControl
from hoard_p2p.transfer.wire_life import VouchRequest

log = logging.getLogger(__name__)

CHECKED = 2
"""Chunks of each answer, which is of at most 16 segments: of 128 MiB about one percent are sent back."""
TIMEOUT = 20.0
ASK_SECONDS = 5.0
READ_SECONDS = 4.0
"""Together less than what makes an answer too old to act upon (`lastcopy.FRESH_SECONDS`)."""

Thread = Callable[[Callable[[], None]], Awaitable[None]]

_draw = random.SystemRandom()


def asker(control: PeerControl, peers: PeerChunks, thread: Thread, snapshot: SnapshotId, catalog: Catalog) -> Ask:
    """Asks nodes to vouch, and reads back some of what they vouch for; `thread` runs that."""

    async def ask(peer: Peer, segments: Sequence[int]) -> Sequence[int]:
        promised = await control.vouch(peer, VouchRequest(snapshot, tuple(segments)), timeout=ASK_SECONDS)
        if not promised:
            return ()
        try:
            async with asyncio.timeout(READ_SECONDS):
                await thread(lambda: read_back(peers, peer, catalog, promised, timeout=READ_SECONDS))
        except PeerUnavailable:
            raise
        except TimeoutError as error:
            raise Unavailable(f"{peer.name} did not send back in {READ_SECONDS} s what it vouches for") from error
        except Unavailable as error:
            log.warning("what %s vouches for does not count: %s", peer.name, error)
            raise
        return promised

    return ask


def read_back(
    peers: PeerChunks, peer: Peer, catalog: Catalog, segments: Sequence[int], *, timeout: float = TIMEOUT
) -> None:
    """Blocking. Raises Unavailable if `peer` cannot give back what it says it stored."""
    wanted = [_some_chunk(catalog, segment) for segment in _draw.sample(segments, min(CHECKED, len(segments)))]
    asked = [chunk for chunk in wanted if chunk is not None]
    try:
        missing = peers.fetch(peer, asked, lambda index, data: None, timeout=timeout)
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
