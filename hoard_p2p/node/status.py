"""What `hoard status` and `GET /v1/status` show: counted from what is on disk, not from what was asked for (I12)."""

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from hoard_p2p import __version__
from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.catalog.root import Root
from hoard_p2p.catalog.root import decode as decode_root
from hoard_p2p.config import DEFAULT_REPLICAS, Json
from hoard_p2p.errors import Corrupt, HoardError, Unavailable
from hoard_p2p.ids import SnapshotId, short
from hoard_p2p.interfaces import Residency
from hoard_p2p.node.app import Node
from hoard_p2p.node.catalogs import OpenSnapshot
from hoard_p2p.node.mountkeep import Kept
from hoard_p2p.node.origin_operations import origins_body
from hoard_p2p.node.removal import expires
from hoard_p2p.node.room_operations import room_body
from hoard_p2p.peer import Peer, is_wildcard, origin_id
from hoard_p2p.placement import skew
from hoard_p2p.repair.planner import lacking
from hoard_p2p.storage.records import SnapshotRecord

log = logging.getLogger(__name__)

Body = dict[str, Json]

COUNTED_SNAPSHOTS = 32
"""Snapshots whose segments are counted in one status; older ones are listed without."""

OPEN_SECONDS = 1.0
"""For a catalog that is not open yet: a status does not wait for absent peers."""

ASKED_PEERS = 16
"""Clusters larger than this do not count copies here."""

COUNT_SECONDS = 3.0
"""For all that a status has to ask others for, together."""

ASKED_AT_ONCE = 64
"""Questions to peers in flight."""

_NOT_COUNTED: Body = {
    "state": "known",
    "segments_here": None,
    "under_replicated": None,
    "under_replicated_bytes": None,
}


def node_body(node: Node) -> Body:
    peer = node.me
    return {
        "id": peer.node_id.hex(),
        "name": peer.name,
        "rack": peer.rack,
        "url": node.security.url(replace(peer, host=socket.gethostname()) if is_wildcard(peer.host) else peer),
        "cluster": node.settings.cluster,
        "pid": os.getpid(),
        "version": __version__,
        "data_dir": os.fspath(node.settings.data_dir),
    }


def peers_body(node: Node) -> list[Json]:
    return [
        {
            "id": member.peer.node_id.hex(),
            "name": member.peer.name,
            "rack": member.peer.rack,
            "url": node.security.url(member.peer),
            "state": member.state.value,
            "wrong_chunks": node.favour.counted.get(member.peer.node_id, 0),
        }
        for member in node.agent.members()
    ]


def mounts_body(node: Node) -> list[Json]:
    return [
        _mount_body(kept, node.mounts.through.why(kept.record.mountpoint))
        for kept in sorted(node.mounts.mounts, key=lambda kept: kept.record.mountpoint)
    ]


def _mount_body(kept: Kept, through: str) -> Json:
    """`through`: why it reads through the node, empty if it reads the index itself. Counts are since the mount was
    made, over all its workers; null where they cannot be seen."""
    record, plan, slots = kept.record, kept.plan, kept.slots()
    return {
        "mountpoint": record.mountpoint,
        "snapshot": record.snapshot.hex(),
        "pid": record.pid,
        "version": record.version,
        "io": plan.io,
        "io_reason": plan.io_reason,
        "verify": plan.verify,
        "timeout": plan.timeout,
        "fill": plan.fill,
        "reads": "through the node" if through else "direct",
        "reads_reason": through,
        "workers": len(slots) or plan.workers,
        "served": sum(slot.served for slot in slots) if slots else None,
        "parked": sum(slot.parked for slot in slots) if slots else None,
        "failed": sum(slot.failed for slot in slots) if slots else None,
    }


def snapshot_body(node: Node, record: SnapshotRecord, root: bytes | None) -> Body:
    """What every listing tells of a snapshot; `root` None if it is not known yet. A record that is damaged does not
    spoil the list: it is shown without figures."""
    decoded = None if root is None else _decoded(record, root)
    names: list[Json] = [*node.names.names_of(record.id)]
    return {
        "id": record.id.hex(),
        "names": names,
        "files": 0 if decoded is None else decoded.totals.files,
        "bytes": 0 if decoded is None else decoded.totals.size,
        "segments": 0 if decoded is None else decoded.totals.segments,
        "lazy": decoded is not None and decoded.lazy,
        "created": record.created,
        "replicas": record.replicas,
        "source": record.source,
        "pinned": record.pinned,
        "expires": expires(node, record),
        "users": [*node.leases.users(record.id)],
        "mounted_on": [one.mountpoint for one in node.mounts.records if one.snapshot == record.id],
    }


def _decoded(record: SnapshotRecord, root: bytes) -> Root | None:
    try:
        return decode_root(root)
    except Corrupt as error:
        log.warning("the root of snapshot %s cannot be read: %s", short(record.id), error)
        return None


def public_status(node: Node) -> Json:
    """What anyone on the network may see: no names of data, nothing that needs the disk."""
    body = node_body(node)
    del body["data_dir"]
    return {
        "node": body,
        "peers": peers_body(node),
        "mounts": len(mounts_body(node)),
        "snapshots": len(node.names.snapshots()),
    }


