"""Large files of mounted snapshots whose slabs are complete, or nearly, though the index does not say so.

A file becomes so when the node dies between its last chunk and its record, or when its last chunk came with another
file. Only a recorded file can be served by the kernel alone. Looked for once when a mount attaches, in the background.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.errors import HoardError
from hoard_p2p.ids import SnapshotId, short
from hoard_p2p.node.blocking import in_executor
from hoard_p2p.node.catalogs import OpenSnapshot
from hoard_p2p.node.keeping import settle_file
from hoard_p2p.storage.store import Store
from hoard_p2p.storage.writer import ChunkWriter

log = logging.getLogger(__name__)

STEP = 4096
"""Segments that are passed over in one go; a large file ends the go."""


class Completer:
    """One look for each snapshot that is mounted; one file at a time. For the event loop."""

    def __init__(
        self,
        *,
        store: Store,
        writer: ChunkWriter,
        open_local: Callable[[SnapshotId], Awaitable[OpenSnapshot | None]],
        group: asyncio.TaskGroup,
        executor: Executor,
    ) -> None:
        self._store = store
        self._writer = writer
        self._open_local = open_local
        self._group = group
        self._executor = executor
        self._looking: set[SnapshotId] = set()
        self._wanted: set[SnapshotId] = set()
        self._turn = asyncio.Lock()

    def look_at(self, snapshot: SnapshotId) -> None:
        """Soon; does nothing if that is going on."""
        self._wanted.add(snapshot)
        if snapshot not in self._looking:
            self._looking.add(snapshot)
            self._group.create_task(self._look(snapshot))

    def leave(self, snapshot: SnapshotId) -> None:
        """It is not mounted any more."""
        self._wanted.discard(snapshot)

    async def _look(self, snapshot: SnapshotId) -> None:
        try:
            async with self._turn:
                opened = await self._open_local(snapshot)
                at = 0
                while opened is not None and at < opened.catalog.segments and snapshot in self._wanted:
                    at = await in_executor(self._executor, self._step, opened.catalog, at)
        except HoardError as error:
            log.info("the large files of %s were not looked through: %s", short(snapshot), error)
        except Exception:  # the door of this task: a bug must not end the group, and the node with it
            log.exception("looking through the large files of %s failed", short(snapshot))
        finally:
            self._looking.discard(snapshot)

    def _step(self, catalog: Catalog, at: int) -> int:
        """In a thread: up to the next large file, and that one; the segment to go on with."""
        for segment in range(at, min(at + STEP, catalog.segments)):
            inode = catalog.segment_file(segment)
            if inode:
                self._settle(catalog, inode)
                others = (later for later in range(segment, catalog.segments) if catalog.segment_file(later) != inode)
                return next(others, catalog.segments)
        return at + STEP

    def _settle(self, catalog: Catalog, inode: int) -> None:
        runs = catalog.runs(inode)
        ends = [catalog.chunk_id(run) for run in (runs[0], runs[-1]) if not catalog.is_hole(run)]
        if all(self._writer.has(ends)):  # else it is not here: no need to look at every run
            settle_file(self._store, self._writer, catalog, inode)
