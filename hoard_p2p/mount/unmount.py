"""Ending a mount from outside: politely, naming who is in the way, or by force."""

import logging
import os
import select
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from shlex import quote

from hoard_p2p.errors import BadRequest, HoardError, MountBusy, MountFailed, NotFound, PathNotFound
from hoard_p2p.mount.attach import detach, detach_aborting
from hoard_p2p.mount.mountinfo import FILE_SYSTEM, MountInfo, lines, locate, mount_around, mount_at, mount_of, top_at
from hoard_p2p.mount.users import crews, end, memories, nested, servers, users

log = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds that the mount's processes have to end in."""
SETTLE = 1.0
"""Seconds in which a user that nobody can see may go away: one that closes its last file just now."""
SHOWN_USERS = 8


def unmount(mountpoint: Path, *, force: bool = False) -> None:
    """Unmount and wait up to 5 s until the mount's processes are gone (those that this user can see).

    `force`: always succeeds; who waits for an answer gets an error. Never touches the mount, so cannot hang on it.
    Raises NotFound if there is no Hoard mount, BadRequest if there can be none, MountBusy naming its users,
    MountFailed.
    """
    mount = mount_around(mountpoint.absolute())
    if mount is not None:  # not even looked at: it may not answer
        raise _inside(mountpoint, mount)
    path = locate(mountpoint)
    mount = mount_at(path)
    if mount is None:
        raise _no_mount(path)
    if os.geteuid() not in (0, mount.owner):
        raise MountFailed(f"{path} was mounted by user {mount.owner}; only they and root can unmount it")
    if force:
        _end_by_force(mount)
    else:
        _end_politely(mount)


def _inside(path: Path, mount: MountInfo) -> NotFound:
    point = mount.mountpoint
    return NotFound(f"{path} lies in the mount on {point}; hoard umount {quote(str(point))}")


def _no_mount(path: Path) -> HoardError:
    """What is the matter with a path that no Hoard mount is on."""
    advice = "hoard status lists the mounts"
    other, around = top_at(path), mount_around(path)
    if other is not None:
        return NotFound(f"{path} is no hoard mount: what is mounted there is {other.file_system}; {advice}")
    if around is not None:
        return _inside(path, around)
    server = _elsewhere(path)
    if server is not None:
        return NotFound(f"{path} is not mounted in this mount namespace, but in that of pid {server}; unmount it there")
    if not os.path.lexists(path):
        return PathNotFound(f"{path} does not exist; {advice}")
    if not path.is_dir():
        return BadRequest(f"{path} is no folder; {advice}")
    return NotFound(f"{path} is no hoard mount: nothing is mounted there; {advice}")


def _elsewhere(path: Path) -> int | None:
    """A process that serves a Hoard mount which it sees on `path`, and we do not."""
    for pid in sorted(pid for pids in crews().values() for pid in pids):
        with suppress(OSError):
            if any(line.mountpoint == path and line.file_system == FILE_SYSTEM for line in lines(pid)):
                return pid
    return None


def _end_politely(mount: MountInfo) -> None:
    ours = memories(mount)  # once it is detached, another mount may have its number
    with ExitStack() as stack:
        pidfds = _watch(servers(mount, ours), stack)
        _detach_politely(mount)
        end(mount, ours)
        left = _wait(pidfds, PATIENCE)
        left += _wait(_watch(servers(mount, ours), stack), PATIENCE)  # a supervisor that was just taking over
        if left:
            log.warning("%s is unmounted, but its processes have not ended; they are killed", mount.mountpoint)
            _end(left)


def _end_by_force(mount: MountInfo) -> None:
    ours = memories(mount)
    end(mount, ours)  # before all else, so that nobody revives what is killed now
    with ExitStack() as stack:
        pidfds = _watch(servers(mount, ours), stack)
        _abort(mount)
        _detach_by_force(mount)
        _end(pidfds)
        _end(_watch(servers(mount, ours), stack))  # who was just starting


def _detach_by_force(mount: MountInfo) -> None:
    try:
        detach_aborting(mount.mountpoint)
    except MountFailed:
        if mount_of(mount.device) is not None:  # else its supervisor, told by a signal, was faster
            raise


def _detach_politely(mount: MountInfo) -> None:
    deadline = time.monotonic() + SETTLE
    while True:
        try:
            detach(mount.mountpoint)
            return
        except MountBusy as error:
            who = [*users(mount), *(f"the mount {inner}" for inner in nested(mount))]
            if who or time.monotonic() > deadline:
                raise MountBusy(_describe(mount, [str(user) for user in who])) from error
            time.sleep(0.05)


def _describe(mount: MountInfo, who: Sequence[str]) -> str:
    shown = ", ".join(who[:SHOWN_USERS]) or "processes that cannot be seen from here (another user's, or a container's)"
    more = f" and {len(who) - SHOWN_USERS} more" if len(who) > SHOWN_USERS else ""
    force = f"hoard umount --force {quote(str(mount.mountpoint))}"
    return f"{mount.mountpoint} is in use by {shown}{more}; end them, or: {force}"


def _abort(mount: MountInfo) -> None:
    """Break the connection, if the fusectl file system is there; its owner may, not only root."""
    try:
        (mount.connection / "abort").write_text("1")
    except OSError as error:
        log.debug("no abort through fusectl: %s", error.strerror)


def _watch(pids: Sequence[int], stack: ExitStack) -> list[int]:
    """Descriptors that stay bound to these very processes."""
    pidfds = []
    for pid in pids:
        with suppress(OSError):
            pidfds.append(os.pidfd_open(pid))
            stack.callback(os.close, pidfds[-1])
    return pidfds


def _end(pidfds: Sequence[int]) -> None:
    """Terminate the mount's processes: that closes the last descriptors, which frees every reader."""
    left = pidfds
    for number, patience in ((signal.SIGTERM, PATIENCE), (signal.SIGKILL, PATIENCE)):
        for pidfd in left:
            with suppress(OSError):
                signal.pidfd_send_signal(pidfd, number)
        left = _wait(left, patience)
        if not left:
            return
    raise MountFailed(f"{len(left)} processes of the mount do not end; they wait for a disk, see dmesg")


def _wait(pidfds: Sequence[int], patience: float) -> list[int]:
    """Wait until all have ended; those that have not."""
    deadline = time.monotonic() + patience
    left = set(pidfds)
    while left and (remaining := deadline - time.monotonic()) > 0:
        poll = select.poll()
        for pidfd in left:
            poll.register(pidfd, select.POLLIN)
        left -= {pidfd for pidfd, _ in poll.poll(remaining * 1000)}
    return sorted(left)
