"""The `hoard` command's door: runs a command, and turns its errors into messages and exit statuses.

Imports little: whatever a command does not need is not loaded before it.
"""

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hoard_p2p.cli import exits
from hoard_p2p.cli.output import complain
from hoard_p2p.cli.plainmount import plain_mount
from hoard_p2p.errors import HoardError
from hoard_p2p.printing import printable

if TYPE_CHECKING:
    from hoard_p2p.cli.doors import Doors

STANDARD_ERROR = 2


def _pipe_closed() -> int:
    """Nobody reads our output any more: the interpreter must not try to flush it at exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exits.PIPE_CLOSED


def _failed(error: HoardError | OSError) -> int:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        place = f"{printable(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        text = f"{place}{error.strerror}"
    complain("\n".join([text, *getattr(error, "__notes__", [])]))
    return exits.exit_status(error)


def run(arguments: Sequence[str], doors: "Doors") -> int:
    """Run one command and return its exit status. Nothing is raised."""
    from hoard_p2p.cli.commands import invoke

    return _guarded(lambda: invoke(arguments, doors))


def _guarded(command: Callable[[], int]) -> int:
    try:
        status = command()
        sys.stdout.flush()
    except KeyboardInterrupt as error:
        complain("\n".join(["interrupted", *getattr(error, "__notes__", [])]))
        return exits.INTERRUPTED
    except BrokenPipeError:
        return _pipe_closed()
    except (HoardError, OSError) as error:
        return _failed(error)
    except Exception:  # noqa: BLE001 - the door: a bug ends in a message and a status too
        traceback.print_exc()
        complain("this is a bug in hoard; please report it with the lines above")
        return exits.FAILED
    return status


def _fill_standard_descriptors() -> None:
    """A shell's `>&-` closes a descriptor: whatever is opened next would take its number, and be written to."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= STANDARD_ERROR:
        pass
    os.close(fd)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(STANDARD_ERROR, "w")


def main() -> int:
    """The entry point of the `hoard` command."""
    _fill_standard_descriptors()
    logging.basicConfig(level=logging.WARNING, format="hoard: %(levelname)s: %(message)s")
    arguments = sys.argv[1:]
    mount = plain_mount(arguments)
    if mount is not None:
        status = _guarded(mount.run)
        sys.stderr.flush()
        os._exit(status)  # the interpreter would tidy up memory that the mount's processes share: 10 to 25 ms
    from hoard_p2p.cli.doors import node_doors

    return run(arguments, node_doors())


if __name__ == "__main__":
    sys.exit(main())
