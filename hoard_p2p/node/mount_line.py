"""A mount's line to its node, held by the mount's supervisor (`NodeLine`): says that the mount is there, and leaves
copies of its descriptors with the node, so that the mount outlives all of its own processes.
"""

import logging
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hoard_p2p import __version__
from hoard_p2p.config import Json
from hoard_p2p.errors import DeadlineExceeded, HoardError, NoNode
from hoard_p2p.node import framing
from hoard_p2p.node.plan import MountPlan

log = logging.getLogger(__name__)

RECONNECT_SECONDS = 0.5


class SupervisorLine:
    """See `interfaces.NodeLine`. Single-threaded, never blocks.

    It asks one thing, `attach`, which a node never answers while all is well: the mount is attached as long as the
    connection lives. When the node went away the line connects again and attaches again.
    """

    def __init__(self, plan: MountPlan, device: str, fds: Sequence[int]) -> None:
        """`device`: MAJOR:MINOR of the mount. `fds`: `MountFds.all`, which stay the caller's; empty where the node may
        keep no copies, because a dead process's requests must end with it."""
        self._data_dir = Path(plan.data_dir)
        self._fds = tuple(fds)
        self._args: dict[str, Json] = {
            "snapshot": plan.snapshot,
            "mountpoint": plan.mountpoint,
            "version": __version__,
            "plan": plan.encode(),
            "device": device,
        }
        self._sock: socket.socket | None = None
        self._attached = False
        self._next_try = 0.0

    def fileno(self) -> int:
        return -1 if self._sock is None else self._sock.fileno()

    def tend(self) -> None:
        self._hear()
        now = time.monotonic()
        if self._sock is None and now >= self._next_try:
            self._next_try = now + RECONNECT_SECONDS
            with suppress(NoNode, DeadlineExceeded, OSError):
                self._sock = framing.connect(self._data_dir, seconds=0)
                self._sock.setblocking(False)
        if self._sock is not None and not self._attached:
            self._attach(self._sock)

    def close(self) -> None:
        """Hang up: the node then looks whether the mount has ended, and lets go of its copies if it has."""
        if self._sock is not None:
            self._sock.close()
        self._sock, self._attached = None, False

    def _attach(self, sock: socket.socket) -> None:
        message: dict[str, Json] = {"seq": 0, "op": "attach", "args": {**self._args, "pid": os.getpid()}}
        try:
            framing.send(sock, message, self._fds)
        except BlockingIOError:
            return  # the next `tend` tries again
        except OSError as error:
            log.debug("the node went away: %s", error)
            self.close()
        else:
            self._attached = True

    def _hear(self) -> None:
        """An answer means that the node will not have this mount; the end of the stream, that it went away."""
        while self._sock is not None:
            try:
                message = framing.receive(self._sock)
                if message is not None:
                    message.close()
                    framing.raise_error(message.body)
                    continue
            except BlockingIOError:
                return
            except HoardError as error:
                log.warning("the node refused this mount: %s; it is not listed, and not revived by it", error)
                continue
            except OSError as error:
                log.debug("the line to the node broke: %s", error)
            self.close()
