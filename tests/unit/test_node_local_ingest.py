"""What a thread of the node uses outlives the request that it works for. Real sockets, a store that keeps nothing."""

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hoard_p2p.config import Json
from hoard_p2p.ids import ChunkId
from hoard_p2p.interfaces import Extent, SlabHandle, SlabKind
from hoard_p2p.node import framing, ingest
from hoard_p2p.node.ingest_wire import encode_extents
from hoard_p2p.node.local import LocalReply, LocalRequest
from hoard_p2p.testing.rooms import FixedRoom
from tests.unit.test_node_local import poll, serving

EXTENTS = [Extent(1, 0, 10, ChunkId(b"c" * 32)), Extent(1, 64, 20, ChunkId(b"d" * 32))]


class Gate(Executor):
    """Runs what it is given in a thread once it is opened."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._open = threading.Event()
        self.begun = threading.Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        def later() -> Any:
            self.begun.set()
            assert self._open.wait(5)
            return fn(*args, **kwargs)

        return self._pool.submit(later)

    def open(self) -> None:
        self._open.set()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


class Broker:
    """Gives slabs that are empty files, and notes what was committed."""

    def __init__(self) -> None:
        self.committed: list[Extent] = []
        self.made: list[SlabHandle] = []
        self.room = FixedRoom()

    def grant(self, size: int) -> None:
        self.room.grant(size)

    def give_back(self, size: int, taken: int = 0) -> None:
        self.room.give_back(size, taken)

    def new_slab(self, kind: SlabKind, size: int) -> SlabHandle:
        handle = SlabHandle(7, kind, size, framing.memfd_of(b"data"), framing.memfd_of(b"sidecar"))
        self.made.append(handle)
        return handle

    def resume_slab(self, file_key: bytes, size: int) -> SlabHandle:
        return self.new_slab(SlabKind.FILE, size)

    def commit(self, extents: Sequence[Extent], known: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self.committed += extents

    def complete_file(self, file_key: bytes, slab: int, complete: bool) -> None:
        return


@contextmanager
def abandoned(
    data_dir: Path, broker: Broker, op: str, args: dict[str, Json], fds: Sequence[int] = ()
) -> Iterator[Gate]:
    """An operation whose client left after a thread had begun with it; the thread goes on when the gate opens."""
    gate = Gate()
    left = threading.Event()

    async def report(_: dict[str, Json]) -> None:
        return

    session = ingest.Session(broker, gate, report, lambda size: None)

    async def handle(request: LocalRequest) -> LocalReply:
        try:
            return await session.handle(request)
        finally:
            left.set()

    try:
        with serving(data_dir, handle):
            with framing.connect(data_dir) as sock:
                framing.send(sock, {"op": op, "args": args, "seq": 0}, fds)
                assert gate.begun.wait(5)
            assert left.wait(5)
        yield gate
    finally:
        gate.open()
        gate.shutdown()


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError as error:
        assert error.errno == errno.EBADF
        return False
    return True


def test_extents_of_a_client_that_left_are_read_from_their_own_descriptor(tmp_path: Path) -> None:
    broker, spill = Broker(), framing.memfd_of(encode_extents(EXTENTS))
    before = len(os.listdir("/proc/self/fd"))
    with abandoned(tmp_path, broker, "commit", {}, [spill]) as gate:
        other = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]  # take the number if it was given back
        gate.open()
        poll(lambda: broker.committed == EXTENTS)
    for fd in other:
        os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before, "and closed after it"
    os.close(spill)


@pytest.mark.parametrize(
    ("op", "args"),
    [("new_slab", {"kind": SlabKind.SHARED.value, "size": 0}), ("resume_slab", {"key": "ab" * 16, "size": 9})],
)
def test_a_slab_that_nobody_takes_is_closed(tmp_path: Path, op: str, args: dict[str, Json]) -> None:
    broker = Broker()
    with abandoned(tmp_path, broker, op, args) as gate:
        gate.open()
    (handle,) = broker.made
    poll(lambda: not is_open(handle.data_fd) and not is_open(handle.sidecar_fd))


def test_what_killed_ingests_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    scratch = tmp_path / ingest.SCRATCH / f"{ingest.PREFIX}x1"
    scratch.mkdir(parents=True)
    (scratch / "spill").write_bytes(b"x")
    (tmp_path / "slabs").mkdir()
    ingest.sweep(tmp_path)
    assert os.listdir(tmp_path / ingest.SCRATCH) == [] and (tmp_path / "slabs").is_dir()


def test_a_store_without_scratch_is_swept_too(tmp_path: Path) -> None:
    ingest.sweep(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_commit_without_extents_is_refused(tmp_path: Path) -> None:
    async def report(_: dict[str, Json]) -> None:
        return

    with ThreadPoolExecutor(1) as pool:
        session = ingest.Session(Broker(), pool, report, lambda size: None)
        with serving(tmp_path, session.handle), framing.connect(tmp_path) as sock:
            framing.send(sock, {"op": "commit", "args": {}, "seq": 0})
            answer = framing.receive(sock)
    assert answer is not None and answer.body["error"] == "BadRequest"
