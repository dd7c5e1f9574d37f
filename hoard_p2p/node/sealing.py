"""From a lazy snapshot of which every piece is somewhere to the sealed one, whose id commits to bytes (CLUSTER 4).

Sealed and lazy have the same segments at the same homes, so no data moves: homes are asked to hold what they have. What
other nodes say that pieces are made of is checked against the origin at random.
"""

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

from hoard_p2p.errors import Refused, Unavailable
from hoard_p2p.ids import SnapshotId, short
from hoard_p2p.node.blocking import in_executor
from hoard_p2p.node.contents import Contents
from hoard_p2p.node.ingest import make_scratch
from hoard_p2p.node.joint import Joint
from hoard_p2p.node.originwork import Look
from hoard_p2p.node.showing import tell
from hoard_p2p.node.spreading import Report
from hoard_p2p.origin.files import FileRead, Piece, reads
from hoard_p2p.printing import printable
from hoard_p2p.publish.sealing import SealedResult, seal_catalog
from hoard_p2p.storage.records import SnapshotRecord
from hoard_p2p.transfer.wire import Announcement

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node
    from hoard_p2p.node.catalogs import OpenSnapshot

log = logging.getLogger(__name__)

LEAST_SAMPLE, SAMPLE_PART = 32, 1000
"""Pieces that are read again before a snapshot is sealed: one of so many, at least so many (all if there are fewer)."""

SEALED_KEEP = 3600
"""Seconds after its last use that a lazy snapshot lives once it is sealed: its mounts go on, its names are the sealed
one's."""

_draw = random.SystemRandom()


class SealedWrong(Refused):
    """A piece is something else at its origin than it was found to be."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """What came of it. `short_of`: segments with too few copies."""

    snapshot: SnapshotId
    short_of: Sequence[int]


async def seal(
    node: "Node", opened: "OpenSnapshot", record: SnapshotRecord, contents: Contents, report: Report
) -> Sealed:
    """Seal a snapshot of which all is known, have its homes hold it, and show it here with the wishes of `record`.
    Raises SealedWrong, Unavailable (also where the origin cannot be read now), StoreFailed."""
    await report({"phase": "checking", "bytes": 0})
    await in_executor(node.fetchers, check_sample, node, opened, record.origin, contents)
    await report({"phase": "sealing", "bytes": 0})
    made = await node.blocking(_make, node, opened, contents)
    created = node.names.creation_time(made.snapshot)
    told = replace(record, id=made.snapshot, created=created, last_used=created, shown=False, removed=0)
    with node.retention.publishing(made.snapshot):
        twin = await node.keep_published(made.root, told)
        spread = await Joint(node, twin, record.replicas, "", report).run()
        if spread.lost:
            raise Unavailable(f"{len(spread.lost)} segments went while {short(opened.id)} was sealed: {spread.why}")
        await node.blocking(node.names.show, made.root, told)
    log.info("snapshot %s is sealed: %s", short(opened.id), short(made.snapshot))
    return Sealed(made.snapshot, spread.short_of)


def _make(node: "Node", opened: "OpenSnapshot", contents: Contents) -> SealedResult:
    """Blocking."""
    scratch: Path = make_scratch(node.settings.data_dir)
    try:
        return seal_catalog(opened.catalog, opened.root, contents.in_order(), node.writer, scratch)
    finally:
        rmtree(scratch, ignore_errors=True)


# --- checking


def check_sample(node: "Node", opened: "OpenSnapshot", url: str, contents: Contents) -> None:
    """Blocking. Read some pieces again, chosen so that nobody can know. Raises SealedWrong, Unavailable."""
    catalog = opened.catalog
    count = min(catalog.chunks, max(LEAST_SAMPLE, -(-catalog.chunks // SAMPLE_PART)))
    runs = sorted({catalog.canonical(run) for run in _draw.sample(range(catalog.chunks), count)})
    plan = [(read, piece) for read in reads(catalog, runs) for piece in read.pieces]
    looks = [Look(read.range_of(piece)) for read, piece in plan]
    node.origins.look(url, looks)
    for (read, piece), look in zip(plan, looks, strict=True):
        if look.found != contents.of(runs[piece.number]):
            raise _wrong(node, opened, contents, read=read, piece=piece, run=runs[piece.number])


def _wrong(
    node: "Node", opened: "OpenSnapshot", contents: Contents, *, read: FileRead, piece: Piece, run: int
) -> SealedWrong:
    """Forget what was wrong here; who said so."""
    key, segment = opened.catalog.chunk_id(run), opened.catalog.segment_of(run)
    said = [peer.name for peer in node.agent.view().others if segment in contents.told.get(peer.node_id, ())]
    if node.store.contents([key]) == [contents.of(run)]:
        node.store.unknow([key])
        node.held.forget()
        said.append("this node")
    where = f"{printable(read.path)} at {piece.offset:,}"
    log.warning("%s is not what it was found to be by %s; what was found is forgotten here", where, ", ".join(said))
    return SealedWrong(
        f"{short(opened.id)} is not sealed: {where} has other bytes at its origin, with the same version, than "
        f"{', '.join(said)} found; hoard evict {short(opened.id)} there, and publish it again"
    )


# --- afterwards


async def replace_lazy(node: "Node", lazy: SnapshotRecord, sealed: SnapshotId) -> list[str]:
    """Give the sealed snapshot the names of the lazy one, which users saw so far and which goes when nobody uses it;
    the names. Raises Unavailable, Refused if they cannot be set now."""
    names = node.names.names_of(lazy.id)
    for name in names:
        await node.naming.tag(sealed, name, move=True)
    root = await node.blocking(node.names.root, lazy.id)
    if root is not None:
        if lazy.pinned:
            await node.blocking(lambda: node.names.pin(lazy.id, pinned=False))
        created = node.names.creation_time(lazy.id)
        await node.blocking(node.names.show, root, replace(lazy, created=created, keep=SEALED_KEEP, pinned=False))
        await tell(node, lazy.id)
    refs = tuple(record for record in node.names.ref_records() if record["name"] in names)
    await node.announce(Announcement(refs=refs))
    await tell(node, sealed)
    return names
