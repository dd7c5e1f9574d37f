"""How a supervisor is started that takes a living mount over (`node.mount_supervisor`)."""

import sys
from collections.abc import Sequence

from hoard_p2p.mount.shared import MountFds

ADOPTER = (sys.executable, "-m", "hoard_p2p.node.mount_supervisor")


def adopter(fds: MountFds, plan: str, *, take_over: bool = False, command: Sequence[str] = ADOPTER) -> list[str]:
    """The command with its arguments; the descriptors `fds.all` are to be handed over under the same numbers, and it is
    to run in `/` (Python looks for modules in the folder that it is started in). `plan`: as it is encoded, with what
    another version may have put there."""
    return [*command, fds.encode(), plan, *(["--take-over"] if take_over else [])]
