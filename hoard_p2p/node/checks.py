"""What `hoard doctor` looks at: one function a check, and the table of them.

A check reads (thin) and judges (`judge_*`, pure). To add one: write the function, add a line to `CHECKS`.
"""

import os
import re
import resource
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from shlex import quote

from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest, DeadlineExceeded, HoardError, NoNode, Refused
from hoard_p2p.mount.attach import DEVICE, detach_lazily, obstacle
from hoard_p2p.mount.backing import file_system
from hoard_p2p.mount.backing import obstacle as passthrough_obstacle
from hoard_p2p.mount.mountinfo import MountInfo, mounts
from hoard_p2p.mount.mountpoint import Life, life_of
from hoard_p2p.mount.users import crews, reads_from
from hoard_p2p.node import directory, environment, store_checks
from hoard_p2p.node.checkup import Check, Finding, Patient, Verdict, failure, number_in, ok, warning
from hoard_p2p.node.client import NodeClient, Patience
from hoard_p2p.storage.condition import State, is_read_only
from hoard_p2p.storage.layout import DataDir

OLDEST, NEWEST_NEED = (5, 4), (6, 9)
"""Linux versions: below the first nothing can be mounted, from the second on everything works."""
FEW_FILES = 4096
LITTLE_BACKGROUND = 1024
LITTLE_ROOM = 0.05
UNEVEN = 1.25
PING = Patience(quick=5.0)
_BACKGROUND = Path("/sys/module/fuse/parameters")
_DEVICES = Path("/sys/class/bdi")
_VOLATILE = ("tmpfs", "ramfs")
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "fuse", "9p", "virtiofs", "lustre", "ceph", "fuse.hoard")


# --- the machine


def fuse(patient: Patient) -> Iterator[Finding]:
    why = obstacle()
    if why:
        yield failure("nothing can be mounted", why)
    else:
        yield ok(f"{DEVICE} can be opened" + ("" if patient.root else ", fusermount3 is there"))


def kernel(patient: Patient) -> Iterator[Finding]:
    yield judge_kernel(os.uname().release)


def judge_kernel(release: str) -> Finding:
    match = re.match(r"(\d+)\.(\d+)", release)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    says = f"Linux {release}"
    if version < OLDEST:
        return failure(says, "mounts need Linux 5.4 or newer")
    if version < NEWEST_NEED:
        return warning(
            f"{says}: the reads that a mount's worker was at when it died end in errors, and large files are read "
            "through the worker (no passthrough)",
            "Linux 6.9 or newer does without both",
        )
    return ok(f"{says}: requests outlive a mount's workers, large files can be passed through")


def passthrough(patient: Patient) -> Iterator[Finding]:
    slabs = DataDir(patient.data_dir).slabs
    folder = next(path for path in (slabs, *slabs.parents) if path.exists())
    why = passthrough_obstacle(folder)
    yield (
        warning("the kernel does not read large files by itself", why) if why else ok("the kernel can read large files")
    )


def background(patient: Patient) -> Iterator[Finding]:
    """Mounts of ordinary users are capped: so many reads may wait for missing data until hits wait too."""
    values = {name: number_in(_BACKGROUND / name) for name in ("max_user_bgreq", "max_user_congthresh")}
    yield judge_background(values, patient.root)


def judge_background(values: dict[str, int], root: bool) -> Finding:
    says = ", ".join(f"{name} {value}" for name, value in values.items())
    if root:
        return ok(f"{says} (they do not bind root)")
    if any(0 <= value < LITTLE_BACKGROUND for value in values.values()):
        return warning(
            f"{says}: so many reads that wait for missing data stop the others of a mount",
            f"as root: echo 65535 | tee {_BACKGROUND}/max_user_*",
        )
    return ok(says)


def read_ahead(patient: Patient) -> Iterator[Finding]:
    if patient.root and not os.statvfs("/sys").f_flag & os.ST_RDONLY and os.access(_DEVICES, os.W_OK):
        yield ok("1 MiB on each mount")
        return
    yield warning("128 KiB on each mount, as the kernel has it", "only root sets it, where /sys may be written to")


def limits(patient: Patient) -> Iterator[Finding]:
    yield judge_limits(resource.getrlimit(resource.RLIMIT_NOFILE)[1], resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])


def judge_limits(files: int, locked: int) -> Finding:
    """`files`: what the limit may be raised to (hard); both -1 for none."""
    shown = "any number of" if files < 0 else f"{files:,}"
    memory = "unlimited" if locked < 0 else f"{locked >> 10:,} KiB"
    says = f"{shown} open files, {memory} of locked memory (hoard locks none)"
    if 0 <= files < FEW_FILES:
        return warning(
            says, f"let a process have {FEW_FILES:,} open files or more: LimitNOFILE= of systemd, ulimit -Hn"
        )
    return ok(says)


# --- the data directory and its node


def data_dir(patient: Patient) -> Iterator[Finding]:
    path = patient.data_dir
    if not path.exists():
        yield warning(f"{path} does not exist yet", f"hoard up --data-dir {quote(str(path))} makes it")
        return
    try:
        store = DataDir(path).check_format()
    except HoardError as error:
        yield failure(f"{path} cannot be used", str(error))
        return
    except PermissionError:
        yield failure(f"{path} is closed to this user", "be its owner, or choose another with --data-dir")
        return
    if is_read_only(path):
        yield failure(
            f"{path} is on a disk that is read-only", "mount it for writing; if an error made it so, see dmesg"
        )
    elif os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield ok(f"{path} {'is a store of this format' if store else 'holds no store yet'}")
    else:
        yield failure(f"{path} may not be written to", "be its owner, or choose another with --data-dir")


