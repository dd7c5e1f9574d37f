"""Messages on the unix sockets of one machine: one JSON object each, with descriptors beside it.

The sockets are SOCK_SEQPACKET, so the kernel keeps message borders. A message over `INLINE_LIMIT` travels in a memfd,
and so do bulk bytes. Both ends are the same version of Hoard or the next (`hoard up` of a new version may meet a mount
of an older one), so keys are only ever added.

Knows nothing of what the messages mean.
"""

import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from hoard_p2p.config import Json
from hoard_p2p.errors import DeadlineExceeded, HoardError, NoNode, from_wire, wire_name
from hoard_p2p.ids import Bytes

INLINE_LIMIT = 60_000
"""Bytes of JSON sent inline: well below the default socket buffer (208 KiB), which bounds a SEQPACKET message."""

MAX_MESSAGE = 1 << 30
MAX_FDS = 80
"""Descriptors beside a message: those of a mount of 64 workers, and some. (The kernel allows 253.)"""
SOCKET_NAME = "hoard.sock"
CONNECT_SECONDS = 10.0
"""A node takes a connection at once, unless it hangs and 256 others wait already."""

_IN_MEMFD = b"@memfd"


class Message(NamedTuple):
    """A received message; whoever takes it owns (and closes) `fds`. `cut`: some were lost, since this process could not
    have any more."""

    body: dict[str, Json]
    fds: tuple[int, ...]
    cut: bool = False

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


def memfd_of(data: Bytes) -> int:
    """A new anonymous file that holds `data`, positioned at its start."""
    fd = os.memfd_create("hoard-message", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def memfd_bytes(fd: int) -> bytes:
    """All bytes of a received memfd. Raises HoardError if it is larger than any message may be."""
    size = os.fstat(fd).st_size
    if size > MAX_MESSAGE:
        raise HoardError(f"a local message of {size} bytes was refused")
    return os.pread(fd, size, 0)


def send(sock: socket.socket, body: Mapping[str, Json], fds: Sequence[int] = ()) -> None:
    """Send one message; the caller keeps its descriptors. Raises BlockingIOError on a full non-blocking socket."""
    data = json.dumps(body, separators=(",", ":")).encode()
    if len(data) <= INLINE_LIMIT:
        socket.send_fds(sock, [data], list(fds))
        return
    spill = memfd_of(data)
    try:
        socket.send_fds(sock, [_IN_MEMFD], [spill, *fds])
    finally:
        os.close(spill)


def receive(sock: socket.socket) -> Message | None:
    """The next message; None at the end of the stream. Raises BlockingIOError, and HoardError for a malformed one."""
    data, fds, flags, _address = socket.recv_fds(sock, INLINE_LIMIT + 1, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
    if not data:
        for fd in fds:
            os.close(fd)
        return None
    try:
        if data == _IN_MEMFD and fds:
            data = memfd_bytes(fds[0])
            os.close(fds.pop(0))
        body = json.loads(data)
        if not isinstance(body, dict):
            raise HoardError("a local message is not a JSON object")
    except (ValueError, OSError, HoardError) as error:
        for fd in fds:
            os.close(fd)
        raise HoardError(f"malformed local message: {error}") from error
    return Message(body, tuple(fds), bool(flags & socket.MSG_CTRUNC))


def error_body(error: HoardError) -> dict[str, Json]:
    """How an error travels; `raise_error` is the way back."""
    return {"error": wire_name(error), "message": str(error)}


def raise_error(body: Mapping[str, Json]) -> None:
    """Raise the error that `body` carries, if it carries one."""
    name = body.get("error")
    if isinstance(name, str):
        raise from_wire(name, str(body.get("message", "")))


class _ShortPath:
    """The socket's address below /proc/self/fd, since a unix socket path may not exceed 107 bytes."""

    def __init__(self, data_dir: Path) -> None:
        self._fd = os.open(data_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> str:
        return f"/proc/self/fd/{self._fd}/{SOCKET_NAME}"

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def connect(data_dir: Path, *, seconds: float = CONNECT_SECONDS) -> socket.socket:
    """A blocking connection to the node that runs on `data_dir`. Raises NoNode, and DeadlineExceeded if the node did
    not take it within `seconds` (0: at once)."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        _wait_at_most(sock, seconds)
        with _ShortPath(data_dir) as path:
            sock.connect(path)
        sock.setblocking(True)
    except BlockingIOError as error:
        sock.close()
        raise DeadlineExceeded(
            f"the node on {data_dir} takes no connections: it is stopped or hangs; {data_dir}/node-lock holds its pid"
        ) from error
    except PermissionError as error:
        sock.close()
        raise NoNode(f"the node on {data_dir} belongs to another user; use --data-dir for one of yours") from error
    except OSError as error:
        sock.close()
        raise NoNode(
            f"no node is running on {data_dir}; start one with: hoard up --detach --data-dir {quote(str(data_dir))}"
        ) from error
    return sock


def _wait_at_most(sock: socket.socket, seconds: float) -> None:
    """Bound the wait of connect(2). A time-out of Python's own would not: it polls, which a unix socket that waits for
    room in the other's queue does not support (unix(7): connect gives EAGAIN)."""
    if seconds <= 0:
        sock.setblocking(False)
        return
    whole, part = divmod(seconds, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(whole), int(part * 1_000_000)))


def peer_pid(sock: socket.socket) -> int:
    """The process at the other end: the one that connected, or that listened."""
    return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], "little")


def listen(data_dir: Path) -> socket.socket:
    """The node's listening socket, for the owner of the data directory alone. A dead one is replaced: the caller
    holds the node lock."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    with suppress(FileNotFoundError):
        (data_dir / SOCKET_NAME).unlink()
    before = os.umask(0o177)
    try:
        with _ShortPath(data_dir) as path:
            sock.bind(path)
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(before)
    sock.listen(256)
    return sock
