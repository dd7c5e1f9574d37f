"""The row `list` of `make bench-origin`: listings beside a bare boto3 paginator, and the memory that one takes."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.originhost import Host
from benchmarks.processes import Watch
from benchmarks.s3server import REGION, client
from benchmarks.sheet import OURS, Line, Target

KEYS_PORT = 8334
MB = 1_000_000

LINES = (
    Line("list-store", "listing SeaweedFS: S3Origin / a bare boto3 paginator", "keys/s", Target(0.8)),
    Line("list-keys", "listing made-up keys: S3Origin / a bare boto3 paginator", "keys/s", Target(0.8)),
    Line("list-publish", "the same: publish --lazy, whole command / the paginator", "keys/s"),
    Line("list-memory", "the same: memory (PSS) of node and listing together, the most", "MB", Target(most=300)),
)


def listed(host: Host) -> None:
    data = host.data("small")
    for _ in host.runs:
        host.tell("listing the store")
        url = host.store.url(data.kind, host.net.core)
        _pair(host, "list-store", host.store.inside, url, data.kind, len(data.sizes))
        _made_up(host, host.options.keys)


def _pair(host: Host, key: str, endpoint: str, url: str, prefix: str, keys: int) -> float:
    """Keys a second of the paginator, which is the native figure."""
    native = client(host.net.core, {"do": "list", "endpoint": endpoint, "prefix": prefix})
    ours = client(host.net.core, {"do": "ours-list", "url": url})
    if native["keys"] != keys or ours["keys"] != keys:
        raise RuntimeError(f"of {keys} keys boto3 listed {native['keys']}, S3Origin {ours['keys']}")
    host.sheet.add(OURS, key, keys / ours["seconds"], keys / native["seconds"])
    return keys / float(native["seconds"])


def _made_up(host: Host, keys: int) -> None:
    host.tell(f"listing {keys:,} made-up keys")
    with _keys_served(host, keys) as endpoint:
        url = f"s3://made-up/set/?endpoint={endpoint}&region={REGION}"
        native = _pair(host, "list-keys", endpoint, url, "set", keys)
        node = host.node(host.net.core)
        with Watch(node.process.pid) as watch:
            began = time.perf_counter()
            snapshot = host.cluster.hoard(node, "publish", "--lazy", "--replicas", "1", url).split()[-1]
            seconds = time.perf_counter() - began
        host.sheet.add(OURS, "list-publish", keys / seconds, native)
        host.sheet.add(OURS, "list-memory", watch.most_together / MB)
        host.tell(f"{snapshot[:12]}: {keys:,} keys in {seconds:.1f} s; node alone {watch.most / MB:.0f} MB")
        host.discard([node])


@contextmanager
def _keys_served(host: Host, keys: int) -> Iterator[str]:
    at = host.net.core
    command = [*at.inside, sys.executable, "-m", "benchmarks.s3keys", "127.0.0.1", str(KEYS_PORT), str(keys)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        time.sleep(1.0)
        yield f"http://127.0.0.1:{KEYS_PORT}"
    finally:
        process.kill()
        process.wait()
