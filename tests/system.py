"""Whole nodes for tests: the real command in processes of its own, on this machine or inside a network namespace."""

import errno
import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hoard_p2p.config import Json
from hoard_p2p.errors import HoardError
from hoard_p2p.mount.backing import obstacle as no_passthrough
from hoard_p2p.node.client import NodeClient

HOARD = (sys.executable, "-m", "hoard_p2p.cli.main")
STEP_SECONDS = 60.0
LOOKS = (("status",), ("peers",), ("capacity",))
"""Commands that print an answer of the node as it is."""
IO_KINDS = ("no-open", "passthrough")
"""The kinds of mount; a test that takes `io` runs for each."""


def space_of(directory: Path) -> int:
    """Bytes that the files of a directory take on the disk; those that go meanwhile take none."""
    size = 0
    for path in directory.iterdir():
        with suppress(FileNotFoundError):
            size += path.stat().st_blocks * 512
    return size


def io_options(io: str) -> tuple[str, ...]:
    """What asks `hoard mount` for that kind; skips the test where it cannot be had."""
    if io == "passthrough" and (reason := no_passthrough(Path(tempfile.gettempdir()))):
        pytest.skip(reason)
    return ("--io", io)


def wait_until(done: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """Poll until it is so; an AssertionError that says what was waited for otherwise."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.05)


@dataclass
class Machine:
    """One node with its data directory. `prefix` runs commands elsewhere (`ip netns exec NAME`); `environment` is added
    to that of its commands, and so of the node, its publishes and its mounts."""

    data_dir: Path
    cluster: str
    name: str
    rack: str = ""
    prefix: tuple[str, ...] = ()
    discovery: str = "mdns"
    options: tuple[str, ...] = ()
    listen: str = "0.0.0.0:0"
    environment: dict[str, str] = field(default_factory=dict)
    mounts: list[Path] = field(default_factory=list)

    def hoard(
        self, *arguments: str, check: bool = True, seconds: float = STEP_SECONDS
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command against this node; an AssertionError with its output if it fails."""
        command = [*self.prefix, *HOARD, *arguments]
        environment = {**os.environ, **self.environment, "HOARD_DATA_DIR": os.fspath(self.data_dir)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=seconds, check=False)
        if check:
            assert done.returncode == 0, f"{arguments}: status {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def json(self, *arguments: str) -> Any:
        """What a command prints with --json. Looks are asked for here: a command takes 0.3 s to start. (The socket of
        a node in another network namespace is a path all the same.)"""
        if arguments in LOOKS and all(part == "nsenter" or part.startswith("--net=") for part in self.prefix):
            return self.call(arguments[0])
        return json.loads(self.hoard(*arguments, "--json").stdout)

    def call(self, operation: str, **arguments: Json) -> dict[str, Json]:
        """An operation of the node, without a command; an AssertionError if it fails."""
        try:
            with NodeClient.connect(self.data_dir) as client:
                return client.call(operation, arguments).body
        except HoardError as error:
            raise AssertionError(f"{operation}: {error}") from error

    def up(self) -> None:
        rack = ("--rack", self.rack) if self.rack else ()
        self.hoard(
            "up", "--detach", "--cluster", self.cluster, "--name", self.name, "--listen", self.listen,
            "--discovery", self.discovery, *rack, *self.options,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return int(self.json("status")["node"]["pid"])

    def kill(self) -> None:
        """kill -9 of the node."""
        os.kill(self.pid, signal.SIGKILL)

    def sees(self, count: int) -> bool:
        states = [peer["state"] for peer in self.json("peers")["peers"]]
        return states.count("alive") == count

    def publish(self, source: Path, *options: str) -> str:
        return self.hoard("publish", os.fspath(source), *options).stdout.splitlines()[-1]

    def mount(self, snapshot: str, mountpoint: Path, *options: str) -> Path:
        mountpoint.mkdir(exist_ok=True)
        self.hoard("mount", snapshot, os.fspath(mountpoint), *options)
        self.mounts.append(mountpoint)
        return mountpoint

    def umount(self, mountpoint: Path) -> None:
        self.hoard("umount", os.fspath(mountpoint))
        self.mounts.remove(mountpoint)

    def log(self) -> str:
        path = self.data_dir / "log" / "node.log"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        for mountpoint in self.mounts:
            self.hoard("umount", "--force", os.fspath(mountpoint), check=False)
        self.hoard("down", check=False)


@contextmanager
def machines(made: Sequence[Machine], *, others: int = 0) -> Iterator[Sequence[Machine]]:
    """Start nodes, wait until all see each other and `others` that run already, and end everything afterwards."""
    try:
        for machine in made:
            machine.up()
        for machine in made:
            wait_until(lambda machine=machine: machine.sees(len(made) - 1 + others), f"{machine.name} sees all others")  # type: ignore[misc]  # bound now
        yield made
    finally:
        for machine in made:
            machine.close()


def tree(root: Path) -> dict[bytes, tuple[object, ...]]:
    """Everything about a tree that a snapshot keeps, by path as bytes: type, mode, mtime, size and digest, link
    target, hard links as the first path of their set, `user.*` attributes, whether it has holes."""
    found: dict[bytes, tuple[object, ...]] = {}
    first: dict[tuple[int, int], bytes] = {}
    top = os.fsencode(root)
    for directory, subdirectories, files in os.walk(top):
        subdirectories.sort()
        for name in sorted([b"."] if directory == top else []) + sorted(subdirectories + files):
            path = os.path.join(directory, name)
            found[os.path.relpath(path, top)] = _facts(path, first)
    return found


def exported(found: dict[bytes, tuple[object, ...]]) -> dict[bytes, tuple[object, ...]]:
    """What `hoard export` makes of a tree whose snapshot keeps no owners: no set-user-id and set-group-id bits."""
    return {
        path: (kind, mode & 0o1777, *facts) if isinstance(mode, int) else (kind, mode, *facts)
        for path, (kind, mode, *facts) in found.items()
    }


def _facts(path: bytes, first: dict[tuple[int, int], bytes]) -> tuple[object, ...]:
    status = os.lstat(path)
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFLNK:
        return "link", os.readlink(path)
    common = (stat.S_IMODE(status.st_mode), status.st_mtime_ns, _attributes(path))
    if kind == stat.S_IFDIR:
        return "directory", *common
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    links = first.setdefault((status.st_dev, status.st_ino), os.path.basename(path)) if status.st_nlink > 1 else b""
    return "file", *common, status.st_size, digest, status.st_nlink, links


def _attributes(path: bytes) -> dict[str, bytes]:
    try:
        names = os.listxattr(path)
    except OSError as error:
        if error.errno == errno.ENOTSUP:  # what a mount of a snapshot without any answers, once for all files
            return {}
        raise
    return {name: os.getxattr(path, name) for name in sorted(names) if name.startswith("user.")}


def make_tree(root: Path, *, files: int = 60, large: int = 12 << 20, seed: int = 1) -> Path:
    """A small tree with everything in it: odd names, links, attributes, holes, old and far dates, one large file."""
    import random

    draw = random.Random(seed)
    top = os.fsencode(root)
    os.makedirs(top + b"/deep/er/\xff\xfe", exist_ok=True)
    os.makedirs(top + b"/empty")
    for number in range(max(files, 5)):
        with open(top + b"/deep/%04d.bin" % number, "wb") as file:
            file.write(draw.randbytes(draw.choice((0, 1, 4095, 4096, 100_000))))
    names = [b"new\nline", b"caf\xe9", b" lead", b"-rf", b"\x01", "\U0001f600".encode(), b"x" * 255]
    for name in names:
        with open(top + b"/deep/er/\xff\xfe/" + name, "wb") as file:
            file.write(name * 3)
    with open(top + b"/shard", "wb") as file:
        for start in range(0, large, 1 << 20):
            file.write(draw.randbytes(min(1 << 20, large - start)))
    with open(top + b"/sparse", "wb") as file:
        file.truncate(40 << 20)
        file.seek(20 << 20)
        file.write(b"in the middle")
    os.link(top + b"/shard", top + b"/deep/again")
    os.symlink(b"../nowhere/\xff", top + b"/deep/broken")
    os.symlink(b"shard", top + b"/good")
    os.chmod(top + b"/deep/0001.bin", 0o4755)
    os.chmod(top + b"/empty", 0o1777)
    os.setxattr(top + b"/deep/0002.bin", b"user.label", b"cat\x00dog")
    os.setxattr(top + b"/deep", b"user.dir", b"")
    os.utime(top + b"/deep/0003.bin", ns=(0, -86_400_000_000_001))
    os.utime(top + b"/deep/0004.bin", ns=(0, 4_000_000_000_123_456_789))
    os.utime(top + b"/empty", ns=(0, 1_234_567_890_123_456_789))
    return root
