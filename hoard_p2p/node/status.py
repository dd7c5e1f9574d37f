"""What `hoard status` and `GET /v1/status` show: counted from what is on disk, not from what was asked for (I12)."""

import asyncio
import os
import socket
from collections.abc import Sequence
from dataclasses import replace

from hoard_p2p import __version__
from hoard_p2p.catalog.root import decode as decode_root
from hoard_p2p.config import Json
from hoard_p2p.errors import HoardError, Unavailable
from hoard_p2p.ids import SnapshotId
from hoard_p2p.interfaces import Residency
from hoard_p2p.node.app import Node
from hoard_p2p.storage.records import SnapshotRecord

WILDCARDS = ("0.0.0.0", "::", "")

Body = dict[str, Json]

COUNTED_SNAPSHOTS = 32
"""Snapshots whose segments are counted in one status; older ones are listed without."""

OPEN_SECONDS = 1.0
"""For a catalog that is not open yet: a status does not wait for absent peers."""

ASKED_PEERS = 16
"""Clusters larger than this do not count copies here."""


def node_body(node: Node) -> Body:
    peer = node.me
    return {
        "id": peer.node_id.hex(),
        "name": peer.name,
        "rack": peer.rack,
        "url": replace(peer, host=socket.gethostname()).url if peer.host in WILDCARDS else peer.url,
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
            "url": member.peer.url,
            "state": member.state.value,
            "wrong_chunks": node.favour.counted.get(member.peer.node_id, 0),
        }
        for member in node.agent.members()
    ]


def mounts_body(node: Node) -> list[Json]:
    unique = {(record.mountpoint, record.pid): record for record in node.mounts.values()}
    return [
        {"mountpoint": record.mountpoint, "snapshot": record.snapshot.hex(), "pid": record.pid}
        for _, record in sorted(unique.items())
    ]


def snapshot_body(node: Node, record: SnapshotRecord, root: bytes | None) -> Body:
    """What every listing tells of a snapshot; `root` None if it is not known yet."""
    decoded = None if root is None else decode_root(root)
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
    }


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
    used, chunks = await node.blocking(_figures, node)
    return {
        "node": node_body(node),
        "peers": peers_body(node),
        "snapshots": [await _counted(node, at, record) for at, record in enumerate(node.names.snapshots())],
        "store": {
            "capacity": node.store.capacity() or 0,
            "used": used,
            "chunks": chunks,
            "received": node.fetcher.received,
            "sent": node.counters.bytes_sent,
            "misses": node.counters.misses,
            "quarantined": node.counters.quarantined,
        },
        "origins": [],
        "mounts": mounts_body(node),
    }


def _figures(node: Node) -> tuple[int, int]:
    return node.store.used_bytes(), node.store.extents_count()


async def _counted(node: Node, at: int, record: SnapshotRecord) -> Body:
    root = await node.blocking(node.names.root, record.id)
    body = snapshot_body(node, record, root)
    records = await _residencies(node, record.id) if at < COUNTED_SNAPSHOTS else []
    segments = body["segments"]
    if not records or not isinstance(segments, int):
        return {**body, "state": "known", "segments_here": None, "under_replicated": None}
    here = sum(byte.bit_count() for byte in records[0].bits)
    copies_known = len(node.agent.view().others) <= ASKED_PEERS
    short = _under_replicated(records, segments, record.replicas) if copies_known else None
    state = "whole" if here == segments else "part" if here else "known"
    return {**body, "state": state, "segments_here": here, "under_replicated": short}


async def _residencies(node: Node, snapshot: SnapshotId) -> list[Residency]:
    """This node's record first, then those of the peers that answer; empty if the catalog is not open here."""
    opened = node.catalogs.peek(snapshot)
    if opened is None:
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                opened = await node.open(snapshot)
        except (HoardError, TimeoutError):
            return []
    records = [await node.blocking(node.held.residency, snapshot, opened.catalog)]
    others = node.agent.view().others
    if len(others) > ASKED_PEERS:
        return records
    for peer in others:
        try:
            told = await node.control.residency(peer, snapshot)
        except Unavailable:
            continue
        if told is not None:
            records.append(told)
    return records


def _under_replicated(records: Sequence[Residency], segments: int, replicas: int) -> int:
    """Segments that fewer nodes than `replicas` hold whole."""
    return sum(sum(record.holds(segment) for record in records) < replicas for segment in range(segments))
