"""What the kernel does with backing files, seen with answers made by hand: the mount is built on these facts."""

import contextlib
import errno
import fcntl
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hoard_p2p.errors import MountBusy
from hoard_p2p.mount import kernel
from hoard_p2p.mount.attach import detach, detach_aborting
from hoard_p2p.mount.backing import Backings, obstacle
from hoard_p2p.mount.connection import Connection
from hoard_p2p.mount.endpoint import Endpoint, MountGone, Request
from hoard_p2p.mount.kernel import ATTR_OUT, ENTRY_OUT, FOREVER, OPEN_OUT, READ_IN, RELEASE_IN, Fopen, Op
from hoard_p2p.storage.punching import is_alone
from tests.mappings import Mapping

pytestmark = [pytest.mark.root, pytest.mark.fuse]

SIZE = 1 << 20
PASS = int(Fopen.PASSTHROUGH | Fopen.NOFLUSH)
KEEP = int(Fopen.KEEP_CACHE | Fopen.NOFLUSH)
WAIT = 20.0


@dataclass
class Scripted:
    """A mount with one file, `f`, of SIZE bytes; READ is answered with `r`s, OPEN with what `answers` has next, as
    (flags, backing id), the last of them for ever."""

    path: Path
    connection: Connection
    answers: list[tuple[int, int]] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.backings = Backings(self.connection.device_fd)
        self.endpoint = Endpoint(self.connection.device_fd)
        self._changed = threading.Condition()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def script(self, *answers: tuple[int, int]) -> None:
        self.answers[:] = answers

    def wait_for_releases(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.released) >= count, WAIT)

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        fd = os.open(self.path, os.O_RDONLY)
        try:
            yield fd
        finally:
            os.close(fd)

    def _serve(self) -> None:
        os.set_blocking(self.connection.device_fd, True)
        with contextlib.suppress(MountGone):
            while True:
                request = self.endpoint.receive()
                if request is not None:
                    self._answer(request)

    def _answer(self, request: Request) -> None:
        opcode, unique, node, body = request
        self.seen.append(opcode)
        attributes = (node, SIZE, 0, 0, 0, 0, 0, 0, 0, 0o100644 if node == 2 else 0o40755, 1, 0, 0, 0, 4096, 0)
        if opcode == Op.LOOKUP:
            found = (2, 0, FOREVER, FOREVER, 0, 0, 2, *attributes[1:9], 0o100644, *attributes[10:])
            self.endpoint.send(unique, ENTRY_OUT.pack(*found))
        elif opcode == Op.GETATTR:
            self.endpoint.send(unique, ATTR_OUT.pack(FOREVER, 0, 0, *attributes))
        elif opcode == Op.OPEN:
            flags, backing_id = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            self.endpoint.send(unique, OPEN_OUT.pack(unique, flags, backing_id))
        elif opcode == Op.READ:
            _, offset, size = READ_IN.unpack_from(body)
            self.endpoint.send(unique, b"r" * max(0, min(size, SIZE - offset)))
        elif opcode in (Op.RELEASE, Op.FLUSH):
            if opcode == Op.RELEASE:
                with self._changed:
                    self.released.append(RELEASE_IN.unpack_from(body)[0])
                    self._changed.notify_all()
            self.endpoint.send(unique, b"")
        elif opcode not in (Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT):
            self.endpoint.fail(unique, errno.ENOSYS)


@pytest.fixture
def mount(new_directory: Callable[[str], Path]) -> Iterator[Scripted]:
    folder = new_directory("m")
    if reason := obstacle(folder):
        pytest.skip(reason)
    connection = Connection.open("0123456789ab", folder, kernel.PASSTHROUGH)
    if not connection.passthrough:
        connection.detach_anyhow()
        connection.close()
        pytest.skip("this kernel has no passthrough")
    mount = Scripted(folder / "f", connection)
    try:
        yield mount
    finally:
        connection.detach_anyhow()
        mount.thread.join(WAIT)
        connection.close()


@pytest.fixture
def backing(new_directory: Callable[[str], Path]) -> Iterator[int]:
    """A descriptor of a file of SIZE `b`s."""
    path = new_directory("b") / "slab"
    path.write_bytes(b"b" * SIZE)
    fd = os.open(path, os.O_RDWR)
    yield fd
    os.close(fd)


def _errno(path: Path) -> int:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError as error:
        return error.errno or 0
    return 0


def test_the_kernel_reads_a_backing_file_by_itself(mount: Scripted, backing: int) -> None:
    mount.script((PASS, mount.backings.register(backing)))
    with mount.opened() as fd:
        assert os.pread(fd, SIZE, 0) == b"b" * SIZE
        with mmap.mmap(fd, SIZE, prot=mmap.PROT_READ) as mapped:
            assert mapped[SIZE - 5 :] == b"bbbbb"
    assert Op.READ not in mount.seen


