"""The Hoard mounts that this process can see, from /proc/self/mountinfo: reading it touches no mount."""

import os
import re
from pathlib import Path
from typing import NamedTuple

FILE_SYSTEM = "fuse.hoard"
SOURCE = "hoard:"
_USER = re.compile(r"(?:^|,)user_id=(\d+)")
_ESCAPE = re.compile(rb"\\([0-7]{3})")


class MountInfo(NamedTuple):
    """One mount. `snapshot`: first 12 hex digits of its id; `device`: MAJOR:MINOR as in mountinfo; `owner`: id of the
    user who mounted it."""

    mountpoint: Path
    snapshot: str
    device: str
    mount_id: int
    owner: int

    @property
    def connection(self) -> Path:
        """The directory of the mount's connection in the fusectl file system, which may not be mounted."""
        return Path("/sys/fs/fuse/connections", self.device.partition(":")[2])


class MountLine(NamedTuple):
    """One line of mountinfo, of whatever file system (proc_pid_mountinfo(5))."""

    mount_id: int
    parent_id: int
    device: str
    mountpoint: Path
    file_system: str
    source: str
    options: str


def lines(process: int | str = "self") -> list[MountLine]:
    """Every mount in the mount namespace of a process, oldest first. Raises OSError if it ended or is closed to us."""
    return [_line(line.split(b" ")) for line in Path(f"/proc/{process}/mountinfo").read_bytes().splitlines()]


def mounts() -> list[MountInfo]:
    """Every Hoard mount in this mount namespace, oldest first (of two on one path, the last is on top)."""
    return [
        MountInfo(line.mountpoint, line.source.removeprefix(SOURCE), line.device, line.mount_id, _owner(line))
        for line in lines()
        if line.file_system == FILE_SYSTEM and line.source.startswith(SOURCE)
    ]


def mount_at(path: Path) -> MountInfo | None:
    """The Hoard mount that is on top at `path`, which must be absolute and free of symbolic links."""
    top = top_at(path)
    return next((mount for mount in mounts() if top is not None and mount.mount_id == top.mount_id), None)


def mount_of(device: str) -> MountInfo | None:
    """The Hoard mount with that MAJOR:MINOR, wherever it is."""
    return next((mount for mount in mounts() if mount.device == device), None)


def mount_around(path: Path) -> MountInfo | None:
    """The Hoard mount that the absolute `path` lies in, by its text alone."""
    found = [mount for mount in mounts() if mount.mountpoint in path.parents]
    return max(found, key=lambda mount: len(mount.mountpoint.parts), default=None)


def top_at(path: Path) -> MountLine | None:
    """Whatever is mounted on top at `path`."""
    return next((line for line in reversed(lines()) if line.mountpoint == path), None)


def locate(path: Path) -> Path:
    """`path` absolute and without symbolic links, found without touching what is mounted there.

    Only the folders above it are resolved; a symbolic link in its place is followed by its text.
    """
    mounted = {line.mountpoint for line in lines()}
    for _ in range(40):  # as many links as the kernel follows
        path = Path(os.path.realpath(path.parent)) / path.name if path.name not in ("", "..") else path.resolve()
        if path in mounted:
            break
        try:
            path = path.parent / path.readlink()
        except OSError:
            break
    return path


def _owner(line: MountLine) -> int:
    match = _USER.search(line.options)
    return int(match[1]) if match else 0


def _line(fields: list[bytes]) -> MountLine:
    dash = fields.index(b"-", 6)  # a varying number of optional fields ends with it
    return MountLine(
        mount_id=int(fields[0]),
        parent_id=int(fields[1]),
        device=fields[2].decode(),
        mountpoint=Path(_unescape(fields[4])),
        file_system=_unescape(fields[dash + 1]),
        source=_unescape(fields[dash + 2]),
        options=fields[dash + 3].decode("utf-8", "surrogateescape"),
    )


def _unescape(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field))
