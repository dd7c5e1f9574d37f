"""Who uses a mount, and who serves it, from /proc alone: nothing here asks the mount itself anything."""

import logging
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hoard_p2p.mount.mountinfo import MountInfo, lines
from hoard_p2p.mount.shared import SharedState

log = logging.getLogger(__name__)

_DELETED = " (deleted)"
_SHARED = re.compile(r"/memfd:hoard-mount-(\d+:\d+) \(deleted\)")
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


def device_of(shared_fd: int) -> str:
    """MAJOR:MINOR of the mount whose shared memory that is, by its name."""
    return _link(Path(f"/proc/self/fd/{shared_fd}")).removeprefix(f"/memfd:{shared_name('')}").removesuffix(_DELETED)


def holds(pid: int, shared_fd: int) -> bool:
    """Whether a process has this very shared memory open (a number may have been given to another process)."""
    ours = os.fstat(shared_fd).st_ino
    return any(inode == ours for _, inode in _memories(Path(f"/proc/{pid}"), device_of(shared_fd)))


def memories(mount: MountInfo) -> frozenset[int]:
    """What tells this mount's processes from those of a later one with its device number: the inodes of the shared
    memory that goes by that number while the mount is there. (The kernel gives a number away again at once.)"""
    return frozenset(inode for _, _, inode in _holders(mount.device))


def servers(mount: MountInfo, ours: Collection[int] | None = None) -> list[int]:
    """The pids of the mount's supervisor, workers and verifier, of those that we may look into. (The node too holds
    the mount's descriptors, and is none of them.) `ours`: its `memories`, needed when it may be gone by now."""
    crews: dict[int, set[int]] = {}  # by inode of the shared memory
    found = set()
    for process, entry, inode in _holders(mount.device):
        if ours is not None and inode not in ours:
            continue
        if inode not in crews:
            crews[inode] = _crew(entry)
        if int(process.name) in crews[inode]:
            found.add(int(process.name))
    return sorted(found)


def crews() -> dict[str, list[int]]:
    """Who serves which mount, of the processes that we may look into: pids by MAJOR:MINOR. Also of mounts that are in
    no tree that we see: taken out while in use, or another container's."""
    found: dict[str, list[int]] = {}
    for process in _processes():
        names = {match[1] for entry in _listing(process / "fd") if (match := _SHARED.fullmatch(_link(entry)))}
        for device in names:
            if any(int(process.name) in _crew(entry) for entry, _ in _memories(process, device)):
                found.setdefault(device, []).append(int(process.name))
    return found


def reads_from(device: str, folder: Path) -> bool | None:
    """Whether the mount with that MAJOR:MINOR belongs to the data directory `folder`: whether one of its processes, or
    the node that keeps its descriptors, has a file of it open. None if we may look into no such process."""
    processes = {process for process, _, _ in _holders(device)}
    below = os.path.realpath(folder) + "/"
    if any(_link(entry).startswith(below) for process in processes for entry in _listing(process / "fd")):
        return True
    return False if processes else None


def end(mount: MountInfo, ours: Collection[int]) -> None:
    """Tell the mount's processes that it is being ended on purpose: nobody takes a dead one's place from now on.
    `ours`: its `memories`."""
    ended = set()
    for _, entry, inode in _holders(mount.device):
        if inode in ours and inode not in ended:
            with _opened(entry) as shared:
                if shared is not None:
                    shared.end()
                    ended.add(inode)


def _crew(entry: Path) -> set[int]:
    with _opened(entry) as shared:
        if shared is None:
            return set()
        return {shared.supervisor, *(shared.slot(number).process for number in range(shared.workers + 1))}


@contextmanager
def _opened(entry: Path) -> Iterator[SharedState | None]:
    """The shared memory behind an entry of /proc/PID/fd; None if the process ended or is none of our business."""
    fd, shared = -1, None
    try:
        fd = os.open(entry, os.O_RDWR | os.O_CLOEXEC)
        shared = SharedState(fd)
    except (OSError, ValueError) as error:
        log.debug("%s cannot be looked into: %s", entry, error)
    try:
        yield shared
    finally:
        if shared is not None:
            shared.close()
        elif fd >= 0:
            os.close(fd)


def _holders(device: str) -> Iterator[tuple[Path, Path, int]]:
    """Each other process that has the shared memory of the mount with that MAJOR:MINOR open, the entry of its table
    that has, and the memory's inode. (Memory of a dead mount, whose number was given away again, has another inode.)"""
    for process in _processes():
        if int(process.name) != os.getpid():
            for entry, inode in _memories(process, device):
                yield process, entry, inode


def _memories(process: Path, device: str) -> Iterator[tuple[Path, int]]:
    name = f"/memfd:{shared_name(device)}{_DELETED}"
    for entry in _listing(process / "fd"):
        if _link(entry) == name:  # nothing else is touched: it might lie in a mount
            with suppress(OSError):
                yield entry, entry.stat().st_ino


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
