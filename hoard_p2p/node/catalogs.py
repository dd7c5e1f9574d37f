"""Open catalogs: each verified, copied into a sealed memfd, and mapped (MOUNT-AND-STORE 3). Fetched where needed."""

import asyncio
import fcntl
import logging
import mmap
import os
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.catalog.root import CatalogRun, Root, check, decode_list
from hoard_p2p.catalog.root import decode as decode_root
from hoard_p2p.errors import ChunkCorrupt
from hoard_p2p.fetch.fetcher import Fetcher
from hoard_p2p.fetch.segment import Segment, Wanted
from hoard_p2p.fetch.singleflight import SingleFlight
from hoard_p2p.ids import HOLE, ChunkId, SnapshotId, chunk_id, short
from hoard_p2p.interfaces import Place
from hoard_p2p.peer import Peer
from hoard_p2p.storage.store import Store

log = logging.getLogger(__name__)

CATALOG_SEGMENT = -1
OPEN_CATALOGS = 64
OPEN_BYTES = 4 << 30
"""Bytes of catalogs kept open without a user here; mounts hold their own descriptor."""

FIRST_COPY = 3
"""A catalog chunk that is wrong on disk is fetched again; after so many rounds it is given up."""

GetRoot = Callable[[SnapshotId], Awaitable[bytes]]
"""The encoded root from here or from a peer. Raises SnapshotUnknown."""


@dataclass(frozen=True, eq=False)
class OpenSnapshot:
    """A snapshot with its catalog open. `fd` is the sealed memfd; it is closed with the last user of this object."""

    id: SnapshotId
    root: Root
    catalog: Catalog
    fd: int


class Catalogs:
    """One load per snapshot at a time; recently used ones stay open. For the event loop."""

    def __init__(
        self,
        *,
        store: Store,
        fetcher: Fetcher,
        get_root: GetRoot,
        place: Callable[[ChunkId], Place | None],
        group: asyncio.TaskGroup,
        executor: Executor,
    ) -> None:
        self._store = store
        self._fetcher = fetcher
        self._get_root = get_root
        self._place = place
        self._executor = executor
        self._loads: SingleFlight[SnapshotId, OpenSnapshot] = SingleFlight(group)
        self._open: OrderedDict[SnapshotId, OpenSnapshot] = OrderedDict()

    async def open(self, snapshot: SnapshotId, *, timeout: float, first: Peer | None = None) -> OpenSnapshot:
        """The snapshot, its catalog fetched if it is not here. `first`: a peer that has it for sure.

        Raises SnapshotUnknown, CatalogCorrupt, and Unavailable when `timeout` seconds were not enough."""
        known = self._open.get(snapshot)
        if known is not None:
            self._open.move_to_end(snapshot)
            return known
        opened = await self._loads.do(snapshot, partial(self._load, snapshot, timeout, first))
        self._remember(opened)
        return opened

    def peek(self, snapshot: SnapshotId) -> OpenSnapshot | None:
        """The snapshot if it is open now. Free."""
        return self._open.get(snapshot)

    def _remember(self, opened: OpenSnapshot) -> None:
        self._open[opened.id] = opened
        self._open.move_to_end(opened.id)
        while len(self._open) > 1 and (len(self._open) > OPEN_CATALOGS or self._size() > OPEN_BYTES):
            self._open.popitem(last=False)

    def _size(self) -> int:
        return sum(opened.root.catalog_length for opened in self._open.values())

    async def _load(self, snapshot: SnapshotId, timeout: float, first: Peer | None) -> OpenSnapshot:
        root = decode_root(await self._get_root(snapshot))
        runs: Sequence[CatalogRun] = root.catalog_runs
        if root.catalog_list is not None:
            listed = await self._bytes(snapshot, root.catalog_list, timeout, first)
            runs = decode_list(listed, root)
        fd = await self._assemble(snapshot, runs, timeout, first)
        try:
            mapped = mmap.mmap(fd, root.catalog_length, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
            opened = OpenSnapshot(snapshot, root, Catalog(mapped), fd)
            check(root, opened.catalog)
        except BaseException:
            os.close(fd)
            raise
        weakref.finalize(opened, os.close, fd)
        return opened

    async def _bytes(self, snapshot: SnapshotId, run: CatalogRun, timeout: float, first: Peer | None) -> bytes:
        fd = await self._assemble(snapshot, [run], timeout, first)
        try:
            return os.pread(fd, run.length, 0)
        finally:
            os.close(fd)

    async def _assemble(
        self, snapshot: SnapshotId, runs: Sequence[CatalogRun], timeout: float, first: Peer | None
    ) -> int:
        """A sealed memfd that holds the chunks of `runs` one after the other, each verified now; holes stay zeros."""
        loop = asyncio.get_running_loop()
        wanted = tuple(Wanted(at, run.chunk_id, run.length) for at, run in enumerate(runs) if run.chunk_id != HOLE)
        ends = list(accumulate(run.length for run in runs))
        segment = Segment(snapshot, CATALOG_SEGMENT, wanted, wanted[-1].chunk_id if wanted else HOLE)
        fd = os.memfd_create("hoard-catalog", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, ends[-1])
            todo = await loop.run_in_executor(self._executor, self._copy, fd, ends, wanted)
            for _ in range(FIRST_COPY):
                if not todo:
                    break
                await self._fetcher.whole(segment, first=first)
                for chunk in todo:
                    await self._fetcher.chunk(segment, chunk, timeout=timeout)
                todo = await loop.run_in_executor(self._executor, self._copy, fd, ends, todo)
            if todo:
                raise ChunkCorrupt(f"catalog chunk {short(todo[0].chunk_id)} of {short(snapshot)} stays wrong on disk")
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _copy(self, fd: int, ends: Sequence[int], todo: Sequence[Wanted]) -> list[Wanted]:
        """Copy the chunks `todo` into their places; those that are not here, or were wrong and are quarantined now."""
        reader = self._store.reader()
        left = []
        for chunk in todo:
            place = self._place(chunk.chunk_id)
            if place is None or place.length != chunk.length:
                left.append(chunk)
                continue
            buffer = bytearray(chunk.length)
            try:
                reader.read_at(place, 0, memoryview(buffer))
                wrong = chunk_id(buffer) != chunk.chunk_id
            except ChunkCorrupt:
                wrong = True
            if wrong:
                log.warning("catalog chunk %s is damaged here and is fetched again", short(chunk.chunk_id))
                self._store.quarantine(chunk.chunk_id, place)
                left.append(chunk)
            else:
                os.pwrite(fd, buffer, ends[chunk.run] - chunk.length)
        return left
