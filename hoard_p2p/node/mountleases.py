"""Leases of mounts: a snapshot is in use for as long as the FUSE connection of a mount of it lives (I3).

They are kept in the index, so that a node that starts again does not take a mount that has not attached yet for gone.
What a mount's end means is decided in `lease_fate`, from what is seen of it.
"""

import logging
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from hoard_p2p.errors import StoreFailed
from hoard_p2p.ids import SnapshotId, short
from hoard_p2p.mount.mountinfo import FILE_SYSTEM, lines
from hoard_p2p.node.leases import Leases
from hoard_p2p.node.names import Names
from hoard_p2p.node.parts import MountRecord
from hoard_p2p.storage.lifetables import boot_id
from hoard_p2p.storage.records import LeaseRecord
from hoard_p2p.storage.store import Store

log = logging.getLogger(__name__)

GRACE = 60.0
"""Seconds after its start that a node waits for mounts that it knows of and does not see, to attach."""
RENEW_NS = 1800 * 1_000_000_000


class Seen(NamedTuple):
    """A mount that the node has a line to, or copies of. `alive`: see `Kept.alive`."""

    alive: bool | None


class Facts(NamedTuple):
    """What is seen of a leased mount. `kept`: the node has a line to it or copies of its descriptors; `alive`: the
    kernel serves it (None: not known); `listed`: it is in the node's mount namespace; `attached`: it did attach to this
    node; `supervised`: the process that supervised it runs; `young`: the node has just started."""

    kept: bool
    alive: bool | None
    listed: bool
    attached: bool
    supervised: bool
    young: bool


class Fate(NamedTuple):
    """`forced`: it ends or ended by force or lazily, so somebody may still have files of it open or mapped."""

    ended: bool
    forced: bool


def lease_fate(facts: Facts) -> Fate:
    """Pure. In doubt a mount lives, and its end was forced."""
    if facts.kept:
        aborted, lazy = facts.listed and facts.alive is False, not facts.listed and facts.alive is True
        return Fate(False, aborted or lazy)
    if facts.listed or (not facts.attached and (facts.young or facts.supervised)):
        return Fate(False, facts.listed and facts.attached)  # listed and nobody keeps it: its processes are gone
    return Fate(True, not facts.attached)


@dataclass(slots=True)
class _Lease:
    record: LeaseRecord
    stay: ExitStack
    attached: bool
    forced: bool = False


class MountLeases:
    """Blocking, for one thread at a time, but for `forced`."""

    def __init__(self, store: Store, names: Names, leases: Leases) -> None:
        self._store = store
        self._names = names
        self._leases = leases
        self._boot = boot_id()
        self._born = time.monotonic()
        self._known: dict[tuple[SnapshotId, str], _Lease] = {}
        self._forced: set[str] = set()

    def restore(self) -> None:
        """Take over the leases of the node that ran here before; those of before the machine's start are void."""
        for record in self._store.life.leases():
            if record.boot_id == self._boot:
                self._hold(record, attached=False)
            else:
                self._store.life.drop_lease(record.snapshot, record.device)

    def attached(self, mount: MountRecord) -> None:
        """A mount has attached: its snapshot is leased when this returns. Raises StoreFailed where that cannot be
        noted; it is leased all the same, for as long as this node runs."""
        key = (mount.snapshot, mount.device)
        known = self._known.get(key)
        if known is not None and known.attached and known.record.pid == mount.pid:
            return
        now = time.time_ns()
        record = LeaseRecord(
            snapshot=mount.snapshot,
            device=mount.device,
            mountpoint=mount.mountpoint,
            pid=mount.pid,
            start_time=_start_time(mount.pid),
            boot_id=self._boot,
            since=now if known is None else known.record.since,
            renewed=now,
        )
        self._hold(record, attached=True)
        self._store.life.put_lease(record)

    def forced(self, device: str) -> None:
        """Somebody ends the mount with that MAJOR:MINOR by force. From any thread."""
        self._forced.add(device)

    def _hold(self, record: LeaseRecord, *, attached: bool) -> None:
        """From now on, in place of what was known of that mount."""
        stay = ExitStack()
        stay.enter_context(self._leases.held(record.snapshot, f"mounted on {record.mountpoint}"))
        known = self._known.pop((record.snapshot, record.device), None)
        self._known[record.snapshot, record.device] = _Lease(record, stay, attached)
        if known is not None:
            known.stay.close()

    def tend(self, kept: Mapping[tuple[SnapshotId, str], Seen]) -> list[SnapshotId]:
        """Renew what lives, free what ended; the snapshots of the latter. `kept`: the node's mounts by
        snapshot and device."""
        listed = {line.device for line in lines() if line.file_system == FILE_SYSTEM}
        ended = []
        for lease in list(self._known.values()):
            fate = lease_fate(self._facts(lease, kept.get((lease.record.snapshot, lease.record.device)), listed))
            lease.forced |= fate.forced or lease.record.device in self._forced
            if fate.ended:
                self._end(lease)
                ended.append(lease.record.snapshot)
            elif time.time_ns() - lease.record.renewed > RENEW_NS:
                self._renew(lease)
        return ended

    def _facts(self, lease: _Lease, kept: Seen | None, listed: Collection[str]) -> Facts:
        record = lease.record
        return Facts(
            kept=kept is not None,
            alive=None if kept is None else kept.alive,
            listed=record.device in listed,
            attached=lease.attached,
            supervised=record.start_time != 0 and _start_time(record.pid) == record.start_time,
            young=time.monotonic() - self._born < GRACE,
        )

    def _end(self, lease: _Lease) -> None:
        record = lease.record
        if lease.forced:
            self._store.reclaimer.mounts_ended_hard()  # before the lease goes: until then nothing of it is given back
        del self._known[record.snapshot, record.device]
        self._forced.discard(record.device)
        lease.stay.close()
        log.info(
            "the mount of %s on %s is gone%s",
            short(record.snapshot),
            record.mountpoint,
            ", by force" if lease.forced else "",
        )
        self._store.life.drop_lease(record.snapshot, record.device)
        self._names.touch(record.snapshot, within=0)

    def _renew(self, lease: _Lease) -> None:
        lease.record = replace(lease.record, renewed=time.time_ns())
        with suppress(StoreFailed):  # the disk is full, most likely: tried again at the next turn of an hour
            self._store.life.put_lease(lease.record)
            self._names.touch(lease.record.snapshot)

    def close(self) -> None:
        """The node ends: its rows stay."""
        for lease in self._known.values():
            lease.stay.close()
        self._known.clear()


def _start_time(pid: int) -> int:
    """When a process started, in the kernel's ticks; 0 if there is none (proc_pid_stat(5), field 22)."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
