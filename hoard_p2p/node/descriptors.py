"""How many files this process may have open, and what is said when they, or memory, do not suffice."""

import errno
import resource

from hoard_p2p.errors import Refused, StoreFailed

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


def no_files_left(what: str) -> StoreFailed:
    """What to say when this process, or the machine, has no descriptor left."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return StoreFailed(
        f"{what} failed: no file descriptor is left (this process may have {limit}); nothing was changed, try again; "
        "if it stays so, raise the limit (ulimit -n, LimitNOFILE= of systemd) and restart it"
    )


def explained(error: BaseException, what: str) -> StoreFailed | None:
    """In words what a machine's limits made of `what`; None if it was something else."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for one in error.exceptions if (found := explained(one, what)) is not None), None)
    number = error.errno if isinstance(error, OSError) else errno.ENOMEM if isinstance(error, MemoryError) else 0
    if number in (errno.EMFILE, errno.ENFILE):
        return no_files_left(what)
    if number in (errno.ENOMEM, errno.EAGAIN):
        return StoreFailed(
            f"{what} failed: {error or 'no memory is left'}; nothing was changed, try again when there is more memory, "
            "or raise ulimit -v or -u"
        )
    return None
