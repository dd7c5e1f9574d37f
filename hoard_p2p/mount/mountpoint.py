"""Is this a place to mount on? Checked before anything is mounted, so that the message can say what to do."""

import errno
import logging
import os
import sys
from enum import Enum
from pathlib import Path
from shlex import quote

from hoard_p2p.errors import BadRequest, MountFailed, PathNotFound
from hoard_p2p.mount.attach import detach_lazily
from hoard_p2p.mount.mountinfo import locate, mount_at

log = logging.getLogger(__name__)

PROBE_DEADLINE = 5.0
_PROBE = "import os, sys\ntry: os.statvfs(sys.argv[1])\nexcept OSError as error: sys.exit(error.errno)"


def prepare(mountpoint: Path) -> Path:
    """The folder to mount on, absolute and free of links; a dead Hoard mount on it is detached first.

    Raises PathNotFound if it does not exist, BadRequest if it is no folder, MountFailed if a living mount of ours is on
    it.
    """
    path = locate(mountpoint)
    while mount := mount_at(path):
        if life_of(path) is not Life.DEAD:
            raise MountFailed(
                f"snapshot {mount.snapshot} is mounted on {path} already; hoard umount {quote(str(path))}, "
                "or choose another folder"
            )
        log.warning("%s had a dead mount of snapshot %s on it; detached", path, mount.snapshot)
        detach_lazily(path)
    try:
        is_folder = path.is_dir()
    except OSError as error:
        advice = f"; umount -l {quote(str(path))}" if error.errno == errno.ENOTCONN else ""
        raise MountFailed(f"cannot mount on {path}: {error.strerror}{advice}") from error
    if not is_folder:
        if os.path.lexists(path):
            raise BadRequest(f"cannot mount on {path}: it is no folder; choose one")
        raise PathNotFound(f"cannot mount on {path}: it does not exist; mkdir -p {quote(str(path))}")
    return path


class Life(Enum):
    """Whether somebody serves a mount."""

    SERVED = "served"
    DEAD = "dead"
    SILENT = "silent"
    """It gave no answer in time."""


def life_of(path: Path) -> Life:
    """Asked by another process, since one that asks a mount may hang. (`stat` would not do: the kernel answers it from
    its cache for ever.)"""
    import subprocess

    probe = subprocess.Popen([sys.executable, "-I", "-S", "-c", _PROBE, str(path)])
    try:
        dead = probe.wait(PROBE_DEADLINE) in (errno.ENOTCONN, errno.ECONNABORTED)
    except subprocess.TimeoutExpired:
        probe.kill()  # not waited for: a request that a killed worker has read cannot be interrupted
        return Life.SILENT
    return Life.DEAD if dead else Life.SERVED
