"""Beginning and ending mounts: what is refused, who is named, and that nothing is left."""

import ctypes
import errno
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hoard_p2p.errors import BadRequest, HoardError, MountBusy, MountFailed, NotFound, PathNotFound
from hoard_p2p.interfaces import MountOptions
from hoard_p2p.mount.attach import attach, detach
from hoard_p2p.mount.connection import Connection
from hoard_p2p.mount.endpoint import Endpoint, MountGone
from hoard_p2p.mount.mountinfo import locate, mount_at, mounts
from hoard_p2p.mount.supervisor import Supervisor
from hoard_p2p.mount.unmount import unmount
from hoard_p2p.testing.missfakes import DEADLINE, FakeNode
from hoard_p2p.testing.mountfakes import SNAPSHOT, Shop, has_ended, mounted, publish_folder, running
from tests.system import HOARD

pytestmark = [pytest.mark.root, pytest.mark.fuse]

NOBODY = 65534


@pytest.fixture
def shop(new_directory: Callable[[str], Path]) -> Shop:
    source = new_directory("s")
    source.chmod(0o755)
    (source / "file").write_bytes(b"content")
    (source / "other").write_bytes(b"not here")
    (source / "folder").mkdir()
    (source / "folder" / "inner").write_bytes(b"inner content")
    shop = Shop(new_directory("shop"))
    publish_folder(source, shop)
    return shop


@pytest.fixture
def mountpoint(new_directory: Callable[[str], Path]) -> Path:
    return new_directory("a b\\c")  # what mountinfo has to escape


def _refusal(mountpoint: Path, kind: type[HoardError] = MountFailed) -> str:
    with pytest.raises(kind) as caught:
        supervisor = Supervisor(SNAPSHOT, MountOptions(mountpoint, 1, 5.0), serve=lambda _: 0)
        supervisor.run(catalog_fd=0, runs=1, inodes=1)
    return str(caught.value)


