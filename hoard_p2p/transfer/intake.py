"""What a peer's chunks are compared with as they arrive, before anybody sees them.

The bytes of a chunk must hash to its id; those of a piece of a lazy snapshot, asked for by its origin key, to the
content id that the peer names before them. Which content id is believed is for the node to say (`Named`).
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from hoard_p2p.errors import ChunkCorrupt
from hoard_p2p.ids import ID_SIZE, ChunkId, chunk_id, is_origin_key, short
from hoard_p2p.peer import Peer
from hoard_p2p.transfer.connection import Connection
from hoard_p2p.transfer.wire import MAX_CHUNK

Wanted: TypeAlias = "Sequence[tuple[ChunkId, int]]"
Deliver: TypeAlias = "Callable[[int, memoryview], None]"
Named: TypeAlias = "Callable[[Peer, ChunkId, ChunkId], None]"
"""A peer sent bytes with the content id that it names for an origin key: (peer, key, content). Called from any thread,
before the bytes are delivered. Raises ChunkCorrupt if that is not believed."""


def believed(peer: Peer, key: ChunkId, content: ChunkId) -> None:
    """A `Named` for whoever knows nothing of keys."""


class Intake:
    """One peer's answer to `wanted`: each chunk is `deliver`ed by its index when it is what it has to be."""

    def __init__(self, peer: Peer, wanted: Wanted, deliver: Deliver, named: Named) -> None:
        self.wanted = wanted
        self._peer = peer
        self._deliver = deliver
        self._named = named

    def length(self, index: int) -> int:
        return self.wanted[index][1]

    def named_size(self, index: int, connection: Connection) -> int:
        """How many bytes before the chunk name its content, and prove it."""
        return ID_SIZE + connection.seal_size if is_origin_key(self.wanted[index][0]) else 0

    def check_length(self, index: int, claimed: int) -> None:
        """Before memory is taken for it. Raises ChunkCorrupt."""
        expected, length = self.wanted[index]
        if claimed != length or claimed > MAX_CHUNK:
            raise ChunkCorrupt(f"chunk {short(expected)} of {length} bytes was sent as {claimed} bytes")

    def take(self, index: int, content: bytes, data: memoryview) -> None:
        """`content`: what was named, empty for no origin key. Raises ChunkCorrupt, and what `deliver` does."""
        expected, length = self.wanted[index]
        if chunk_id(data) != (content or expected):
            raise ChunkCorrupt(f"chunk {short(expected)} of {length} bytes has other bytes")
        if content:
            self._named(self._peer, expected, ChunkId(content))
        self._deliver(index, data)


def content_of(connection: Connection, at: int, named: bytes) -> bytes:
    """The content id in `named`, which was sent before a chunk; empty if that is. `at`: which of the ids or runs of the
    question it is for. Raises Garbled where there is a session and it is not proven."""
    content, proof = named[:ID_SIZE], named[ID_SIZE:]
    if content:
        connection.check_named(at, content, proof)
    return content
