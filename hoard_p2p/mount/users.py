"""Who uses a mount, and who serves it, from /proc alone: nothing here asks the mount itself anything."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hoard_p2p.mount.mountinfo import MountInfo, lines

_MOUNT_ID = re.compile(rb"^mnt_id:\s*(\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class User:
    """A process with something in a mount. `how`: what, in words."""

    pid: int
    command: str
    how: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.command}: {self.how})"


def shared_name(device: str) -> str:
    """The name of the shared memory of the mount with that MAJOR:MINOR; every process of the mount has it open."""
    return f"hoard-mount-{device}"


def users(mount: MountInfo) -> list[User]:
    """The processes that keep `mount` busy, of those that we may look into (all of them as root); not this one."""
    found = []
    for process in _processes():
        if int(process.name) == os.getpid():
            continue
        how = _use(process, mount)
        if how is not None:
            found.append(User(int(process.name), _command(process), how))
    return found


def nested(mount: MountInfo) -> list[Path]:
    """Other mounts inside `mount`, which keep it busy too."""
    return [line.mountpoint for line in lines() if line.parent_id == mount.mount_id]


def servers(mount: MountInfo) -> list[int]:
    """The pids of the mount's supervisor and workers, of those that we may look into."""
    link = f"/memfd:{shared_name(mount.device)} (deleted)"
    return [
        int(process.name)
        for process in _processes()
        if int(process.name) != os.getpid() and any(_link(entry) == link for entry in _listing(process / "fd"))
    ]


def _processes() -> Iterator[Path]:
    return (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _use(process: Path, mount: MountInfo) -> str | None:
    for name, words in (("cwd", "works in it"), ("root", "has it as root"), ("exe", "runs a program from it")):
        if _inside(_link(process / name), mount):
            return words
    for entry in _listing(process / "fd"):
        target = _link(entry)
        if target.startswith("/") and _mount_id(process / "fdinfo" / entry.name) == mount.mount_id:
            return f"has {target} open"
    return _mapping(process, mount)


def _mapping(process: Path, mount: MountInfo) -> str | None:
    """Maps name the device in hexadecimal (proc_pid_maps(5)), mountinfo in decimal."""
    major, minor = map(int, mount.device.split(":"))
    device = b"%02x:%02x" % (major, minor)
    for line in _read(process / "maps").splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[3] == device:
            return f"has {os.fsdecode(fields[5])} mapped"
    return None


def _inside(target: str, mount: MountInfo) -> bool:
    path = str(mount.mountpoint)
    return target == path or target.startswith(path + "/")


def _mount_id(fdinfo: Path) -> int:
    match = _MOUNT_ID.search(_read(fdinfo))
    return int(match[1]) if match else -1


def _command(process: Path) -> str:
    words = [os.fsdecode(word) for word in _read(process / "cmdline").split(b"\0")[:3] if word]
    return " ".join(words) or os.fsdecode(_read(process / "comm").strip()) or "?"


def _listing(folder: Path) -> list[Path]:
    """Empty if the process ended or is none of our business."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _link(path: Path) -> str:
    try:
        return os.readlink(path)  # a Path would tidy links that are no paths
    except OSError:
        return ""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
