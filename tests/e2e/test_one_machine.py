"""One node and its commands, as a user meets them."""

import errno
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.system import HOARD, Machine, exported, machines, make_tree, space_of, tree, wait_until

pytestmark = pytest.mark.timeout(180)
NewDirectory = Callable[[str], Path]


def a_machine(new_directory: NewDirectory, **changes: str) -> Machine:
    settings = {"discovery": "none", "listen": "127.0.0.1:0", "name": "one", **changes}
    return Machine(new_directory("n"), f"test-{secrets.token_hex(4)}", **settings)  # type: ignore[arg-type]  # all texts


@pytest.fixture
def node(new_directory: NewDirectory) -> Iterator[Machine]:
    machine = a_machine(new_directory)
    with machines([machine]):
        yield machine


def test_a_second_node_on_one_data_directory_is_refused_with_the_holders_pid(node: Machine) -> None:
    refused = node.hoard("up", "--detach", "--discovery", "none", check=False)
    assert refused.returncode == 1
    assert str(node.pid) in refused.stderr
    assert node.json("status")["node"]["pid"] == node.pid, "the first one goes on"


@pytest.mark.parametrize("detach", [True, False])
def test_a_discovery_that_does_not_exist_is_a_usage_error(new_directory: NewDirectory, detach: bool) -> None:
    machine = a_machine(new_directory, discovery="carrier-pigeon")
    background = ("--detach",) if detach else ()
    done = machine.hoard("up", "--discovery", "carrier-pigeon", "--listen", "127.0.0.1:0", *background, check=False)
    assert done.returncode == 2, done.stderr
    assert "carrier-pigeon" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_password_among_the_settings_is_in_no_list_of_processes_and_no_log(new_directory: NewDirectory) -> None:
    machine = a_machine(new_directory, discovery="etcd:me:hush-hush@127.0.0.1:1")
    with machines([machine]):
        assert b"hush-hush" not in Path(f"/proc/{machine.pid}/cmdline").read_bytes()
        assert "hush-hush" not in machine.hoard("status", "--json").stdout
        assert "hush-hush" not in (machine.data_dir / "log" / "node.log").read_text()


