"""The commands of `hoard`, each imported when it is used: a command does not pay for the others."""

from collections.abc import Sequence
from importlib import import_module

import click

from hoard_p2p import __version__
from hoard_p2p.cli import exits
from hoard_p2p.cli.doors import Doors

STATUSES = """\b
Exit statuses:
  0 done, 1 failed or refused, 2 wrong usage, 3 not found, 4 no node is running,
  5 unavailable (a peer, or the deadline passed), 6 bytes are wrong, 130 interrupted, 141 closed pipe
"""

MODULES = {
    "capacity": "capacity",
    "cat": "reading",
    "demo": "demo",
    "diff": "diff",
    "doctor": "doctor",
    "down": "stopping",
    "evict": "retention",
    "export": "export",
    "gc": "retention",
    "key": "keys",
    "ls": "reading",
    "mount": "mounting",
    "origin": "origins",
    "peers": "nodes",
    "pin": "retention",
    "publish": "publishing",
    "refs": "naming",
    "replicas": "retention",
    "rm": "retention",
    "scrub": "scrubbing",
    "seal": "sealing",
    "status": "nodes",
    "tag": "naming",
    "umount": "mounting",
    "unpin": "retention",
    "untag": "naming",
    "up": "nodes",
    "warm": "warming",
    "where": "where",
}
"""Each command, and the module of this package that has a function of its name."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = MODULES.get(cmd_name)
        if module is None:
            return None
        command: click.Command = getattr(import_module(f"hoard_p2p.cli.{module}"), cmd_name)
        return command


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=STATUSES,
)
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


def invoke(arguments: Sequence[str], doors: Doors) -> int:
    """Run a command; its exit status. Usage errors are shown here, all others are raised."""
    # Not hoard.main(): that would give a closed pipe and an interrupt statuses of its own.
    try:
        with hoard.make_context("hoard", list(arguments), obj=doors) as context:
            result = hoard.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return exits.USAGE
    return result if isinstance(result, int) else exits.DONE
