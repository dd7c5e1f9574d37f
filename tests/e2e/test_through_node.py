"""Mounts and commands that cannot open the index beside the node read through it, and harm nobody who can."""

import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lmdb
import pytest

from tests.system import HOARD, IO_KINDS, Machine, io_options, machines, make_tree

pytestmark = [pytest.mark.root, pytest.mark.fuse, pytest.mark.timeout(120)]
NewDirectory = Callable[[str], Path]
RUN = shlex.join(HOARD)


@pytest.fixture
def node(new_directory: NewDirectory) -> Iterator[Machine]:
    machine = Machine(new_directory("n"), f"test-{secrets.token_hex(4)}", "one", discovery="none", listen="127.0.0.1:0")
    with machines([machine]):
        yield machine


def in_a_pid_namespace(node: Machine, script: str) -> str:
    """What a shell script prints that runs as root of another pid namespace, with the same mounts and network."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare (package util-linux)")
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-euc", script]
    environment = {**os.environ, "HOARD_DATA_DIR": os.fspath(node.data_dir)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if "unshare failed" in done.stderr:
        pytest.skip(f"no pid namespaces: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr + node.log()
    return done.stdout


def reader_pids(node: Machine) -> Counter[int]:
    """Whose entries the reader table has, as a process of its own sees them; the dead are cleared first."""
    env = lmdb.open(os.fspath(node.data_dir / "index"), readonly=True, max_dbs=32, max_readers=4096)
    env.reader_check()
    words = [line.split() for line in env.readers().splitlines()]
    env.close()
    return Counter(int(word[0]) for word in words if word and word[0].isdigit())


@pytest.mark.parametrize("io", IO_KINDS)
def test_a_mount_in_another_pid_namespace_reads_right_and_says_how(
    node: Machine, new_directory: NewDirectory, io: str
) -> None:
    options = shlex.join(io_options(io))
    source, point = make_tree(new_directory("s"), files=20), new_directory("m")
    snapshot = node.publish(source)
    script = f"""
        {RUN} mount {options} {snapshot} {point} >&2
        diff -r --no-dereference {source} {point} >&2
        dd if={point}/shard bs=1M of=/dev/null status=none
        {RUN} status --json
        {RUN} umount {point}
    """
    status: dict[str, Any] = json.loads(in_a_pid_namespace(node, script))
    (mount,) = status["mounts"]
    assert (mount["io"], mount["reads"], mount["failed"]) == (io, "through the node", 0)
    assert "another pid namespace" in mount["reads_reason"]


def test_a_reader_whose_pid_is_the_nodes_own_in_its_namespace_leaves_the_reader_table_alone(
    node: Machine, new_directory: NewDirectory
) -> None:
    source = new_directory("s")
    (source / "file").write_bytes(secrets.token_bytes(3_000_000))
    snapshot = node.publish(source)
    before = reader_pids(node)
    script = f"""
        echo {node.pid - 1} > /proc/sys/kernel/ns_last_pid
        {RUN} cat {snapshot}:file | cmp - {source}/file
    """
    # The pipe's first command is a subshell of its own, which becomes it: the first pid that is given out.
    in_a_pid_namespace(node, script.replace(f"{RUN} cat", f"exec {RUN} cat"))
    assert before[node.pid] > 0
    assert reader_pids(node)[node.pid] == before[node.pid]
    node.hoard("export", snapshot, os.fspath(source / "again"))


FILL = """
import lmdb, sys
env = lmdb.open(sys.argv[1], readonly=True, max_dbs=32, max_readers=4096)
taken = []
try:
    while True:
        taken.append(env.begin())
except lmdb.ReadersFullError:
    print(len(taken), flush=True)
sys.stdin.read()
"""


def test_with_a_full_reader_table_the_node_works_and_mounts_and_commands_read_through_it(
    node: Machine, new_directory: NewDirectory
) -> None:
    source, point = make_tree(new_directory("s"), files=20), new_directory("m")
    snapshot = node.publish(source)
    argv = [sys.executable, "-c", FILL, os.fspath(node.data_dir / "index")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as greedy:
        assert greedy.stdout is not None
        assert int(greedy.stdout.readline()) > 3000
        node.mount(snapshot, point)
        assert (point / "shard").read_bytes() == (source / "shard").read_bytes()
        (mount,) = node.json("status")["mounts"]
        assert f"pid {greedy.pid} (" in mount["reads_reason"]
        assert node.hoard("tag", snapshot, "a:b").returncode == 0, "the node goes on writing"
        refused = node.hoard("publish", os.fspath(source.parent), check=False)
        assert refused.returncode == 0 or f"pid {greedy.pid} (" in refused.stderr
        node.umount(point)
        greedy.kill()
    node.mount(snapshot, point)
    assert node.json("status")["mounts"][0]["reads"] == "direct"


@pytest.fixture
def read_only(node: Machine, new_directory: NewDirectory) -> Iterator[Path]:
    """The node's data directory, at another path that nobody may write to."""
    path = new_directory("ro")
    subprocess.run(["mount", "--bind", node.data_dir, path], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", path], check=True)
    yield path
    subprocess.run(["umount", "-l", path], check=False)


def test_a_mount_of_a_read_only_data_directory_waits_for_a_node_that_is_away(
    node: Machine, read_only: Path, new_directory: NewDirectory
) -> None:
    source, point = make_tree(new_directory("s"), files=20), new_directory("m")
    snapshot = node.publish(source)
    user = Machine(read_only, "", "user")
    user.mount(snapshot, point, "--timeout", "30", "--io", "no-open")
    try:
        (mount,) = node.json("status")["mounts"]
        assert "Read-only file system" in mount["reads_reason"]
        assert (point / "deep" / "0003.bin").read_bytes() == (source / "deep" / "0003.bin").read_bytes()
        node.kill()
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit((point / "shard").read_bytes)
            node.up()
            assert waiting.result(30) == (source / "shard").read_bytes()
    finally:
        user.umount(point)
