"""Where the data of a snapshot is: bytes held and missing per node and rack, and a score for schedulers (I12)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hoard_p2p.catalog.reader import Catalog
from hoard_p2p.config import Json
from hoard_p2p.ids import SnapshotId
from hoard_p2p.interfaces import Residency
from hoard_p2p.node.residencies import ask_residencies
from hoard_p2p.peer import NodeId, Peer

if TYPE_CHECKING:
    from hoard_p2p.node.app import Node

ASK_SECONDS = 10.0
REPORT_EVERY = 1.0
OWN, RACK, ELSEWHERE = 100, 50, 10
"""What a byte counts that is on the node itself, on another of its rack, on any other node; nothing if on none."""


@dataclass(frozen=True, slots=True)
class Spot:
    """What one node has. `bits`: bit i is segment i; None: it did not answer in time."""

    peer: Peer
    bits: int | None


def sizes_of(catalog: Catalog) -> list[int]:
    """Bytes of each segment, as files have them: chunks that repeat count each time."""
    return [catalog.segment_size(segment) for segment in range(catalog.segments)]


def size_of(bits: int, sizes: Sequence[int]) -> int:
    return sum(size for segment, size in enumerate(sizes) if bits >> segment & 1)


def where_body(spots: Sequence[Spot], sizes: Sequence[int]) -> dict[str, Json]:
    """Nodes by score, best first. Pure."""
    total = sum(sizes)
    racks: dict[str, int] = {}
    for spot in spots:
        racks[spot.peer.rack] = racks.get(spot.peer.rack, 0) | (spot.bits or 0)
    anywhere = 0
    for bits in racks.values():
        anywhere |= bits
    in_rack = {rack: size_of(bits, sizes) for rack, bits in racks.items()}
    everywhere = size_of(anywhere, sizes)
    nodes = [_node(spot, size_of(spot.bits or 0, sizes), in_rack[spot.peer.rack], everywhere, total) for spot in spots]
    nodes.sort(key=lambda node: (-int(str(node["score"])), str(node["name"]), str(node["id"])))
    listed: list[Json] = [*nodes]
    rack_bodies: list[Json] = [
        {
            "rack": rack,
            "nodes": sum(spot.peer.rack == rack for spot in spots),
            "held": in_rack[rack],
            "missing": total - in_rack[rack],
        }
        for rack in sorted(racks)
    ]
    return {"bytes": total, "held_anywhere": everywhere, "nodes": listed, "racks": rack_bodies}


def _node(spot: Spot, held: int, in_rack: int, everywhere: int, total: int) -> dict[str, Json]:
    """`score`: 0 - 100, what share of the bytes is how near."""
    near, far = in_rack - held, everywhere - in_rack
    score = (OWN * held + RACK * near + ELSEWHERE * far) // total if total else OWN
    return {
        "id": spot.peer.node_id.hex(),
        "name": spot.peer.name,
        "rack": spot.peer.rack,
        "answers": spot.bits is not None,
        "held": held,
        "missing": total - held,
        "score": score,
    }


def spots_of(peers: Sequence[Peer], told: Mapping[NodeId, Residency | None]) -> list[Spot]:
    """A node that knows nothing of the snapshot holds nothing."""

    def bits(peer: Peer) -> int | None:
        record = told.get(peer.node_id)
        if record is None:
            return 0 if peer.node_id in told else None
        return int.from_bytes(record.bits, "little")

    return [Spot(peer, bits(peer)) for peer in peers]


Report = Callable[[dict[str, Json]], Awaitable[None]]


async def where(node: "Node", snapshot: SnapshotId, report: Report) -> dict[str, Json]:
    """Raises SnapshotUnknown, Unavailable."""
    opened = await node.open(snapshot)
    view = node.agent.view()
    told = await _asked(node, view.others, snapshot, report)
    told[view.me] = await node.residency(snapshot)
    sizes = await node.blocking(sizes_of, opened.catalog)
    body = await node.blocking(where_body, spots_of(view.peers, told), sizes)
    record = node.names.snapshot(snapshot)
    origin = "" if record is None else record.origin
    return {"snapshot": snapshot.hex(), "segments": opened.catalog.segments, "origin": origin, **body}


async def _asked(
    node: "Node", peers: Sequence[Peer], snapshot: SnapshotId, report: Report
) -> dict[NodeId, Residency | None]:
    """What the others hold; tells meanwhile how many answered."""
    told: dict[NodeId, Residency | None] = {}

    async def tell() -> None:
        while True:
            await report({"phase": "asking nodes", "done": len(told), "total": len(peers)})
            await asyncio.sleep(REPORT_EVERY)

    async with asyncio.TaskGroup() as group:
        telling = group.create_task(tell())
        await ask_residencies(node.control, peers, snapshot, seconds=ASK_SECONDS, told=told)
        telling.cancel()
    return told