async def full_status(node: Node) -> Body:
    """Everything, for local users."""
    room, chunks = await node.blocking(_figures, node)
    records = node.names.snapshots()
    counts = await _counts(node, records[:COUNTED_SNAPSHOTS])
    snapshots = [await _counted(node, record, counts.get(record.id)) for record in records]
    listed: list[Json] = [*snapshots]
    return {
        "node": node_body(node),
        "peers": peers_body(node),
        "snapshots": listed,
        "under_replicated_bytes": _total(snapshots),
        "repair": node.repairing.body(),
        "racks": await node.blocking(racks_body, node),
        "store": {
            **room,
            "chunks": chunks,
            "received": node.fetcher.received,
            "received_from": {**node.fetcher.tally.told()},
            "unstored": node.fetcher.unstored.count,
            "sent": node.counters.bytes_sent,
            "misses": node.counters.misses,
            "quarantined": node.counters.quarantined,
        },
        "scrub": await node.scrubbing.body(),
        "origins": origins_body(node),
        "mounts": mounts_body(node),
    }


def _figures(node: Node) -> tuple[Body, int]:
    return room_body(node), node.store.extents_count()


@dataclass(slots=True)
class _Counts:
    """What nodes hold of one snapshot. `waiting`: peers that have not answered yet; one that cannot be reached counts
    as an answer: it holds nothing that could be had."""

    here: Residency
    catalog: Catalog
    waiting: int
    there: list[Residency] = field(default_factory=list)

    def under_replicated(self, segments: int, replicas: int) -> tuple[int, int] | None:
        """Blocking. Segments with too few copies, and their bytes. None: not known."""
        if self.waiting:
            return None
        found = lacking([self.here, *self.there], replicas, segments)
        return len(found), sum(map(self.catalog.segment_size, found))


async def _counts(node: Node, records: Sequence[SnapshotRecord]) -> dict[SnapshotId, _Counts]:
    """What is held of snapshots whose catalogs can be opened, here and by the peers that answer in time."""
    found: dict[SnapshotId, _Counts] = {}
    others, limit = node.agent.view().others, asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(counts: _Counts, peer: Peer, snapshot: SnapshotId) -> None:
        async with limit:
            with suppress(Unavailable):
                told = await node.control.residency(peer, snapshot)
                counts.there += [told] if told is not None else []
        counts.waiting -= 1

    async def count(snapshot: SnapshotId) -> None:
        opened = await _open(node, snapshot)
        if opened is None:
            return
        here = await node.blocking(node.held.residency, snapshot, opened.catalog)
        counts = found[snapshot] = _Counts(here, opened.catalog, len(others))
        if len(others) <= ASKED_PEERS:
            for peer in others:
                group.create_task(ask(counts, peer, snapshot))

    with suppress(TimeoutError):
        async with asyncio.timeout(COUNT_SECONDS), asyncio.TaskGroup() as group:
            for record in records:
                group.create_task(count(record.id))
    return found


async def _open(node: Node, snapshot: SnapshotId) -> OpenSnapshot | None:
    """None if the catalog is not open here and cannot be opened soon."""
    try:
        opened = node.catalogs.peek(snapshot)
        if opened is None:
            async with asyncio.timeout(OPEN_SECONDS):
                opened = await node.open(snapshot)
        return opened
    except (HoardError, TimeoutError) as error:
        log.debug("the segments of snapshot %s are not counted: %r", short(snapshot), error)
        return None


async def _counted(node: Node, record: SnapshotRecord, counts: _Counts | None) -> Body:
    body = snapshot_body(node, record, await node.blocking(node.names.root, record.id))
    segments = body["segments"]
    if counts is None or not isinstance(segments, int):
        return {**body, **_NOT_COUNTED}
    here = sum(byte.bit_count() for byte in counts.here.bits)
    state = "whole" if here == segments else "part" if here else "known"
    short_of = await node.blocking(counts.under_replicated, segments, _wanted(node, record))
    return {
        **body,
        "state": state,
        "segments_here": here,
        "under_replicated": None if short_of is None else short_of[0],
        "under_replicated_bytes": None if short_of is None else short_of[1],
    }


def _wanted(node: Node, record: SnapshotRecord) -> int:
    """The copies that are missed if there are fewer: none of what some node can read again from its origin."""
    return 0 if record.origin and node.agent.reading(origin_id(record.origin)) else record.replicas


def _total(snapshots: Sequence[Body]) -> Json:
    """Bytes of segments with too few copies, of all snapshots that are counted; None if none is."""
    counted = [size for body in snapshots if isinstance(size := body["under_replicated_bytes"], int)]
    return sum(counted) if counted or not snapshots else None


def racks_body(node: Node) -> list[Json]:
    """Where nodes keep more or less than their share by weight, because copies go to distinct racks."""
    told = skew(node.agent.view().peers, DEFAULT_REPLICAS)
    return [{"rack": rack, "load": round(load, 2)} for rack, load in sorted(told.items())]
