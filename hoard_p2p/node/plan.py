"""What the processes of one mount are told. Values only."""

import json
from pathlib import Path
from typing import NamedTuple

from hoard_p2p.interfaces import MountOptions


class MountPlan(NamedTuple):
    """All that the processes of a mount need to know; travels as JSON. Another version of Hoard may read it (a node
    that takes the mount over), so keys are only ever added, with a default.

    `io`: the kind of mount it is, `passthrough` or `no-open`; `io_reason`: why, in one sentence; `io_asked`: what the
    user said. `fill`: whether the node may fetch ahead of the mount's readers. `through`:
    why the store is read through the node, empty if the mount's processes open the index."""

    data_dir: str
    snapshot: str
    runs: int
    inodes: int
    size: int
    mountpoint: str
    workers: int
    timeout: float
    verify: str
    io: str = "no-open"
    io_reason: str = ""
    fill: bool = True
    io_asked: str = "auto"
    through: str = ""

    @property
    def options(self) -> MountOptions:
        return MountOptions(Path(self.mountpoint), self.workers, self.timeout, self.verify, self.io, self.fill)

    def encode(self) -> str:
        return json.dumps(self._asdict())

    @classmethod
    def parse(cls, text: str) -> "MountPlan":
        """What `encode` wrote, in this version or another. Raises ValueError, TypeError."""
        told = json.loads(text)
        return cls(**{key: value for key, value in told.items() if key in cls._fields})