@contextmanager
def _user(code: str, *arguments: object, become: Sequence[str] = ()) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that does something and then waits."""
    argv = [*become, sys.executable, "-c", code + "\nprint(flush=True); input()", *map(str, arguments)]
    with running(argv) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def test_a_mount_is_listed_and_gone_with_its_processes_after_unmount(shop: Shop, mountpoint: Path) -> None:
    with mounted(shop, mountpoint) as mount:
        mine = [each for each in mounts() if each.mountpoint == mountpoint]
        assert [each.snapshot for each in mine] == [SNAPSHOT.hex()[:12]]
        pids = [mount.supervisor.pid, *mount.workers()]
        unmount(mountpoint)
        assert mount.supervisor.wait(DEADLINE) == 0
        assert all(map(has_ended, pids))
        assert mountpoint not in [each.mountpoint for each in mounts()]


@pytest.mark.parametrize(
    "code, how",
    [
        ("import sys; file = open(sys.argv[1] + '/file')", "file open"),
        ("import os, sys; os.chdir(sys.argv[1] + '/folder')", "works in it"),
        ("import mmap, sys; f = open(sys.argv[1] + '/file'); m = mmap.mmap(f.fileno(), 0, prot=1); f.close()", "file"),
    ],
    ids=["open", "cwd", "mapped"],
)
def test_unmounting_a_mount_in_use_names_the_user(shop: Shop, mountpoint: Path, code: str, how: str) -> None:
    with mounted(shop, mountpoint), _user(code, mountpoint) as user:
        with pytest.raises(MountBusy) as caught:
            unmount(mountpoint)
        assert f"pid {user.pid} ({sys.executable} -c" in str(caught.value)
        assert how in str(caught.value)
        assert (mountpoint / "file").read_bytes() == b"content"


def test_force_frees_a_reader_that_waits_and_leaves_nothing(shop: Shop, mountpoint: Path) -> None:
    shop.chunks.drop(shop.ids("other")[0])
    with FakeNode(shop.socket_path) as node, mounted(shop, mountpoint) as mount:
        with running(["cat", mountpoint / "other"]) as reader:
            node.wait_for(1)
            pids = [mount.supervisor.pid, *mount.workers()]
            unmount(mountpoint, force=True)
            _, said = reader.communicate(timeout=5)
        assert (reader.returncode, mount.supervisor.wait(DEADLINE)) == (1, 0)
        assert said
        assert all(map(has_ended, pids))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_supervisor_unmounts(shop: Shop, mountpoint: Path, number: signal.Signals) -> None:
    with mounted(shop, mountpoint) as mount:
        mount.supervisor.send_signal(number)
        assert mount.supervisor.wait(DEADLINE) == 0
        assert mountpoint not in [each.mountpoint for each in mounts()]


def test_a_signal_detaches_a_mount_in_use_and_says_so(shop: Shop, mountpoint: Path) -> None:
    with mounted(shop, mountpoint) as mount, (mountpoint / "file").open("rb"):
        (mountpoint / "file").read_bytes()  # a first close, at which the kernel learns that it needs not ask
        mount.supervisor.send_signal(signal.SIGTERM)
        assert mount.supervisor.wait(DEADLINE) == 0
        assert mountpoint not in [each.mountpoint for each in mounts()]
        assert "detached all the same" in mount.log


def test_what_is_no_mount_cannot_be_unmounted(mountpoint: Path) -> None:
    with pytest.raises(NotFound, match="is no hoard mount"):
        unmount(mountpoint)
    with pytest.raises(PathNotFound, match="does not exist"):
        unmount(mountpoint / "absent")
    (mountpoint / "file").write_bytes(b"")
    with pytest.raises(BadRequest, match="is no folder"):
        unmount(mountpoint / "file")


def test_a_path_inside_of_a_mount_is_answered_with_the_mount(shop: Shop, mountpoint: Path) -> None:
    with mounted(shop, mountpoint):
        for inside in (mountpoint / "file", mountpoint / "absent"):
            with pytest.raises(NotFound, match="lies in the mount on") as caught:
                unmount(inside)
            assert f"hoard umount {shlex.quote(str(mountpoint))}" in str(caught.value)


def test_a_mount_of_another_mount_namespace_is_said_to_be_there(shop: Shop, mountpoint: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare (package util-linux)")
    with mounted(shop, mountpoint):
        alone = ["unshare", "--mount", "--propagation", "private", "sh", "-c", 'umount -l "$1"; shift; exec "$@"', "sh"]
        command = [*HOARD, "umount", os.fspath(mountpoint)]
        done = subprocess.run([*alone, mountpoint, *command], capture_output=True, text=True, check=False)
        assert "is not mounted in this mount namespace, but in that of pid" in done.stderr
        assert done.returncode == 3
        assert mount_at(mountpoint) is not None


def test_a_mountpoint_must_be_a_folder_without_a_living_mount(shop: Shop, mountpoint: Path) -> None:
    assert "mkdir -p" in _refusal(mountpoint / "absent", PathNotFound)
    (mountpoint / "file").write_bytes(b"")
    assert "it is no folder" in _refusal(mountpoint / "file", BadRequest)
    with mounted(shop, mountpoint):
        assert f"hoard umount {shlex.quote(str(mountpoint))}" in _refusal(mountpoint)
        assert (mountpoint / "file").read_bytes() == b"content"


def test_a_dead_mount_is_replaced(shop: Shop, mountpoint: Path) -> None:
    with mounted(shop, mountpoint) as mount:
        pids = mount.workers()
        mount.supervisor.send_signal(signal.SIGSTOP)  # so that nobody starts anybody
        for pid in [*pids, mount.supervisor.pid]:
            os.kill(pid, signal.SIGKILL)
        mount.supervisor.wait()
        _until(lambda: all(map(has_ended, pids)))
        with pytest.raises(OSError) as caught:
            os.statvfs(mountpoint)
        assert caught.value.errno == errno.ENOTCONN
        with mounted(shop, mountpoint) as second:
            assert (mountpoint / "file").read_bytes() == b"content"
            assert "had a dead mount" in second.log
        assert mountpoint not in [each.mountpoint for each in mounts()]


def test_dead_mounts_on_top_of_each_other_are_replaced(shop: Shop, mountpoint: Path) -> None:
    for device_fd in [attach(f"hoard:{number:012x}", mountpoint) for number in range(2)]:
        os.close(device_fd)
    with mounted(shop, mountpoint) as second:
        assert (mountpoint / "file").read_bytes() == b"content"
        assert second.log.count("had a dead mount") == 2
    assert mountpoint not in [each.mountpoint for each in mounts()]


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not happen")
        threading.Event().wait(0.01)


class _Handle(ctypes.Structure):
    """`struct file_handle` (open_by_handle_at(2))."""

    _fields_ = (("size", ctypes.c_uint), ("kind", ctypes.c_int), ("bytes", ctypes.c_ubyte * 128))


def test_a_file_handle_outlives_what_the_kernel_remembers(shop: Shop, mountpoint: Path) -> None:
    """As an NFS server needs it; a second mount has never seen the name."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle, mount_id = _Handle(size=128), ctypes.c_int()
    with mounted(shop, mountpoint):
        path = os.fsencode(mountpoint / "folder" / "inner")
        assert libc.name_to_handle_at(-100, path, ctypes.byref(handle), ctypes.byref(mount_id), 0) == 0
    with mounted(shop, mountpoint):
        root = os.open(mountpoint, os.O_RDONLY)
        file = libc.open_by_handle_at(root, ctypes.byref(handle), os.O_RDONLY)
        os.close(root)
        assert file >= 0, os.strerror(ctypes.get_errno())
        assert os.read(file, 100) == b"inner content"
        os.close(file)


