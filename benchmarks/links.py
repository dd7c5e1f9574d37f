"""Machines in racks for benchmarks, on one kernel: namespaces whose links all have a rate (needs root, iproute2, tc).

A rack is a bridge in a namespace of its own; its nodes hang on it, and it hangs on the core, each by a veth pair that
is shaped in both directions with `tc tbf`. Whatever leaves a rack crosses its uplink. Bytes are those that the kernel
counted on the links, headers included.
"""

import itertools
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

GBIT = 1_000_000_000
HEADERS = 1448 / 1514
"""The share of a full Ethernet frame that TCP leaves for bytes (IPv4, time stamps)."""
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Machine:
    """One node's place: its namespace, address, and rack."""

    namespace: str
    address: str
    rack: str

    @property
    def inside(self) -> tuple[str, ...]:
        """What a command is to be started with, so that it runs here; mounts are those of everybody."""
        return ("nsenter", f"--net=/run/netns/{self.namespace}")

    def received(self) -> int:
        """Bytes that came in over its link."""
        return _counted(self.namespace, "eth0", "rx")

    def sent(self) -> int:
        return _counted(self.namespace, "eth0", "tx")


@dataclass(frozen=True, slots=True)
class Rack:
    """A bridge and its uplink to the core."""

    name: str
    namespace: str

    def received(self) -> int:
        """Bytes that came in from other racks, and from an origin at the core."""
        return _counted(self.namespace, "uplink", "rx")

    def sent(self) -> int:
        return _counted(self.namespace, "uplink", "tx")


@dataclass(frozen=True, slots=True)
class Links:
    """`core`: a machine beside the racks, for an origin or a client."""

    machines: tuple[Machine, ...]
    racks: tuple[Rack, ...]
    core: Machine


@contextmanager
def links(racks: Sequence[int], *, rate: int, uplink: int = 0, origin: int = 0) -> Iterator[Links]:
    """Racks of so many nodes; bits a second of a node's link, of a rack's (0: as a node's), and of the origin's (the
    same). Everything is removed at the end."""
    prefix = f"h-links-{os.getpid()}-{next(_numbers)}"
    made: list[str] = []

    def namespace(name: str) -> str:
        _ip("netns", "add", f"{prefix}-{name}")
        made.append(f"{prefix}-{name}")
        _ip("-n", made[-1], "link", "set", "lo", "up")
        return made[-1]

    try:
        yield _built(namespace, racks, rate, uplink or rate, origin or rate)
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _built(namespace: "Namespace", counts: Sequence[int], rate: int, uplink: int, origin: int) -> Links:
    core = namespace("core")
    _bridge(core)
    beside = Machine(namespace("origin"), "10.78.255.1", "")
    _machine(beside, core, "origin", origin)
    machines, racks = [], []
    for number, count in enumerate(counts, 1):
        rack = Rack(f"rack-{number}", namespace(f"rack{number}"))
        _bridge(rack.namespace)
        _pair(rack.namespace, "uplink", core, f"rack{number}", uplink)
        _ip("-n", rack.namespace, "link", "set", "uplink", "master", "br0", "up")
        _ip("-n", core, "link", "set", f"rack{number}", "master", "br0", "up")
        racks.append(rack)
        for place in range(1, count + 1):
            machine = Machine(namespace(f"node{number}-{place}"), f"10.78.{number}.{place}", rack.name)
            _machine(machine, rack.namespace, f"port{place}", rate)
            machines.append(machine)
    return Links(tuple(machines), tuple(racks), beside)


class Namespace(Protocol):
    """Makes a namespace of that name, and returns what it is called."""

    def __call__(self, name: str) -> str: ...


def _bridge(namespace: str) -> None:
    _ip("-n", namespace, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0", "stp_state", "0")
    _ip("-n", namespace, "link", "set", "br0", "up")


def _machine(machine: Machine, bridge: str, port: str, rate: int) -> None:
    _pair(machine.namespace, "eth0", bridge, port, rate)
    _ip("-n", bridge, "link", "set", port, "master", "br0", "up")
    _ip("-n", machine.namespace, "addr", "add", f"{machine.address}/16", "dev", "eth0")
    _ip("-n", machine.namespace, "link", "set", "eth0", "up")


def _pair(here: str, device: str, there: str, port: str, rate: int) -> None:
    """A veth pair, each end of which sends at `rate`."""
    _ip("-n", here, "link", "add", device, "type", "veth", "peer", "name", port, "netns", there)
    for namespace, name in ((here, device), (there, port)):
        shape(namespace, name, rate)


def shape(namespace: str, device: str, rate: int) -> None:
    """Let a device send `rate` bits a second, with a burst of 1 ms (at least two large segments), a queue of 10 ms."""
    burst = max(128 << 10, rate // 8 // 1000)
    limit = max(512 << 10, rate // 8 // 100) + burst
    _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf",
         "rate", f"{rate}bit", "burst", f"{burst}", "limit", f"{limit}")  # fmt: skip


def _counted(namespace: str, device: str, way: str) -> int:
    done = _run("ip", "-n", namespace, "-s", "-j", "link", "show", "dev", device)
    return int(json.loads(done)[0]["stats64"][way]["bytes"])


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
