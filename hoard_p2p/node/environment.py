"""What `hoard doctor` looks at of the machine itself: fuse's helper and limits, what a process may have, the clock, the
network that nodes find each other in. Reads (thin) and judges (`judge_*`, pure), as `node.checks` does.
"""

import ctypes
import http.client
import os
import resource
import shutil
import socket
import stat
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from email.utils import parsedate_to_datetime
from shlex import quote
from typing import NamedTuple
from urllib.parse import urlsplit

from hoard_p2p.config import Json
from hoard_p2p.errors import HoardError
from hoard_p2p.mount.kernel import MAX_READ
from hoard_p2p.node.checkup import Check, Finding, Patient, failure, number_in, ok, warning
from hoard_p2p.node.client import NodeClient, Patience
from hoard_p2p.peer import is_loopback
from hoard_p2p.storage.environment import LEAST_MAP, map_size

PING = Patience(quick=5.0)
FEW_PIDS = 8192
"""A node and a mount are about a dozen processes; each publish one more. Machines have 32,768 or more."""
PYTHON_SPACE = 1 << 30
MOST_SKEW = 60.0
"""Seconds: names are ordered by the clocks of the nodes that gave them."""
MOST_ASKED = 64
ASK_SECONDS = 2.0
_MDNS_PORT = 5353
_UP, _LOOPBACK, _MULTICAST = 0x1, 0x8, 0x1000  # linux/if.h
_UNSYNCHRONISED = 0x40  # linux/timex.h: STA_UNSYNC
_STATUS_AT = 40  # of struct timex, with 8-byte longs


# --- fuse


def helper(patient: Patient) -> Iterator[Finding]:
    """What an ordinary user mounts with."""
    found = shutil.which("fusermount3") or shutil.which("fusermount")
    mode = 0 if found is None else os.stat(found).st_mode
    try:
        lines = (patient.root_dir / "etc/fuse.conf").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    allowing = any(line.strip() == "user_allow_other" for line in lines)
    yield judge_helper(found, setuid=bool(mode & stat.S_ISUID), allowing=allowing, root=patient.root)


def judge_helper(path: str | None, *, setuid: bool, allowing: bool, root: bool) -> Finding:
    """`allowing`: whether /etc/fuse.conf has user_allow_other."""
    others = "" if allowing else "; only root mounts for other users (no user_allow_other in /etc/fuse.conf)"
    if path is None:
        if root:
            return ok("fusermount3 is not installed; root mounts without it")
        return failure("fusermount3 is not installed", "apt install fuse3 (or dnf install fuse3), or be root")
    if not setuid and not root:
        return failure(f"{path} is not setuid root", f"as root: chmod u+s {quote(path)} (in some containers it is off)")
    return ok(f"{path}{'' if setuid else ' (not setuid root: ordinary users cannot mount)'}{others}")


def largest_read(patient: Patient) -> Iterator[Finding]:
    yield judge_pages(number_in(patient.proc / "sys/fs/fuse/max_pages_limit"), os.sysconf("SC_PAGE_SIZE"))


def judge_pages(pages: int, page: int) -> Finding:
    """`pages`: fs.fuse.max_pages_limit, -1 where the kernel has none (before 6.13: 256 pages)."""
    size = min(MAX_READ, (256 if pages < 0 else pages) * page)
    says = f"reads of up to {size >> 10:,} KiB reach a mount at once"
    if size < MAX_READ:
        return warning(says, f"as root: sysctl -w fs.fuse.max_pages_limit={MAX_READ // page}")
    return ok(says)


# --- what processes may have


def address_space(patient: Patient) -> Iterator[Finding]:
    folder = next(path for path in (patient.data_dir / "index", *patient.data_dir.parents) if path.exists())
    yield judge_space(resource.getrlimit(resource.RLIMIT_AS)[0], map_size(folder))


def judge_space(limit: int, wanted: int) -> Finding:
    """`limit`: RLIMIT_AS, -1 for none; `wanted`: what the index's map takes."""
    advice = "let it be unlimited: ulimit -v unlimited, LimitAS=infinity of systemd"
    if limit < 0:
        return ok(f"address space is not limited (the index takes {wanted >> 30:,} GiB of it, and no memory)")
    says = f"address space is limited to {limit >> 20:,} MiB (ulimit -v)"
    if limit < LEAST_MAP + PYTHON_SPACE:
        return failure(f"{says}: no node can start, and mounts read through their node, slowly", advice)
    if limit < wanted + PYTHON_SPACE:
        return warning(f"{says}: a node starts with a smaller index, mounts read through their node, slowly", advice)
    return ok(says)


def pids(patient: Patient) -> Iterator[Finding]:
    yield judge_pids(number_in(patient.proc / "sys/kernel/pid_max"), resource.getrlimit(resource.RLIMIT_NPROC)[0])


def judge_pids(most: int, own: int) -> Finding:
    """`most`: kernel.pid_max; `own`: RLIMIT_NPROC, -1 for none. Both count threads."""
    says = f"pids go up to {most:,}, this user may have {'any number' if own < 0 else f'{own:,}'} of them"
    if 0 <= most < FEW_PIDS:
        return warning(says, "as root: sysctl -w kernel.pid_max=32768")
    if 0 <= own < FEW_PIDS // 16:
        return warning(says, "a node and its mounts are 50 threads and more: raise ulimit -u (TasksMax= of systemd)")
    return ok(says)


# --- network


def port(patient: Patient) -> Iterator[Finding]:
    """Whether the node can be reached where it listens."""
    url = _node_url(patient)
    if url:
        where = urlsplit(url)
        try:
            socket.create_connection((where.hostname or "", where.port or 0), ASK_SECONDS).close()
        except OSError as error:
            yield failure(
                f"the node's address {url} cannot be reached from here: {error.strerror or error}",
                "see that no firewall keeps it closed, or choose another address: hoard up --listen HOST:PORT",
            )
        else:
            yield ok(f"the node can be reached at {url} from this machine")
        return
    yield ok("a node takes any free port, unless it is told one (hoard up --listen)")


