"""The mounts that are attached to this node, with copies of their descriptors: a mount whose processes were all killed
stays alive in the kernel, and gets new ones from here.

Promises: the copies of a mount that is gone, or is being ended on purpose, are closed (I10); a node that stops closes
them all and touches no mount. Nothing here follows a path into a mount: who waits for itself cannot be killed.
"""

import asyncio
import fcntl
import logging
import os
import select
import stat
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from hoard_p2p import __version__
from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest, HoardError
from hoard_p2p.ids import parse_snapshot_id, short
from hoard_p2p.mount.shared import MountFds, SharedState, SlotView
from hoard_p2p.node.adopting import ADOPTER, adopter
from hoard_p2p.node.background import open_log
from hoard_p2p.node.mountfate import Facts, Step, is_newer, next_step
from hoard_p2p.node.parts import MountRecord
from hoard_p2p.node.plan import MountPlan
from hoard_p2p.node.readers import ThroughReaders

log = logging.getLogger(__name__)

TICK, TICK_LONELY = 1.0, 0.2
"""Seconds between looks at the mounts; the second while one of them has no line to us."""
START_SECONDS = 30.0
"""What a supervisor of ours may take until it has the mount, before it is killed and counts as failed."""
STARTS_AT_ONCE = 4
"""Supervisors on their way to a mount at one time: each start of Python takes a processor for 0.1 to 0.2 s."""
MOST_ASKED = 3
"""Supervisors of an older version, one after another, that are asked to give a mount up."""
_FUSE_DEVICE = os.makedev(10, 229)


class _Unknown(Exception):
    """The mount is of a version that this one cannot look after."""


@dataclass(slots=True)
class _Copies:
    """One mount's descriptors, ours to close."""

    fds: MountFds
    shared: SharedState

    @property
    def alive(self) -> bool:
        """Whether the kernel still sends requests. (Polled now and then: a descriptor that is watched wakes its
        watcher at every request.)"""
        poll = select.poll()
        poll.register(self.fds.devices[0], 0)
        return not poll.poll(0)

    def slots(self) -> list[SlotView]:
        return [self.shared.slot(number) for number in range(self.shared.workers)]

    def close(self) -> None:
        self.shared.close()  # with its descriptor
        for fd in {*self.fds.all} - {self.fds.shared}:
            os.close(fd)


@dataclass(slots=True)
class Kept:
    """One mount. `lines`: open connections of its supervisors; `since`: when that became none, or when the last
    supervisor of ours failed; `asked`: pids of the supervisors of an older version that were to give way; `starter`:
    the supervisor of ours that is on its way."""

    record: MountRecord
    plan: MountPlan
    plan_text: str
    copies: _Copies | None
    lines: int = 0
    since: float = field(default_factory=time.monotonic)
    failures: int = 0
    asked: set[int] = field(default_factory=set)
    starter: "_Started | None" = None

    def slots(self) -> list[SlotView]:
        """The workers' counters; empty where they cannot be seen."""
        return [] if self.copies is None else self.copies.slots()

    def alive(self) -> bool | None:
        """Whether the kernel still serves it; None where that cannot be seen."""
        return None if self.copies is None else self.copies.alive


@dataclass(slots=True, eq=False)
class _Started:
    """A process that we started to supervise a mount."""

    process: "subprocess.Popen[bytes]"
    pidfd: int
    kept: Kept
    take_over: bool
    at: float


