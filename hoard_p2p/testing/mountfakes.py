"""A real mount without a node: chunks in plain files, a node that answers what the test says, real processes.

`publish_folder` makes a catalog and chunk files of a folder, `mounted` mounts it with real workers, and `FakeNode` is
the other end of their miss channels. Run as a module it is the supervisor of such a mount.
"""

import json
import logging
import mmap
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, cast

from hoard_p2p.catalog.builder import CatalogBuilder, Meta
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import ChunkCorrupt, NotFound
from hoard_p2p.ids import HOLE, ChunkId, SnapshotId, chunk_id, is_origin_key
from hoard_p2p.interfaces import MountOptions, Place
from hoard_p2p.mount.kernel import NO_OPEN, Can
from hoard_p2p.mount.shared import MountFds, SharedState, WorkerSlot
from hoard_p2p.mount.succession import start_detached
from hoard_p2p.mount.supervisor import Supervisor
from hoard_p2p.mount.unmount import unmount
from hoard_p2p.mount.worker import Worker
from hoard_p2p.testing.borrowing import borrowed
from hoard_p2p.testing.missfakes import DEADLINE, SocketMisses

SNAPSHOT = SnapshotId(bytes(range(32)))
PIECE = 1 << 20
_HOLE_BLOCK = 64 << 10
_ZEROS = bytes(_HOLE_BLOCK)
TAKE_OVER = "--take-over"
_MODULE = "hoard_p2p.testing.mountfakes"


# --- chunks in files


