"""A change of what a node knows of snapshots and refs, while it is made."""

import logging
from dataclasses import dataclass

from hoard_p2p.ids import SnapshotId
from hoard_p2p.node.names_wire import label
from hoard_p2p.storage.records import RefRecord, SnapshotRecord

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Draft:
    """What will be known after a change; private copies."""

    snapshots: dict[SnapshotId, SnapshotRecord]
    refs: dict[str, RefRecord]
    snapshots_changed: bool = False
    refs_changed: bool = False


@dataclass(slots=True)
class Refusals:
    """Counts what a peer told and we do not take, so that one warning tells of all."""

    count: int = 0
    first: str = ""

    def add(self, error: Exception) -> None:
        self.count += 1
        self.first = self.first or label(str(error))[:200]

    def warn(self, sender: str) -> None:
        if self.count:
            log.warning("%s told %d records that are left out; the first: %s", label(sender), self.count, self.first)
