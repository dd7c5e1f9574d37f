"""`python -m hoard_p2p.node.mount_supervisor FDS PLAN [--take-over]`: become the supervisor of a living mount.

FDS is `MountFds.encode()` of inherited descriptors, PLAN is `MountPlan.encode()`. Ends quietly, with status 0, if the
mount has a supervisor (unless `--take-over`: that one is killed and all its processes are replaced), is gone, or is
being ended on purpose.
"""

import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import hoard_p2p.node.mount_verifier  # noqa: F401 - now, since its file may be of another version when it is needed
from hoard_p2p.mount.shared import MountFds
from hoard_p2p.node.mount_kind import Settlement
from hoard_p2p.node.mounting import become_daemon, mount_log, supervisor_of
from hoard_p2p.node.plan import MountPlan

log = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    fds, plan = MountFds.parse(arguments[0]), MountPlan.parse(arguments[1])
    become_daemon(mount_log(Path(plan.data_dir)))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who started us may have ignored it, and we wait for children
    for fd in fds.all:
        os.set_inheritable(fd, False)
    try:
        return supervisor_of(Settlement(plan)).adopt(fds, take_over="--take-over" in arguments[2:])
    except Exception:
        log.exception("the mount on %s cannot be taken over", plan.mountpoint)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
