"""The row `read` of `make bench-origin`: how fast one node reads a store whose link is not shaped, beside boto3.

Clients, node and store are in one namespace, so they talk over loopback. boto3's transfer manager writes files, as the
node does; its 8 threads write nothing, which favours them. Once more without a node: `S3Origin` alone.
"""

import time

from benchmarks.originhost import READERS, Data, Host, forget
from benchmarks.s3server import client
from benchmarks.sheet import OURS, Line, Target
from hoard_p2p.cli.localcluster import remove_tree

SPAN = 8 << 20

LINES = (
    Line("read-shards", "large objects, not shaped: one node / boto3's transfer manager", "GB/s", Target(0.9)),
    Line("read-shards-bare", "the same: S3Origin, 8 threads / boto3, 8 threads, to memory", "GB/s"),
    Line("read-small", "objects of 110 KB, not shaped: one node / boto3, 8 threads", "files/s", Target(2.0)),
    Line("read-small-bare", "the same: S3Origin, 8 threads / boto3, 8 threads, to memory", "files/s"),
)


def read(host: Host) -> None:
    for kind in host.kinds:
        data = host.data(kind)
        for _ in host.runs:
            host.tell(f"read {kind}")
            bare = _boto3(host, data)
            _add(host, data, f"read-{kind}-bare", _origin(host, data), bare)
            native = _transfer(host, data) if kind == "shards" else bare
            _add(host, data, f"read-{kind}", _node(host, data), native)


def _add(host: Host, data: Data, key: str, ours: float, native: float) -> None:
    much = data.size / 1e9 if data.kind == "shards" else len(data.sizes)
    host.sheet.add(OURS, key, much / ours, much / native)


def _task(host: Host, data: Data, do: str) -> dict[str, object]:
    """The whole set: large objects in ranges of 8 MiB, as transfer managers read them."""
    parts = [
        (name, start, min(size, start + SPAN)) for name, size in data.sizes.items() for start in range(0, size, SPAN)
    ]
    plan = data.keys(parts if data.kind == "shards" else data.whole(0))
    endpoint, url = host.store.inside, host.store.url(data.kind, host.net.core)
    return {"do": do, "endpoint": endpoint, "url": url, "prefix": data.kind, "plan": plan, "threads": READERS}


def _told(host: Host, data: Data, task: dict[str, object]) -> float:
    told = client(host.net.core, task)
    if told["bytes"] != data.size:
        raise RuntimeError(f"{task['do']} got {told['bytes']} bytes of {data.size}")
    return float(told["seconds"])


def _boto3(host: Host, data: Data) -> float:
    return _told(host, data, {**_task(host, data, "read"), "processes": 1})


def _origin(host: Host, data: Data) -> float:
    return _told(host, data, _task(host, data, "ours-read"))


def _transfer(host: Host, data: Data) -> float:
    into = host.cluster.root / "transfer"
    keys = [f"{data.kind}/{name}" for name in data.sizes]
    try:
        return _told(host, data, {**_task(host, data, "transfer"), "keys": keys, "into": str(into)})
    finally:
        remove_tree(into)


def _node(host: Host, data: Data) -> float:
    """Seconds of `hoard warm` of a lazy snapshot. What it brought is compared, after the clock."""
    node = host.node(host.net.core)
    url = host.store.url(data.kind, host.net.core)
    snapshot = host.cluster.hoard(node, "publish", "--lazy", "--replicas", "1", url).split()[-1]
    forget()
    began = time.perf_counter()
    host.cluster.hoard(node, "warm", snapshot)
    seconds = time.perf_counter() - began
    host.compared(node, snapshot, data)
    host.discard([node])
    return seconds
