"""How a supervisor is started that takes a living mount over (`node.mount_supervisor`)."""

import sys

from hoard_p2p.mount.shared import MountFds
from hoard_p2p.node.plan import MountPlan


def adopter(fds: MountFds, plan: MountPlan, *, take_over: bool = False) -> list[str]:
    """The command; the descriptors `fds.all` are to be handed over under the same numbers."""
    command = [sys.executable, "-m", "hoard_p2p.node.mount_supervisor", fds.encode(), plan.encode()]
    return [*command, "--take-over"] if take_over else command
