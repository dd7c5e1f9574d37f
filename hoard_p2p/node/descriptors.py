"""How many files this process may have open, and that it may have enough."""

import resource

from hoard_p2p.errors import Refused

NODE_FILES = 64
"""What a node has open with one publish and a few clients; with peers and mounts it wants thousands."""
MOUNT_FILES = 32
"""What a process of a mount has open beside a device for each worker (20 were counted)."""


def allow_files(least: int, who: str) -> None:
    """Let this process have as many files open as it may. Raises Refused if that are fewer than `least`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < least:
        raise Refused(
            f"{who} needs at least {least} open files, and this process may have {hard}: raise the limit "
            f"(ulimit -Hn {least} or more, LimitNOFILE= of systemd, --ulimit nofile= of docker)"
        )
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