def disk(patient: Patient) -> Iterator[Finding]:
    folder = next(path for path in (patient.data_dir, *patient.data_dir.parents) if path.exists())
    room = os.statvfs(folder)
    yield judge_disk(file_system(folder) or "unknown", room.f_bavail / max(1, room.f_blocks))


def judge_disk(kind: str, free: float) -> Finding:
    """`kind`: type of the file system of the data directory; `free`: the part of it that is."""
    says = f"{kind}, {free:.0%} free"
    if kind in _REMOTE:
        return failure(says, "the index of the store needs a local file system: choose another --data-dir")
    if kind in _VOLATILE:
        return warning(says, "what is stored is gone after a restart of the machine: choose a --data-dir on a disk")
    if kind == "overlay":
        return warning(says, "large files cannot be passed through: choose a --data-dir on a volume")
    if free < LITTLE_ROOM:
        return warning(says, "what is read from now on may be passed through without being stored: make room")
    return ok(says)


def node(patient: Patient) -> Iterator[Finding]:
    shown = quote(str(patient.data_dir))
    try:
        with NodeClient.connect(patient.data_dir, PING) as client:
            pid = client.call("ping", {}).body.get("pid")
            room, racks = _told(client, "capacity"), _told(client, "racks")
    except NoNode as error:
        yield warning(f"{error}", f"mounts serve what is stored, and wait for it: hoard up --detach --data-dir {shown}")
    except DeadlineExceeded as error:
        yield failure("the node does not answer", str(error))
    else:
        yield ok(f"it answers, pid {pid}")
        yield from judge_state(str(room.get("state")), str(room.get("state_reason")))
        yield from judge_racks(racks.get("racks"))


def _told(client: NodeClient, operation: str) -> Mapping[str, Json]:
    """Nothing if this user may not ask, or the node is of another version."""
    try:
        return client.call(operation, {}).body
    except (BadRequest, Refused):
        return {}


def judge_state(state: str, why: str) -> Iterator[Finding]:
    """What the node says of its store; nothing where that is well."""
    if state == State.FULL.value:
        yield warning(f"its store is full: {why}", "what is read is passed through without being stored: make room")
    elif state in (State.READ_ONLY.value, State.FAILING.value):
        yield failure(f"its store is {state}: {why}", "the node goes on by itself when the disk can be written again")


def judge_racks(racks: Json) -> Iterator[Finding]:
    """Racks whose nodes keep much more than their share by weight; nothing where there are none."""
    listed = racks if isinstance(racks, list) else []
    loads = [(rack.get("rack"), rack.get("load")) for rack in listed if isinstance(rack, dict)]
    uneven = [f"{name} {load:g} times" for name, load in loads if isinstance(load, int | float) and load >= UNEVEN]
    if uneven:
        yield warning(
            f"racks are uneven: copies go to distinct racks, so nodes keep more than their share: {', '.join(uneven)}",
            "give the small racks more nodes or capacity, or name small racks that may fail together alike (--rack)",
        )


# --- mounts


def mounted(patient: Patient) -> Iterator[Finding]:
    """The Hoard mounts of this mount namespace. Only those of this data directory are judged; of a dead one nobody can
    tell whose it was, and its user may clear it."""
    for mount in mounts():
        ours = reads_from(mount.device, patient.data_dir) if mount.owner == os.geteuid() else False
        life = life_of(mount.mountpoint) if ours is not False else None
        if life is None or (ours is None and life is not Life.DEAD):
            yield ok(f"{mount.mountpoint} (snapshot {mount.snapshot}) is of another node")
        else:
            yield judge_mount(mount, life)


def judge_mount(mount: MountInfo, life: Life) -> Finding:
    path, what = mount.mountpoint, f"{mount.mountpoint} (snapshot {mount.snapshot})"
    if life is Life.SERVED:
        return ok(f"{what} is served")
    if life is Life.SILENT:
        return failure(f"{what} does not answer", f"if it stays so: hoard umount --force {quote(str(path))}")
    return Finding(
        Verdict.FAILED,
        f"{what} is dead: nobody serves it",
        f"replace it: hoard mount {mount.snapshot} {quote(str(path))}, or clear it: hoard doctor --fix",
        partial(_clear, path),
    )


def _clear(path: Path) -> str:
    if life_of(path) is not Life.DEAD:  # replaced meanwhile, or it lay on top of a living one
        return "nothing dead is there any more"
    detach_lazily(path)
    return "it is cleared now"


def leftovers(patient: Patient) -> Iterator[Finding]:
    """Processes of mounts of this data directory that no process sees in its tree."""
    for device, pids in crews().items():
        if reads_from(device, patient.data_dir) and not any(_sees(pid, device) for pid in (os.getpid(), *pids)):
            listed = " ".join(map(str, pids))
            yield warning(
                f"processes {listed} serve a mount that is in no tree any more: it was taken out while in use",
                f"they end with its last user; or end them, and its users get errors: kill {listed}",
            )


def _sees(pid: int, device: str) -> bool:
    try:
        table = Path(f"/proc/{pid}/mountinfo").read_text(errors="replace")
    except OSError:
        return True  # it ended, or is none of our business
    return any(line.split()[2] == device for line in table.splitlines())


CHECKS = (
    Check("fuse", fuse),
    Check("kernel", kernel),
    Check("passthrough", passthrough),
    Check("background requests", background),
    Check("read-ahead", read_ahead),
    Check("limits", limits),
    *environment.CHECKS,
    Check("data directory", data_dir),
    Check("disk", disk),
    *directory.CHECKS,
    Check("node", node),
    *store_checks.CHECKS,
    Check("mount", mounted),
    Check("leftover processes", leftovers),
)