class FileChunks:
    """`LocalChunks` over a folder: one file per chunk, its first byte is the generation. The slab is the id's head."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, identifier: ChunkId, data: bytes, generation: int = 1) -> Place:
        """Store bytes under an id, whether they fit it or not; replaced in one step."""
        path = self._path(_slab(identifier))
        path.with_suffix(".new").write_bytes(bytes([generation]) + data)
        path.with_suffix(".new").rename(path)
        return Place(_slab(identifier), 0, len(data), generation)

    def drop(self, identifier: ChunkId) -> bytes:
        """Take a chunk away; its bytes."""
        path = self._path(_slab(identifier))
        data = path.read_bytes()[1:]
        path.unlink()
        return data

    def poison(self, identifier: ChunkId) -> None:
        """From now on whoever looks for the chunk dies."""
        self._path(_slab(identifier)).with_suffix(".kills").touch()

    def learn(self, key: ChunkId, content: ChunkId) -> None:
        """From now on an origin key stands for these bytes."""
        self._path(_slab(key)).with_suffix(".key").write_bytes(content)

    def content(self, chunk_id: ChunkId) -> ChunkId | None:
        if not is_origin_key(chunk_id):
            return chunk_id
        try:
            return ChunkId(self._path(_slab(chunk_id)).with_suffix(".key").read_bytes())
        except FileNotFoundError:
            return None

    def contents(self, ids: Sequence[ChunkId]) -> list[ChunkId | None]:
        return [self.content(identifier) for identifier in ids]

    def place(self, chunk_id: ChunkId) -> Place | None:
        if is_origin_key(chunk_id):
            known = self.content(chunk_id)
            return None if known is None else self.place(known)
        if self._path(_slab(chunk_id)).with_suffix(".kills").exists():
            os._exit(1)
        try:
            data = self._path(_slab(chunk_id)).read_bytes()
        except FileNotFoundError:
            return None
        return Place(_slab(chunk_id), 0, len(data) - 1, data[0])

    def places(self, ids: Sequence[ChunkId]) -> list[Place | None]:
        return [self.place(identifier) for identifier in ids]

    def read_into(self, chunk_id: ChunkId, start: int, into: memoryview) -> Place | None:
        place = self.place(chunk_id)
        if place is not None:
            self.read_at(place, start, into)
        return place

    def read_at(self, place: Place, start: int, into: memoryview) -> None:
        with self._path(place.slab).open("rb", buffering=0) as file:
            if os.preadv(file.fileno(), [into], 1 + start) != len(into):
                raise ChunkCorrupt(f"slab {place.slab} is too short")

    def _path(self, slab: int) -> Path:
        return self._folder / f"{slab:016x}"


def _slab(identifier: ChunkId) -> int:
    return int.from_bytes(identifier[8:16] if is_origin_key(identifier) else identifier[:8])


# --- publishing


@dataclass(slots=True)
class Shop:
    """What a fake mount is made of: a catalog file, a folder of chunks, a socket of the fake node."""

    folder: Path
    holes: bool = True
    chunks: FileChunks = field(init=False)

    def __post_init__(self) -> None:
        (self.folder / "chunks").mkdir(parents=True, exist_ok=True)
        self.chunks = FileChunks(self.folder / "chunks")

    @property
    def catalog_path(self) -> Path:
        return self.folder / "catalog"

    @property
    def socket_path(self) -> Path:
        return self.folder / "node"

    @contextmanager
    def catalog(self) -> Iterator[Catalog]:
        with self.catalog_path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            catalog = Catalog(data)
            try:
                yield catalog
            finally:
                catalog.close()

    def ids(self, path: str) -> list[ChunkId]:
        """The chunk ids of a file, holes left out."""
        with self.catalog() as catalog:
            runs = catalog.runs(catalog.resolve(catalog.find(path.encode())))
            return [catalog.chunk_id(run) for run in runs if not catalog.is_hole(run)]


def publish_folder(source: Path, shop: Shop, *, keep_owner: bool = False) -> None:
    """Write the catalog and the chunks of a folder."""
    seen: dict[tuple[int, int], int] = {}
    with CatalogBuilder(spill=_spill, keep_owner=keep_owner) as builder:
        builder.add_root(_meta(source))
        folders = deque([source])
        while folders:
            folder = folders.popleft()
            builder.next_directory()
            for entry in sorted(folder.iterdir(), key=lambda path: os.fsencode(path.name)):
                _add(builder, entry, shop, seen)
                if entry.is_dir() and not entry.is_symlink():
                    folders.append(entry)
        with shop.catalog_path.open("wb") as out:
            builder.finish(out)


def _spill() -> BinaryIO:
    return cast("BinaryIO", tempfile.TemporaryFile())


def _meta(path: Path) -> Meta:
    status = path.lstat()
    names = [name for name in os.listxattr(path, follow_symlinks=False) if name.startswith("user.")]
    attributes = tuple((os.fsencode(name), os.getxattr(path, name, follow_symlinks=False)) for name in names)
    return Meta(status.st_mode, status.st_mtime_ns, status.st_uid, status.st_gid, attributes)


def _add(builder: CatalogBuilder, path: Path, shop: Shop, seen: dict[tuple[int, int], int]) -> None:
    name, meta, status = os.fsencode(path.name), _meta(path), path.lstat()
    if stat.S_ISDIR(meta.mode):
        builder.add_directory(name, meta)
    elif stat.S_ISLNK(meta.mode):
        builder.add_symlink(name, meta, os.fsencode(path.readlink()))
    elif (status.st_dev, status.st_ino) in seen:
        builder.add_hard_link(name, seen[status.st_dev, status.st_ino])
    else:
        runs = list(_cut(path.read_bytes(), shop))
        seen[status.st_dev, status.st_ino] = builder.add_file(name, meta, status.st_size, runs)


def _cut(data: bytes, shop: Shop) -> Iterator[tuple[ChunkId, int]]:
    """Runs: neighbouring blocks of zeros are one hole, what lies between is cut into pieces of at most 1 MiB."""

    def is_hole(at: int) -> bool:
        block = data[at : at + _HOLE_BLOCK]
        return shop.holes and block == _ZEROS[: len(block)]

    for hole, blocks in groupby(range(0, len(data), _HOLE_BLOCK), is_hole):
        starts = list(blocks)
        yield from _pieces(data, starts[0], min(starts[-1] + _HOLE_BLOCK, len(data)), hole, shop)


def _pieces(data: bytes, start: int, end: int, hole: bool, shop: Shop) -> Iterator[tuple[ChunkId, int]]:
    if hole:
        yield HOLE, end - start
        return
    for at in range(start, end, PIECE):
        piece = data[at : min(at + PIECE, end)]
        identifier = chunk_id(piece)
        shop.chunks.put(identifier, piece)
        yield identifier, len(piece)


# --- the processes


@dataclass(slots=True)
class FakeMount:
    """A mount that answers. `supervisor`: the process that mounted it. `log`: what its processes wrote on standard
    error so far."""

    mountpoint: Path
    supervisor: "subprocess.Popen[bytes]"
    log_path: Path
    command: list[str]
    _memory_fd: int

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @contextmanager
    def memory(self) -> Iterator[SharedState]:
        """What the mount's processes share; stays readable when they are gone."""
        shared = SharedState(os.dup(self._memory_fd))
        try:
            yield shared
        finally:
            shared.close()

    def chief(self) -> int:
        """The pid of the process that supervises the mount now, 0 if none does."""
        with self.memory() as shared:
            return shared.holder()

    def workers(self) -> list[int]:
        """The pids of the workers that run now."""
        with self.memory() as shared:
            pids = [shared.slot(number).process for number in range(shared.workers)]
        return [pid for pid in pids if pid and not has_ended(pid)]

    def verifier(self) -> int:
        """The pid of the verifier, 0 while it is being started."""
        with self.memory() as shared:
            return shared.slot(shared.verifier).process

    def take_over(self) -> "subprocess.Popen[bytes]":
        """Start a supervisor that replaces the living one and its processes."""
        return self._adopter(TAKE_OVER)

    def adopt(self) -> "subprocess.Popen[bytes]":
        """Start a supervisor that takes the mount over if it has none."""
        return self._adopter("")

    def _adopter(self, how: str) -> "subprocess.Popen[bytes]":
        with borrowed(self.workers()[0]) as fds, self.log_path.open("ab") as log:
            return subprocess.Popen([*self.command, fds.encode(), how], pass_fds=fds.all, stderr=log)


