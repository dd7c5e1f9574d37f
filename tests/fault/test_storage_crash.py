"""The store's process is killed -9 at each step of its work, then the store is opened again.

As a script (DATA_DIR STEP) this file is the process that dies: a profile hook, which sees each call of a C function in
every thread, kills it just before call number STEP of those that touch the disk.
"""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

from hoard_p2p.ids import ChunkId, SnapshotId, chunk_id
from hoard_p2p.storage import journal
from hoard_p2p.storage.groups import WriterSettings
from hoard_p2p.storage.openslab import FIRST_RESERVE
from hoard_p2p.storage.records import SnapshotRecord
from hoard_p2p.storage.store import Store

RNG = random.Random(21)
CHUNKS = [RNG.randbytes(length) for length in (100, 5000, 300_000, 4096, 4095, 200_000)]
FILE = [RNG.randbytes(300_000) for _ in range(3)]
KEY = b"k" * 16
SNAPSHOT = SnapshotId(RNG.randbytes(32))
RECORD = SnapshotRecord(SNAPSHOT, 1, 2, 2, False, 3, True, "dir")
STEPS = frozenset({"pwrite", "write", "fdatasync", "fsync", "ftruncate", "posix_fallocate", "open", "close", "put",
                   "begin", "commit", "flock", "mkdir", "rename", "replace", "__exit__"})  # fmt: skip


def work(data_dir: Path) -> None:
    """One group of small chunks, one large file, a root; each is announced when it is promised to be durable."""
    with Store.open(data_dir) as store:
        say("opened")
        with store.writer(WriterSettings(group_seconds=3600)) as writer:
            for data in CHUNKS:
                writer.put(chunk_id(data), data)
            writer.flush()
            say("chunks")
            sink = writer.open_file(900_000)
            for n, data in enumerate(FILE):
                sink.put(chunk_id(data), data, n * 300_000)
            sink.finish(KEY, [(chunk_id(data), 300_000) for data in FILE])
            writer.flush()
            say("file")
            store.put_root(SNAPSHOT, b"root", RECORD)
            say("root")
    say("closed")


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def die_at(step: int) -> None:
    counter = iter(range(1, sys.maxsize))

    def hook(frame: FrameType, event: str, what: object) -> None:
        if event == "c_call" and getattr(what, "__name__", "") in STEPS and next(counter) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(hook)
    sys.setprofile(hook)


def run(data_dir: Path, step: int) -> tuple[set[str], bool]:
    """What the process had promised, and whether it was killed."""
    argv = [sys.executable, __file__, os.fspath(data_dir), str(step)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return set(done.stdout.split()), done.returncode != 0


def is_whole(store: Store, data: bytes) -> bool:
    """Whether the chunk is here; if the index says so its bytes must be right (I2)."""
    into = bytearray(len(data))
    if store.reader().read_into(chunk_id(data), 0, memoryview(into)) is None:
        return False
    assert into == data
    return True


def check(data_dir: Path, promised: set[str]) -> None:
    with Store.open(data_dir) as store:
        chunks = [is_whole(store, data) for data in CHUNKS]
        parts = [is_whole(store, data) for data in FILE]
        assert store.extents_count() == sum(chunks) + sum(parts)
        assert all(chunks) or not promised & {"chunks", "closed"}
        assert all(parts) or not promised & {"file", "closed"}
        found = store.file_slab(KEY)
        assert found is not None or "file" not in promised
        assert found is None or (found.complete and all(parts))
        assert store.root(SNAPSHOT) == b"root" or "root" not in promised
        known = {entry.payload for entry in journal.scan(data_dir / "journal") if entry.kind == journal.Kind.ROOT}
        assert store.root(SNAPSHOT) is None or SNAPSHOT + b"root" in known
        left = [path.stat().st_size for path in (data_dir / "slabs").glob("S-*.slab")]
        assert all(size % FIRST_RESERVE or not size for size in left)


def calls_in_all(directory: Path) -> int:
    """How many steps the work has, found by doubling and halving."""
    low, high = 1, 64
    while run(directory / f"n{high}", high)[1]:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if run(directory / f"n{middle}", middle)[1] else (low, middle)
    return low


def test_whatever_the_step_the_index_refers_only_to_right_bytes_and_promises_hold(tmp_path: Path) -> None:
    steps = calls_in_all(tmp_path)
    assert steps > 60
    for step in random.Random(22).sample(range(1, steps + 1), 14):
        data_dir = tmp_path / str(step)
        promised, killed = run(data_dir, step)
        assert killed
        if (data_dir / "format").exists():
            check(data_dir, promised)
        again, killed = run(data_dir, 0)
        assert not killed
        check(data_dir, again - {"file"})  # if its chunks were here already, the file got no slab and no record


def test_bytes_and_sidecar_are_synced_before_the_index_hears_of_them(tmp_path: Path) -> None:
    order: list[tuple[str, str]] = []

    def hook(frame: FrameType, event: str, what: object) -> None:
        called = getattr(what, "__name__", "") if event == "c_call" else ""
        if called in ("write", "fdatasync") and frame.f_code.co_filename.endswith("openslab.py"):
            order.append((called, frame.f_code.co_name))
        elif event == "call" and frame.f_code.co_name == "commit" and frame.f_code.co_filename.endswith("store.py"):
            order.append(("commit", "store"))

    with Store.open(tmp_path) as store:
        threading.setprofile(hook)
        try:
            writer = store.writer(WriterSettings(group_seconds=3600))
        finally:
            threading.setprofile(None)
        with writer:
            writer.put(ChunkId(chunk_id(b"x")), b"x")
            writer.flush()
    assert order == [("write", "append_sidecar"), ("fdatasync", "sync"), ("fdatasync", "sync"), ("commit", "store")]


if __name__ == "__main__":
    if int(sys.argv[2]):
        die_at(int(sys.argv[2]))
    work(Path(sys.argv[1]))
