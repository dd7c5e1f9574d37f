"""What every test gets: short-lived directories, skips with reasons, and three watchmen.

A test fails on a WARNING or worse that it did not announce (`@pytest.mark.expect_warnings`). The session fails when a
Hoard mount, process or network namespace that it made outlives it (I10).

Tests run in several processes (`pytest -n`), each of which is a session of its own; the one that the user started only
collects what they leave over.

Marks that skip by themselves: `root`, `fuse` (may mount, as whoever runs the tests), `netns` (root, iproute2 and a
kernel that lets it make network namespaces).
"""

import functools
import logging
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hoard_p2p.mount.attach import obstacle

SESSION_VARIABLE = "HOARD_TEST_SESSION"
"""Set to a random value for the session: every process that a test starts can be told by it."""

NAMESPACES = Path("/run/netns")


class WarningWatch(logging.Handler):
    """Keeps the records of level WARNING and above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.name}: {record.getMessage()}")


@dataclass
class Session:
    """What this run of the tests may leave nothing of."""

    token: str
    directory: Path
    leftovers: list[str] = field(default_factory=list)

    def processes(self) -> dict[int, str]:
        """Hoard processes started, at whatever remove, by this session: pid to command line."""
        mark = f"{SESSION_VARIABLE}={self.token}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(entry.name)] = command
            except OSError:  # it ended, or it is not ours to look at
                continue
        return {pid: command for pid, command in found.items() if "hoard" in command}

    def mounts(self) -> list[str]:
        """Mount points of Hoard beneath this session's directory."""
        lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
        points = [line.split()[4] for line in lines if " fuse.hoard " in line]
        return [point for point in points if Path(point).is_relative_to(self.directory)]

    def namespaces(self) -> list[str]:
        """Network namespaces named hoard-* that hold this session's token or process id in their name."""
        marks = (self.token, f"-{os.getpid()}-")
        names = [entry.name for entry in NAMESPACES.iterdir()] if NAMESPACES.is_dir() else []
        return [name for name in names if name.startswith("hoard-") and any(mark in f"{name}-" for mark in marks)]

    def sweep(self) -> None:
        """Record what is left over, then remove it, so that the next run starts clean."""
        deadline = time.monotonic() + 5  # what is just ending may end
        while (self.processes() or self.mounts()) and time.monotonic() < deadline:
            time.sleep(0.05)
        processes, mounts, namespaces = self.processes(), self.mounts(), self.namespaces()
        self.leftovers += [f"process {pid}: {command}" for pid, command in processes.items()]
        self.leftovers += [f"mount {point}" for point in mounts]
        self.leftovers += [f"network namespace {name}" for name in namespaces]
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for point in mounts:
            subprocess.run(["umount", "-l", point], check=False)
        for name in namespaces:
            subprocess.run(["ip", "netns", "del", name], check=False)
        shutil.rmtree(self.directory, ignore_errors=True)


SESSION = pytest.StashKey[Session]()
LEFT_OVER = pytest.StashKey[list[str]]()


def runs_tests(config: pytest.Config) -> bool:
    """Whether this process does, and not others on its behalf."""
    return hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OVER] = []
    if not runs_tests(config):
        return
    # Short, since some paths below it are limited (107 bytes for a unix socket), and on the disk that TMPDIR names.
    directory = Path(tempfile.mkdtemp(prefix="ht-"))
    directory.chmod(0o755)  # an ordinary user that a test becomes must get through
    token = secrets.token_hex(8)
    config.stash[SESSION] = Session(token, directory)
    os.environ[SESSION_VARIABLE] = token
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
    os.environ.pop("HOARD_DATA_DIR", None)


def pytest_sessionfinish(session: pytest.Session) -> None:
    left_over = session.config.stash[LEFT_OVER]
    own = session.config.stash.get(SESSION, None)
    if own is not None:
        own.sweep()
        left_over += own.leftovers
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_over"] = left_over
    if left_over and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A process that ran tests has ended."""
    node.config.stash[LEFT_OVER] += getattr(node, "workeroutput", {}).get("left_over", [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[LEFT_OVER]:
        terminalreporter.section("left over after the tests (I10)", red=True)
        for line in config.stash[LEFT_OVER]:
            terminalreporter.line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    own = config.stash.get(SESSION, None)
    if own is not None:
        shutil.rmtree(own.directory, ignore_errors=True)
        tempfile.tempdir = None


@functools.cache
def why_no_root() -> str:
    return "" if os.geteuid() == 0 else "needs root"


@functools.cache
def why_no_netns() -> str:
    """Empty where network namespaces can be made; else the reason."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "no ip command (package iproute2)"
    name = f"hoard-{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"network namespaces cannot be made: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


REASONS: dict[str, Callable[[], str]] = {"root": why_no_root, "fuse": obstacle, "netns": why_no_netns}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark, why_not in REASONS.items():
        if item.get_closest_marker(mark) is not None and (reason := why_not()):
            pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail the test on warnings that it did not announce."""
    watch = WarningWatch()
    root = logging.getLogger()
    root.addHandler(watch)
    try:
        yield
    finally:
        root.removeHandler(watch)
    if watch.lines and item.get_closest_marker("expect_warnings") is None:
        pytest.fail("unexpected warnings were logged:\n" + "\n".join(watch.lines), pytrace=False)


@pytest.fixture
def needs_root() -> None:
    """Skips the test unless it runs as root."""
    if reason := why_no_root():
        pytest.skip(reason)


@pytest.fixture
def needs_fuse() -> None:
    """Skips the test where nothing can be mounted."""
    if reason := obstacle():
        pytest.skip(reason)


@pytest.fixture
def needs_netns() -> None:
    """Skips the test where no network namespaces can be made."""
    if reason := why_no_netns():
        pytest.skip(reason)


@pytest.fixture
def new_directory() -> Iterator[Callable[[str], Path]]:
    """Makes empty directories with short paths (data directories, mount points), removed after the test."""
    made: list[Path] = []

    def make(name: str = "d") -> Path:
        made.append(Path(tempfile.mkdtemp(prefix=f"{name}-")))
        return made[-1]

    yield make
    for directory in made:
        shutil.rmtree(directory, ignore_errors=True)
