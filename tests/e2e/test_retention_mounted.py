"""What is mounted, or was and is mapped still, while its snapshot is evicted, removed and collected: real mounts, a
real node, readers in processes of their own."""

import hashlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.e2e.checked_reader import MIB, ReaderProcess, content, lay_out
from tests.e2e.test_retention import slabs_size, users
from tests.system import IO_KINDS, Machine, io_options, machines, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(120)]
NewDirectory = Callable[[str], Path]

LARGE = {"large/a": 12 * MIB, "large/b": 12 * MIB}
FILES = {**LARGE, **{f"small/{number}": 20_000 for number in range(20)}}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    name = f"test-{secrets.token_hex(4)}"
    machine = Machine(tmp_path_factory.mktemp("n"), name, "one", discovery="none", listen="127.0.0.1:0")
    with machines([machine]):
        yield machine


@pytest.mark.parametrize("io", IO_KINDS)
def test_who_reads_a_mount_sees_right_bytes_while_its_snapshot_goes_and_its_space_returns_afterwards(
    node: Machine, new_directory: NewDirectory, io: str
) -> None:
    source, listed = new_directory("s"), new_directory("l") / "files"
    lay_out(source, FILES)
    listed.write_text(json.dumps(FILES))
    snapshot = node.publish(source)
    point = node.mount(snapshot, new_directory("m"), *io_options(io))
    wait_until(lambda: users(node, snapshot) != [], "the lease of the mount")
    full = slabs_size(node)
    with ExitStack() as readers:
        all_of_them = [
            readers.enter_context(closing(ReaderProcess(kind, point, listed, seed)))
            for seed, kind in enumerate(("random", "direct", "mapped", "small_files"))
        ]
        assert node.hoard("evict", snapshot, check=False).returncode == 1
        assert node.hoard("rm", snapshot, check=False).returncode == 1
        node.hoard("rm", "--force", snapshot)
        collected = node.json("gc")
        assert (collected["chunks"], collected["reclaimed"]) == (0, 0)
        reads = []
        for reader in all_of_them:
            reader.ask()
            told = reader.told(30)
            assert (told.wrong, told.failed) == (0, 0), told.errors
            reads.append(told.reads)
        for reader, before in zip(all_of_them, reads, strict=True):
            assert _later(reader, before), "it still reads, and right bytes"
    assert slabs_size(node) >= full - MIB
    node.umount(point)
    wait_until(lambda: slabs_size(node) < full - 23 * MIB, "the disk space comes back by itself")


def _later(reader: ReaderProcess, before: int) -> bool:
    """Whether it has read on since, and nothing wrong."""

    def on() -> bool:
        reader.ask()
        told = reader.told(30)
        assert (told.wrong, told.failed) == (0, 0), told.errors
        return told.reads > before

    wait_until(on, "another read")
    return True


MAP = """
import hashlib, sys
from tests.mappings import Mapping
maps = []
for name in sys.argv[1:]:
    with open(name, "rb") as file:
        size = file.seek(0, 2)
        maps.append((Mapping(file.fileno(), size), size))
print("mapped", flush=True)
for _ in sys.stdin:
    print(*(hashlib.sha256(each.read(size)).hexdigest() for each, size in maps), flush=True)
"""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Mappings:
    """A process that has files mapped, and not open. (A mapping whose file is gone kills who reads it.)"""

    def __init__(self, files: Sequence[Path]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", MAP, *map(os.fspath, files)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "mapped\n"

    def digests(self) -> list[str]:
        """SHA-256 of the bytes of each."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        told = self._process.stdout.readline().split()
        assert told, f"it ended with status {self._process.wait(10)}"
        return told

    def close(self) -> None:
        self._process.communicate(timeout=20)


@pytest.mark.parametrize("how", ["lazy", "force"])
def test_a_mapping_that_outlives_its_mount_keeps_its_bytes_and_their_space_until_it_ends(
    node: Machine, new_directory: NewDirectory, how: str
) -> None:
    first, second = new_directory("s"), new_directory("t")
    lay_out(first, FILES)
    (second / "shared").write_bytes(content("large/a", 0, 4 * MIB))  # one of the three chunks of a large file
    snapshot, stays = node.publish(first), node.publish(second)
    full = slabs_size(node)
    point = node.mount(snapshot, new_directory("m"), "--verify", "arrival", *io_options("passthrough"))
    with closing(Mappings([point / name for name in LARGE])) as mappings:
        wait_until(lambda: users(node, snapshot) != [], "the lease of the mount")
        if how == "force":
            node.hoard("umount", "--force", os.fspath(point))
            node.mounts.remove(point)
            wait_until(lambda: users(node, snapshot) == [], "the end of the lease")
        else:
            subprocess.run(["umount", "-l", point], check=True)
            node.mounts.remove(point)
            assert users(node, snapshot) != [], "its kernel still serves it"
        node.hoard("rm", "--force", snapshot)
        node.json("gc")
        assert mappings.digests() == [digest(content(name, 0, size)) for name, size in LARGE.items()]
        assert node.json("status")["store"]["used"] >= full - MIB, "what is mapped counts"
    wait_until(lambda: users_or_none(node, snapshot) == [], "the end of the lease")
    wait_until(lambda: node.json("gc")["kept"] == [], "nothing waits any more", 30)
    wait_until(lambda: slabs_size(node) < full - 19 * MIB, "the disk space comes back")
    out = new_directory("o") / "out"
    node.hoard("export", stays, os.fspath(out))
    assert (out / "shared").read_bytes() == (second / "shared").read_bytes()
    node.hoard("rm", stays)
    wait_until(lambda: slabs_size(node) < MIB, "the rest of the space comes back")


def users_or_none(node: Machine, snapshot: str) -> list[str]:
    """Who uses it, also once it is removed."""
    return [str(user) for one in node.json("status")["snapshots"] if one["id"] == snapshot for user in one["users"]]
