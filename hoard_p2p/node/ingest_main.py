"""The ingest process: `publish.publish_directory` between the open source directory and slabs that the node made.

Exec'ed by `node.ingest` with the descriptors of both. Writes only into its own slabs and its scratch folder, holds no
lock, and dies with the node.
"""

import base64
import ctypes
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from hoard_p2p.chunking import FASTCDC, FIXED, Chunker
from hoard_p2p.config import Json
from hoard_p2p.errors import HoardError, NoNode, Refused, wire_name
from hoard_p2p.interfaces import Extent, SlabHandle, SlabKind
from hoard_p2p.node import framing
from hoard_p2p.node.client import ENDLESS, NodeClient, Reply
from hoard_p2p.node.ingest_memory import remembering
from hoard_p2p.node.ingest_wire import encode_extents
from hoard_p2p.publish import Crew, Progress, PublishOptions, PublishResult, publish_directory
from hoard_p2p.storage.claims import Claims
from hoard_p2p.storage.groups import WriterSettings
from hoard_p2p.storage.reader import StoreReader
from hoard_p2p.storage.writer import ChunkWriter

PR_SET_PDEATHSIG = 1
GROUPS = WriterSettings(group_chunks=4096, group_seconds=0.25)
"""Nobody waits for a single chunk of a publish: fewer and larger groups cost fewer syncs, and pages of the index."""
CHUNKERS = {"fastcdc": FASTCDC, "fixed": FIXED}


class NodeBroker:
    """`interfaces.SlabBroker` over the socket to the node. Thread-safe: one call at a time."""

    def __init__(self, client: NodeClient) -> None:
        self._client = client
        self._lock = threading.Lock()

    def call(self, op: str, args: Mapping[str, Json], fds: Sequence[int] = ()) -> Reply:
        """Raises what the node raised, and Refused if the node is gone: then there is nobody to publish for."""
        with self._lock:
            try:
                return self._client.call(op, args, fds=fds)
            except NoNode as error:
                raise Refused(f"the publish was given up: {error}") from error

    def new_slab(self, kind: SlabKind, size: int) -> SlabHandle:
        return self._slab(kind, self.call("new_slab", {"kind": kind.value, "size": size}))

    def resume_slab(self, file_key: bytes, size: int) -> SlabHandle:
        return self._slab(SlabKind.FILE, self.call("resume_slab", {"key": file_key.hex(), "size": size}))

    @staticmethod
    def _slab(kind: SlabKind, reply: Reply) -> SlabHandle:
        slab, exact = reply.body["slab"], reply.body["size"]
        if not isinstance(slab, int) or not isinstance(exact, int) or len(reply.fds) != 2:
            raise Refused("the node answered with no slab")
        return SlabHandle(slab, kind, exact, reply.fds[0], reply.fds[1])

    def commit(self, extents: Sequence[Extent], known: Sequence[tuple[bytes, bytes]] = ()) -> None:
        assert not known, "origin keys are learned by the node"
        spill = framing.memfd_of(encode_extents(extents))
        try:
            self.call("commit", {}, (spill,))
        finally:
            os.close(spill)

    def grant(self, size: int) -> None:
        self.call("grant", {"size": size})

    def give_back(self, size: int, taken: int = 0) -> None:
        self.call("give_back", {"size": size, "taken": taken})

    def could_fit(self, size: int) -> None:
        """Raises StoreFull if so many new bytes could not be stored, even if what may be evicted were."""
        self.call("could_fit", {"size": size})

    def complete_file(self, file_key: bytes, slab: int, complete: bool) -> None:
        self.call("complete_file", {"key": file_key.hex(), "slab": slab, "complete": complete})


def _options(body: Mapping[str, Json], data_dir: Path, scratch: Path, broker: NodeBroker) -> PublishOptions:
    own = os.stat(data_dir)
    exclude = body.get("exclude")
    return PublishOptions(
        chunker=CHUNKERS[str(body.get("chunker", "fastcdc"))],
        temp_dir=scratch,
        exclude=tuple(os.fsencode(str(pattern)) for pattern in exclude) if isinstance(exclude, list) else (),
        preserve_owner=body.get("preserve_owner") is True,
        reproducible=body.get("reproducible") is True,
        skip_unreadable=body.get("skip_unreadable") is True,
        own_data=(own.st_dev, own.st_ino),
        fits=None if body.get("try") is True else broker.could_fit,
    )


