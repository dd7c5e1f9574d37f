"""Taking in a directory that was published before: only what changed is read, and nothing if nothing did.

The quick look is a small process of its own (`publish.stampscan`); what it finds equal is the snapshot of the last
time, if that lives and all its chunks are listed. Else the ingest process gets what is remembered.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice

from hoard_p2p.config import Json
from hoard_p2p.errors import ChunkUnavailable, Corrupt
from hoard_p2p.ids import HOLE, short
from hoard_p2p.node.app import Node
from hoard_p2p.node.catalogs import OpenSnapshot
from hoard_p2p.node.ingest import ingest, make_scratch
from hoard_p2p.node.marking import catalog_ids
from hoard_p2p.node.shelf import Draft, Kept, Shelf, lives
from hoard_p2p.publish import stampscan
from hoard_p2p.publish.stamps import Moment
from hoard_p2p.storage.claims import Claims

log = logging.getLogger(__name__)

Body = dict[str, Json]
Report = Callable[[Body], Awaitable[None]]

LOOKED_UP = 4096
"""Chunks that are looked up in one transaction."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a source is now: the encoded root, and figures and lists for the user. `remember` is to be called once the
    snapshot is shown; blocking."""

    root: bytes
    summary: Body
    remember: Callable[[], None]


async def take_in(node: Node, dir_fd: int, options: Body, *, claims: Claims, report: Report, held: ExitStack) -> Taken:
    """Have the directory in the store. What `held` gets, and `claims`, are to be kept until the snapshot is shown.
    Raises what `ingest` does."""
    shelf = Shelf(node.settings.data_dir)
    key = shelf.key(os.fstat(dir_fd), options)
    drops = await node.blocking(node.store.drops)
    kept = None if options.get("rehash") is True else await node.blocking(_find, node, shelf, key)
    if kept is not None:
        held.enter_context(closing(kept))
        held.enter_context(node.leases.held(kept.snapshot, "being published again"))
        await node.retention.let_in()
        drops = await node.blocking(node.store.drops)  # what went before the lease is counted, and nothing goes now
        root = await _root_if_unchanged(node, kept, dir_fd, drops)
        if root is not None:
            return Taken(root, _unchanged(kept), lambda: shelf.used(key, kept.stamps.header.digest, drops))
    draft = Draft(await node.blocking(make_scratch, node.settings.data_dir))
    held.callback(draft.close)
    ingested = await ingest(
        dir_fd,
        options,
        data_dir=node.settings.data_dir,
        broker=node.store,
        claims=claims,
        executor=node.executor,
        report=report,
        fits=node.retention.could_fit,
        memory=(draft.file.fileno(), *await _memory(node, kept, held)),
    )
    return Taken(ingested.root, ingested.summary, lambda: shelf.keep(draft, key, drops, node.names))


def _find(node: Node, shelf: Shelf, key: str) -> Kept | None:
    """What was remembered, if it can be relied on."""
    kept = shelf.find(key)
    if kept is None:
        return None
    if lives(node.names, kept.snapshot) and not kept.stamps.meta.end.set_back_until(Moment.now()):
        return kept
    kept.close()
    return None


async def _root_if_unchanged(node: Node, kept: Kept, dir_fd: int, drops: int) -> bytes | None:
    """The root of the last time, if a publish would give it again."""
    if not kept.stamps.is_quick or not lives(node.names, kept.snapshot):
        return None
    if not await _looks_equal(kept, dir_fd) or not await _is_whole(node, kept, drops):
        return None
    return await node.blocking(node.names.root, kept.snapshot)


async def _looks_equal(kept: Kept, dir_fd: int) -> bool:
    stamps = kept.file.fileno()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", stampscan.__file__, str(stamps), str(dir_fd),
        pass_fds=(stamps, dir_fd), stdin=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        return await process.wait() == stampscan.EQUAL
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _is_whole(node: Node, kept: Kept, drops: int) -> bool:
    """Whether every chunk of the snapshot is listed here: at once, if none was dropped since that was known."""
    if kept.stamps.header.drops == drops:
        return True
    opened = await node.open_local(kept.snapshot)
    if opened is None or not await node.blocking(_all_listed, node, opened):
        log.info("chunks of snapshot %s were dropped here: its source is read for them", short(kept.snapshot))
        return False
    return True


def _all_listed(node: Node, opened: OpenSnapshot) -> bool:
    """Its catalog's chunks, too: that it is open says nothing of the disk."""
    try:
        if None in node.reader.places(catalog_ids(opened.root, node.reader)):
            return False
    except (ChunkUnavailable, Corrupt):
        return False
    catalog = opened.catalog
    runs = iter(range(catalog.chunks))
    while batch := list(islice(runs, LOOKED_UP)):
        ids = [catalog.chunk_id(run) for run in batch]
        if None in node.reader.places([chunk for chunk in ids if chunk != HOLE]):
            return False
    return True


async def _memory(node: Node, kept: Kept | None, held: ExitStack) -> tuple[int, ...]:
    """Descriptors of the last stamp file and of its catalog, if both are here; they stay open as long as `held`."""
    opened = None if kept is None else await node.open_local(kept.snapshot)
    if kept is None or opened is None:
        return ()
    held.callback(id, opened.file)  # else it is closed when other catalogs need its room, and the number another's
    return (kept.file.fileno(), opened.fd)


def _unchanged(kept: Kept) -> Body:
    """What the user is told when nothing was read."""
    summary = dict(kept.stamps.meta.summary)
    totals = summary.get("totals")
    files, data = (totals["files"], totals["data"]) if isinstance(totals, dict) else (0, 0)
    return {**summary, "stored": 0, "deduplicated": data, "read": 0, "unchanged": files}
