"""How a process that was left in the background tells its starter, once, that it answers or why it does not."""

import json
import os
import select
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hoard_p2p.config import Json
from hoard_p2p.errors import HoardError
from hoard_p2p.node import framing

START_SECONDS = 60.0
"""What a node or a mount may take before its starter stops waiting. It goes on by itself."""

MAX_MESSAGE = 5000
"""Characters of an error, so that it fits into a pipe (64 KiB; a character takes at most 12 bytes in JSON)."""


def open_log(log_file: Path) -> int:
    """A descriptor to append to a log; of /dev/null where that cannot be written (a disk that turned read-only, a data
    directory that was removed): a mount lives on without its log."""
    try:
        log_file.parent.mkdir(mode=0o750, exist_ok=True)
        return os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


class Report:
    """The writing end of the pipe; used once, then closed, so that what is told later is dropped. -1: nobody waits."""

    def __init__(self, fd: int = -1) -> None:
        self._fd = fd

    def answers(self) -> None:
        self._tell({})

    def failed(self, error: HoardError) -> None:
        body = framing.error_body(error)
        self._tell({**body, "message": str(error)[:MAX_MESSAGE]})

    def _tell(self, body: Mapping[str, Json]) -> None:
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        with suppress(OSError):  # the starter has left
            os.write(fd, json.dumps(body).encode())
        os.close(fd)


def wait_for_report(fd: int, seconds: float = START_SECONDS) -> bool:
    """Whether the process reported on this pipe before it ended. Closes `fd`.

    Raises the error that it reported, and TimeoutError if it neither reported nor ended within `seconds`.
    """
    end = time.monotonic() + seconds
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    answer = b""
    try:
        while True:
            if not poll.poll(max(0, int((end - time.monotonic()) * 1000))):
                raise TimeoutError
            part = os.read(fd, 1 << 16)
            if not part:
                break
            answer += part
    finally:
        os.close(fd)
    if answer:
        framing.raise_error(json.loads(answer))
    return bool(answer)