def _progress(progress: Progress) -> dict[str, Json]:
    return {
        "phase": progress.phase.value,
        "files": progress.files,
        "bytes": progress.bytes,
        "total_files": progress.total_files,
        "total_bytes": progress.total_bytes,
        "deduplicated": progress.deduplicated,
    }


def _summary(result: PublishResult) -> dict[str, Json]:
    skipped = result.skipped
    totals: dict[str, Json] = dict(asdict(result.totals))
    return {
        "totals": totals,
        "stored": result.stored,
        "deduplicated": result.deduplicated,
        "skipped_special": list(skipped.special.first),
        "skipped_special_count": skipped.special.count,
        "own_data": list(skipped.own_data.first),
        "own_data_count": skipped.own_data.count,
        "vanished": list(skipped.vanished.first),
        "vanished_count": skipped.vanished.count,
        "unreadable": list(skipped.unreadable.first),
        "unreadable_count": skipped.unreadable.count,
        "not_kept": [{"name": kind.name, "count": kind.count, "example": kind.example} for kind in result.not_kept],
        "unmatched_excludes": [os.fsdecode(pattern) for pattern in result.unmatched_excludes],
        "unchanged": result.unchanged,
        "read": result.totals.files - result.unchanged,
    }


@contextmanager
def sink_into(data_dir: Path, broker: NodeBroker, claims: Claims) -> Iterator[ChunkWriter]:
    """What this process puts, and what of it is stored already."""
    with StoreReader.open(data_dir) as reader, ChunkWriter(broker, reader, GROUPS, claims) as writer:
        yield writer


def _crew(data_dir: Path, lines: Sequence[socket.socket], chunker: Chunker, claims: Claims) -> Crew:
    """A worker for each line to the node. Before the index is opened: LMDB allows no forks after that."""
    crew = Crew(
        len(lines), chunker, lambda number: sink_into(data_dir, NodeBroker(NodeClient(lines[number], ENDLESS)), claims)
    )
    for line in lines:  # they are the workers' now
        line.close()
    return crew


def _run(
    data_dir: Path,
    memory: Sequence[int],
    dir_fd: int,
    *,
    claims: Claims,
    broker: NodeBroker,
    options: PublishOptions,
    crew: Crew,
) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())

    def report(progress: Progress) -> None:
        broker.call("progress", _progress(progress))

    with sink_into(data_dir, broker, claims) as writer, remembering(memory, _summary) as remembered:
        result = publish_directory(
            dir_fd,
            writer,
            options,
            report=report,
            stop=stopping.is_set,
            remembering=remembered,
            crew=crew,
        )
    broker.call("finished", {"root": base64.b64encode(result.root).decode(), "summary": _summary(result)})


def tell_failure(broker: NodeBroker, error: HoardError) -> None:
    """Tell the node what the process fails with. A node that is gone is why it failed, and nobody asks."""
    with suppress(Refused):
        broker.call("failed", {"error": wire_name(error), "message": str(error)})


def begin() -> None:
    """What every ingest process does first: it dies with the node, and logs into its log."""
    logging.basicConfig(level=logging.WARNING, format="ingest: %(message)s")
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the node's to handle


def main(argv: Sequence[str]) -> int:
    """Arguments: data directory, scratch folder, descriptor of the source, memfd of the claims, descriptors of the
    socket to the node and of one for each worker."""
    begin()
    data_dir, scratch = Path(argv[0]), Path(argv[1])
    claims, lines = Claims(int(argv[3])), [socket.socket(fileno=int(fd)) for fd in argv[4:]]
    first = framing.receive(lines[0])
    if first is None:
        return 1
    broker = NodeBroker(NodeClient(lines[0], ENDLESS))
    options = _options(first.body, data_dir, scratch, broker)
    try:
        with closing(_crew(data_dir, lines[1:], options.chunker, claims)) as crew:
            _run(data_dir, first.fds, int(argv[2]), claims=claims, broker=broker, options=options, crew=crew)
    except HoardError as error:
        tell_failure(broker, error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
