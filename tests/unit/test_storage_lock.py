"""The lock of a data directory where its file cannot be written any more."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hoard_p2p.errors import NodeRunning
from hoard_p2p.storage.lock import NodeLock


def test_a_lock_is_released_although_its_file_cannot_be_emptied() -> None:
    """As on a disk that turned read-only under the node: a sealed memfd refuses the same call."""
    fd = os.memfd_create("lock", os.MFD_ALLOW_SEALING)
    try:
        path = Path(f"/proc/self/fd/{fd}")
        lock = NodeLock(path)
        assert os.pread(fd, 32, 0).strip() == b"%d" % os.getpid()
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        lock.release()
        other = os.open(path, os.O_RDWR)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
    finally:
        os.close(fd)


def test_a_lock_whose_file_is_deleted_or_replaced_still_keeps_a_second_node_out(tmp_path: Path) -> None:
    lock = NodeLock(tmp_path / "node-lock")
    for replace in (lambda path: None, Path.touch):
        (tmp_path / "node-lock").unlink()
        replace(tmp_path / "node-lock")
        with pytest.raises(NodeRunning) as refused:
            NodeLock(tmp_path / "node-lock")
        assert refused.value.pid == os.getpid()
        (tmp_path / "node-lock").touch()
    lock.release()
    NodeLock(tmp_path / "node-lock").release()


def test_a_lock_held_through_another_path_of_the_directory_is_the_same_lock(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "other").symlink_to("d")
    lock = NodeLock(tmp_path / "d" / "node-lock")
    with pytest.raises(NodeRunning, match=f"pid {os.getpid()}"):
        NodeLock(tmp_path / "other" / "node-lock")
    lock.release()


def test_a_node_that_locks_the_file_alone_keeps_another_out(tmp_path: Path) -> None:
    """As one of an older version does."""
    path = tmp_path / "node-lock"
    older = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(older, fcntl.LOCK_EX)
    with pytest.raises(NodeRunning, match=f"pid {os.getpid()}"):
        NodeLock(path)
    os.close(older)
    NodeLock(path).release()


DIES_SLOWLY = """
import sys
from pathlib import Path
from hoard_p2p.storage.lock import NodeLock
lock = NodeLock(Path(sys.argv[1]))
memory = bytearray(400 << 20)
memory[::4096] = bytes(len(memory) // 4096)
print("has it", flush=True)
sys.stdin.read()
"""


def test_a_lock_can_be_had_at_once_after_its_holder_was_killed(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", DIES_SLOWLY, os.fspath(tmp_path / "node-lock")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"has it\n"
        process.kill()
        NodeLock(tmp_path / "node-lock").release()  # the kernel is still giving back its memory
