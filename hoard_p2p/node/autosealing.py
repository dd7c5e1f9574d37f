"""Lazy snapshots are sealed by themselves, once every piece of them is at some node (CLUSTER 4).

Each node that has the catalog looks now and then; of those that may read the origin too, the first by rendezvous seals.
Two that do so make the same snapshot.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hoard_p2p.catalog.root import decode as decode_root
from hoard_p2p.errors import Corrupt, HoardError, ObjectChanged, Unavailable
from hoard_p2p.ids import ChunkId, SnapshotId, short
from hoard_p2p.interfaces import Residency
from hoard_p2p.node.catalogs import OpenSnapshot
from hoard_p2p.node.contents import Contents, all_known
from hoard_p2p.node.residencies import ask_residencies
from hoard_p2p.node.sealing import SEALED_KEEP, replace_lazy, seal
from hoard_p2p.peer import NodeId, origin_id
from hoard_p2p.placement import draw
from hoard_p2p.storage.records import SnapshotRecord

if TYPE_CHECKING:
    from hoard_p2p.config import Json
    from hoard_p2p.node.app import Node

log = logging.getLogger(__name__)

TICK = 2.0
LOOK_AGAIN = 30.0
"""What others hold is asked for so often while nothing changes here."""
REFUSED_AGAIN = 3600.0
ASK_SECONDS = 10.0
ASKED_PEERS = 64


@dataclass(slots=True)
class _Look:
    """The last look at a snapshot. `version`: of what is held here; `due`: when to look again whatever that is;
    `tries`: to seal it, that may go better later."""

    version: int = -1
    due: float = 0.0
    tries: int = 0


class AutoSealing:
    """For the event loop."""

    def __init__(self, node: "Node", clock: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._clock = clock
        self._looks: dict[SnapshotId, _Look] = {}
        self._lazy: dict[SnapshotId, bool] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(TICK)
            try:
                await self.look()
            except (HoardError, OSError) as error:
                log.info("lazy snapshots are not looked at now: %s", error)
            except Exception:  # the door of this task: a bug must not end the node
                log.exception("lazy snapshots were not looked at")

    async def look(self) -> None:
        """Seal what can be sealed, and is this node's to seal."""
        records = [record for record in self._node.names.snapshots() if await self._waits(record)]
        for gone in self._looks.keys() - {record.id for record in records}:
            del self._looks[gone]
        for record in records:
            await self._look_at(record)

    async def _waits(self, record: SnapshotRecord) -> bool:
        """Whether it is lazy, and not sealed already."""
        if not record.origin or record.keep == SEALED_KEEP:
            return False
        if record.id not in self._lazy:
            root = await self._node.blocking(self._node.names.root, record.id)
            if root is None:
                return False
            self._lazy[record.id] = is_lazy(root)
        return self._lazy[record.id]

    async def _look_at(self, record: SnapshotRecord) -> None:
        node, now = self._node, self._clock()
        look = self._looks.setdefault(record.id, _Look())
        opened = node.catalogs.peek(record.id) or await node.open_local(record.id)
        if opened is None or not node.known_origins.is_open(record.origin):
            return
        here = await node.blocking(node.held.residency, record.id, opened.catalog)
        if here.version == look.version and now < look.due:
            return
        look.version, look.due = here.version, now + LOOK_AGAIN
        others = await ask_residencies(
            node.control, node.agent.view().others[:ASKED_PEERS], record.id, seconds=ASK_SECONDS
        )
        told = {name: residency for name, residency in others.items() if residency is not None}
        if not _is_whole(opened.catalog.segments, [here, *told.values()]) or not self._is_mine(record, set(told)):
            return
        try:
            await self._seal(opened, record)
        except HoardError as error:
            if isinstance(error, Unavailable) and not isinstance(error, ObjectChanged):
                look.tries += 1  # each reads some of the origin again
                look.due = now + min(REFUSED_AGAIN, LOOK_AGAIN * 2 ** min(look.tries, 8))
                log.info("snapshot %s is not sealed yet: %s", short(record.id), error)
            else:
                look.due = now + REFUSED_AGAIN
                log.warning("snapshot %s is not sealed: %s", short(record.id), error)

    def _is_mine(self, record: SnapshotRecord, having: set[NodeId]) -> bool:
        """Whether this node is the one to seal it, of those that have its catalog and may read its origin."""
        view = self._node.agent.view()
        able = self._node.agent.reading(origin_id(record.origin)) & (having | {view.me})
        ranked = draw([peer for peer in view.peers if peer.node_id in able], ChunkId(record.id))
        return bool(ranked) and ranked[0].node_id == view.me

    async def _seal(self, opened: OpenSnapshot, record: SnapshotRecord) -> None:
        node, contents = self._node, Contents(opened.catalog)
        with node.leases.held(record.id, "being sealed"):
            if not await all_known(node, opened, contents):
                log.info("what %d segments of %s are made of is not known", len(contents.unknown), short(record.id))
                return
            sealed = await seal(node, opened, record, contents, _untold)
            names = await replace_lazy(node, record, sealed.snapshot)
        log.info("%s is sealed as %s; names moved: %s", short(record.id), short(sealed.snapshot), ", ".join(names))


def is_lazy(root: bytes) -> bool:
    """Whether this is the root of a lazy snapshot."""
    try:
        return decode_root(root).lazy
    except Corrupt:
        return False


def _is_whole(segments: int, held: list[Residency]) -> bool:
    """Whether every segment is somewhere."""
    bits = 0
    for record in held:
        bits |= int.from_bytes(record.bits, "little")
    return bits == (1 << segments) - 1


async def _untold(_report: "dict[str, Json]") -> None:
    """Nobody waits."""
