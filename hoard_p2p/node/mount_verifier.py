"""The verifier process of a mount: the mount room's loop over this node's store. A fork of the supervisor."""

from pathlib import Path

from hoard_p2p.mount.shared import WorkerSlot
from hoard_p2p.mount.verifier import Verifier
from hoard_p2p.node.misses import NodeMisses
from hoard_p2p.node.plan import MountPlan
from hoard_p2p.node.reading import map_catalog
from hoard_p2p.node.through import open_chunks


def serve_verifier(slot: WorkerSlot, plan: MountPlan) -> int:
    """Verify ahead of the mount's readers until it is gone; the exit status."""
    data_dir = Path(plan.data_dir)
    catalog, _mapped = map_catalog(slot.fds.catalog)
    misses = NodeMisses(data_dir, plan.snapshot, plan.timeout, fill=plan.fill)
    with open_chunks(data_dir, plan.through, plan.mountpoint) as chunks:
        Verifier(slot, catalog=catalog, chunks=chunks, slabs=chunks, misses=misses, options=plan.options).run()
    return 0