def test_a_node_whose_data_directory_was_deleted_ends_by_itself(new_directory: NewDirectory) -> None:
    machine = a_machine(new_directory)
    machine.up()
    process = os.pidfd_open(machine.pid)
    try:
        shutil.rmtree(machine.data_dir)
        poll = select.poll()
        poll.register(process, select.POLLIN)
        assert poll.poll(20_000), "the node goes on without its data"
    finally:
        os.close(process)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_node_in_the_foreground_with_status_0(
    new_directory: NewDirectory, number: signal.Signals
) -> None:
    data_dir = new_directory("n")
    command = [*HOARD, "up", "--data-dir", os.fspath(data_dir), "--discovery", "none", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        wait_until((data_dir / "hoard.sock").exists, "the node answers")
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert not (data_dir / "hoard.sock").exists()


def test_without_a_node_every_command_ends_with_4_and_says_how_to_start_one(new_directory: NewDirectory) -> None:
    machine = a_machine(new_directory)
    for command in (["status"], ["ls"], ["refs"], ["publish", "/usr"], ["mount", "abcdef", "/mnt"]):
        done = machine.hoard(*command, check=False)
        assert done.returncode == 4, (command, done.stderr)
        assert "hoard up" in done.stderr


def test_unknown_snapshots_and_paths_end_with_3(node: Machine, new_directory: NewDirectory) -> None:
    source = make_tree(new_directory("s"), files=2, large=1000)
    snapshot = node.publish(source)
    for command in (
        ["mount", "0" * 56 + "deadbeef", os.fspath(new_directory("m"))],
        ["cat", f"{snapshot}:no/such"],
        ["ls", f"{snapshot}:deep/nothing"],
        ["ls", "no-such-name"],
        ["tag", "ffffffff", "x"],
    ):
        done = node.hoard(*command, check=False)
        assert done.returncode == 3, (command, done.returncode, done.stderr)


def test_a_tree_can_be_listed_read_and_exported_without_a_mount(node: Machine, new_directory: NewDirectory) -> None:
    source = make_tree(new_directory("s"))
    snapshot = node.publish(source, "--name", "set:1")
    listed = node.json("ls", "set:1:deep/er")
    assert [entry["name"] for entry in listed["entries"]] == [os.fsdecode(b"\xff\xfe")]
    shard = subprocess.run(
        [*HOARD, "cat", f"{snapshot[:10]}:shard", "--data-dir", os.fspath(node.data_dir)],
        capture_output=True,
        check=True,
    ).stdout
    assert shard == (source / "shard").read_bytes()
    target = new_directory("e") / "tree"
    node.hoard("export", "set:1", os.fspath(target))
    assert tree(target) == exported(tree(source))
    assert (target / "sparse").stat().st_blocks * 512 < 1 << 20, "holes stay holes"


@pytest.mark.root
def test_files_that_cannot_be_read_are_named_and_nothing_is_shown(new_directory: NewDirectory) -> None:
    """As an ordinary user, since root can read everything."""
    home = new_directory("h")
    source = home / "s"
    source.mkdir()
    (source / "open").write_text("x")
    (source / "secret").write_text("y")
    (source / "secret").chmod(0)
    script = "import os,sys; os.setgroups([]); os.setgid(65534); os.setuid(65534); os.execv(sys.argv[1], sys.argv[1:])"
    os.chown(home, 65534, 65534)
    if subprocess.run([sys.executable, "-c", script, sys.executable, "-c", ""], check=False).returncode != 0:
        pytest.skip(f"an ordinary user may not run {sys.executable}")
    machine = Machine(
        home / "n", f"test-{secrets.token_hex(4)}", "one", discovery="none", listen="127.0.0.1:0",
        prefix=(sys.executable, "-c", script),
    )  # fmt: skip
    with machines([machine]):
        failed = machine.hoard("publish", os.fspath(source), check=False)
        assert failed.returncode == 1
        assert "secret" in failed.stderr
        assert machine.json("ls")["snapshots"] == []
        left_out = machine.hoard("publish", os.fspath(source), "--skip-unreadable")
        assert "secret" in left_out.stderr
        assert machine.json("ls")["snapshots"][0]["files"] == 1


def test_ctrl_c_in_a_publish_shows_nothing_and_leaves_no_process(node: Machine, new_directory: NewDirectory) -> None:
    source = make_tree(new_directory("s"), large=400 << 20)
    command = [*HOARD, "publish", os.fspath(source), "--data-dir", os.fspath(node.data_dir)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    scratch = node.data_dir / "tmp"
    wait_until(lambda: scratch.is_dir() and any(scratch.iterdir()), "the ingest begins")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130, errors
    wait_until(lambda: not any(scratch.iterdir()), "the scratch folder is removed")
    assert node.json("ls")["snapshots"] == []


def test_kill_9_of_the_node_in_a_publish_leaves_a_store_that_works(node: Machine, new_directory: NewDirectory) -> None:
    source = make_tree(new_directory("s"), large=300 << 20)
    command = [*HOARD, "publish", os.fspath(source), "--data-dir", os.fspath(node.data_dir)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    slabs = node.data_dir / "slabs"
    wait_until(lambda: space_of(slabs) > 1000 * 512, "bytes are written")
    node.kill()
    process.communicate(timeout=20)
    assert process.returncode != 0
    node.up()
    assert node.json("ls")["snapshots"] == []
    snapshot = node.publish(source)
    target = new_directory("e") / "tree"
    node.hoard("export", snapshot, os.fspath(target))
    assert tree(target) == exported(tree(source))


@pytest.mark.fuse
def test_hits_go_on_while_the_node_is_down(node: Machine, new_directory: NewDirectory) -> None:
    source = make_tree(new_directory("s"), files=10, large=1 << 20)
    snapshot = node.publish(source)
    mounted = node.mount(snapshot, new_directory("m"), "--timeout", "2")
    node.kill()
    assert (mounted / "shard").read_bytes() == (source / "shard").read_bytes()
    node.up()
    wait_until(lambda: len(node.json("status")["mounts"]) == 1, "the mount comes back to the node")
    node.umount(mounted)


@contextmanager
def a_reader_of(node: Machine, new_directory: NewDirectory) -> Iterator[Machine]:
    """A second node that knows the first; it comes to hold nothing of what that one published before."""
    made = a_machine(new_directory, name="two", discovery=f"static:{address_of(node)}")
    second = replace(made, cluster=node.cluster)
    with machines([second], others=1):
        yield second


def address_of(machine: Machine) -> str:
    return str(machine.json("status")["node"]["url"]).removeprefix("http://")


def published_alone(node: Machine, new_directory: NewDirectory) -> tuple[Path, str]:
    """A snapshot that was made before the node met any other, so that nobody else is a home."""
    source = make_tree(new_directory("s"), files=10, large=12 << 20)
    return source, node.publish(source, "--replicas", "1")


def timed_read(path: Path) -> tuple[bytes | int, float]:
    """What a read gives, bytes or errno, and how long it took."""
    begin = time.monotonic()
    try:
        found: bytes | int = path.read_bytes()
    except OSError as error:
        found = error.errno or 0
    return found, time.monotonic() - begin


@pytest.mark.fuse
def test_a_miss_that_nobody_can_answer_ends_in_eio_within_its_deadline(
    node: Machine, new_directory: NewDirectory
) -> None:
    source, snapshot = published_alone(node, new_directory)
    small = Path("deep") / "0004.bin"
    with a_reader_of(node, new_directory) as reader:
        mounted = reader.mount(snapshot, new_directory("m"), "--timeout", "4")
        assert (mounted / small).read_bytes() == (source / small).read_bytes()
        node.kill()
        found, seconds = timed_read(mounted / "shard")
        assert found == errno.EIO
        assert seconds < 4 + 10
        assert (mounted / small).read_bytes() == (source / small).read_bytes(), "hits go on"
        reader.kill()
        found, seconds = timed_read(mounted / "deep" / "again")
        assert found == errno.EIO, "a node that is down is waited for no longer"
        assert seconds < 4 + 10


@pytest.mark.fuse
@pytest.mark.parametrize("who", ["the peer", "the node"])
def test_a_miss_waits_for_who_comes_back_and_then_succeeds(
    node: Machine, new_directory: NewDirectory, who: str
) -> None:
    source, snapshot = published_alone(node, new_directory)
    node.listen = address_of(node)
    with a_reader_of(node, new_directory) as reader, ThreadPoolExecutor(1) as threads:
        mounted = reader.mount(snapshot, new_directory("m"), "--timeout", "60")
        away = node if who == "the peer" else reader
        away.kill()
        read = threads.submit(timed_read, mounted / "shard")
        with pytest.raises(TimeoutError):
            read.result(1.0)
        away.up()
        found, seconds = read.result(60)
        assert found == (source / "shard").read_bytes()
        assert seconds < 60


def reads_after_publish(node: Machine, source: Path, mounted: Path) -> bool:
    """Whether the file can be read after one more publish; what it gives must be right. Each round finds the next
    damaged chunk, and the next publish stores it anew."""
    node.publish(source)
    try:
        data = (mounted / "deep" / "again").read_bytes()
    except OSError:
        return False
    assert data == (source / "shard").read_bytes()
    return True


@pytest.mark.fuse
def test_damage_on_disk_is_never_served(node: Machine, new_directory: NewDirectory) -> None:
    source = make_tree(new_directory("s"), files=0, large=3 << 20)
    snapshot = node.publish(source)
    mounted = node.mount(snapshot, new_directory("m"), "--timeout", "5")
    for slab in (node.data_dir / "slabs").glob("*.slab"):
        size = slab.stat().st_size
        with slab.open("r+b") as file:
            for at in range(0, size, 100_000):
                file.seek(at)
                file.write(b"damage")
    with pytest.raises(OSError, match="Input/output error"):
        (mounted / "shard").read_bytes()
    assert node.json("status")["store"]["quarantined"] > 0
    wait_until(lambda: reads_after_publish(node, source, mounted), "publishing again heals what was found damaged", 60)


@pytest.mark.fuse
def test_a_damaged_chunk_is_fetched_again_from_a_peer(new_directory: NewDirectory) -> None:
    cluster = f"test-{secrets.token_hex(4)}"
    made = [Machine(new_directory("n"), cluster, f"m{number}", listen="127.0.0.1:0") for number in range(2)]
    with machines(made) as (first, second):
        source = make_tree(new_directory("s"), files=10, large=12 << 20)
        snapshot = first.publish(source)
        for slab in (first.data_dir / "slabs").glob("*.slab"):
            with slab.open("r+b") as file:
                for at in range(1000, slab.stat().st_size, 500_000):
                    file.seek(at)
                    file.write(b"damage")
        mounted = first.mount(snapshot, new_directory("m"))
        assert tree(mounted) == tree(source)
        assert second.json("status")["store"]["sent"] > 0
