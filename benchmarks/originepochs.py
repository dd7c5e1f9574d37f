"""The rows `epochs` and `publish` of `make bench-origin`: four nodes and one link to the store.

Every node reads everything, in an order of its own that is another one in each epoch, by two readers. Between epochs
what was read is put out of the page cache: of the mounts, and of what they keep. `C` is what one TCP stream carries
over the store's link, `D` what the disk gives four such readers of four local copies, both taken in the same run.
"""

import shutil
import time
from collections.abc import Sequence

from benchmarks.cluster import stream
from benchmarks.links import HEADERS
from benchmarks.originhost import Data, Host, Part, Times, forget, read_by
from benchmarks.s3server import finish, start
from benchmarks.sheet import OURS, Line, Target
from hoard_p2p.cli.localcluster import remove_tree

READERS = 2
THREADS = 4
"""Of each direct reader: boto3 waits for one answer at a time."""

START_SECONDS = 4.0
PAPER = 3
"""Epochs that the target is about."""

TABLE = (1, 2, 5, 10)
DIRECT, LOCAL = "direct", "local copies"

_NAMES = {"shards": "shards", "small": "110 KB files"}
_SPEEDUP, _FORMULA = {"shards": Target(7.0)}, {"shards": Target(0.92), "small": Target(0.85)}
_FIRST = {"shards": Target(3.8), "small": Target(3.4)}

LINES = (
    *(
        line
        for kind, name in _NAMES.items()
        for line in (
            Line(f"epochs-{kind}", f"4 nodes, 3 epochs, {name}: Hoard / direct", "GB/s", _SPEEDUP.get(kind)),
            Line(f"formula-{kind}", "the same ratio / 12 / (1 + 8 C/D)", "x", _FORMULA[kind]),
            Line(f"first-{kind}", f"4 nodes, first epoch, {name}: Hoard / direct", "GB/s", _FIRST[kind]),
            Line(f"first-link-{kind}", "the same: bytes of the set a second / the link's", "GB/s"),
            Line(f"first-bytes-{kind}", "the same: bytes of the origin / set", "x", Target(most=1.01)),
            Line(f"second-{kind}", f"4 nodes, second epoch, {name} / local copies", "s", Target(None, 1.1)),
        )
    ),
    *(
        line
        for kind, name in _NAMES.items()
        for line in (
            Line(f"publish-{kind}", f"publish by 4 nodes, {name}: set a second / the link's", "GB/s", Target(0.9)),
            Line(f"publish-bytes-{kind}", "the same: bytes of the origin / set", "x"),
        )
    ),
)


def epochs(host: Host) -> None:
    for kind in host.kinds:
        data = host.data(kind)
        for _ in host.runs:
            _one(host, data)


def _one(host: Host, data: Data) -> None:
    link = stream(host.net.core, host.net.machines[0])
    direct = _directly(host, data)
    host.tell(f"{data.kind}: the link carries {link:.3f} GB/s; an epoch directly took {direct:.2f} s")
    local = _locally(host, data)
    disk = len(host.net.machines) * data.size / local / 1e9
    host.tell(f"{data.kind}: an epoch from local copies took {local:.2f} s, D = {disk:.2f} GB/s")
    before = host.net.core.sent()
    seconds, after_first = _hoard(host, data)
    host.times[data.kind, DIRECT] = [direct]
    host.times[data.kind, LOCAL] = [local]
    host.times[data.kind, OURS] = seconds
    total = len(host.net.machines) * data.size / 1e9
    ours, theirs = total * PAPER / taken(seconds, PAPER), total / direct
    host.sheet.add(OURS, f"epochs-{data.kind}", ours, theirs)
    host.sheet.add(OURS, f"formula-{data.kind}", ours / theirs, 12 / (1 + 8 * link / disk))
    host.sheet.add(OURS, f"first-{data.kind}", total / seconds[0], theirs)
    host.sheet.add(OURS, f"first-link-{data.kind}", data.size / 1e9 / seconds[0], link)
    host.sheet.add(OURS, f"first-bytes-{data.kind}", (after_first - before) * HEADERS / data.size)
    if len(seconds) > 1:
        host.sheet.add(OURS, f"second-{data.kind}", seconds[1], local)


