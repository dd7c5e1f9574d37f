"""What a node is made of, and what it notes about itself. Values only."""

import asyncio
import os
from dataclasses import dataclass, field
from functools import partial

from hoard_p2p.config import NodeSettings
from hoard_p2p.ids import SnapshotId
from hoard_p2p.storage.store import Store
from hoard_p2p.transfer.control import PeerControl
from hoard_p2p.transfer.keys import OPEN, Security


@dataclass(frozen=True, slots=True)
class MountRecord:
    """A mount that is attached to this node. `pid`: its supervisor's; `version`: of Hoard, empty if it did not say;
    `device`: MAJOR:MINOR as in mountinfo."""

    mountpoint: str
    snapshot: SnapshotId
    pid: int
    version: str = ""
    device: str = ""


@dataclass(slots=True)
class Counters:
    """What the node did since it started."""

    chunks_sent: int = 0
    bytes_sent: int = 0
    misses: int = 0
    quarantined: int = 0


@dataclass(slots=True)
class NodeParts:
    """What `Node` is made of; see `node.main` for how."""

    settings: NodeSettings
    store: Store
    control: PeerControl
    group: asyncio.TaskGroup
    stop: asyncio.Event
    boot: bytes = field(default_factory=partial(os.urandom, 16))
    security: Security = OPEN
