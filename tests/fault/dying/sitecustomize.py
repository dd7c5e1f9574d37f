"""Kills the process that imports it, at a chosen step: `HOARD_DIES=ROLE:STEP` is what `test_node_kills` sets.

On the path of an interpreter (it imports this by itself), so that the real command and all that it starts die, or do
not, with not a line of their own changed. A step is a call that touches the disk (`killpoint`), in any thread.
"""

import os
import signal
import sys
import threading
from types import FrameType

MODULES = {
    "node": "hoard_p2p.node.main",
    "leader": "hoard_p2p.node.ingest_main",
    "worker": "hoard_p2p.node.ingest_main",
    "scrub": "hoard_p2p.node.scrub_main",
}
"""What runs in a process of each role; workers of a publish are forks of its leader."""


IMPORTS = "<frozen importlib"


def arm(role: str, step: int) -> None:
    from tests.fault.killpoint import touches_disk

    parent = os.getpid()
    left = step

    def hook(frame: FrameType, event: str, what: object) -> None:
        nonlocal left
        if event != "c_call" or not touches_disk(what) or frame.f_code.co_filename.startswith(IMPORTS):
            return
        if (os.getpid() == parent) != (role == "worker"):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(hook)
    threading.setprofile(hook)


ROLE, _, STEP = os.environ.get("HOARD_DIES", "").partition(":")
if ROLE and MODULES[ROLE] in sys.orig_argv:
    arm(ROLE, int(STEP))