def test_ids_are_given_out_in_ascending_order(mount: Scripted, backing: int) -> None:
    first = mount.backings.register(backing)
    mount.backings.close(first)
    second, third = mount.backings.register(backing), mount.backings.register(backing)
    mount.backings.close(second)
    assert first < second < third < mount.backings.register(backing)


def test_a_closed_id_may_be_closed_again_and_is_an_error_to_open_with(mount: Scripted, backing: int) -> None:
    backing_id = mount.backings.register(backing)
    mount.backings.close(backing_id)
    mount.backings.close(backing_id)
    mount.script((PASS, backing_id))
    assert _errno(mount.path) == errno.EIO


def test_open_files_go_on_reading_after_their_id_was_closed(mount: Scripted, backing: int) -> None:
    backing_id = mount.backings.register(backing)
    mount.script((PASS, backing_id))
    with mount.opened() as fd:
        mount.backings.close(backing_id)
        assert os.pread(fd, 5, 0) == b"bbbbb"


@pytest.mark.parametrize("case", ["another id", "cached behind passthrough", "passthrough behind cached"])
def test_two_ways_to_open_one_file_at_once_are_an_error(mount: Scripted, backing: int, case: str) -> None:
    one, two = mount.backings.register(backing), mount.backings.register(backing)
    first, second = {
        "another id": ((PASS, one), (PASS, two)),
        "cached behind passthrough": ((PASS, one), (KEEP, 0)),
        "passthrough behind cached": ((KEEP, 0), (PASS, one)),
    }[case]
    mount.script(first, second)
    with mount.opened():
        assert _errno(mount.path) == errno.EIO
        mount.script(first)
        assert _errno(mount.path) == 0
    mount.wait_for_releases(3)
    mount.script(second)
    assert _errno(mount.path) == 0, "after the last close the mode may change at once"


def test_a_mapping_of_a_cached_file_that_is_kept_after_close_counts_as_open(mount: Scripted, backing: int) -> None:
    mount.script((KEEP, 0), (PASS, mount.backings.register(backing)))
    with mount.opened() as fd:
        mapping = Mapping(fd, SIZE)
    assert _errno(mount.path) == errno.EIO
    assert mapping.read(5) == b"rrrrr"
    mount.wait_for_releases(1)  # of the one that failed
    assert len(mount.released) == 1
    mapping.close()
    mount.wait_for_releases(2)
    assert _errno(mount.path) == 0


def test_a_mapping_of_a_backing_file_holds_that_file_and_does_not_count_as_open(mount: Scripted, backing: int) -> None:
    backing_id = mount.backings.register(backing)
    mount.script((PASS, backing_id), (KEEP, 0))
    with mount.opened() as fd:
        mapping = Mapping(fd, SIZE)
    mount.wait_for_releases(1)
    mount.backings.close(backing_id)
    with mount.opened() as fd:
        assert os.pread(fd, 5, 0) == b"rrrrr"
    assert mapping.read(5, SIZE - 5) == b"bbbbb"
    mapping.close()


def test_a_mapping_of_a_backing_file_keeps_the_mount_busy(mount: Scripted, backing: int) -> None:
    """So a snapshot whose mount has ended, and not by force, has no backing files in use (storage.freeing)."""
    mount.script((PASS, mount.backings.register(backing)))
    with mount.opened() as fd:
        mapping = Mapping(fd, SIZE)
    mount.wait_for_releases(1)
    with pytest.raises(MountBusy):
        detach(mount.path.parent)
    mapping.close()
    detach(mount.path.parent)


def test_a_write_lease_tells_of_backing_ids_and_mappings_even_after_a_forced_end(mount: Scripted, backing: int) -> None:
    assert is_alone(backing)
    own = os.open(f"/proc/self/fd/{backing}", os.O_RDONLY)
    backing_id = mount.backings.register(own)
    os.close(own)
    assert not is_alone(backing)
    mount.script((PASS, backing_id))
    with mount.opened() as fd:
        mapping = Mapping(fd, SIZE)
    mount.wait_for_releases(1)
    mount.backings.close(backing_id)
    assert not is_alone(backing)
    detach_aborting(mount.path.parent)
    mount.thread.join(WAIT)
    assert mapping.read(5, SIZE - 5) == b"bbbbb"
    assert not is_alone(backing)
    mapping.close()
    assert is_alone(backing)


def test_passthrough_excludes_keeping_the_cache(mount: Scripted, backing: int) -> None:
    mount.script((PASS | int(Fopen.KEEP_CACHE), mount.backings.register(backing)))
    assert _errno(mount.path) == errno.EIO


