"""Links, disks and the origin as queues with a rate, and which of them a transfer passes.

A transfer of some bytes passes all its pipes at the same time, as packets do; in each it queues behind what was given
to that pipe before. No packets, no losses, no protocol overhead.
"""

from collections.abc import Sequence


class Pipe:
    """First come, first served, `rate` bytes a second. `carried`: bytes so far."""

    __slots__ = ("carried", "free", "name", "rate")

    def __init__(self, name: str, rate: float) -> None:
        self.name = name
        self.rate = rate
        self.free = 0.0
        self.carried = 0


Path = tuple[Pipe, ...]


def carry(now: float, size: int, path: Sequence[Pipe]) -> float:
    """Send `size` bytes through all pipes of `path`; when the last byte has passed the slowest of them."""
    done = now
    for pipe in path:
        begin = pipe.free if pipe.free > now else now
        pipe.free = passed = begin + size / pipe.rate
        pipe.carried += size
        if passed > done:  # noqa: PLR1730  (millions of times: a call of max() costs as much as all the rest)
            done = passed
    return done


class Network:
    """Nodes with a link each way, racks with an uplink each way, one origin outside of all racks."""

    def __init__(
        self,
        racks: Sequence[int],
        *,
        node_rate: float,
        uplink_rate: float,
        origin_rate: float,
        disk_rate: float,
        local_origin: bool = False,
    ) -> None:
        """`racks[n]` is the rack of node n. `local_origin`: nodes reach the origin without using their links."""
        self._local_origin = local_origin
        self.racks = tuple(racks)
        self.up = [Pipe(f"node {n} sends", node_rate) for n in range(len(racks))]
        self.down = [Pipe(f"node {n} receives", node_rate) for n in range(len(racks))]
        self.disk = [Pipe(f"disk of node {n}", disk_rate) for n in range(len(racks))]
        count = max(racks) + 1
        self.out = [Pipe(f"out of rack {r}", uplink_rate) for r in range(count)]
        self.into = [Pipe(f"into rack {r}", uplink_rate) for r in range(count)]
        self.origin = Pipe("origin", origin_rate)

    def between(self, source: int, target: int) -> Path:
        """From a node's memory to the disk of another."""
        ours, theirs = self.racks[source], self.racks[target]
        if ours == theirs:
            return self.up[source], self.down[target], self.disk[target]
        return self.up[source], self.out[ours], self.into[theirs], self.down[target], self.disk[target]

    def from_origin(self, target: int) -> Path:
        if self._local_origin:
            return self.origin, self.disk[target]
        return self.origin, self.into[self.racks[target]], self.down[target], self.disk[target]

    def unstored(self, path: Path) -> Path:
        """The same way, but the bytes are not written to the disk at its end."""
        return path[:-1]
