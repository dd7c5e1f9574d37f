"""A writer of slabs that outlives the node that made them: what an ingest process would be without its death signal.

As a program: `node DATA_DIR SOCKET` owns the store and makes slabs for whoever is at the other end of the socket;
`writer DATA_DIR SOCKET SEED` writes into them for as long as it can, prints the id of each chunk that was committed,
and goes on writing into the slabs that it has when the node is gone: chunks first, until the first one that wants the
node, then straight into every byte that it was ever given and that was not committed.
"""

import json
import os
import random
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hoard_p2p.errors import HoardError, NoNode
from hoard_p2p.ids import ChunkId, chunk_id
from hoard_p2p.interfaces import Extent, SlabHandle, SlabKind
from hoard_p2p.storage.groups import WriterSettings
from hoard_p2p.storage.reader import StoreReader
from hoard_p2p.storage.store import Store
from hoard_p2p.storage.writer import ChunkWriter

MESSAGE = 1 << 16
BEHIND = 1 << 20
"""So far behind what it wrote a writer writes on when nobody is there to ask."""


class SocketBroker:
    """SlabBroker at the other end of a socket. Thread-safe: a writer makes slabs in one thread, commits in another."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self.slabs: list[SlabHandle] = []
        """With descriptors of our own."""
        self.committed: list[Extent] = []
        """What is committed, or was asked to be."""

    def _call(self, op: str, *args: object) -> tuple[Any, list[int]]:
        try:
            with self._lock:
                self._sock.send(json.dumps([op, *args]).encode())
                raw, fds, _, _ = socket.recv_fds(self._sock, MESSAGE, 2)
        except OSError as error:
            raise NoNode(f"the node is gone: {error}") from error
        if not raw:
            raise NoNode("the node is gone")
        return json.loads(raw), fds

    def new_slab(self, kind: SlabKind, size: int) -> SlabHandle:
        (slab, exact), fds = self._call("new_slab", kind.value, size)
        self.slabs.append(SlabHandle(slab, kind, exact, os.dup(fds[0]), os.dup(fds[1])))
        return SlabHandle(slab, kind, exact, fds[0], fds[1])

    def resume_slab(self, file_key: bytes, size: int) -> SlabHandle:
        return self.new_slab(SlabKind.FILE, size)

    def commit(self, extents: Sequence[Extent], known: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self.committed += extents  # before the answer: it may be lost when all is done
        self._call("commit", [[*extent[:3], extent.chunk_id.hex()] for extent in extents])

    def complete_file(self, file_key: bytes, slab: int, complete: bool) -> None:
        self._call("complete_file", file_key.hex(), slab, complete)

    def grant(self, size: int) -> None:
        self._call("grant", size)

    def give_back(self, size: int, taken: int = 0) -> None:
        with suppress(NoNode):
            self._call("give_back", size, taken)


def serve(store: Store, sock: socket.socket) -> None:
    while raw := sock.recv(MESSAGE):
        op, *args = json.loads(raw)
        answer: object = None
        fds: list[int] = []
        match op:
            case "new_slab":
                handle = store.new_slab(SlabKind(args[0]), args[1])
                answer, fds = [handle.slab, handle.size], [handle.data_fd, handle.sidecar_fd]
            case "commit":
                rows = args[0]
                store.commit([Extent(slab, at, size, ChunkId(bytes.fromhex(name))) for slab, at, size, name in rows])
            case "complete_file":
                store.complete_file(bytes.fromhex(args[0]), args[1], args[2])
            case "grant" | "give_back":
                getattr(store, op)(*args)
        socket.send_fds(sock, [json.dumps(answer).encode()], fds)
        for fd in fds:
            os.close(fd)


def write(data_dir: Path, sock: socket.socket, draw: random.Random) -> None:
    broker = SocketBroker(sock)
    with suppress(HoardError), StoreReader.open(data_dir) as reader:
        writer = ChunkWriter(broker, reader, WriterSettings(group_chunks=8, group_seconds=0.01))
        with writer:
            while True:
                _write_some(writer, draw)
    for handle in broker.slabs:
        _write_wildly(handle, broker.committed, draw)


def _write_some(writer: ChunkWriter, draw: random.Random) -> None:
    data = [draw.randbytes(draw.choice((10, 5000, 40_000))) for _ in range(10)]
    for each in data:
        writer.put(chunk_id(each), each)
    pieces = [draw.randbytes(30_000) for _ in range(3)]
    sink = writer.open_file(90_000)
    for n, each in enumerate(pieces):
        sink.put(chunk_id(each), each, n * 30_000)
    sink.finish(chunk_id(b"".join(pieces))[:16], [(chunk_id(each), 30_000) for each in pieces])
    writer.flush()
    print(" ".join(chunk_id(each).hex() for each in (*data, *pieces)), flush=True)  # noqa: T201  # its protocol


def _write_wildly(handle: SlabHandle, committed: list[Extent], draw: random.Random) -> None:
    """Whatever of a slab was given to this writer and not committed is its own to spoil."""
    kept = sorted((extent.offset, extent.offset + extent.length) for extent in committed if extent.slab == handle.slab)
    end = os.fstat(handle.data_fd).st_size if handle.kind is SlabKind.FILE else (kept[-1][1] if kept else 0) + BEHIND
    at = 0
    for start, stop in [*kept, (end, end)]:
        if start > at:
            os.pwrite(handle.data_fd, draw.randbytes(start - at), at)
        at = max(at, stop)
    os.write(handle.sidecar_fd, draw.randbytes(100))
    os.fsync(handle.data_fd)


def main(argv: list[str]) -> None:
    data_dir, sock = Path(argv[1]), socket.socket(fileno=int(argv[2]))
    if argv[0] == "node":
        with Store.open(data_dir) as store:
            print("open", flush=True)  # noqa: T201  # its protocol
            serve(store, sock)
    else:
        write(data_dir, sock, random.Random(int(argv[3])))


if __name__ == "__main__":
    main(sys.argv[1:])
