"""The store's process is killed -9 at each step of giving space back, then the store is opened and tidied again.

As a script (DATA_DIR STEP) this file is the process that dies: a profile hook, which sees each call of a C function in
every thread, kills it just before call number STEP of those that touch the disk.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

from hoard_p2p.ids import chunk_id
from hoard_p2p.storage import sidecar
from hoard_p2p.storage.layout import sidecar_path
from hoard_p2p.storage.store import Store

RNG = random.Random(22)
SMALL = [RNG.randbytes(RNG.choice([900, 5000, 30_000])) for _ in range(120)]
FEW = [RNG.randbytes(9000) for _ in range(60)]
FILE = [RNG.randbytes(100_001) for _ in range(4)]
LARGE = [RNG.randbytes(50_001) for _ in range(3)]
LIVE = [*SMALL[::7], *FEW[:2], *FILE[:2]]
STEPS = frozenset({"pwrite", "write", "fdatasync", "fsync", "ftruncate", "posix_fallocate", "open", "close", "put",
                   "delete", "begin", "commit", "flock", "unlink", "rename", "replace", "__exit__"})  # fmt: skip


def fill(data_dir: Path) -> None:
    with Store.open(data_dir) as store:
        for datas in (SMALL, FEW):
            with store.writer() as writer:
                for data in datas:
                    writer.put(chunk_id(data), data)
        for key, datas in ((b"f" * 16, FILE), (b"l" * 16, LARGE)):
            with store.writer() as writer:
                sink = writer.open_file(sum(map(len, datas)))
                for number, data in enumerate(datas):
                    sink.put(chunk_id(data), data, number * len(data))
                sink.finish(key, [(chunk_id(data), len(data)) for data in datas])


def work(data_dir: Path) -> None:
    """Everything but `LIVE` goes: a slab is punched, one is emptied into another, one is punched as far as neighbours
    allow, one goes as a whole."""
    with Store.open(data_dir) as store:
        tidy(store)


def tidy(store: Store) -> None:
    live = set(map(chunk_id, LIVE))
    store.reclaimer.drop(map(chunk_id, LARGE))
    store.reclaimer.sweep(lambda found: found in live)
    store.reclaimer.reclaim()
    store.reclaimer.leftovers()
    store.reclaimer.reclaim()


def die_at(step: int) -> None:
    counter = iter(range(1, sys.maxsize))

    def hook(frame: FrameType, event: str, what: object) -> None:
        if event == "c_call" and getattr(what, "__name__", "") in STEPS and next(counter) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(hook)
    sys.setprofile(hook)


def run(data_dir: Path, step: int) -> bool:
    """Whether the process was killed."""
    argv = [sys.executable, __file__, os.fspath(data_dir), str(step)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def is_whole(store: Store, data: bytes) -> bool:
    """Whether the chunk is here; if the index says so its bytes must be right (I2)."""
    into = bytearray(len(data))
    if store.reader().read_into(chunk_id(data), 0, memoryview(into)) is None:
        return False
    assert into == data
    return True


def check(data_dir: Path) -> int:
    """What the store takes once it was tidied after the crash."""
    everything = [*SMALL, *FEW, *FILE, *LARGE]
    with Store.open(data_dir) as store:
        here = sum(is_whole(store, data) for data in everything)
        assert store.extents_count() == here
        assert all(is_whole(store, data) for data in LIVE)
        tidy(store)
        assert not store.reclaimer.reclaim().waiting
        assert store.extents_count() == len(LIVE)
        assert all(is_whole(store, data) for data in LIVE)
        slabs = list((data_dir / "slabs").glob("*.slab"))
        assert len(list((data_dir / "slabs").iterdir())) == 2 * len(slabs)
        recorded = set()
        for slab in slabs:
            with sidecar_path(slab).open("rb") as file:
                recorded |= {extent.chunk_id for extent in sidecar.scan(file.fileno())}
        assert recorded >= set(map(chunk_id, LIVE))
        return store.used_bytes()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data_dir = tmp_path_factory.mktemp("full") / "data"
    fill(data_dir)
    return data_dir


def copy(full: Path, to: Path) -> Path:
    shutil.copytree(full, to)
    return to


def steps_in_all(full: Path, directory: Path) -> int:
    low, high = 1, 256
    while run(copy(full, directory / f"n{high}"), high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if run(copy(full, directory / f"m{middle}"), middle) else (low, middle)
    return low


def survives(full: Path, directory: Path, steps: list[int]) -> None:
    whole = copy(full, directory / "whole")
    work(whole)
    used = check(whole)
    for step in steps:
        killed = copy(full, directory / f"k{step}")
        assert run(killed, step), f"there is no step {step}"
        assert abs(check(killed) - used) <= 10 * 4096, f"after a crash at step {step}"
        shutil.rmtree(killed)


def test_a_kill_while_space_is_given_back_loses_no_chunk_and_no_space(full: Path, tmp_path: Path) -> None:
    survives(full, tmp_path, RNG.sample(range(1, 500), 8))


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_kill_at_any_step_of_giving_space_back_loses_no_chunk_and_no_space(full: Path, tmp_path: Path) -> None:
    survives(full, tmp_path, list(range(1, steps_in_all(full, tmp_path) + 1)))


if __name__ == "__main__":
    die_at(int(sys.argv[2]))
    work(Path(sys.argv[1]))
