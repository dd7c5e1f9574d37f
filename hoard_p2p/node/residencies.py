"""What peers hold of a snapshot, asked of several at a time within a deadline (CLUSTER 2, "Residency")."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from hoard_p2p.errors import Unavailable
from hoard_p2p.ids import SnapshotId
from hoard_p2p.interfaces import Residency
from hoard_p2p.peer import NodeId, Peer
from hoard_p2p.transfer.control import PeerControl

AT_ONCE = 32


async def ask_residencies(
    control: PeerControl,
    peers: Iterable[Peer],
    snapshot: SnapshotId,
    *,
    seconds: float,
    told: dict[NodeId, Residency | None] | None = None,
) -> dict[NodeId, Residency | None]:
    """What each of the peers that answered in time holds; None: it knows nothing of the snapshot. `told` is
    filled while they answer, for who wants to look."""
    told = {} if told is None else told
    limit = asyncio.Semaphore(AT_ONCE)

    async def ask(peer: Peer) -> None:
        async with limit:
            with suppress(Unavailable):
                told[peer.node_id] = await control.residency(peer, snapshot)

    with suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for peer in peers:
                group.create_task(ask(peer))
    return told
