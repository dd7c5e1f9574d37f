"""The `hoard` command: its commands, and the door where errors become exit statuses."""

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Sequence

import click

from hoard_p2p import __version__
from hoard_p2p.cli import exits
from hoard_p2p.cli.demo import demo
from hoard_p2p.cli.diff import diff
from hoard_p2p.cli.doors import Doors, node_doors
from hoard_p2p.cli.export import export
from hoard_p2p.cli.mounting import mount, umount
from hoard_p2p.cli.naming import refs, rm, tag, untag
from hoard_p2p.cli.nodes import down, peers, status, up
from hoard_p2p.cli.output import complain
from hoard_p2p.cli.publishing import publish
from hoard_p2p.cli.reading import cat, ls
from hoard_p2p.errors import HoardError
from hoard_p2p.printing import printable

STANDARD_ERROR = 2

STATUSES = """\b
Exit statuses:
  0 done, 1 failed or refused, 2 wrong usage, 3 not found, 4 no node is running,
  5 unavailable (a peer, or the deadline passed), 6 bytes are wrong, 130 interrupted, 141 closed pipe
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}, epilog=STATUSES)
@click.version_option(__version__, prog_name="hoard")
def hoard() -> None:
    """A peer-to-peer, read-only cache for training sets.

    \b
    Examples:
      hoard up --detach                          # on each machine; the nodes find each other
      hoard publish /data/set --name set:1       # on one of them; prints the snapshot id
      hoard mount set:1 /mnt/set                 # on any of them
      hoard demo                                 # all of it on this machine, in one or two minutes
    """


for _command in (up, down, status, peers, publish, mount, umount, ls, cat, export, diff, tag, untag, refs, rm, demo):
    hoard.add_command(_command)


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


def run(arguments: Sequence[str], doors: Doors) -> int:
    """Run one command and return its exit status. Nothing is raised."""
    try:
        status = _invoke(list(arguments), doors)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return exits.USAGE
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


def _invoke(arguments: list[str], doors: Doors) -> int:
    # Not hoard.main(): that would give a closed pipe and an interrupt statuses of its own.
    try:
        with hoard.make_context("hoard", arguments, obj=doors) as context:
            result = hoard.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    return result if isinstance(result, int) else exits.DONE


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
    return run(sys.argv[1:], node_doors())


if __name__ == "__main__":
    sys.exit(main())
