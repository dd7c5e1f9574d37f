"""`hoard demo`, as the user who tries Hoard for the first time meets it."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system import HOARD, make_tree, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(180)]
NewDirectory = Callable[[str], Path]


def start(scratch: Path, dataset: Path) -> "subprocess.Popen[str]":
    environment = {**os.environ, "TMPDIR": os.fspath(scratch)}
    command = [*HOARD, "demo", os.fspath(dataset)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_demo_of_a_data_set_publishes_mounts_kills_compares_and_cleans_up(new_directory: NewDirectory) -> None:
    scratch = new_directory("t")
    process = start(scratch, make_tree(new_directory("s"), files=20, large=9 << 20))
    try:
        out, _ = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 0, out
    assert "found each other by mDNS" in out
    assert out.count("compared every byte") >= 4, "read cold, warm, and after the publisher was killed on two nodes"
    assert "kill -9" in out
    assert list(scratch.iterdir()) == []


def test_ctrl_c_in_a_demo_cleans_up(new_directory: NewDirectory) -> None:
    scratch = new_directory("t")
    process = start(scratch, make_tree(new_directory("s"), files=20, large=9 << 20))
    try:
        wait_until(lambda: any(scratch.glob("*/node-2/hoard.sock")), "the second node starts", 60)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, out
    assert "Traceback" not in out
    assert list(scratch.iterdir()) == []
