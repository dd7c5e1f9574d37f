"""What `hoard doctor` looks at in and around the data directory: whether its file system can do what the store needs,
who reads it how, and what was left behind. Writes nothing that outlives the check.
"""

import fcntl
import os
import shutil
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from shlex import quote

from hoard_p2p.config import Json
from hoard_p2p.errors import HoardError
from hoard_p2p.node import framing
from hoard_p2p.node.checkup import Check, Finding, Patient, Verdict, failure, ok, warning
from hoard_p2p.node.client import NodeClient, Patience
from hoard_p2p.node.ingest import SCRATCH, sweep
from hoard_p2p.node.through import elsewhere
from hoard_p2p.printing import size_text
from hoard_p2p.storage.environment import MAX_READERS
from hoard_p2p.storage.layout import DataDir
from hoard_p2p.storage.lock import NodeLock, held_by
from hoard_p2p.storage.punching import Span, punch
from hoard_p2p.storage.readertable import entries, require_lock

ASK = Patience(quick=10.0)
_SAMPLE, _HOLE = 256 << 10, Span(64 << 10, 192 << 10)
_F_OFD_SETLK = 37  # linux/fcntl.h
MUCH_LOG = 256 << 20
CROWDED = 0.75
TOLERANCE = 20
"""A disk that is short of this part of the capacity is none to warn of: others use it, too."""


def permissions(patient: Patient) -> Iterator[Finding]:
    if not patient.data_dir.exists():
        return
    status = patient.data_dir.stat()
    yield judge_permissions(patient.data_dir, status.st_mode, status.st_uid, os.geteuid())


def judge_permissions(path: Path, mode: int, owner: int, user: int) -> Finding:
    says = f"{path} is of user {owner}, mode {stat.S_IMODE(mode):04o}"
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return failure(f"{says}: anybody may replace what is in it", f"chmod o-w {quote(str(path))}")
    if owner != user:
        return warning(f"{says}, you are {user}: its node and mounts are that user's", "be that user for all commands")
    return ok(says)


def features(patient: Patient) -> Iterator[Finding]:
    """Tried on a file without a name, which goes with its descriptor."""
    path = patient.data_dir
    if not path.exists() or not os.access(path, os.W_OK):
        yield ok("not tried, since the data directory is not there, or not writable, for this user")
        return
    try:
        fd = os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        yield warning(f"its file system has no files without names ({error.strerror}): nothing was tried on it",
                      "choose a --data-dir on ext4 or xfs if anything fails")  # fmt: skip
        return
    try:
        yield from _tried(fd)
    finally:
        os.close(fd)


def _tried(fd: int) -> Iterator[Finding]:
    os.pwrite(fd, b"\1" * _SAMPLE, 0)
    os.fsync(fd)
    lacking = [name for name, has in (("fallocate", _reserves(fd)), ("locks", _locks(fd))) if not has]
    if lacking:
        yield failure(
            f"its file system lacks {' and '.join(lacking)}", "choose a --data-dir on a local disk, ext4 or xfs"
        )
    elif not _punches(fd):
        yield warning(
            "its file system cannot punch holes: room of single chunks does not return to the disk, only whole slabs",
            "choose a --data-dir on ext4, xfs or btrfs",
        )
    else:
        yield ok("its file system reserves, punches holes and locks")


def _reserves(fd: int) -> bool:
    try:
        os.posix_fallocate(fd, 0, 2 * _SAMPLE)
    except OSError:
        return False
    return os.fstat(fd).st_blocks * 512 >= 2 * _SAMPLE


def _punches(fd: int) -> bool:
    try:
        freed = punch(fd, [_HOLE])
    except OSError:
        return False
    zeros = os.pread(fd, _HOLE.end - _HOLE.start, _HOLE.start)
    return freed > 0 and not any(zeros)


def _locks(fd: int) -> bool:
    """Whether another open of the same file is kept out, by flock and by a lock of the open file."""
    with suppress(OSError):
        other = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            fcntl.fcntl(fd, _F_OFD_SETLK, whole)
            return _refuses(lambda: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)) and _refuses(
                lambda: fcntl.fcntl(other, _F_OFD_SETLK, whole)
            )
        finally:
            os.close(other)
    return False


def _refuses(lock: Callable[[], object]) -> bool:
    try:
        lock()
    except BlockingIOError:
        return True
    return False


def _ask(patient: Patient, op: str) -> dict[str, Json]:
    """What the node answers; nothing if it does not."""
    try:
        with NodeClient.connect(patient.data_dir, ASK) as client:
            return client.call(op, {}).body
    except HoardError:
        return {}


def damage(patient: Patient) -> Iterator[Finding]:
    """Chunks that were found damaged and are not healed."""
    scrub = _ask(patient, "status").get("scrub")
    count = _count(scrub, "damaged") if isinstance(scrub, dict) else 0
    if count:
        yield warning(
            f"{count:,} chunks were found damaged, and nobody has a good copy",
            "hoard scrub names their files; publish the source again to heal them",
        )


def room(patient: Patient) -> Iterator[Finding]:
    """What the store may take against what its disk has."""
    store = _ask(patient, "capacity")  # a status would ask peers, too
    if store:
        yield judge_room(_count(store, "capacity"), _count(store, "used"), _count(store, "floor"),
                         shutil.disk_usage(patient.data_dir).free)  # fmt: skip


