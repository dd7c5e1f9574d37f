"""A worker process of a mount: the mount room's loop over this node's store and socket. Exec'ed by the supervisor."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from hoard_p2p.mount.shared import WorkerSlot
from hoard_p2p.mount.worker import Worker
from hoard_p2p.node.misses import NodeMisses
from hoard_p2p.node.mounting import MountPlan
from hoard_p2p.node.reading import map_catalog
from hoard_p2p.storage.reader import StoreReader

log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Arguments: the worker's slot, the supervisor's pid, the mount's plan."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s")
    slot, plan = WorkerSlot.parse(argv[0]), MountPlan.parse(argv[2])
    data_dir = Path(plan.data_dir)
    catalog, _mapped = map_catalog(plan.catalog_fd)
    misses = NodeMisses(data_dir, plan.snapshot, plan.mountpoint, int(argv[1]), plan.timeout)
    with StoreReader.open(data_dir) as chunks:
        Worker(slot, catalog=catalog, chunks=chunks, misses=misses, options=plan.options, size=plan.size).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