def taken(seconds: Sequence[float], count: int) -> float:
    """What so many epochs take: those that were read, and as many like the last one as are missing."""
    return sum(seconds[:count]) + max(0, count - len(seconds)) * seconds[-1]


def plans(data: Data, epoch: int, count: int) -> list[list[Part]]:
    """An order for each node."""
    return [data.whole(1000 * epoch + number) for number in range(count)]


def _directly(host: Host, data: Data) -> float:
    """Seconds of one epoch: nothing is kept, so that every other takes as long."""
    begin, machines = time.time() + START_SECONDS, host.net.machines
    tasks = [
        {
            "do": "read", "endpoint": host.store.outside, "plan": data.keys(plan), "begin": begin,
            "processes": READERS, "threads": THREADS,
        }
        for plan in plans(data, 1, len(machines))
    ]  # fmt: skip
    clients = [start(at, task) for at, task in zip(machines, tasks, strict=True)]
    told = [finish(one) for one in clients]
    if any(one["bytes"] != data.size for one in told):
        raise RuntimeError(f"boto3 got {[one['bytes'] for one in told]} bytes of {data.size} each")
    return max(float(one["seconds"]) for one in told)


def _locally(host: Host, data: Data) -> float:
    """Seconds of one epoch from a copy for each node."""
    count, place = len(host.net.machines), host.cluster.root / "copies"
    copies = [place / str(number) for number in range(count)]
    try:
        for copy in copies:
            shutil.copytree(data.root, copy)
        forget(*copies)
        return read_by(copies, plans(data, 1, count), READERS, data.size)
    finally:
        remove_tree(place)


def _hoard(host: Host, data: Data) -> tuple[list[float], int]:
    """Seconds of each epoch, and what the store's link had carried after the first."""
    nodes = host.nodes()
    url = host.store.url(data.kind, host.net.machines[0])
    snapshot = host.cluster.hoard(nodes[0], "publish", "--lazy", url).split()[-1]
    points = [host.cluster.mount(node, snapshot)[0] for node in nodes]
    stores = [node.data_dir for node in nodes]
    seconds, after_first = [], 0
    for epoch in range(1, host.options.epochs + 1):
        if epoch > 1:
            forget(*points, *stores)
        seconds.append(read_by(points, plans(data, epoch, len(nodes)), READERS, data.size))
        after_first = after_first or host.net.core.sent()
        host.tell(f"{data.kind}: epoch {epoch} with Hoard took {seconds[-1]:.2f} s")
    host.unmount(nodes[-1])
    host.compared(nodes[-1], snapshot, data)
    host.discard(nodes)
    return seconds, after_first


def publish(host: Host) -> None:
    """A publish that reads everything: all nodes side by side, two copies of each byte, sealed."""
    for kind in host.kinds:
        data = host.data(kind)
        for _ in host.runs:
            host.tell(f"publish {kind}")
            link = stream(host.net.core, host.net.machines[0])
            nodes, before = host.nodes(), host.net.core.sent()
            began = time.perf_counter()
            told = host.cluster.hoard(nodes[0], "publish", host.store.url(kind, host.net.machines[0]))
            seconds = time.perf_counter() - began
            read = (host.net.core.sent() - before) * HEADERS
            host.sheet.add(OURS, f"publish-{kind}", data.size / seconds / 1e9, link)
            host.sheet.add(OURS, f"publish-bytes-{kind}", read / data.size)
            host.compared(nodes[-1], told.split()[-1], data)
            host.discard(nodes)


def tables(times: Times) -> list[tuple[str, list[list[str]]]]:
    """For each set, what 1, 2, 5 and 10 epochs take by each way, in seconds."""
    found = []
    for kind in dict.fromkeys(kind for kind, _ in times):
        rows = [["", *(f"{count} epoch{'s' * (count > 1)}" for count in TABLE), "epochs read"]]
        for (other, who), seconds in times.items():
            if other == kind:
                cells = [f"{taken(seconds, count):.1f} s" for count in TABLE]
                rows.append([who, *cells, str(len(seconds))])
        found.append((f"4 nodes, every node reads all {_NAMES[kind]}; epochs that were not read are as the last", rows))
    return found
