"""Network namespaces for tests: several machines on one Ethernet, in one kernel, apart from the real network.

Each host is a namespace with `lo` and `eth0`; their veth peers hang on a bridge in a namespace of its own, so nothing
of it is visible outside. Multicast passes. Needs root and iproute2 (mark such tests `netns`).
"""

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

_numbers = itertools.count(1)
STOP_TIME = 5.0


@dataclass
class Host:
    """One machine of a `Network`."""

    namespace: str
    address: str
    switch: str = ""
    port: str = ""
    processes: list["subprocess.Popen[str]"] = field(default_factory=list)

    def run(self, argv: Sequence[str], *, timeout: float = 30.0) -> "subprocess.CompletedProcess[str]":
        """Run a command here; raises CalledProcessError if it fails."""
        command = ["ip", "netns", "exec", self.namespace, *argv]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout)

    def start(
        self, argv: Sequence[str], *, stdout: "int | IO[Any]" = subprocess.PIPE, env: dict[str, str] | None = None
    ) -> "subprocess.Popen[str]":
        """Start a command here (its pid is the command's own); it is killed when the network is taken down."""
        command = ["ip", "netns", "exec", self.namespace, *argv]
        process = subprocess.Popen(command, stdout=stdout, text=True, env=env)
        self.processes.append(process)
        return process

    def join(self, bridge: str) -> None:
        """Plug the cable into another bridge (`br0` at first, or `br1`), which nothing leads to from here."""
        _ip("-n", self.switch, "link", "set", self.port, "master", bridge)

    def link(self, up: bool, device: str = "eth0") -> None:
        """Plug or unplug a network device."""
        self.run(["ip", "link", "set", device, "up" if up else "down"])


@contextmanager
def network(count: int, *, plugged: bool = True) -> Iterator[list[Host]]:
    """`count` hosts at 10.77.0.1, 10.77.0.2, ... on one bridge. With `plugged` false their `eth0` is down at first, so
    only loopback is up. Everything is removed at the end, whatever happened."""
    prefix = f"hoard-{os.getpid()}-{next(_numbers)}"
    switch = f"{prefix}-switch"
    hosts = [Host(f"{prefix}-{number}", f"10.77.0.{number}") for number in range(1, count + 1)]
    made: list[str] = []
    try:
        for namespace in [switch, *(host.namespace for host in hosts)]:
            _ip("netns", "add", namespace)
            made.append(namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
        # without snooping the bridge floods multicast, as a plain switch does
        for bridge in ("br0", "br1"):
            _ip("-n", switch, "link", "add", bridge, "type", "bridge", "mcast_snooping", "0", "stp_state", "0")
            _ip("-n", switch, "link", "set", bridge, "up")
        for number, host in enumerate(hosts, 1):
            _plug(switch, number, host, plugged=plugged)
        yield hosts
        for host in hosts:
            _stop(host)
        _check_nothing_runs(hosts)
    finally:
        for host in hosts:
            _stop(host)
        for pid in _running(hosts):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for namespace in made:
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


def _plug(switch: str, number: int, host: Host, *, plugged: bool) -> None:
    port = f"port{number}"
    host.switch, host.port = switch, port
    _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
    _ip("-n", switch, "link", "set", port, "master", "br0", "up")
    _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
    if plugged:
        _ip("-n", host.namespace, "link", "set", "eth0", "up")


def _stop(host: Host) -> None:
    """Idempotent."""
    for process in host.processes:
        process.kill()
    for process in host.processes:
        process.wait(STOP_TIME)
        if process.stdout is not None:
            process.stdout.close()


def _check_nothing_runs(hosts: Sequence[Host]) -> None:
    """What a test started has ended when the network is taken down, or soon after: an AssertionError that names it."""
    left, end = _running(hosts), time.monotonic() + STOP_TIME
    while left and time.monotonic() < end:
        time.sleep(0.1)
        left = _running(hosts)
    assert not left, f"left behind: {left}"


def _running(hosts: Sequence[Host]) -> dict[int, str]:
    """Processes of the hosts, with their command lines."""
    found: dict[int, str] = {}
    for host in hosts:
        told = subprocess.run(["ip", "netns", "pids", host.namespace], check=False, capture_output=True, text=True)
        for pid in told.stdout.split():
            with suppress(OSError):
                found[int(pid)] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:200]
    return found


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