@pytest.mark.parametrize(("flags", "flushes"), [(Fopen.NOFLUSH, 0), (0, 1)])
def test_a_close_asks_for_no_flush_if_told_so(mount: Scripted, backing: int, flags: int, flushes: int) -> None:
    mount.script((int(Fopen.PASSTHROUGH | flags), mount.backings.register(backing)))
    assert _errno(mount.path) == 0
    mount.wait_for_releases(1)
    assert mount.seen.count(Op.FLUSH) == flushes


def test_the_backing_files_length_and_holes_show_through(mount: Scripted, backing: int) -> None:
    mount.script((PASS, mount.backings.register(backing)))
    os.truncate(backing, SIZE // 2)
    with mount.opened() as fd:
        assert len(os.pread(fd, SIZE, 0)) == SIZE // 2
        os.truncate(backing, 2 * SIZE)
        assert os.pread(fd, 1, SIZE // 2) == b"\0"
        assert os.pread(fd, 10, SIZE) == bytes(10), "past the end of the file"


def test_what_is_written_in_place_is_what_open_readers_see(mount: Scripted, backing: int) -> None:
    mount.script((PASS, mount.backings.register(backing)))
    with mount.opened() as fd:
        os.pread(fd, 10, 0)
        os.pwrite(backing, b"healed", 0)
        assert os.pread(fd, 6, 0) == b"healed"


def test_cached_pages_of_a_file_are_not_seen_through_a_backing_file(mount: Scripted, backing: int) -> None:
    mount.script((KEEP, 0))
    with mount.opened() as fd:
        assert os.pread(fd, 5, 0) == b"rrrrr"
    mount.wait_for_releases(1)
    mount.script((PASS, mount.backings.register(backing)))
    with mount.opened() as fd:
        assert os.pread(fd, 5, 0) == b"bbbbb"


def test_a_request_that_cannot_be_written_to_is_no_registration(mount: Scripted, backing: int) -> None:
    packed = kernel.BACKING_MAP.pack(backing, 0, 0)
    assert isinstance(fcntl.ioctl(mount.connection.device_fd, kernel.BACKING_OPEN, packed), bytes)
    assert isinstance(fcntl.ioctl(mount.connection.device_fd, kernel.BACKING_OPEN, bytearray(packed), True), int)


REGISTER = """
import sys
from hoard_p2p.mount.backing import Backings
device, file = map(int, sys.argv[1:])
try:
    print(Backings(device).register(file))
except OSError as error:
    print(-error.errno)
"""


def _register_elsewhere(mount: Scripted, file: int, become: Sequence[str] = ()) -> int:
    """Have another process register a file, and end."""
    device = mount.connection.device_fd
    argv = [*become, sys.executable, "-c", REGISTER, str(device), str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, pass_fds=(device, file), timeout=WAIT, check=True)
    return int(done.stdout)


def test_an_id_outlives_the_process_that_registered_it(mount: Scripted, backing: int) -> None:
    mount.script((PASS, _register_elsewhere(mount, backing)))
    with mount.opened() as fd:
        assert os.pread(fd, 5, 0) == b"bbbbb"


@pytest.mark.parametrize(
    "become",
    [["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"], ["unshare", "--user", "--map-root-user"]],
    ids=["without the right", "with a right that is no one's"],
)
def test_registering_needs_the_right_to_administer(mount: Scripted, backing: int, become: list[str]) -> None:
    assert _register_elsewhere(mount, backing, become) == -errno.EPERM
    asks = [*become, sys.executable, "-c"]
    code = "import sys, pathlib, hoard_p2p.mount.backing as b; print(b.obstacle(pathlib.Path(sys.argv[1])))"
    said = subprocess.run([*asks, code, "/"], capture_output=True, text=True, timeout=WAIT, check=True)
    assert "CAP_SYS_ADMIN" in said.stdout


@pytest.fixture
def overlay(new_directory: Callable[[str], Path]) -> Iterator[Path]:
    root = new_directory("o")
    with contextlib.ExitStack() as stack:
        for name in ("upper", "lower", "work", "top"):
            (root / name).mkdir()
        options = ",".join(f"{name}dir={root / name}" for name in ("lower", "upper", "work"))
        command = ["mount", "-t", "overlay", "overlay", "-o", options, str(root / "top")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no overlayfs here: {done.stderr.strip()}")
        stack.callback(subprocess.run, ["umount", "-l", str(root / "top")], check=True)
        yield root / "top"


def test_a_file_on_overlayfs_cannot_back_another(mount: Scripted, overlay: Path) -> None:
    (overlay / "slab").write_bytes(b"b" * SIZE)
    with (overlay / "slab").open("rb") as file, pytest.raises(OSError) as caught:
        mount.backings.register(file.fileno())
    assert caught.value.errno == errno.ELOOP
    assert "overlay" in obstacle(overlay)