def test_a_mount_is_found_by_a_symbolic_link_and_by_a_relative_path(
    shop: Shop, mountpoint: Path, new_directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    link = new_directory("l") / "link"
    link.symlink_to(mountpoint)
    with mounted(shop, mountpoint):
        monkeypatch.chdir(mountpoint.parent)
        assert locate(link) == locate(Path(mountpoint.name)) == mountpoint


# --- an ordinary user

BECOME = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
REACH = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
"""For a Python that lies in root's home folder. It opens no device and mounts nothing."""
OPEN_DEVICE = """
set -e
mknod -m 666 "$1/fuse" c 10 229
mount --bind "$1/fuse" /dev/fuse
echo
read wait
"""
"""A mount namespace in which everybody may open /dev/fuse, as udev has it on a desktop."""
START_AGAIN = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import hoard_p2p.ids'], check=True)"


@pytest.fixture
def nobody(shop: Shop, mountpoint: Path, new_directory: Callable[[str], Path]) -> Iterator[list[str]]:
    """The command to become nobody, to whom the shop and the mountpoint belong, in a mount namespace of its own."""
    tools = ["fusermount3", "setpriv", "unshare", "nsenter", "mknod"]
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        pytest.skip(f"no {missing} to mount as an ordinary user (packages fuse3, util-linux)")
    for path in [mountpoint, shop.folder, *shop.folder.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    argv = ["unshare", "--mount", "sh", "-c", OPEN_DEVICE, "sh", str(new_directory("dev"))]
    with running(argv) as holder:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"\n":
            pytest.skip("no mount namespace can be made, or no device in it")
        yield _command([f"--mount=/proc/{holder.pid}/ns/mnt"])


def _command(namespace: list[str]) -> list[str]:
    for become in (BECOME, BECOME + REACH):
        command = ["nsenter", *namespace, *become]
        if (
            subprocess.run([*command, sys.executable, "-c", START_AGAIN], capture_output=True, check=False).returncode
            == 0
        ):
            return command
    pytest.skip("an ordinary user cannot run this Python")


def _run(become: list[str], code: str, *arguments: object) -> "subprocess.CompletedProcess[bytes]":
    argv = [*become, sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, timeout=DEADLINE, check=False)


UNMOUNT = """
import sys
from pathlib import Path
from hoard_p2p.mount.unmount import unmount
unmount(Path(sys.argv[1]), force={})
"""


@pytest.mark.parametrize("force", [False, True])
def test_an_ordinary_user_mounts_reads_and_unmounts(
    shop: Shop, mountpoint: Path, nobody: list[str], force: bool
) -> None:
    with FakeNode(shop.socket_path), mounted(shop, mountpoint, become=nobody) as mount:
        look = "import os, sys; s = os.stat(sys.argv[1]); print(s.st_uid, open(sys.argv[1]).read())"
        assert _run(nobody, look, mountpoint / "file").stdout == b"65534 content\n"
        as_root = subprocess.run([*nobody[:2], "cat", mountpoint / "file"], capture_output=True, check=False)
        assert b"Permission denied" in as_root.stderr  # the mount is its user's own
        pids = [mount.supervisor.pid, *mount.workers()]
        ended = _run(nobody, UNMOUNT.format(force), mountpoint)
        assert (ended.returncode, ended.stderr) == (0, b"")
        assert mount.supervisor.wait(DEADLINE) == 0
        assert all(map(has_ended, pids))


def test_an_ordinary_users_workers_can_die_too(shop: Shop, mountpoint: Path, nobody: list[str]) -> None:
    with FakeNode(shop.socket_path), mounted(shop, mountpoint, become=nobody) as mount:
        for pid in mount.workers():
            os.kill(pid, signal.SIGKILL)
        assert _run(nobody, "import sys; print(open(sys.argv[1]).read())", mountpoint / "file").stdout == b"content\n"


def test_an_ordinary_user_is_told_who_is_in_the_way(shop: Shop, mountpoint: Path, nobody: list[str]) -> None:
    hold = "import sys; file = open(sys.argv[1] + '/file')"
    with (
        FakeNode(shop.socket_path),
        mounted(shop, mountpoint, become=nobody),
        _user(hold, mountpoint, become=nobody) as user,
    ):
        ended = _run(nobody, UNMOUNT.format(False), mountpoint)
        assert b"MountBusy" in ended.stderr
        assert f"pid {user.pid} ".encode() in ended.stderr or b"cannot be seen" in ended.stderr


def test_an_ordinary_user_frees_a_reader_by_force(shop: Shop, mountpoint: Path, nobody: list[str]) -> None:
    shop.chunks.drop(shop.ids("other")[0])
    with FakeNode(shop.socket_path) as node, mounted(shop, mountpoint, become=nobody) as mount:
        with running([*nobody, "cat", mountpoint / "other"]) as reader:
            node.wait_for(1)
            assert _run(nobody, UNMOUNT.format(True), mountpoint).returncode == 0
            reader.communicate(timeout=5)
        assert (reader.returncode, mount.supervisor.wait(DEADLINE)) == (1, 0)


def test_a_supervisor_whose_mount_is_gone_leaves_the_next_one_on_the_path_alone(mountpoint: Path) -> None:
    first = Connection.open("0" * 12, mountpoint)
    detach(mountpoint)
    second = Connection.open("1" * 12, mountpoint)
    try:
        if (second.mount.mount_id, second.mount.device) != (first.mount.mount_id, first.mount.device):
            pytest.skip("the kernel gave the next mount other numbers, so nothing can be mixed up")
        threading.Thread(target=_answer_one, args=(second.device_fd,), daemon=True).start()
        first.leave()
        assert [each.snapshot for each in mounts() if each.mountpoint == mountpoint] == ["1" * 12]
    finally:
        second.leave()


def _answer_one(device_fd: int) -> None:
    """Answer requests with ENOSYS until the mount is gone."""
    endpoint = Endpoint(device_fd)
    with suppress(MountGone, OSError):
        while True:
            select.select([device_fd], [], [], DEADLINE)
            request = endpoint.receive()
            if request is not None:
                endpoint.fail(request.unique, errno.ENOSYS)
