"""A node's copies of mounts: real mounts that nobody serves, and supervisors that only do what is looked at here."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest
from hoard_p2p.mount.connection import Connection
from hoard_p2p.mount.shared import MountFds, SharedState
from hoard_p2p.mount.users import shared_name
from hoard_p2p.node import mountfate, mountkeep
from hoard_p2p.node.mountkeep import MountKeep
from hoard_p2p.node.plan import MountPlan
from tests.unit.node_cluster import run, until

pytestmark = [pytest.mark.root, pytest.mark.fuse]

VERSION = "2"
SUPERVISOR = """
import fcntl, json, os, sys, time
out, how, fds, plan, *more = sys.argv[1:]
numbers = [int(fd) for fd in fds.split(":")]
kinds = [os.readlink(f"/proc/self/fd/{fd}") for fd in numbers]
if how == "serve":
    fcntl.lockf(numbers[-4], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
told = {"pid": os.getpid(), "session": os.getsid(0), "kinds": kinds, "plan": json.loads(plan), "more": more}
with open(out, "a") as file:
    file.write(json.dumps(told) + "\\n")
while how == "serve":
    time.sleep(60)
sys.exit(int(how))
"""


@dataclass
class Mount:
    """A mount with the descriptors of its processes, and no processes."""

    connection: Connection
    shared: SharedState
    fds: MountFds
    held: bool = True

    @property
    def device(self) -> str:
        return self.connection.mount.device

    def copies(self) -> list[int]:
        return [os.dup(fd) for fd in self.fds.all]

    def told(self, version: str = VERSION) -> dict[str, Json]:
        point = str(self.connection.mount.mountpoint)
        plan = MountPlan("/d", "ab" * 32, 1, 1, 1, point, 1, 5.0, "first", "passthrough", "large files")
        return {"plan": plan.encode(), "pid": os.getpid(), "version": version, "device": self.device}

    def let_go(self) -> None:
        """What the death of all processes does."""
        if not self.held:
            return
        self.held = False
        self.connection.close()
        for fd in self.fds.all[-3:]:
            os.close(fd)
        self.shared.close()


def make_mount(mountpoint: Path) -> Mount:
    connection = Connection.open("0" * 12, mountpoint)
    shared = SharedState.create(name=shared_name(connection.mount.device), workers=1, runs=1)
    bells = [os.eventfd(0, os.EFD_CLOEXEC) for _ in range(2)]
    catalog = os.memfd_create("catalog")
    return Mount(connection, shared, MountFds((connection.clone(),), shared.fd, catalog, *bells))


@pytest.fixture
def mount(new_directory: Callable[[str], Path]) -> Iterator[Mount]:
    made = make_mount(new_directory("m"))
    yield made
    made.connection.detach_anyhow()
    made.let_go()


def supervisors(out: Path) -> list[dict[str, Json]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


@asynccontextmanager
async def keeping(directory: Path, how: str = "0") -> AsyncIterator[tuple[MountKeep, Path]]:
    """A keep whose supervisors write down what they were told, and then `serve`, or exit with a status."""
    out = directory / "supervisors"
    command = (sys.executable, "-S", "-c", SUPERVISOR, str(out), how)
    keep = MountKeep(directory / "log", command=command, version=VERSION)
    task = asyncio.get_running_loop().create_task(keep.run())
    try:
        yield keep, out
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        for told in supervisors(out):
            with suppress(ProcessLookupError, TypeError):
                os.kill(told["pid"], signal.SIGKILL)  # type: ignore[arg-type]  # a number
        with suppress(TimeoutError):
            await until(lambda: not keep.processes, 5)
        keep.close()


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_mount_that_lost_its_processes_gets_a_supervisor_with_its_descriptors(tmp_path: Path, mount: Mount) -> None:
    async def main() -> None:
        async with keeping(tmp_path, "serve") as (keep, out):
            with keep.attached(mount.told(), mount.copies()):
                pass
            mount.let_go()
            await until(lambda: bool(supervisors(out)))
            (told,) = supervisors(out)
            assert told["session"] == told["pid"] != os.getsid(0)
            memory = f"/memfd:{shared_name(mount.device)} (deleted)"
            eventfds = ["anon_inode:[eventfd]"] * 2
            assert told["kinds"] == ["/dev/fuse", memory, "/memfd:catalog (deleted)", *eventfds]
            assert (told["plan"], told["more"]) == (json.loads(str(mount.told()["plan"])), [])

    run(main)


@pytest.mark.parametrize("obstacle", ["file", "folder"])
def test_a_mount_gets_a_supervisor_where_no_log_can_be_written(tmp_path: Path, mount: Mount, obstacle: str) -> None:
    if obstacle == "file":
        (tmp_path / "log").write_text("no folder")
    else:
        (tmp_path / "log" / "mount.log").mkdir(parents=True)

    async def main() -> None:
        async with keeping(tmp_path, "serve") as (keep, out):
            with keep.attached(mount.told(), mount.copies()):
                pass
            mount.let_go()
            await until(lambda: len(supervisors(out)) == 1)

    run(main)


def test_none_is_started_while_another_process_supervises_the_mount(
    tmp_path: Path, mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mountfate, "GRACE", 0.0)

    async def main() -> None:
        (tmp_path / "other").mkdir()
        async with keeping(tmp_path, "serve") as (keep, out):
            async with keeping(tmp_path / "other", "serve") as (other, first):
                for each in (other, keep):
                    with each.attached(mount.told(), mount.copies()):
                        pass
                    await until(lambda: bool(supervisors(first)))
                await asyncio.sleep(0.5)  # what must not happen has its chance
                assert supervisors(out) == []
            await until(lambda: bool(supervisors(out)))

    run(main)


def test_a_mount_that_ends_on_purpose_is_let_go_and_not_revived(
    tmp_path: Path, mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mountfate, "GRACE", 0.0)

    async def main() -> None:
        async with keeping(tmp_path) as (keep, out):
            before = open_fds()
            with keep.attached(mount.told(), mount.copies()):
                assert open_fds() > before
                mount.shared.end()
            await until(lambda: keep.records == [])
            assert open_fds() == before
            assert not out.exists()

    run(main)


def test_copies_are_let_go_when_asked_for_and_the_mount_stays_listed_while_attached(
    tmp_path: Path, mount: Mount
) -> None:
    async def main() -> None:
        async with keeping(tmp_path) as (keep, _):
            before = open_fds()
            with keep.attached(mount.told(), mount.copies()):
                assert keep.release("0:0") == 0
                assert keep.release(mount.device) == 1
                assert open_fds() == before
                assert [record.device for record in keep.records] == [mount.device]
            await until(lambda: keep.records == [])

    run(main)


def test_many_mounts_and_unmounts_leave_no_descriptor(tmp_path: Path) -> None:
    async def main() -> None:
        async with keeping(tmp_path) as (keep, out):
            before = open_fds()
            for number in range(12):
                point = tmp_path / f"m{number}"
                point.mkdir()
                mount = make_mount(point)
                with keep.attached(mount.told(), mount.copies()), keep.attached(mount.told(), mount.copies()):
                    await asyncio.sleep(0)
                    mount.connection.detach()
                    mount.let_go()
            await until(lambda: keep.records == [])
            assert open_fds() == before
            assert not out.exists()

    run(main)


@pytest.mark.expect_warnings
def test_supervisors_that_fail_are_tried_a_few_times_and_then_readers_get_errors(
    tmp_path: Path, mount: Mount, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mountfate, "GRACE", 0.01)

    async def main() -> None:
        async with keeping(tmp_path, "1") as (keep, out):
            with keep.attached(mount.told(), mount.copies()):
                pass
            mount.let_go()
            await until(lambda: keep.records == [])
            assert len(supervisors(out)) == mountfate.MOST_FAILURES
            assert keep.processes == []
        point = mount.connection.mount.mountpoint
        assert f"replace it with: hoard mount {'ab' * 6} {point}" in caplog.text
        with pytest.raises(OSError, match=r"not connected|abort"):
            os.listdir(point)

    run(main)


@pytest.mark.expect_warnings
def test_processes_of_an_older_version_are_asked_to_give_way_once(
    tmp_path: Path, mount: Mount, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with keeping(tmp_path, "1") as (keep, out):
            for _ in range(2):
                with keep.attached(mount.told("1"), mount.copies()):
                    await until(lambda: bool(supervisors(out)))
                    await until(lambda: keep.processes == [])
            assert [told["more"] for told in supervisors(out)] == [["--take-over"]]
            mount.shared.end()

    run(main)
    assert "its processes of version 1 go on" in caplog.text


@pytest.mark.expect_warnings
def test_processes_of_a_newer_version_are_left_alone_and_the_node_says_that_it_is_older(
    tmp_path: Path, mount: Mount, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with keeping(tmp_path, "1") as (keep, out):
            for _ in range(2):
                with keep.attached(mount.told("10"), mount.copies()):
                    await asyncio.sleep(0.1)  # it would have been asked by then
            assert supervisors(out) == []
            mount.shared.end()

    run(main)
    assert caplog.text.count(f"this node runs the older version {VERSION}; restart it") == 1


@pytest.mark.expect_warnings
def test_another_supervisor_of_that_version_is_asked_too_but_not_for_ever(
    tmp_path: Path, mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mountkeep, "MOST_ASKED", 2)

    async def main() -> None:
        async with keeping(tmp_path, "1") as (keep, out):
            for number in (1, 2, 3):
                with keep.attached({**mount.told("1"), "pid": number}, mount.copies()):
                    await until(lambda: len(supervisors(out)) >= min(number, 2))  # noqa: B023 - called at once
                    await until(lambda: keep.processes == [])
            assert len(supervisors(out)) == 2
            mount.shared.end()

    run(main)


def test_what_was_started_outlives_the_node(tmp_path: Path, mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mountfate, "GRACE", 0.0)

    async def main() -> None:
        async with keeping(tmp_path, "serve") as (keep, out):
            before = open_fds()
            with keep.attached(mount.told(), mount.copies()):
                pass
            await until(lambda: bool(supervisors(out)))
            (pid,) = keep.processes
            keep.close()
            assert open_fds() == before
            os.kill(pid, 0)
            os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(os.waitpid, pid, 0)

    run(main)


def _spoiled(mount: Mount, how: str) -> tuple[dict[str, Json], list[int]]:
    told, fds = mount.told(), mount.copies()
    if how == "few":
        os.close(fds.pop())
    elif how == "no device":
        os.dup2(fds[-1], fds[0])
    elif how == "may shrink":
        os.dup2(fds[-3], fds[-4])  # the catalog of this test is not sealed
    elif how == "no memory":
        os.dup2(fds[-1], fds[-4])
    elif how == "too many":
        fds.insert(0, os.dup(fds[0]))
    elif how == "no plan":
        told["plan"] = "{"
    elif how == "no snapshot":
        told["plan"] = str(told["plan"]).replace("ab", "xy")
    return told, fds


@pytest.mark.parametrize("how", ["few", "no device", "may shrink", "no memory", "too many", "no plan", "no snapshot"])
def test_what_is_no_mount_is_refused_and_nothing_of_it_kept(tmp_path: Path, mount: Mount, how: str) -> None:
    async def main() -> None:
        async with keeping(tmp_path) as (keep, _):
            before = open_fds()
            told, fds = _spoiled(mount, how)
            with pytest.raises(BadRequest), keep.attached(told, fds):
                pass
            for fd in fds:  # they are still the caller's
                os.close(fd)
            assert open_fds() == before
            assert keep.records == []

    run(main)


@pytest.mark.expect_warnings
def test_shared_memory_of_another_layout_is_left_to_its_processes_and_said(
    tmp_path: Path, mount: Mount, caplog: pytest.LogCaptureFixture
) -> None:
    os.pwrite(mount.fds.shared, b"\xff" * 8, 0)

    async def main() -> None:
        async with keeping(tmp_path) as (keep, out):
            with keep.attached(mount.told("9"), fds := mount.copies()):
                await asyncio.sleep(0)
                assert [(kept.record.version, kept.slots()) for kept in keep.mounts] == [("9", [])]
            for fd in fds:
                os.close(fd)
            await until(lambda: keep.records == [])
            assert not out.exists()

    run(main)
    assert "is of version 9" in caplog.text
