"""A node of another version takes over the mounts that the old one made, and their readers do not notice."""

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hoard_p2p
from hoard_p2p import __version__
from hoard_p2p.testing.mountfakes import has_ended
from tests.e2e.test_mount_revival import Hammer, listed, mapped_reader, processes, small_files
from tests.system import Machine, machines, make_tree, wait_until

pytestmark = [pytest.mark.root, pytest.mark.fuse, pytest.mark.timeout(120)]
NewDirectory = Callable[[str], Path]

NEW = "99.0.0"


@pytest.fixture
def node(new_directory: NewDirectory) -> Iterator[Machine]:
    machine = Machine(new_directory("n"), f"test-{secrets.token_hex(4)}", "one", discovery="none", listen="127.0.0.1:0")
    with machines([machine]):
        yield machine


@pytest.fixture
def source(new_directory: NewDirectory) -> Path:
    return make_tree(new_directory("s"), files=10, large=3 << 20)


def another_version(directory: Path, **changes: str) -> dict[str, str]:
    """A copy of the package that calls itself another version; what runs it in place of this one. `changes`: file to
    the line that ends it."""
    copy = shutil.copytree(Path(hoard_p2p.__file__).parent, directory / "hoard_p2p")
    init = copy / "__init__.py"
    init.write_text(re.sub(r'__version__ = ".*"', f'__version__ = "{NEW}"', init.read_text()))
    for file, line in changes.items():
        with (copy / file).open("a") as out:
            out.write(f"\n{line}\n")
    return {"PYTHONPATH": os.fspath(directory), "PYTHONSAFEPATH": "1"}


def runs(pid: int, environment: dict[str, str]) -> bool:
    """Whether a process was started by that version."""
    told = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return f"PYTHONPATH={environment['PYTHONPATH']}".encode() in told


def exchange(node: Machine, environment: dict[str, str]) -> None:
    node.hoard("down")
    node.environment = environment
    node.up()


def test_a_new_version_takes_mounts_over_while_they_are_read(
    node: Machine, source: Path, new_directory: NewDirectory
) -> None:
    points = [node.mount(node.publish(source), new_directory("m")) for _ in range(2)]
    new = another_version(new_directory("v"))
    files = small_files(source, points[0])
    with Hammer(files) as hammer, mapped_reader(points[0] / "shard") as mapping:
        hammer.goes_on()
        old = [pid for point in points for pid in processes(point)]
        assert {mount["version"] for mount in listed(node)} == {__version__}
        exchange(node, new)
        wait_until(lambda: [mount["version"] for mount in listed(node)] == [NEW] * 2, "both mounts are taken over")
        wait_until(lambda: all(map(has_ended, old)), "the old processes end")
        hammer.goes_on()
        out, _ = mapping.communicate("\n", timeout=30)
    assert out == "True\n"
    assert all(runs(pid, new) for point in points for pid in processes(point))
    assert (points[1] / "shard").read_bytes() == (source / "shard").read_bytes()
    for point in points:
        node.umount(point)


def whole(mounted: Path) -> list[int]:
    """The supervisor, the one worker and the verifier, which starts once the mount answers."""
    wait_until(lambda: len(processes(mounted)) == 3, "the verifier is there")
    return processes(mounted)


def test_a_version_that_does_not_know_the_mounts_memory_leaves_them_to_their_processes(
    node: Machine, source: Path, new_directory: NewDirectory
) -> None:
    mounted = node.mount(node.publish(source), new_directory("m"))
    old = whole(mounted)
    exchange(node, another_version(new_directory("v"), **{"mount/shared.py": "MAGIC = 7"}))
    wait_until(lambda: len(listed(node)) == 1, "the mount is attached")
    with Hammer(small_files(source, mounted)) as hammer:
        hammer.goes_on()
    assert processes(mounted) == old
    assert node.log().count(f"is of version {__version__}") == 1
    assert "version " + __version__ in node.hoard("status").stdout
    node.environment = {}
    node.umount(mounted)


def test_processes_go_on_when_their_take_over_fails(node: Machine, source: Path, new_directory: NewDirectory) -> None:
    mounted = node.mount(node.publish(source), new_directory("m"))
    old = whole(mounted)
    exchange(node, another_version(new_directory("v"), **{"mount/succession.py": "raise OSError(5, 'worn out')"}))
    wait_until(lambda: "could not be taken over" in node.log(), "the node says so")
    with Hammer(small_files(source, mounted)) as hammer:
        hammer.goes_on()
    assert processes(mounted) == old
    node.umount(mounted)
