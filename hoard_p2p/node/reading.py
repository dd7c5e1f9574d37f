"""Reading a snapshot without a mount: `ls`, `cat` and `export` through the node and its store. Every chunk verified."""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hoard_p2p.catalog.reader import Catalog, ChunkSpan
from hoard_p2p.config import DEFAULT_TIMEOUT, Json
from hoard_p2p.errors import ChunkCorrupt, ChunkUnavailable, Refused
from hoard_p2p.ids import ChunkId, chunk_id, short
from hoard_p2p.interfaces import LocalChunks, Place
from hoard_p2p.node import framing
from hoard_p2p.node.client import NodeClient, Reply
from hoard_p2p.node.misses import told_content
from hoard_p2p.node.through import elsewhere, open_chunks

BLOCK = 4 << 20
"""`stream` gives a file in pieces of this size: the longest chunk, so that none is read twice in a row."""


class SnapshotReader:
    """One open snapshot. Single-threaded; the client must stay connected, the store open."""

    def __init__(self, client: NodeClient, store: LocalChunks, snapshot: str, catalog: Catalog) -> None:
        self.catalog = catalog
        self.snapshot = snapshot
        self._client = client
        self._store = store
        self._chunk: tuple[int, bytearray] = (-1, bytearray())

    def read(self, inode: int, offset: int, size: int) -> bytes:
        """Bytes of a regular file, clipped at its end. Raises Unavailable or Corrupt."""
        return b"".join(self._span(span) for span in self.catalog.span(inode, offset, size))

    def stream(self, inode: int) -> Iterator[memoryview]:
        """A regular file from start to end, as memory that is good until the next piece."""
        size = self.catalog.size(inode)
        for offset in range(0, size, BLOCK):
            yield memoryview(self.read(inode, offset, BLOCK))

    def _span(self, span: ChunkSpan) -> bytes:
        if self.catalog.is_hole(span.run):
            return bytes(span.length)
        run = self.catalog.canonical(span.run)
        if self._chunk[0] != run:
            self._chunk = (run, self._load(run))
        return bytes(memoryview(self._chunk[1])[span.start : span.start + span.length])

    def _load(self, run: int) -> bytearray:
        identifier, length = self.catalog.chunk_id(run), self.catalog.length(run)
        buffer = bytearray(length)
        place = self._store.place(identifier)
        if place is not None and self._matches(run, place, buffer):
            return buffer
        return self._from_node(run, place, buffer)

    def _matches(self, run: int, place: Place, buffer: bytearray, *, fresh: "_Fresh | None" = None) -> bool:
        if place.length != len(buffer):
            return False
        try:
            self._store.read_at(place, 0, memoryview(buffer))
        except ChunkCorrupt:
            return False
        return self._is_right(run, buffer, fresh=fresh)

    def _is_right(self, run: int, data: bytes | bytearray, *, fresh: "_Fresh | None" = None) -> bool:
        """`fresh`: from the node just now. What an origin key was found to be is in the index a moment later, or, if it
        could not be stored, never."""
        content = self._store.content(self.catalog.chunk_id(run)) or (fresh.content if fresh else None)
        return fresh is not None if content is None else chunk_id(data) == content

    def _from_node(self, run: int, wrong: Place | None, buffer: bytearray) -> bytearray:
        args: dict[str, Json] = {
            "snapshot": self.snapshot,
            "run": run,
            "timeout": DEFAULT_TIMEOUT,
            "wrong": None if wrong is None else list(wrong),
        }
        reply = self._client.call("need", args)
        where, fresh = reply.body.get("place"), _Fresh(told_content(reply.body))
        if isinstance(where, list):
            if self._matches(run, Place(*(int(str(part)) for part in where)), buffer, fresh=fresh):
                return buffer
            raise ChunkCorrupt(f"chunk {short(self.catalog.chunk_id(run))} stays wrong on disk; see the node's log")
        if not reply.fds:
            raise ChunkUnavailable(f"the node answered without chunk {short(self.catalog.chunk_id(run))}")
        try:
            data = framing.memfd_bytes(reply.fds[0])
        finally:
            os.close(reply.fds[0])
        if len(data) != len(buffer) or not self._is_right(run, data, fresh=fresh):
            raise ChunkCorrupt(f"chunk {short(self.catalog.chunk_id(run))} arrived wrong")
        return bytearray(data)


class _Fresh(NamedTuple):
    """The node's answer of just now: what it knows of the bytes."""

    content: ChunkId | None


def map_catalog(fd: int) -> tuple[Catalog, mmap.mmap]:
    """The catalog in a sealed memfd; the mapping is to be closed after it. Raises CatalogCorrupt."""
    mapped = mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ)
    return Catalog(mapped), mapped


class Stores:
    """The stores that this process reads. One index must not be opened twice in a process (LMDB: the locks of the
    first would go with the second), so those who read one data directory at the same time share a reader."""

    def __init__(self) -> None:
        self._open: dict[Path, LocalChunks] = {}

    @contextmanager
    def reader(self, data_dir: Path, why_through: str = "") -> Iterator[LocalChunks]:
        """Good inside the `with`; closed by the outermost one of that data directory. `why_through`: see
        `open_chunks`."""
        known = self._open.get(data_dir)
        if known is not None:
            yield known
            return
        with open_chunks(data_dir, why_through) as opened:
            self._open[data_dir] = opened
            try:
                yield opened
            finally:
                del self._open[data_dir]


@contextmanager
def open_snapshot(stores: Stores, data_dir: Path, text: str) -> Iterator[SnapshotReader]:
    """Open the snapshot that `text` means. Several may be open, the last is closed first.

    Raises NoNode, NotFound, Unavailable, Corrupt."""
    with NodeClient.connect(data_dir) as client:
        reply = client.call("open", {"snapshot": text})
        snapshot, catalog, mapped = _opened(reply)
        try:
            with stores.reader(data_dir, elsewhere(reply.body, client.node_pid)) as store:
                yield SnapshotReader(client, store, snapshot, catalog)
        finally:
            catalog.close()
            mapped.close()


def _opened(reply: Reply) -> tuple[str, Catalog, mmap.mmap]:
    if not reply.fds:
        raise Refused("the node sent no catalog; is it of another version than the command?")
    try:
        catalog, mapped = map_catalog(reply.fds[0])
    finally:
        os.close(reply.fds[0])
    return str(reply.body["snapshot"]), catalog, mapped
