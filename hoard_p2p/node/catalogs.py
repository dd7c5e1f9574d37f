"""Open catalogs: each verified, copied into a sealed memfd, and mapped (MOUNT-AND-STORE 3). Fetched where needed."""

import asyncio
import fcntl
import logging
import mmap
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.catalog.root import CatalogRun, Root, check, decode_list
from hoard_p2p.catalog.root import decode as decode_root
from hoard_p2p.errors import ChunkCorrupt, Unavailable
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

ROUNDS = 3
"""A catalog chunk that is wrong on disk is fetched again; after so many rounds it is given up."""

GetRoot = Callable[[SnapshotId], Awaitable[bytes]]
"""The encoded root from here or from a peer. Raises SnapshotUnknown."""


class Memfd:
    """An anonymous file that is closed when nobody refers to it: a thread that writes into it may outlive the task that
    wanted it, and a number that was closed meanwhile could be another file's."""

    __slots__ = ("fd",)

    def __init__(self, size: int) -> None:
        self.fd = os.memfd_create("hoard-catalog", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)

    def __del__(self) -> None:
        os.close(self.fd)


@dataclass(frozen=True, eq=False)
class OpenSnapshot:
    """A snapshot with its catalog open, in a sealed memfd."""

    id: SnapshotId
    root: Root
    catalog: Catalog
    file: Memfd

    @property
    def fd(self) -> int:
        return self.file.fd


