"""The rack of this node: as the user said, or as the user's own command prints it."""

import os
import signal
import subprocess
from contextlib import suppress

from hoard_p2p.config import NodeSettings
from hoard_p2p.errors import BadRequest

RACK_SECONDS = 10.0
"""A command that has not ended then is stopped."""
MOST_LETTERS = 255


def with_rack(settings: NodeSettings, seconds: float = RACK_SECONDS) -> NodeSettings:
    """The settings with the rack that `rack_command` prints, if there is one and no rack is set. Blocking. Raises
    BadRequest if the command does not do what it should: a node in the wrong rack would undo the spreading of copies
    without anybody noticing."""
    if settings.rack or not settings.rack_command:
        return settings
    return settings._replace(rack=_printed(settings.rack_command, seconds))


def _printed(command: str, seconds: float) -> str:
    process = subprocess.Popen(
        ["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise BadRequest(
            f"the rack command {command!r} has not ended after {seconds:g} s; give --rack NAME instead"
        ) from error
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its own session: whatever it started ends with it
        process.communicate()
    if process.returncode:
        raise BadRequest(f"the rack command {command!r} failed with exit status {process.returncode}")
    rack = out.decode("utf-8", "replace").strip()
    if not rack or not rack.isprintable() or len(rack) > MOST_LETTERS:
        raise BadRequest(
            f"the rack command {command!r} printed {rack[:100]!r}; it is to print one line with the name of the rack"
        )
    return rack
