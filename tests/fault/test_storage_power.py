"""The power goes while a real store works: whatever the disk kept, the store opens, is right, and works on; the same if
its index is deleted then and made again."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fault.power_work import Promises, examine, examine_without_index
from tests.fault.powerdisk import Fate, Log
from tests.fault.powerfs import powered

ROOT = Path(__file__).parents[2]
SEEDS = tuple(map(int, os.environ.get("HOARD_POWER_SEEDS", "1,2,3").split(",")))
CUTS = int(os.environ.get("HOARD_POWER_CUTS", "18"))


def record(mountpoint: Path, seed: int, actions: int) -> Log:
    """Let a store work on a disk of its own; what happened to that."""
    argv = [sys.executable, "-m", "tests.fault.power_work", os.fspath(mountpoint / "data"), str(seed), str(actions)]
    with powered(mountpoint) as disk:
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return disk.log


def cut_power(log: Log, cut: int, fate: Fate, directory: Path, draw: random.Random) -> None:
    """Open the store from what is left, twice, and let it work in between; now and then without its index."""
    disk = log.after(cut, fate, draw)
    disk.build(directory)
    promises = Promises(log.marks(cut))
    examine(directory / "data", promises, draw)
    if draw.random() < 0.4:
        disk.build(directory / "again")
        examine_without_index(directory / "again" / "data", promises)


def cut_often(log: Log, seed: int, cuts: int, directory: Path) -> None:
    draw = random.Random(seed)
    for _ in range(cuts):
        cut, fate, luck = draw.randint(1, len(log)), draw.choice(list(Fate)), draw.getrandbits(32)
        place = directory / "cut"
        try:
            cut_power(log, cut, fate, place, random.Random(luck))
        except Exception as error:
            raise AssertionError(f"seed {seed}: power cut before change {cut} of {len(log)}, {fate}, {luck}") from error
        finally:
            shutil.rmtree(place, ignore_errors=True)


@pytest.mark.root
@pytest.mark.fuse
@pytest.mark.parametrize("seed", SEEDS)
def test_whenever_the_power_goes_the_index_is_right_and_nothing_promised_is_lost(
    seed: int, tmp_path: Path, new_directory: Callable[[str], Path]
) -> None:
    log = record(new_directory("power"), seed, 25)
    assert len(log) > 300
    cut_often(log, seed, CUTS, tmp_path)


@pytest.mark.root
@pytest.mark.fuse
def test_a_store_that_was_being_made_when_the_power_went_can_be_made_again(
    tmp_path: Path, new_directory: Callable[[str], Path]
) -> None:
    log = record(new_directory("power"), 1, 0)
    for cut in range(1, len(log), 5):
        place = tmp_path / str(cut)
        cut_power(log, cut, Fate.ANY if cut % 2 else Fate.FIRST, place, random.Random(cut))
        shutil.rmtree(place)