def judge_room(capacity: int, used: int, floor: int, free: int) -> Finding:
    """Bytes; `floor`: what the store leaves free for others."""
    says = f"{size_text(used)} of {size_text(capacity)} used, the disk has {size_text(free)} free"
    if free < floor:
        return warning(f"{says}, less than the {size_text(floor)} that are for others: nothing is stored", "make room")
    if max(0, capacity - used) - (free - floor) > capacity // TOLERANCE:
        return warning(f"{says}: it is full before the capacity is reached", "make room, or lower the capacity")
    return ok(says)


def reading(patient: Patient) -> Iterator[Finding]:
    """How a mount or a command of this user would read: the index itself, or through the node."""
    index, door = DataDir(patient.data_dir).index, patient.data_dir / framing.SOCKET_NAME
    try:
        if not (index / "lock.mdb").exists():
            return
        reachable = not door.exists() or os.access(door, os.W_OK)
    except PermissionError:
        reachable = os.access(door, os.W_OK)
    if reachable:
        yield judge_reading(_why_through(patient, index))
    else:
        yield failure("this user may neither open the index nor reach the node", "be the user whose node it is")


def _why_through(patient: Patient, index: Path) -> str:
    with suppress(HoardError), NodeClient.connect(patient.data_dir, ASK) as client:
        if why := elsewhere(client.call("ping", {}).body, client.node_pid):
            return why
    try:
        require_lock(index)
    except OSError as error:
        return f"the index may not be opened ({error})"
    return ""


def judge_reading(why: str) -> Finding:
    if why:
        return warning(
            f"mounts and commands of this user read through the node: {why}",
            "that is right, and slower; run them beside the node (hostPID in Kubernetes) and as its user",
        )
    return ok("mounts and commands of this user read the index themselves")


def readers(patient: Patient) -> Iterator[Finding]:
    index = DataDir(patient.data_dir).index
    if (index / "lock.mdb").exists():
        yield judge_readers(entries(index))


def judge_readers(pids: list[int]) -> Finding:
    says = f"{len(pids):,} of {MAX_READERS:,} readers' entries of the index are taken"
    if len(pids) >= MAX_READERS * CROWDED:
        most = max(set(pids), key=pids.count)
        return warning(f"{says}, most by pid {most}", f"once they are gone, others read through the node: kill {most}")
    return ok(says)


def lock(patient: Patient) -> Iterator[Finding]:
    """Whether the files that tell of the node are those of a node that runs."""
    layout = DataDir(patient.data_dir)
    if not layout.format.exists():
        return
    pid = held_by(layout.lock)
    missing = [path.name for path in (layout.lock, patient.data_dir / framing.SOCKET_NAME) if not path.exists()]
    if pid and missing:
        yield failure(
            f"the node (pid {pid}) runs, and its {' and '.join(missing)} was deleted: commands may not find it",
            f"restart it: kill {pid}, then hoard up",
        )
    else:
        yield ok(f"held by the node, pid {pid}" if pid else "no node that can be seen from here holds it")


def scratch(patient: Patient) -> Iterator[Finding]:
    """What publishes of a killed node left; the next node removes it."""
    size = _size_of(patient.data_dir / SCRATCH)
    if not size:
        return
    if held_by(DataDir(patient.data_dir).lock):
        yield ok(f"{size_text(size)} of temporary files; a node runs, which may be publishing")
        return
    yield Finding(
        Verdict.WARNING,
        f"{size_text(size)} of temporary files were left by a node that was killed",
        "the next hoard up removes them, or: hoard doctor --fix",
        partial(_sweep, patient.data_dir),
    )


def _sweep(data_dir: Path) -> str:
    held = NodeLock(DataDir(data_dir).lock)
    try:
        sweep(data_dir)
    finally:
        held.release()
    return "they are removed now"


def logs(patient: Patient) -> Iterator[Finding]:
    folder = patient.data_dir / "log"
    if not folder.exists():
        return
    size = _size_of(folder)
    if size <= MUCH_LOG:
        yield ok(f"{size_text(size)} in {folder}")
        return
    old = [path for path in folder.iterdir() if path.name.endswith(".log.1")]
    yield Finding(
        Verdict.WARNING,
        f"{size_text(size)} in {folder}",
        "hoard doctor --fix removes the logs that were put aside" if old else "have logrotate copy and truncate them",
        partial(_remove, old) if old else None,
    )


def _remove(paths: list[Path]) -> str:
    for path in paths:
        path.unlink(missing_ok=True)
    return f"{', '.join(path.name for path in paths)} removed"


def _size_of(folder: Path) -> int:
    """Bytes on the disk below a folder; 0 if there is none."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total


def _count(body: dict[str, Json], key: str) -> int:
    value = body.get(key)
    return value if isinstance(value, int) else 0


CHECKS = (
    Check("owner", permissions),
    Check("file system", features),
    Check("room", room),
    Check("damage", damage),
    Check("reading", reading),
    Check("readers", readers),
    Check("lock", lock),
    Check("temporary files", scratch),
    Check("log", logs),
)
