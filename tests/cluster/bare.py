"""Running bare nodes (`bare_node.py`) on hosts of a test network."""

import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.netns import Host

PROGRAM = Path(__file__).with_name("bare_node.py")
DEADLINE = 10.0
START_SECONDS = 60.0


@dataclass
class Bare:
    """A running bare node and what it printed last."""

    process: "subprocess.Popen[str]"
    buffer: bytes = b""

    def line(self, deadline: float) -> dict[str, object]:
        """Its next line. Fails at the deadline."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no news before the deadline, last was {self.buffer!r}"
            data = os.read(fd, 65536)
            assert data, "the node ended"
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    def sees(self, names: set[str], seconds: float = DEADLINE) -> dict[str, object]:
        """Its first view from now on with exactly these peers: name to address."""
        deadline = time.monotonic() + seconds
        while set(view := self.line(deadline)) != names:
            pass
        return view

    def is_quiet_for(self, seconds: float) -> bool:
        """Whether it says nothing new for so long."""
        assert self.process.stdout is not None
        return not self.buffer and not select.select([self.process.stdout.fileno()], [], [], seconds)[0]


def start(host: Host, number: int, *, cluster: str = "c", listen: str = "0.0.0.0:0", discovery: str = "mdns") -> Bare:
    argv = [sys.executable, str(PROGRAM), str(number), cluster, listen, discovery]
    # the process id seen by select and kill is the node's own: `ip netns exec` replaces itself
    return Bare(host.start(argv))


def port_of(node: Bare) -> int:
    """Its first line. A process on a busy machine takes its time to start."""
    port = node.line(time.monotonic() + START_SECONDS)["port"]
    assert isinstance(port, int)
    return port