class MountKeep:
    """For the event loop. `run` until cancelled, then `close`."""

    def __init__(self, log_dir: Path, *, command: Sequence[str] = ADOPTER, version: str = __version__) -> None:
        """`command`: starts a supervisor; gets `MountFds.encode()` and the plan, and `--take-over` where the present
        one is to give way. Its output goes to `log_dir`/mount.log. `version`: ours."""
        self.through = ThroughReaders()
        self._log_dir = log_dir
        self._command = tuple(command)
        self._version = version
        self._kept: dict[tuple[object, ...], Kept] = {}
        self._started: dict[int, _Started] = {}
        self._newer: set[str] = set()  # versions of mounts that are newer than ours, and were said to be
        self._news = asyncio.Event()

    @property
    def mounts(self) -> list[Kept]:
        return list(self._kept.values())

    @property
    def records(self) -> list[MountRecord]:
        return [kept.record for kept in self._kept.values()]

    @property
    def processes(self) -> list[int]:
        """Pids of the supervisors that were started here and have not ended."""
        return [started.process.pid for started in self._started.values()]

    @contextmanager
    def attached(self, args: dict[str, Json], fds: list[int]) -> Iterator[MountRecord]:
        """A supervisor's line is open as long as this lasts. What is used of `fds` is taken out, the rest stays the
        caller's. Raises BadRequest, and keeps nothing."""
        record, plan, text = _told(args)
        self._say_if_newer(record.version)
        copies = self._take(record, plan, fds) if fds else None
        key = _key(record, copies)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = Kept(record, plan, text, copies)
        else:
            if kept.record.version != record.version:
                log.info("the mount on %s is served by version %s now", record.mountpoint, record.version)
            old, kept.copies = kept.copies, copies
            kept.record, kept.plan, kept.plan_text = record, plan, text
            if old is not None:
                old.close()
        kept.lines += 1
        kept.failures = 0
        if kept.starter is not None and kept.starter.process.pid == record.pid:
            kept.starter = None
        self._news.set()
        try:
            yield record
        finally:
            kept.lines -= 1
            kept.since = time.monotonic()
            self._news.set()

    def _take(self, record: MountRecord, plan: MountPlan, fds: list[int]) -> _Copies | None:
        """The copies of a mount; None, and said, if it is of a version that this one does not know."""
        try:
            copies = _copies(fds)
        except _Unknown:
            log.warning(
                "the mount on %s is of version %s, whose processes this one can neither replace nor revive; "
                "unmount it and mount again when it suits",
                record.mountpoint,
                record.version or "unknown",
            )
            return None
        except (HoardError, ValueError, LookupError, OSError) as error:
            raise BadRequest(f"these are not the descriptors of a mount: {error}") from error
        fds.clear()
        return copies

    def release(self, device: str) -> int:
        """Close the copies of the mounts with that MAJOR:MINOR, which somebody is ending; how many there were."""
        found = [kept for kept in self.mounts if kept.record.device == device and kept.copies is not None]
        for kept in found:
            self._let_go(kept)
        return len(found)

    async def run(self) -> None:
        """Look after the mounts."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK if all(kept.lines for kept in self.mounts) else TICK_LONELY):
                    await self._news.wait()
            self._news.clear()
            for key, kept in list(self._kept.items()):
                try:
                    self._look_after(kept)
                except Exception:  # the door of this task: a bug must not end the node
                    log.exception("the mount on %s is not looked after any more", kept.record.mountpoint)
                    self._let_go(kept)
                if kept.copies is None and kept.lines == 0:
                    del self._kept[key]

    def close(self) -> None:
        """Let go of every mount. Supervisors that were started go on without us."""
        for kept in self.mounts:
            self._let_go(kept)
        self._kept.clear()
        for pidfd, started in self._started.items():
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)
            started.process.returncode = 0  # not ours to wait for any more
        self._started.clear()

    def _let_go(self, kept: Kept) -> None:
        copies, kept.copies = kept.copies, None
        if copies is not None:
            copies.close()

    def _look_after(self, kept: Kept) -> None:
        copies = kept.copies
        if copies is None:
            return
        step = next_step(self._facts(kept, copies))
        if step in (Step.REVIVE, Step.TAKE_OVER):
            if sum(started.kept.starter is started for started in self._started.values()) < STARTS_AT_ONCE:
                self._start(kept, copies, take_over=step is Step.TAKE_OVER)
        elif step is Step.RELEASE:
            self._let_go(kept)
        elif step is Step.GIVE_UP:
            log.error(
                "the mount on %s has lost its processes, and new ones cannot be started (see %s): whoever reads it "
                "gets errors from now on; replace it with: hoard mount %s %s",
                kept.record.mountpoint,
                self._log_dir / "mount.log",
                short(kept.record.snapshot),
                quote(kept.record.mountpoint),
            )
            self._let_go(kept)

    def _facts(self, kept: Kept, copies: _Copies) -> Facts:
        starter, supervisor = kept.starter, copies.shared.holder()
        late = starter is not None and time.monotonic() - starter.at > START_SECONDS
        if starter is not None and late and supervisor != starter.process.pid:
            starter.process.kill()  # `_ended` counts it
        return Facts(
            alive=copies.alive,
            ending=copies.shared.ending,
            attached=kept.lines > 0,
            supervised=supervisor != 0,
            starting=starter is not None,
            outdated=is_newer(self._version, kept.record.version)
            and kept.record.pid not in kept.asked
            and len(kept.asked) < MOST_ASKED,
            lonely=time.monotonic() - kept.since,
            failures=kept.failures,
        )

    def _start(self, kept: Kept, copies: _Copies, *, take_over: bool) -> None:
        """Start a supervisor for the mount: in a session of its own, so that nothing which ends us ends it.

        In the loop, which that holds up for 0.3 ms (measured): in a thread the copies might be closed meanwhile, and
        other files be handed over under their numbers."""
        argv = adopter(copies.fds, kept.plan_text, take_over=take_over, command=self._command)
        if take_over:
            kept.asked.add(kept.record.pid)
        log.info(
            "starting a supervisor for the mount on %s: %s",
            kept.record.mountpoint,
            f"its version {kept.record.version} is older than the node's" if take_over else "it has none any more",
        )
        try:
            with open(open_log(self._log_dir / "mount.log"), "ab") as out:
                process = subprocess.Popen(
                    argv,
                    pass_fds=copies.fds.all,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    cwd="/",
                )
            pidfd = os.pidfd_open(process.pid)
        except OSError as error:
            log.warning("no supervisor could be started for the mount on %s: %s", kept.record.mountpoint, error)
            self._count_failure(kept)
            return
        started = _Started(process, pidfd, kept, take_over, time.monotonic())
        kept.starter = self._started[pidfd] = started
        asyncio.get_running_loop().add_reader(pidfd, self._ended, pidfd)

    def _ended(self, pidfd: int) -> None:
        """A supervisor that we started has ended, perhaps after long service."""
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        started = self._started.pop(pidfd)
        status, kept = started.process.wait(), started.kept
        if kept.starter is not started:
            return
        kept.starter = None
        if started.take_over:
            self._say_if_old(kept, status)
        else:
            self._count_failure(kept)
        self._news.set()

    def _say_if_old(self, kept: Kept, status: int) -> None:
        if kept.lines and kept.copies is not None and is_newer(self._version, kept.record.version):
            log.warning(
                "the mount on %s could not be taken over (status %d, see %s); its processes of version %s go on",
                kept.record.mountpoint,
                status,
                self._log_dir / "mount.log",
                kept.record.version,
            )

    def _say_if_newer(self, version: str) -> None:
        if is_newer(version, self._version) and version not in self._newer:
            self._newer.add(version)
            log.warning(
                "mounts are of version %s, and this node runs the older version %s; restart it: hoard down; hoard up",
                version,
                self._version,
            )

    @staticmethod
    def _count_failure(kept: Kept) -> None:
        kept.failures += 1
        kept.since = time.monotonic()


def _told(args: dict[str, Json]) -> tuple[MountRecord, MountPlan, str]:
    """What an `attach` says. Raises BadRequest."""
    pid, text = args.get("pid"), args.get("plan")
    try:
        plan = MountPlan.parse(str(text))
        record = MountRecord(
            mountpoint=plan.mountpoint,
            snapshot=parse_snapshot_id(plan.snapshot),
            pid=pid if isinstance(pid, int) else 0,
            version=str(args.get("version", "")),
            device=str(args.get("device", "")),
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise BadRequest(f"the plan of this mount cannot be read: {error}") from error
    return record, plan, str(text)


def _copies(fds: Sequence[int]) -> _Copies:
    """Descriptors that came with an `attach`, checked before they are used. Raises _Unknown, ValueError, OSError,
    LookupError; nothing is closed then."""
    told = MountFds.of(fds)
    for device in told.devices:
        status = os.fstat(device)
        if not stat.S_ISCHR(status.st_mode) or status.st_rdev != _FUSE_DEVICE:
            raise ValueError(f"descriptor {device} is none of /dev/fuse")
    if not fcntl.fcntl(told.shared, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise ValueError("the shared memory may shrink")  # a map of it could then end this process
    mine = os.dup(told.shared)
    try:
        shared = SharedState(mine)
    except ValueError as error:
        os.close(mine)
        raise _Unknown from error
    except OSError:
        os.close(mine)
        raise
    if len(told.devices) != shared.workers:
        shared.close()
        raise ValueError(f"{len(told.devices)} devices for {shared.workers} workers")
    os.close(told.shared)
    return _Copies(MountFds(told.devices, mine, told.catalog, told.hint_bell, told.checked_bell), shared)


def _key(record: MountRecord, copies: _Copies | None) -> tuple[object, ...]:
    """A device number is given again after an unmount; the memory is the mount's own."""
    if copies is None:
        return (record.device, record.mountpoint, record.pid)
    status = os.fstat(copies.fds.shared)
    return (record.device, status.st_dev, status.st_ino)
