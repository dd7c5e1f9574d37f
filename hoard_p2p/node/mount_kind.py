"""What kind of mount a plan becomes: decided before it is mounted, and settled once the kernel has answered."""

import logging
from collections.abc import Callable
from pathlib import Path

from hoard_p2p.config import default_workers
from hoard_p2p.mount import kernel
from hoard_p2p.mount.backing import obstacle
from hoard_p2p.mount.kernel import Can
from hoard_p2p.mount.kind import PASSTHROUGH, choose, spread, without
from hoard_p2p.node.plan import MountPlan
from hoard_p2p.node.reading import map_catalog
from hoard_p2p.storage.layout import DataDir

log = logging.getLogger(__name__)


def with_kind(plan: MountPlan, catalog_fd: int, files: int) -> MountPlan:
    """The plan with the kind of mount that suits the snapshot and can be here, and with a number of workers (it was 0
    if the user named none). `files`: how many there are. Raises MountFailed, CatalogCorrupt."""
    catalog, mapped = map_catalog(catalog_fd)
    try:
        found = spread(files, plan.size, catalog.sizes())
    finally:
        catalog.close()
        mapped.close()
    choice = choose(plan.io_asked, plan.verify, found, obstacle(DataDir(Path(plan.data_dir)).slabs))
    if choice.io == PASSTHROUGH and plan.workers > 1:
        log.warning("a passthrough mount has one worker, --workers %d is not used", plan.workers)
    return plan._replace(io=choice.io, io_reason=choice.reason, workers=plan.workers or default_workers())


class Settlement:
    """What a supervisor asks the kernel for, and the plan as it is once the kernel has answered."""

    def __init__(self, plan: MountPlan, tell: Callable[[MountPlan], None] = lambda plan: None) -> None:
        """`tell`: called once, with the final plan."""
        passthrough = plan.io == PASSTHROUGH
        self.plan = plan
        self.wanted = kernel.PASSTHROUGH if passthrough else kernel.NO_OPEN
        self.needed = kernel.NEEDED | (Can.PASSTHROUGH if passthrough and plan.io_asked == PASSTHROUGH else Can(0))
        self._tell = tell

    def agreed(self, features: Can) -> None:
        """The kernel has answered."""
        if self.plan.io == PASSTHROUGH and Can.PASSTHROUGH not in features:
            choice = without()
            self.plan = self.plan._replace(io=choice.io, io_reason=choice.reason)
        log.info("%s is a %s mount: %s", self.plan.mountpoint, self.plan.io, self.plan.io_reason)
        self._tell(self.plan)
