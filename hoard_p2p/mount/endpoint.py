"""One worker's descriptor of /dev/fuse: requests come out, replies go in, through two buffers that are reused."""

import errno
import logging
import os
from typing import NamedTuple

from hoard_p2p.mount.buffers import buffer
from hoard_p2p.mount.kernel import IN_HEADER, MAX_READ, OUT_HEADER, READ_BUFFER

log = logging.getLogger(__name__)

_GONE = (errno.ENODEV, errno.ECONNABORTED)
_HEAD = OUT_HEADER.size
_ALIGNMENT = 64


class Request(NamedTuple):
    """One request. `body` is only valid until the next `receive`."""

    opcode: int
    unique: int
    node: int
    body: memoryview


class MountGone(Exception):
    """Unmounted or aborted: no request will come any more."""


class Endpoint:
    """Receives and answers. `room` is where up to 1 MiB of a reply's body is put together without a copy."""

    def __init__(self, device_fd: int) -> None:
        """`device_fd`: non-blocking."""
        self.fileno = device_fd
        self._request = bytearray(READ_BUFFER)
        self._request_view = memoryview(self._request)
        self._reply = buffer(_ALIGNMENT + MAX_READ)[_ALIGNMENT - _HEAD :]  # so that `room` is aligned
        self.room = self._reply[_HEAD:]

    def receive(self) -> Request | None:
        """The next request, None if there is none now. Raises MountGone."""
        try:
            length = os.readv(self.fileno, [self._request])
        except OSError as error:
            if error.errno in _GONE:
                raise MountGone from None
            if error.errno in (errno.EAGAIN, errno.EINTR, errno.ENOENT):  # ENOENT: gone before it could be copied
                return None
            raise
        _, opcode, unique, node, _, _, _, _, _ = IN_HEADER.unpack_from(self._request)
        return Request(opcode, unique, node, self._request_view[IN_HEADER.size : length])

    def send_room(self, unique: int, length: int) -> None:
        """Answer with the first `length` bytes of `room`."""
        total = _HEAD + length
        OUT_HEADER.pack_into(self._reply, 0, total, 0, unique)
        self._write(self._reply[:total])

    def send(self, unique: int, body: bytes) -> bool:
        """Answer with `body`; False if the kernel did not take it (see `_write`)."""
        return self._write(OUT_HEADER.pack(_HEAD + len(body), 0, unique) + body)

    def fail(self, unique: int, number: int) -> None:
        """Answer with a positive errno."""
        self._write(OUT_HEADER.pack(_HEAD, -number, unique))

    def _write(self, reply: bytes | memoryview) -> bool:
        """ENOENT, hence False: the request went away, or was sent again and is somebody else's now; either way it
        needs nothing."""
        try:
            os.write(self.fileno, reply)
        except OSError as error:
            if error.errno in _GONE:
                raise MountGone from None
            if error.errno != errno.ENOENT:
                log.warning("the kernel refused a reply of %d bytes: %s", len(reply), error.strerror)
            return False
        return True
