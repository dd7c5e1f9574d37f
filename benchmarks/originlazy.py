"""The row `lazy` of `make bench-origin`: one node's first epoch through a lazy mount, beside reading the origin itself.

The same eight readers with the same plans: processes with boto3 (or of a directory, with plain reads), then processes
that read the mount. Whole files, and records of 110 KB shuffled over all shards. Listing and mount command come before
the clock. `link`: the node is behind the store's shaped link; else in the namespace of the store.
"""

from typing import NamedTuple

from benchmarks.links import HEADERS, Machine
from benchmarks.originhost import READERS, Data, Host, Part, forget, read_by
from benchmarks.s3server import client
from benchmarks.sheet import OURS, Line, Target

SEED = 6
_WHAT = {"records": "records of 110 KB in shards", "files": "files of 110 KB"}
_WHERE = {"s3": "S3, not shaped", "link": "S3, at the link's rate", "dir": "a directory"}

LINES = (
    *(
        Line(f"lazy-{where}-{what}", f"lazy mount, 8 readers, {_WHERE[where]}, {_WHAT[what]}", "s", Target(None, 1.03))
        for where in _WHERE
        for what in _WHAT
    ),
    Line("lazy-bytes-records", "the same, link, records: bytes of the origin / set", "x", Target(most=1.01)),
    Line("lazy-bytes-files", "the same, link, files: bytes of the origin / set", "x", Target(most=1.01)),
)


class _Case(NamedTuple):
    where: str
    what: str
    data: Data
    plan: list[Part]

    @property
    def key(self) -> str:
        return f"lazy-{self.where}-{self.what}"


def lazy(host: Host) -> None:
    for kind in host.kinds:
        data = host.data(kind)
        what = "records" if kind == "shards" else "files"
        plan = data.records(SEED) if kind == "shards" else data.whole(SEED)
        for where in _WHERE:
            for _ in host.runs:
                _measure(host, _Case(where, what, data, plan))


def _measure(host: Host, case: _Case) -> None:
    at = host.net.machines[0] if case.where == "link" else host.net.core
    host.tell(f"{case.key}: directly")
    native = _directly(host, case, at)
    host.tell(f"{case.key}: {native:.2f} s; through the mount")
    node = host.node(at)
    source = [host.store.url(case.data.kind, at)]
    if case.where == "dir":
        source = ["--shared-origin", str(case.data.root)]
    snapshot = host.cluster.hoard(node, "publish", "--lazy", "--replicas", "1", *source).split()[-1]
    point, _ = host.cluster.mount(node, snapshot)
    forget(case.data.root)
    before = host.net.core.sent()
    seconds = read_by([point], [case.plan], READERS, case.data.size)
    host.tell(f"{case.key}: {seconds:.2f} s")
    host.sheet.add(OURS, case.key, seconds, native)
    if case.where == "link":
        read = (host.net.core.sent() - before) * HEADERS
        host.sheet.add(OURS, f"lazy-bytes-{case.what}", read / case.data.size)
    host.unmount(node)
    host.compared(node, snapshot, case.data)
    host.discard([node])


def _directly(host: Host, case: _Case, at: Machine) -> float:
    if case.where == "dir":
        forget(case.data.root)
        return read_by([case.data.root], [case.plan], READERS, case.data.size)
    plan, endpoint = case.data.keys(case.plan), host.store.endpoint(at)
    told = client(at, {"do": "read", "endpoint": endpoint, "plan": plan, "processes": READERS, "threads": 1})
    if told["bytes"] != case.data.size:
        raise RuntimeError(f"boto3 got {told['bytes']} bytes of {case.data.size}")
    return float(told["seconds"])