def access(patient: Patient) -> Iterator[Finding]:
    """Who could do what from the network."""
    if not _node_url(patient):
        yield ok("no node runs, so nobody can do anything from the network")
        return
    with NodeClient.connect(patient.data_dir, PING) as client:
        told = client.call("ping", {}).body
    yield judge_access(str(told.get("url") or ""), str(told.get("key") or ""), told.get("encrypted") is True)


def judge_access(url: str, key: str, encrypted: bool) -> Finding:
    """`key`: the fingerprint of the cluster's key, empty in open mode."""
    where = urlsplit(url)
    if key:
        hidden = "what they say is encrypted" if encrypted else "whoever is on the wire can read along (--encrypt)"
        return ok(f"only nodes with the key {key} take part; {hidden}")
    if is_loopback(where.hostname or ""):
        return ok("open mode: users and programs of this machine can read what is published, and take part")
    return ok(
        f"open mode: whoever reaches port {where.port} from a private address can read what is published, publish, "
        "move names and remove snapshots that nobody uses; a key keeps others out (hoard key new, --cluster-key-file)"
    )


def multicast(patient: Patient) -> Iterator[Finding]:
    """How nodes find each other unless they are told addresses."""
    able = []
    for folder in sorted((patient.sys / "class/net").iterdir()):
        with suppress(OSError, ValueError):
            flags = int((folder / "flags").read_text(), 16)
            if flags & _UP and flags & _MULTICAST and not flags & _LOOPBACK:
                able.append(folder.name)
    yield judge_multicast(able, _mdns_obstacle())


def _mdns_obstacle() -> str:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            probe.bind(("", _MDNS_PORT))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def judge_multicast(interfaces: Sequence[str], obstacle: str) -> Finding:
    """`interfaces`: those that can; `obstacle`: why the mDNS port cannot be shared."""
    advice = "name some nodes instead: hoard up --discovery static:HOST:PORT,..."
    if not interfaces:
        return warning("no network interface can multicast: nodes do not find each other by mDNS", advice)
    if obstacle:
        return warning(f"UDP port {_MDNS_PORT} cannot be shared ({obstacle}): no mDNS", advice)
    return ok(f"mDNS goes over {', '.join(interfaces)}")


# --- time


class Skew(NamedTuple):
    """By how many seconds the clock of a peer is ahead of this one."""

    name: str
    seconds: float


def clock(patient: Patient) -> Iterator[Finding]:
    yield judge_clock(_unsynchronised(), list(_skews(patient)))


def judge_clock(unsynchronised: bool | None, skews: Sequence[Skew]) -> Finding:
    """`unsynchronised`: whether the kernel says that nobody sets the clock; None if it does not say."""
    wrong = [skew for skew in skews if abs(skew.seconds) > MOST_SKEW]
    if wrong:
        listed = ", ".join(f"{one.name} {one.seconds:+,.0f} s" for one in wrong[:5])
        return warning(
            f"{len(wrong)} of {len(skews)} peers have another time: {listed}: the later change of a name may lose",
            "let NTP set the clocks (chronyd, systemd-timesyncd)",
        )
    compared = f"{len(skews)} peers have the same time" if skews else "there is no peer to compare with"
    if unsynchronised:
        return warning(f"nobody sets this machine's clock, says the kernel; {compared}", "let NTP do it (chronyd)")
    return ok(compared if unsynchronised is None else f"NTP sets the clock; {compared}")


def _unsynchronised() -> bool | None:
    room = ctypes.create_string_buffer(512)
    try:
        if ctypes.sizeof(ctypes.c_long) != 8 or ctypes.CDLL(None).ntp_adjtime(room) < 0:
            return None
    except AttributeError:
        return None
    return bool(int.from_bytes(room.raw[_STATUS_AT : _STATUS_AT + 4], "little") & _UNSYNCHRONISED)


def _skews(patient: Patient) -> Iterator[Skew]:
    """Of the peers that answer, by the date that each HTTP answer has."""
    try:
        with NodeClient.connect(patient.data_dir, PING) as client:
            told = client.call("peers", {}).body.get("peers")
    except HoardError:
        return
    peers = [peer for peer in told if isinstance(peer, dict)] if isinstance(told, list) else []
    with ThreadPoolExecutor(16) as threads:
        for found in threads.map(skew_of, peers[:MOST_ASKED]):
            if found is not None:
                yield found


def skew_of(peer: dict[str, Json]) -> Skew | None:
    """By the date of its HTTP answer, so to a second. None if it does not answer. `peer`: as the node lists it."""
    where = urlsplit(str(peer.get("url")))
    with suppress(OSError, http.client.HTTPException, ValueError, TypeError):
        asked = http.client.HTTPConnection(where.hostname or "", where.port, timeout=ASK_SECONDS)
        with closing(asked):
            asked.request("GET", "/status")
            date = parsedate_to_datetime(asked.getresponse().headers["Date"])
            return Skew(str(peer.get("name")), date.timestamp() - time.time())
    return None


def _node_url(patient: Patient) -> str:
    with suppress(HoardError), NodeClient.connect(patient.data_dir, PING) as client:
        return str(client.call("ping", {}).body.get("url") or "")
    return ""


CHECKS = (
    Check("fusermount3", helper),
    Check("largest read", largest_read),
    Check("address space", address_space),
    Check("processes", pids),
    Check("port", port),
    Check("access", access),
    Check("multicast", multicast),
    Check("clock", clock),
)
