"""The handshake and the device without a mount: a socket plays the kernel."""

import errno
import os
import socket
import struct
from collections.abc import Iterator

import pytest

from hoard_p2p.errors import MountFailed
from hoard_p2p.mount import kernel
from hoard_p2p.mount.connection import shake_hands
from hoard_p2p.mount.endpoint import Endpoint, MountGone
from hoard_p2p.mount.kernel import Can

EVERYTHING = (1 << 64) - 1


@pytest.fixture
def device() -> Iterator[tuple[socket.socket, int]]:
    """The kernel's end, and the descriptor that the code under test gets."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.setblocking(False)
        yield ours, theirs.fileno()


def _init(major: int = 7, minor: int = 45, offered: int = EVERYTHING) -> bytes:
    """`fuse_in_header` and `fuse_init_in` as the header file has them."""
    body = struct.pack("<5I44x", major, minor, 131_072, offered & 0xFFFF_FFFF, offered >> 32)
    return struct.pack("<IIQQIIIHH", 40 + len(body), 26, 2, 0, 0, 0, 0, 0, 0) + body


def test_the_handshake_asks_for_what_a_no_open_mount_needs(device: tuple[socket.socket, int]) -> None:
    ours, fd = device
    ours.send(_init())
    assert shake_hands(fd, kernel.NO_OPEN) == kernel.NO_OPEN
    reply = ours.recv(4096)
    assert len(reply) == 16 + 64  # sizeof(struct fuse_init_out)
    assert struct.unpack_from("<IiQ", reply) == (80, 0, 2)
    major, minor, readahead, flags, background, congestion = struct.unpack_from("<IIIIHH", reply, 16)
    assert (major, minor, readahead, background, congestion) == (7, 45, 131_072, 65_535, 65_535)
    assert struct.unpack_from("<IIHHI", reply, 36) == (65_536, 1, 256, 0, 1 << 7)  # RESEND is bit 39
    for refused in (1 << 1, 1 << 10, 1 << 12, 1 << 15):  # POSIX_LOCKS, FLOCK_LOCKS, AUTO_INVAL_DATA, ASYNC_DIO
        assert not flags & refused


def test_an_older_kernel_gets_its_own_minor_and_no_flag_it_lacks(device: tuple[socket.socket, int]) -> None:
    ours, fd = device
    ours.send(_init(minor=34, offered=int(kernel.NEEDED | Can.ASYNC_READ | Can.HAS_RESEND)))  # bits above 31 are noise
    assert shake_hands(fd, kernel.NO_OPEN) == kernel.NEEDED | Can.ASYNC_READ
    assert struct.unpack_from("<II", ours.recv(4096), 16) == (7, 34)


def test_the_handshake_of_a_passthrough_mount_says_how_deep_files_may_be_stacked(
    device: tuple[socket.socket, int],
) -> None:
    ours, fd = device
    ours.send(_init())
    assert shake_hands(fd, kernel.PASSTHROUGH) == kernel.PASSTHROUGH
    reply = ours.recv(4096)
    assert struct.unpack_from("<II", reply, 16 + 32) == (1 << 7 | 1 << 5, 1)  # PASSTHROUGH is bit 37


def test_a_kernel_without_passthrough_makes_a_no_open_mount_unless_it_is_needed(
    device: tuple[socket.socket, int],
) -> None:
    ours, fd = device
    for _ in range(2):
        ours.send(_init(offered=EVERYTHING & ~int(Can.PASSTHROUGH)))
    assert shake_hands(fd, kernel.PASSTHROUGH) == kernel.NO_OPEN
    assert struct.unpack_from("<II", ours.recv(4096), 16 + 32) == (1 << 7, 0)
    with pytest.raises(MountFailed, match=r"Linux 6\.9.*--io no-open"):
        shake_hands(fd, kernel.PASSTHROUGH, kernel.NEEDED | Can.PASSTHROUGH)


@pytest.mark.parametrize("request_bytes", [_init(minor=30), _init(major=8), _init(offered=0)])
def test_a_kernel_that_cannot_is_named(device: tuple[socket.socket, int], request_bytes: bytes) -> None:
    ours, fd = device
    ours.send(request_bytes)
    with pytest.raises(MountFailed, match=r"Linux 5\.4"):
        shake_hands(fd, kernel.NO_OPEN)


def test_requests_and_replies_have_the_kernels_headers(device: tuple[socket.socket, int]) -> None:
    ours, fd = device
    endpoint = Endpoint(fd)
    assert endpoint.receive() is None
    ours.send(struct.pack("<IIQQIIIHH", 45, 1, 8, 77, 0, 0, 0, 0, 0) + b"name\0")
    request = endpoint.receive()
    assert request is not None
    assert (request.opcode, request.unique, request.node, bytes(request.body)) == (1, 8, 77, b"name\0")
    endpoint.send(8, b"body")
    endpoint.fail(10, errno.EIO)
    endpoint.room[:3] = b"abc"
    endpoint.send_room(12, 3)
    replies = [ours.recv(4096) for _ in range(3)]
    assert replies[0] == struct.pack("<IiQ", 20, 0, 8) + b"body"
    assert replies[1] == struct.pack("<IiQ", 16, -5, 10)
    assert replies[2] == struct.pack("<IiQ", 19, 0, 12) + b"abc"


def test_other_troubles_with_the_device_are_not_taken_for_the_end() -> None:
    endpoint = Endpoint(os.open("/", os.O_RDONLY))
    with pytest.raises(IsADirectoryError):
        endpoint.receive()
    os.close(endpoint.fileno)
    assert not issubclass(MountGone, OSError)
