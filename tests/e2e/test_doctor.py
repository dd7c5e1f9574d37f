"""`hoard doctor` on real mounts: dead ones are named and cleared, processes that outlived their mount are named."""

import json
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hoard_p2p.mount.mountinfo import mount_at
from hoard_p2p.mount.mountpoint import Life
from hoard_p2p.mount.users import crews
from hoard_p2p.node.checks import judge_mount
from tests.system import HOARD, Machine, machines, wait_until

pytestmark = [pytest.mark.root, pytest.mark.fuse, pytest.mark.timeout(120)]
NewDirectory = Callable[[str], Path]
Lines = list[dict[str, Any]]


@pytest.fixture
def node(new_directory: NewDirectory) -> Iterator[Machine]:
    machine = Machine(new_directory("n"), f"test-{secrets.token_hex(4)}", "one", discovery="none", listen="127.0.0.1:0")
    with machines([machine]):
        yield machine


@pytest.fixture
def mounted(node: Machine, new_directory: NewDirectory) -> Iterator[Path]:
    source = new_directory("s")
    (source / "file").write_bytes(b"content")
    point = node.mount(node.publish(source), new_directory("m"))
    yield point
    if mount_at(point) is not None:
        subprocess.run(["umount", "-l", point], check=False)


def _told(node: Machine, *options: str) -> Lines:
    lines: Lines = json.loads(node.hoard("doctor", "--json", *options, check=False).stdout)["checks"]
    return lines


def _of(lines: Lines, point: Path) -> list[tuple[str, str]]:
    return [(line["verdict"], line["says"]) for line in lines if f"{point} (" in line["says"]]


def _kill_at_once(pids: list[int]) -> None:
    """Stopped before they are killed: none of them lives to start another in the place of one that died."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def test_a_dead_mount_is_named_and_cleared(node: Machine, mounted: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare (package util-linux)")
    mount = mount_at(mounted)
    assert mount is not None
    assert _of(_told(node), mounted) == [("ok", f"{mounted} (snapshot {mount.snapshot}) is served")]
    node.kill()  # first: it would bring the others back
    _kill_at_once(crews()[mount.device])
    wait_until(lambda: mount.device not in crews(), "the end of every process of the mount")
    (named,) = _of(_told(node), mounted)
    assert named == ("failed", f"{mounted} (snapshot {mount.snapshot}) is dead: nobody serves it")
    # In a mount namespace of its own, so that no mount of anybody else is cleared.
    alone = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        '"$@" doctor --fix --json; "$@" doctor --json',
    ]
    environment = {**os.environ, "HOARD_DATA_DIR": os.fspath(node.data_dir)}
    done = subprocess.run([*alone, "sh", *HOARD], env=environment, capture_output=True, text=True, check=False)
    decoder = json.JSONDecoder()
    first, end = decoder.raw_decode(done.stdout)
    second, _ = decoder.raw_decode(done.stdout[end:].lstrip())
    assert _of(first["checks"], mounted) == [("ok", f"{named[1]}; it is cleared now")]
    assert _of(second["checks"], mounted) == []


def test_the_mounts_of_another_node_are_listed_and_not_judged(
    node: Machine, mounted: Path, new_directory: NewDirectory
) -> None:
    other, mount = new_directory("other"), mount_at(mounted)
    assert mount is not None
    crew = crews()[mount.device]
    try:
        for pid in crew:
            os.kill(pid, signal.SIGSTOP)
        done = node.hoard("doctor", "--json", "--fix", "--data-dir", os.fspath(other), check=False)
    finally:
        for pid in crew:
            os.kill(pid, signal.SIGCONT)
    lines: Lines = json.loads(done.stdout)["checks"]
    assert _of(lines, mounted) == [("ok", f"{mounted} (snapshot {mount.snapshot}) is of another node")]
    assert [line["name"] for line in lines if str(crew[0]) in line["says"].split()] == []
    assert mount_at(mounted) == mount


def test_a_mount_that_lives_again_when_it_is_to_be_cleared_is_left_alone(mounted: Path) -> None:
    mount = mount_at(mounted)
    assert mount is not None
    cure = judge_mount(mount, Life.DEAD).cure
    assert cure is not None
    assert cure() == "nothing dead is there any more"
    assert mount_at(mounted) == mount


def test_processes_that_serve_a_mount_outside_of_any_tree_are_named(node: Machine, mounted: Path) -> None:
    mount = mount_at(mounted)
    assert mount is not None
    crew = sorted(crews()[mount.device])
    assert len(crew) > 1

    def named() -> list[str]:
        lines = [line for line in _told(node) if line["name"] == "leftover processes"]
        return [line["says"] for line in lines if str(crew[0]) in line["says"].split()]

    assert named() == []
    with open(mounted / "file", "rb") as file:
        subprocess.run(["umount", "-l", mounted], check=True)
        node.mounts.remove(mounted)
        (says,) = named()
        assert all(str(pid) in says.split() for pid in crew)
        assert file.read() == b"content"
    wait_until(lambda: mount.device not in crews(), "the end of the mount with its last user")
