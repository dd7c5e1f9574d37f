"""`hoard mount`: opens the snapshot at the node, then runs the mount's supervisor, here or in the background."""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hoard_p2p.config import default_workers
from hoard_p2p.errors import BadRequest, DeadlineExceeded, HoardError, MountFailed
from hoard_p2p.ids import parse_snapshot_id
from hoard_p2p.interfaces import MountOptions
from hoard_p2p.mount.mountinfo import locate
from hoard_p2p.mount.shared import WorkerSlot
from hoard_p2p.mount.supervisor import Supervisor
from hoard_p2p.node.background import START_SECONDS, Report, open_log, wait_for_report
from hoard_p2p.node.client import NodeClient, Reply
from hoard_p2p.node.descriptors import MOUNT_FILES, allow_files
from hoard_p2p.node.mount_kind import Settlement, with_kind
from hoard_p2p.node.mount_line import SupervisorLine
from hoard_p2p.node.mount_worker import serve
from hoard_p2p.node.plan import MountPlan
from hoard_p2p.node.through import elsewhere

log = logging.getLogger(__name__)


def refuse_overlap(data_dir: Path, mountpoint: Path) -> None:
    """Raises BadRequest if one lies in the other: a mount would hide the node's files, or lie among them."""
    data, point = Path(os.path.realpath(data_dir)), locate(mountpoint)
    if data.is_relative_to(point) or point.is_relative_to(data):
        raise BadRequest(
            f"cannot mount on {mountpoint}: the data directory {data_dir} and a mount must lie apart; "
            "mount on another directory"
        )


def mount_snapshot(
    data_dir: Path,
    text: str,
    options: MountOptions,
    *,
    foreground: bool,
    answers: Callable[[str], None] = lambda snapshot: None,
) -> int:
    """Mount what `text` means; the exit status.

    In the foreground it returns when the mount is gone, and calls `answers` with the snapshot id as soon as the mount
    can be read; else it returns then. Raises NoNode, NotFound, Unavailable, Corrupt, BadRequest, MountFailed, and
    Refused if it may open too few files.
    """
    refuse_overlap(data_dir, options.mountpoint)
    allow_files(MOUNT_FILES + max(options.workers, default_workers()), "a mount")
    with NodeClient.connect(data_dir) as client:
        reply = client.call("open", {"snapshot": text, "mount": True, "fill": options.fill})
        through = elsewhere(reply.body, client.node_pid)
    plan = MountPlan(
        data_dir=os.fspath(data_dir),
        snapshot=str(reply.body["snapshot"]),
        runs=_number(reply, "chunks"),
        size=_number(reply, "bytes"),
        inodes=_number(reply, "inodes"),
        mountpoint=os.fspath(options.mountpoint),
        workers=options.workers,
        timeout=options.timeout,
        verify=options.verify,
        io_asked=options.io,
        fill=options.fill,
        through=through,
    )
    catalog_fd = reply.fds[0]
    try:
        plan = with_kind(plan, catalog_fd, _number(reply, "files"))
        if foreground:
            return supervise(plan, catalog_fd, lambda: answers(plan.snapshot))
        return _in_background(plan, catalog_fd)
    finally:
        os.close(catalog_fd)


def _number(reply: Reply, key: str) -> int:
    value = reply.body.get(key)
    return value if isinstance(value, int) else 0


def supervise(plan: MountPlan, catalog_fd: int, ready: Callable[[], None]) -> int:
    """Be the supervisor of a new mount until it is gone; the exit status."""
    kind = Settlement(plan)
    return supervisor_of(kind, ready).run(
        catalog_fd=catalog_fd,
        runs=plan.runs,
        inodes=plan.inodes,
        wanted=kind.wanted,
        needed=kind.needed,
        agreed=kind.agreed,
    )


def supervisor_of(kind: Settlement, ready: Callable[[], None] = lambda: None) -> Supervisor:
    """Of a new mount, to `run`, or of a living one, to `adopt`. The plan is read when it is settled."""
    return Supervisor(
        parse_snapshot_id(kind.plan.snapshot),
        kind.plan.options,
        serve=lambda slot: serve(slot, kind.plan),
        line=lambda device, fds: SupervisorLine(kind.plan, device, fds),
        verify=(lambda: _verifier(kind.plan)) if kind.plan.verify == "first" else None,
        ready=ready,
    )


def _verifier(plan: MountPlan) -> Callable[[WorkerSlot], int]:
    from hoard_p2p.node.mount_verifier import serve_verifier  # once the mount answers: it takes 5 ms

    return lambda slot: serve_verifier(slot, plan)


def mount_log(data_dir: Path) -> Path:
    """Where the background processes of the mounts of a data directory log to."""
    return data_dir / "log" / "mount.log"


def _in_background(plan: MountPlan, catalog_fd: int) -> int:
    """Leave the supervisor behind: a fork of this process, which has no threads and no store open. (To exec it anew
    would cost the first byte another start of Python.)"""
    log_file = mount_log(Path(plan.data_dir))
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(ours)
            become_daemon(log_file)
            status = _report_and_supervise(plan, catalog_fd, Report(theirs))
        finally:
            os._exit(status)
    os.close(theirs)
    try:
        answered = wait_for_report(ours)
    except TimeoutError as error:
        raise DeadlineExceeded(
            f"the mount's supervisor (pid {child}) has not answered within {START_SECONDS:.0f} s; see "
            f"{log_file}, and end it with: kill {child}"
        ) from error
    if not answered:
        raise MountFailed(f"the mount's supervisor (pid {child}) ended before it answered; see {log_file}")
    return 0


def become_daemon(log_file: Path) -> None:
    """Leave terminal, session and folder of the starter behind, and log to `log_file` if that can be had."""
    with suppress(PermissionError):  # leads a session of its own already
        os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDONLY)
    out = open_log(log_file)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(out)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s", force=True
    )


def _report_and_supervise(plan: MountPlan, catalog_fd: int, report: Report) -> int:
    """Supervise; say on `report` once the mount answers, or why it does not."""
    try:
        return supervise(plan, catalog_fd, report.answers)
    except HoardError as error:
        log.error("%s", error)
        report.failed(error)
        return 1
    except Exception:
        log.exception("the supervisor failed")
        return 1