@dataclass(frozen=True, slots=True)
class _Wish:
    """How a catalog is to be had: until when (of the loop's clock), from whom first, and whether from peers at all."""

    end: float
    first: Peer | None = None
    fetch: bool = True


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
        max_catalog: int,
    ) -> None:
        """`max_catalog`: bytes of the longest catalog that is opened, since it takes so much memory."""
        self._store = store
        self._fetcher = fetcher
        self._get_root = get_root
        self._place = place
        self._executor = executor
        self._max_catalog = max_catalog
        self._loads: SingleFlight[tuple[SnapshotId, bool], OpenSnapshot] = SingleFlight(group)
        self._open: OrderedDict[SnapshotId, OpenSnapshot] = OrderedDict()

    async def open(self, snapshot: SnapshotId, *, timeout: float, first: Peer | None = None) -> OpenSnapshot:
        """The snapshot, its catalog fetched if it is not here. `first`: a peer that has it for sure.

        Raises SnapshotUnknown, CatalogCorrupt, and Unavailable when `timeout` seconds were not enough."""
        known = self._open.get(snapshot)
        if known is None:
            wish = _Wish(asyncio.get_running_loop().time() + timeout, first)
            known = await self._loads.do((snapshot, True), partial(self._load, snapshot, wish))
        self._remember(known)
        return known

    async def local(self, snapshot: SnapshotId, root: bytes) -> OpenSnapshot | None:
        """The snapshot if its whole catalog is on this disk, None if not: asks no peer. Raises CatalogCorrupt."""
        known = self._open.get(snapshot)
        if known is None:
            wish = _Wish(0.0, fetch=False)
            try:
                known = await self._loads.do((snapshot, False), partial(self._build, snapshot, root, wish))
            except Unavailable:
                return None
        self._remember(known)
        return known

    def peek(self, snapshot: SnapshotId) -> OpenSnapshot | None:
        """The snapshot if it is open now. Free."""
        return self._open.get(snapshot)

    def forget_all_but(self, living: Collection[SnapshotId]) -> None:
        """Keep others open no longer than somebody uses them: each takes its length of memory, and two descriptors."""
        for snapshot in self._open.keys() - living:
            del self._open[snapshot]

    def _remember(self, opened: OpenSnapshot) -> None:
        self._open[opened.id] = opened
        self._open.move_to_end(opened.id)
        while len(self._open) > 1 and (len(self._open) > OPEN_CATALOGS or self._size() > OPEN_BYTES):
            self._open.popitem(last=False)

    def _size(self) -> int:
        return sum(opened.root.catalog_length for opened in self._open.values())

    async def _load(self, snapshot: SnapshotId, wish: _Wish) -> OpenSnapshot:
        return await self._build(snapshot, await self._get_root(snapshot), wish)

    async def _build(self, snapshot: SnapshotId, encoded: bytes, wish: _Wish) -> OpenSnapshot:
        root = decode_root(encoded, max_catalog=self._max_catalog)
        runs: Sequence[CatalogRun] = root.catalog_runs
        if root.catalog_list is not None:
            listed = await self._assemble(snapshot, [root.catalog_list], wish)
            runs = decode_list(os.pread(listed.fd, root.catalog_list.length, 0), root)
        file = await self._assemble(snapshot, runs, wish)
        mapped = mmap.mmap(file.fd, root.catalog_length, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
        opened = OpenSnapshot(snapshot, root, Catalog(mapped), file)
        check(root, opened.catalog)
        return opened

    async def _assemble(self, snapshot: SnapshotId, runs: Sequence[CatalogRun], wish: _Wish) -> Memfd:
        """A sealed memfd that holds the chunks of `runs` one after the other, each verified now; holes stay zeros."""
        wanted = tuple(Wanted(at, run.chunk_id, run.length) for at, run in enumerate(runs) if run.chunk_id != HOLE)
        ends = list(accumulate(run.length for run in runs))
        segment = Segment(snapshot, CATALOG_SEGMENT, wanted, wanted[-1].chunk_id if wanted else HOLE)
        file = Memfd(ends[-1])
        todo: Sequence[Wanted] = await self._copy_into(file, ends, wanted)
        for _ in range(ROUNDS):
            if not todo:
                break
            if not wish.fetch:
                raise Unavailable(f"{len(todo)} chunks of the catalog of {short(snapshot)} are not here")
            todo = await self._copy_into(file, ends, await self._fetch(segment, todo, file, ends, wish))
        if todo:
            raise ChunkCorrupt(f"catalog chunk {short(todo[0].chunk_id)} of {short(snapshot)} stays wrong on disk")
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(file.fd, fcntl.F_ADD_SEALS, seals)
        return file

    async def _fetch(
        self, segment: Segment, todo: Sequence[Wanted], file: Memfd, ends: Sequence[int], wish: _Wish
    ) -> list[Wanted]:
        """Have the chunks `todo` brought here; those that are on this disk now, and are to be copied from it."""
        loop = asyncio.get_running_loop()
        await self._fetcher.whole(segment, timeout=wish.end - loop.time(), first=wish.first)
        stored = []
        for chunk in todo:
            landed = await self._fetcher.chunk(segment, chunk, timeout=wish.end - loop.time())
            if landed.place is None:  # I5: it matched its id on arrival and could not be stored
                os.pwrite(file.fd, landed.data, ends[chunk.run] - chunk.length)
            else:
                stored.append(chunk)
        return stored

    async def _copy_into(self, file: Memfd, ends: Sequence[int], todo: Sequence[Wanted]) -> list[Wanted]:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._copy, file, ends, todo)

    def _copy(self, file: Memfd, ends: Sequence[int], todo: Sequence[Wanted]) -> list[Wanted]:
        """Copy the chunks `todo` into their places; those that are not here, or were wrong and are quarantined by now.

        Runs in a thread, which may go on after its caller was cancelled.
        """
        reader = self._store.reader()
        left = []
        for chunk in todo:
            place = self._place(chunk.chunk_id)
            if place is None or place.length != chunk.length:
                left.append(chunk)
                continue
            buffer = bytearray(chunk.length)
            with suppress(ChunkCorrupt):
                reader.read_at(place, 0, memoryview(buffer))
            if chunk_id(buffer) == chunk.chunk_id:
                os.pwrite(file.fd, buffer, ends[chunk.run] - chunk.length)
                continue
            if self._store.distrust(chunk.chunk_id, place):
                log.warning("catalog chunk %s is damaged here and is being healed", short(chunk.chunk_id))
            left.append(chunk)
        return left
