"""The store's process is killed -9 at each step of everything that a store does: put, large files, names, heal, evict,
gc with all that it clears away, changes of capacity, restarts. Afterwards the store is right, keeps what it promised,
takes no room that nobody can read, and works on.

A step is a call that touches the disk; the kill is a picture taken before it (`killpoint`).
"""

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from tests.fault.killpoint import Camera, copy_tree
from tests.fault.power_work import Promises, Work, examine

EVERY = int(os.environ.get("HOARD_KILL_EVERY", "70"))


def pictures(data_dir: Path, seed: int, actions: int, every: int, album: Path) -> list[list[bytes]]:
    """Let a store work; album/N is its directory before the Nth of the chosen steps. What was promised by then."""
    marks: list[bytes] = []
    taken: list[list[bytes]] = []

    def take() -> None:
        copy_tree(data_dir, album / str(len(taken)))
        taken.append(list(marks))

    camera = Camera()
    with camera.worn(), camera.series(take, 1 + seed % every, every):
        work = Work(data_dir, seed, lambda word: marks.append(json.dumps(word).encode()))
        work.go(actions)
        work.close()
    return taken


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_the_step_the_store_is_right_afterwards_and_its_promises_hold(seed: int, tmp_path: Path) -> None:
    album = tmp_path / "album"
    for directory in (album, tmp_path / "data"):
        directory.mkdir()
    taken = pictures(tmp_path / "data", seed, 25, EVERY, album)
    assert len(taken) > 400 // EVERY
    for number, marks in enumerate(taken):
        try:
            examine(album / str(number), Promises(marks), random.Random(number))
        except Exception as error:
            raise AssertionError(f"seed {seed}: killed before step {1 + seed % EVERY + number * EVERY}") from error
        shutil.rmtree(album / str(number))
