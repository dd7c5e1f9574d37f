"""What a publish and its worker processes say to each other: marshalled tuples over a stream, descriptors beside them.

Both ends are forks of one process, so there is one version of this and nothing to distrust.
"""

import marshal
import os
import socket
from collections.abc import Sequence
from concurrent.futures import Future
from struct import Struct
from typing import Any

from hoard_p2p.publish.attributes import NONE, Attributes
from hoard_p2p.publish.entries import Content, FileRead, LinkRead
from hoard_p2p.publish.large import PackedRuns
from hoard_p2p.publish.walk import Directory, Found, LeftOut, Reason

BATCH, FLUSH = range(2)
"""Requests: (BATCH, number, paths of directories, founds), with a descriptor for each directory; (FLUSH, number)."""

ANSWER, LATER, FAILED = range(3)
"""Answers: (ANSWER, number, contents); (LATER, ticket, content), for a content that was given as a ticket; (FAILED,
number, name of the error, its message), a ticket being a negative number."""

_LENGTH = Struct("<I")
_FILE, _LARGE, _LINK, _LEFT_OUT, _TICKET = range(5)
_MOST_FDS = 250  # SCM_MAX_FD is 253


def send(sock: socket.socket, message: tuple[Any, ...], fds: Sequence[int] = ()) -> None:
    """Raises OSError if the other end is gone."""
    data = marshal.dumps(message)
    frame = _LENGTH.pack(len(data)) + data
    sent = socket.send_fds(sock, [frame], fds) if fds else 0
    if sent < len(frame):
        sock.sendall(memoryview(frame)[sent:])


def receive(sock: socket.socket) -> tuple[tuple[Any, ...], list[int]] | None:
    """The next message and its descriptors; None at the end."""
    try:
        head, fds, _, _ = socket.recv_fds(sock, _LENGTH.size, _MOST_FDS, socket.MSG_WAITALL | socket.MSG_CMSG_CLOEXEC)
        if len(head) < _LENGTH.size:
            return None
        data = bytearray(_LENGTH.unpack(head)[0])
        if sock.recv_into(data, len(data), socket.MSG_WAITALL) < len(data):
            return None
    except OSError:
        return None
    return marshal.loads(data), fds


def encode_founds(founds: Sequence[Found]) -> tuple[list[bytes], list[tuple[Any, ...]], list[int]]:
    """Paths of the directories, the founds, and the directories' descriptors."""
    numbers: dict[int, int] = {}
    paths: list[bytes] = []
    fds: list[int] = []
    rows: list[tuple[Any, ...]] = []
    for found in founds:
        number = numbers.setdefault(found.directory.fd, len(fds))
        if number == len(fds):
            paths.append(found.directory.path)
            fds.append(found.directory.fd)
        rows.append((found.name, number, _status_row(found.status)))
    return paths, rows, fds


def decode_founds(rows: Sequence[tuple[Any, ...]], directories: Sequence[Directory]) -> list[Found]:
    return [Found(name, _status(row), directories[number]) for name, number, row in rows]


def encode_content(content: "Content | Future[Content]", found: Found, ticket: int) -> tuple[Any, ...]:
    """`ticket` stands for a content that is not there yet."""
    if isinstance(content, Future):
        return (_TICKET, ticket)
    if isinstance(content, LeftOut):
        return (_LEFT_OUT, content.reason.value, content.path, content.why)
    row: tuple[int, ...] | None = None
    if content.status is not found.status and _status_row(content.status) != _status_row(found.status):
        row = _status_row(content.status)
    if isinstance(content, LinkRead):
        return (_LINK, row, content.target)
    attributes = None if content.attributes == NONE else tuple(content.attributes)
    if isinstance(content.runs, PackedRuns):
        return (_LARGE, row, attributes, *content.runs.packed())
    return (_FILE, row, attributes, content.runs)


def decode_content(row: tuple[Any, ...], found: Found) -> Content | int:
    """A number is a ticket."""
    if row[0] == _TICKET:
        return int(row[1])
    if row[0] == _LEFT_OUT:
        return LeftOut(Reason(row[1]), row[2], row[3])
    status = found.status if row[1] is None else _status(row[1])
    if row[0] == _LINK:
        return LinkRead(found.name, status, row[2])
    attributes = NONE if row[2] is None else Attributes(*row[2])
    runs = row[3] if row[0] == _FILE else PackedRuns.unpacked(row[3], row[4])
    return FileRead(found.name, status, attributes, runs)


def _status_row(status: os.stat_result) -> tuple[int, ...]:
    return (
        status.st_mode, status.st_ino, status.st_dev, status.st_nlink, status.st_uid, status.st_gid, status.st_size,
        status.st_mtime_ns, status.st_ctime_ns,
    )  # fmt: skip


def _status(row: tuple[int, ...]) -> os.stat_result:
    """With nanoseconds; the fields in seconds are 0."""
    return os.stat_result((*row[:7], 0, 0, 0), {"st_mtime_ns": row[7], "st_ctime_ns": row[8]})
