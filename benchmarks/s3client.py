"""What boto3 does with an S3 store, as a process: what Hoard is measured against (`s3server.start`).

A task in JSON comes on standard input; the answer is the last line of standard output. Every length is compared; bytes
go through one buffer a thread, or to files where `into` is given.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

BUCKET = "bench"
PIECE = 1 << 20
LOADERS = 16

Part = tuple[str, int, int]
"""A key, and a range of it; stop 0: the whole object."""


def connected(endpoint: str, connections: int = 10) -> Any:
    import boto3
    from botocore.config import Config

    style = {"addressing_style": "path"}
    config = Config(s3=style, proxies={}, max_pool_connections=connections, retries={"max_attempts": 10})
    return boto3.session.Session().client("s3", endpoint_url=endpoint, config=config)


def make_bucket(task: dict[str, Any]) -> dict[str, Any]:
    client = connected(task["endpoint"])
    if BUCKET not in [one["Name"] for one in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=BUCKET)
    client.put_object(Bucket=BUCKET, Key="ready", Body=b"ready")
    return {}


def load(task: dict[str, Any]) -> dict[str, Any]:
    """Files below `root` become objects below `prefix`."""
    client, root = connected(task["endpoint"], LOADERS), Path(task["root"])
    paths = [path for path in sorted(root.rglob("*")) if path.is_file()]

    def put(path: Path) -> None:
        client.upload_file(str(path), BUCKET, f"{task['prefix']}/{path.relative_to(root)}")

    with ThreadPoolExecutor(LOADERS) as pool:
        list(pool.map(put, paths))
    return {"objects": len(paths)}


def listed(task: dict[str, Any]) -> dict[str, Any]:
    """A bare paginator."""
    client = connected(task["endpoint"])
    began, keys = time.perf_counter(), 0
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=task["prefix"] + "/"):
        keys += len(page.get("Contents", ()))
    return {"keys": keys, "seconds": time.perf_counter() - began}


def read(task: dict[str, Any]) -> dict[str, Any]:
    """`plan` by `processes` of `threads` each, which all start at one moment, not before the time `begin`."""
    plan: list[Part] = [(key, start, stop) for key, start, stop in task["plan"]]
    processes, context = int(task["processes"]), get_context("fork")
    barrier, answers = context.Barrier(processes), context.Queue()
    readers = [
        context.Process(target=_reader, args=(task, plan[number::processes], barrier, answers))
        for number in range(processes)
    ]
    for reader in readers:
        reader.start()
    told = [answers.get(timeout=task.get("timeout", 3600)) for _ in readers]
    for reader in readers:
        reader.join()
    failed = [one for one in told if isinstance(one, str)]
    if failed:
        raise RuntimeError(failed[0])
    began, ended = min(begin for _, begin, _ in told), max(end for _, _, end in told)
    return {"bytes": sum(size for size, _, _ in told), "seconds": ended - began, "began": began, "ended": ended}


def _reader(task: dict[str, Any], plan: Sequence[Part], barrier: Barrier, answers: Any) -> None:
    try:
        threads = int(task["threads"])
        client = connected(task["endpoint"], threads)
        client.head_bucket(Bucket=BUCKET)
        barrier.wait(60)
        time.sleep(max(0.0, float(task.get("begin", 0.0)) - time.time()))
        began = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            size = sum(pool.map(lambda part: _get(client, part, task.get("into")), plan))
        answers.put((size, began, time.perf_counter()))
    except Exception as error:  # noqa: BLE001 -- the door of this process: it is told to the parent
        answers.put(f"{type(error).__name__}: {error}")


def _get(client: Any, part: Part, into: str | None) -> int:
    key, start, stop = part
    ranged = {"Range": f"bytes={start}-{stop - 1}"} if stop else {}
    answer = client.get_object(Bucket=BUCKET, Key=key, **ranged)
    if into is not None:
        path = Path(into, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            got = sum(file.write(data) for data in answer["Body"].iter_chunks(PIECE))
    else:
        got = sum(map(len, answer["Body"].iter_chunks(PIECE)))
    if got != (stop - start if stop else answer["ContentLength"]):
        raise ValueError(f"{key}: {got} bytes instead of {answer['ContentLength']}")
    return got


def transfer(task: dict[str, Any]) -> dict[str, Any]:
    """boto3's transfer manager, as it comes, each object to a file below `into`; synced at the end."""
    client, size = connected(task["endpoint"]), 0
    began = time.perf_counter()
    for key in task["keys"]:
        path = Path(task["into"], key)
        path.parent.mkdir(parents=True, exist_ok=True)
        client.download_file(BUCKET, key, str(path))
        size += path.stat().st_size
    os.sync()
    return {"bytes": size, "seconds": time.perf_counter() - began}


def ours_read(task: dict[str, Any]) -> dict[str, Any]:
    """The same plan by `S3Origin`, with threads of one process and versions compared."""
    from hoard_p2p.objects import ObjectRange
    from hoard_p2p.origin.opening import open_origin

    origin = open_origin(task["url"])
    listing = {entry.path: entry for entry in origin.listing()}
    prefix = task["prefix"] + "/"

    def get(part: Part) -> int:
        entry = listing[part[0].removeprefix(prefix).encode()]
        start, stop = part[1], part[2] or entry.size
        buffer = bytearray(stop - start)
        wanted = ObjectRange(entry.path, entry.size, entry.version, start, stop)
        origin.read(wanted, memoryview(buffer), lambda _: None)
        return len(buffer)

    plan: list[Part] = [(key, start, stop) for key, start, stop in task["plan"]]
    began = time.perf_counter()
    with ThreadPoolExecutor(int(task["threads"])) as pool:
        size = sum(pool.map(get, plan))
    return {"bytes": size, "seconds": time.perf_counter() - began}


def ours_listed(task: dict[str, Any]) -> dict[str, Any]:
    """The listing of `S3Origin`; `first`: so many keys at most."""
    from hoard_p2p.origin.opening import open_origin

    origin = open_origin(task["url"])
    began = time.perf_counter()
    keys = sum(1 for _ in islice(origin.listing(), task.get("first")))
    return {"keys": keys, "seconds": time.perf_counter() - began}


TASKS = {
    "bucket": make_bucket,
    "load": load,
    "list": listed,
    "read": read,
    "transfer": transfer,
    "ours-read": ours_read,
    "ours-list": ours_listed,
}


def main() -> None:
    task = json.loads(sys.stdin.read())
    print(json.dumps(TASKS[task["do"]](task)))


if __name__ == "__main__":
    main()
