"""How long it takes to drop chunks and give their space back, and what that leaves of the index.

Fills a store with small chunks (the dearest kind: they share blocks), then: a sweep that finds nothing, a drop of every
tenth chunk in random order, a sweep that drops half, reclaim, leftovers, a sweep that drops the rest. Also how long a
commit of another thread waits meanwhile.

    python benchmarks/reclaim.py [--chunks N] [--size BYTES] [--dir D]
"""

import argparse
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hoard_p2p.ids import ChunkId, chunk_id
from hoard_p2p.storage.store import Store


def data_of(number: int, size: int) -> bytes:
    return number.to_bytes(8, "little") * (size // 8)


def fill(store: Store, chunks: int, size: int) -> None:
    with store.writer() as writer:
        for number in range(chunks):
            data = data_of(number, size)
            writer.put(chunk_id(data), data)


@contextmanager
def timed(what: str, chunks: int) -> Iterator[None]:
    processor, start = time.process_time(), time.monotonic()
    yield
    took = time.monotonic() - start
    print(
        f"{what:44} {took:7.2f} s, {1e6 * took / chunks:6.1f} us a chunk, {time.process_time() - processor:6.2f} CPU s"
    )


@contextmanager
def committing(store: Store) -> Iterator[None]:
    """Another thread changes the index all the time; says how long it waited at most."""
    stop, waits = threading.Event(), [0.0]

    def run() -> None:
        while not stop.is_set():
            start = time.monotonic()
            store.set_capacity(1 << 50)
            waits.append(time.monotonic() - start)
            stop.wait(0.02)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    waits.sort()
    print(
        f"{'  a commit meanwhile waited':44} {1e3 * waits[len(waits) // 2]:7.0f} ms (median), "
        f"{1e3 * waits[-1]:.0f} ms (longest of {len(waits)})"
    )


def index_size(data_dir: Path) -> int:
    return (data_dir / "index" / "data.mdb").stat().st_blocks * 512


def report(store: Store, chunks: int, before: int) -> None:
    size = index_size(store.data_dir)
    print(
        f"  {store.extents_count()} chunks; slabs and sidecars {store.used_bytes() / 1e6:.0f} MB; "
        f"index {size / 1e6:.0f} MB, {(size - before) / chunks:.0f} bytes for each chunk that there was"
    )


def every(step: int, chunks: int, size: int) -> list[ChunkId]:
    ids = [chunk_id(data_of(number, size)) for number in range(0, chunks, step)]
    random.Random(1).shuffle(ids)
    return ids


def measure(data_dir: Path, chunks: int, size: int) -> None:
    with Store.open(data_dir) as store:
        before = index_size(data_dir)
        with timed("fill", chunks):
            fill(store, chunks, size)
        report(store, chunks, before)
        some = every(10, chunks, size)
        steps: list[tuple[str, int, Callable[[], object]]] = [
            ("sweep that drops nothing", chunks, lambda: store.reclaimer.sweep(lambda found: True)),
            ("leftovers, nothing to do", chunks, store.reclaimer.leftovers),
            ("drop of every tenth", len(some), lambda: store.reclaimer.drop(some)),
            ("reclaim of that", len(some), store.reclaimer.reclaim),
            ("sweep that drops half", chunks, lambda: store.reclaimer.sweep(lambda found: found[31] < 128)),
            ("reclaim of that", chunks // 2, store.reclaimer.reclaim),
            ("leftovers (sidecars are rewritten)", chunks // 2, store.reclaimer.leftovers),
            ("sweep that drops the rest", chunks // 2, lambda: store.reclaimer.sweep(lambda found: False)),
            ("reclaim of that", chunks // 2, store.reclaimer.reclaim),
        ]
        for what, count, step in steps:
            with committing(store), timed(what, count):
                step()
            report(store, chunks, before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=512, help="bytes of a chunk")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    data_dir = Path(tempfile.mkdtemp(prefix="hoard-reclaim-", dir=options.dir))
    print(f"{options.chunks} chunks of {options.size} bytes; {os.cpu_count()} processors")
    try:
        measure(data_dir, options.chunks, options.size)
    finally:
        shutil.rmtree(data_dir)


if __name__ == "__main__":
    main()
