"""A worker process of a mount: the mount room's loop over this node's store and socket. A fork of the supervisor."""

from functools import partial
from pathlib import Path

from hoard_p2p.mount.shared import WorkerSlot
from hoard_p2p.mount.succession import start_detached
from hoard_p2p.mount.worker import Worker
from hoard_p2p.node.adopting import adopter
from hoard_p2p.node.misses import NodeMisses
from hoard_p2p.node.plan import MountPlan
from hoard_p2p.node.reading import map_catalog
from hoard_p2p.node.through import ThroughNode, open_chunks


def serve(slot: WorkerSlot, plan: MountPlan) -> int:
    """Be a worker until the mount is gone; the exit status."""
    data_dir = Path(plan.data_dir)
    catalog, _mapped = map_catalog(slot.fds.catalog)
    misses = NodeMisses(data_dir, plan.snapshot, plan.timeout, fill=plan.fill)
    with open_chunks(data_dir, plan.through, plan.mountpoint) as chunks:
        Worker(
            slot,
            catalog=catalog,
            chunks=chunks,
            misses=misses,
            options=plan.options,
            size=plan.size,
            slabs=chunks,
            expect=chunks.expect if isinstance(chunks, ThroughNode) else None,
            adopt=partial(start_detached, adopter(slot.fds, plan.encode()), slot.fds.all),
        ).run()
    return 0
