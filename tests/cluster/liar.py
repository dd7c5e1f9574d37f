"""Running a lying node (`lying_node.py`) as one of the machines of a test."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from hoard_p2p.config import NodeSettings
from tests.system import Machine, wait_until

PROGRAM = Path(__file__).with_name("lying_node.py")
LIES = ("wrong", "cut", "short", "endless", "html", "drip", "silent", "denies", "pending")


@dataclass
class Liar(Machine):
    """Honest until it is told to lie. `listen` has the address that others call it at: it has no wildcard."""

    origins: tuple[str, ...] = ()
    """What it may read, and lies about."""

    processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    @property
    def _lie(self) -> Path:
        return self.data_dir.with_name(self.data_dir.name + ".lie")

    def up(self) -> None:
        host, _, port = self.listen.rpartition(":")
        settings = NodeSettings(
            data_dir=self.data_dir, host=host, port=int(port), cluster=self.cluster, name=self.name, rack=self.rack,
            capacity=None, discovery=(self.discovery,), allow_origin=self.origins,
        )  # fmt: skip
        told = json.dumps({**settings._asdict(), "data_dir": os.fspath(self.data_dir)})
        (self.data_dir / "log").mkdir(exist_ok=True)
        with (self.data_dir / "log" / "node.log").open("ab") as log:
            command = [*self.prefix, sys.executable, os.fspath(PROGRAM), told, os.fspath(self._lie)]
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        wait_until(lambda: self.hoard("status", check=False).returncode == 0, f"{self.name} answers", 30)

    def lie(self, lie: str) -> None:
        """From now on it answers so; "honest": as it should."""
        self._lie.write_text(lie)

    def close(self) -> None:
        super().close()
        for process in self.processes:
            process.kill()
            process.wait()
        self._lie.unlink(missing_ok=True)
