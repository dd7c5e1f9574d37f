"""Readers that the origin benchmark starts, each a process in some machine's namespace: one line of JSON at the end.

    python -m benchmarks.originreaders s3 URL ENDPOINT ORDER ...        # boto3's get_object, 8 threads
    python -m benchmarks.originreaders files DIRECTORY ORDER ...        # plain reads, 8 threads

ORDER: `files` (whole, shuffled) or `records` (110 KB each, shuffled, inside the files). Both kinds read the same ranges
in the same order for one seed, and say how many bytes they got.
"""

import argparse
import json
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

RECORD = 110_000
STEP = 1 << 20


class Span(NamedTuple):
    """Bytes of one file or object."""

    name: str
    start: int
    stop: int


def spans(sizes: dict[str, int], order: str, seed: int) -> list[Span]:
    """What to read, in the order of this seed."""
    found = []
    for name, size in sorted(sizes.items()):
        step = size if order == "files" else RECORD
        found += [Span(name, at, min(at + step, size)) for at in range(0, size, max(step, 1))]
    random.Random(seed).shuffle(found)
    return found


def read_all(wanted: Sequence[Span], threads: int, read: Callable[[Span], int]) -> tuple[int, float]:
    """Bytes and seconds."""
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        size = sum(pool.map(read, wanted))
    return size, time.perf_counter() - began


def file_sizes(directory: Path) -> dict[str, int]:
    return {str(path.relative_to(directory)): path.stat().st_size for path in directory.rglob("*") if path.is_file()}


def file_reader(directory: Path) -> Callable[[Span], int]:
    local = threading.local()

    def read(span: Span) -> int:
        if not hasattr(local, "buffer"):
            local.buffer = memoryview(bytearray(STEP))
        fd = os.open(directory / span.name, os.O_RDONLY)
        try:
            at = span.start
            while at < span.stop and (got := os.preadv(fd, [local.buffer[: span.stop - at]], at)):
                at += got
        finally:
            os.close(fd)
        return at - span.start

    return read


def client(endpoint: str) -> Any:
    """boto3, set as a training loop would have it; credentials from the environment."""
    import boto3
    from botocore.config import Config

    plain = "when_required"
    config = Config(
        s3={"addressing_style": "path"}, max_pool_connections=64, proxies={},
        response_checksum_validation=plain, request_checksum_calculation=plain,
    )  # fmt: skip
    return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", config=config)


def object_sizes(s3: Any, bucket: str, prefix: str) -> dict[str, int]:
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return {each["Key"]: each["Size"] for page in pages for each in page.get("Contents", [])}


def object_reader(s3: Any, bucket: str, order: str) -> Callable[[Span], int]:
    def read(span: Span) -> int:
        part = {} if order == "files" else {"Range": f"bytes={span.start}-{span.stop - 1}"}
        body, size = s3.get_object(Bucket=bucket, Key=span.name, **part)["Body"], 0
        while data := body.read(STEP):
            size += len(data)
        return size

    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("s3", "files"))
    parser.add_argument("place", help="DIRECTORY, or BUCKET/PREFIX")
    parser.add_argument("--endpoint", default="")
    parser.add_argument("--order", choices=("files", "records"), default="files")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at", type=float, default=0.0, help="when to begin, by time.time()")
    options = parser.parse_args()
    if options.kind == "files":
        sizes, read = file_sizes(Path(options.place)), file_reader(Path(options.place))
    else:
        s3, (bucket, _, prefix) = client(options.endpoint), options.place.partition("/")
        sizes, read = object_sizes(s3, bucket, prefix), object_reader(s3, bucket, options.order)
    wanted = spans(sizes, options.order, options.seed)
    time.sleep(max(0.0, options.at - time.time()))
    size, seconds = read_all(wanted, options.threads, read)
    print(json.dumps({"bytes": size, "expected": sum(sizes.values()), "seconds": seconds, "reads": len(wanted)}))


if __name__ == "__main__":
    main()