@contextmanager
def mounted(
    shop: Shop,
    mountpoint: Path,
    *,
    workers: int = 2,
    timeout: float = 30.0,
    verify: str = "first",
    wanted: Can = NO_OPEN,
    become: Sequence[str] = (),
    verifies: bool = False,
) -> Iterator[FakeMount]:
    """Mount a shop's catalog; gone afterwards, whatever happened. `become`: a command that runs what
    follows it as another user. `verifies`: with a verifier, which has nothing to do."""
    log_path = shop.folder / "log"
    settings = json.dumps([str(mountpoint), workers, timeout, verify, int(wanted), verifies])
    command = [*become, sys.executable, "-m", _MODULE, str(shop.folder), settings]
    with log_path.open("ab") as log:
        supervisor = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
    assert supervisor.stdout is not None
    memory_fd = -1
    try:
        if supervisor.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the mount did not come up: {log_path.read_text()}")
        memory_fd = _memory_of(supervisor.pid)
        mount = FakeMount(mountpoint, supervisor, log_path, command, memory_fd)
        _wait_for_workers(mount, workers)
        yield mount
    finally:
        with suppress(NotFound):
            unmount(mountpoint, force=True)
        supervisor.terminate()
        supervisor.wait(DEADLINE)
        supervisor.stdout.close()
        if memory_fd >= 0:
            os.close(memory_fd)


def _wait_for_workers(mount: FakeMount, count: int) -> None:
    """It answers as soon as the first of them does."""
    deadline = time.monotonic() + DEADLINE
    while len(mount.workers()) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{mount.workers()} are not {count} workers: {mount.log}")
        time.sleep(0.01)


def _memory_of(pid: int) -> int:
    """The shared memory of a mount, from one of its processes."""
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        if os.readlink(entry).startswith("/memfd:hoard-mount-"):
            return os.open(entry, os.O_RDWR)
    raise RuntimeError(f"process {pid} serves no mount")


@contextmanager
def running(argv: Sequence[str | Path]) -> Iterator["subprocess.Popen[bytes]"]:
    """A process with pipes; killed and reaped afterwards, whatever happened."""
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits only to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _supervise(folder: str, settings: str, descriptors: str = "", how: str = "") -> int:
    options, wanted, verifies = _options(settings)

    def serve(slot: WorkerSlot) -> int:
        argv = [sys.executable, "-m", _MODULE, folder, settings, slot.fds.encode()]
        adopt = partial(start_detached, argv, slot.fds.all)
        misses = SocketMisses(shop.socket_path)
        with shop.catalog() as catalog:
            Worker(slot, catalog=catalog, chunks=shop.chunks, misses=misses, options=options, adopt=adopt).run()
        return 0

    def ready() -> None:
        sys.stdout.write("ready\n")
        sys.stdout.flush()

    shop = Shop(Path(folder))
    supervisor = Supervisor(SNAPSHOT, options, serve=serve, verify=(lambda: _idle) if verifies else None, ready=ready)
    if descriptors:
        return supervisor.adopt(MountFds.parse(descriptors), take_over=how == TAKE_OVER)
    with shop.catalog() as catalog:
        runs, inodes = catalog.chunks, catalog.inodes
    with shop.catalog_path.open("rb") as file:
        return supervisor.run(catalog_fd=file.fileno(), runs=runs, inodes=inodes, wanted=wanted)


def _idle(slot: WorkerSlot) -> int:
    """A verifier that finds nothing to verify."""
    shared = SharedState(os.dup(slot.fds.shared))
    shared.attach(slot.number, os.getpid())
    while not shared.ending:
        shared.beat(slot.number)
        time.sleep(0.2)
    return 0


def _options(settings: str) -> tuple[MountOptions, Can, bool]:
    mountpoint, workers, timeout, verify, wanted, verifies = json.loads(settings)
    return MountOptions(Path(mountpoint), workers, timeout, verify), Can(wanted), verifies


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    sys.exit(_supervise(*sys.argv[1:]))
