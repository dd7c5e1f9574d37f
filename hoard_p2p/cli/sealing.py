"""`seal`: a lazy snapshot becomes one whose id says what its bytes are."""

from pathlib import Path

import click

from hoard_p2p.cli.answers import Fields
from hoard_p2p.cli.doors import Doors
from hoard_p2p.cli.options import SNAPSHOT, data_dir_option, json_option
from hoard_p2p.cli.output import complain, noting_interrupt, write_json
from hoard_p2p.cli.progress import display
from hoard_p2p.cli.publishing import show_report
from hoard_p2p.printing import printable

STAYS = "what was read stays where it is; hoard seal goes on from there"


@click.command()
@click.argument("snapshot", type=SNAPSHOT)
@data_dir_option
@json_option
@click.pass_obj
def seal(doors: Doors, snapshot: str, data_dir: Path, as_json: bool) -> None:
    """Have all nodes read what none has yet of the lazy SNAPSHOT, and make a sealed snapshot of it.

    The id of a lazy snapshot commits to names and versions, that of the sealed one to the bytes. No data moves. Some
    pieces, chosen at random, are read again from the origin and compared. Names of the lazy snapshot are moved to the
    sealed one; its mounts go on, and it goes when nobody uses it. A lazy snapshot of which all is read is sealed by
    itself after a while.

    Prints the id of the sealed snapshot alone on the last line.

    \b
    Example:
      hoard seal imagenet:dev
    """
    shown = display()
    try:
        with noting_interrupt(STAYS), doors.connect(data_dir) as client:
            body = client.call("seal", {"snapshot": snapshot}, progress=lambda report: show_report(report, shown)).body
    finally:
        shown.close()
    answer = Fields(body)
    if as_json:
        write_json(body)
        return
    if not answer.text("lazy"):
        complain("it is sealed already")
    if names := answer.texts("names"):
        complain(f"{', '.join(map(printable, names))} now names the sealed snapshot")
    if lacking := answer.number("under_replicated"):
        complain(f"warning: {lacking:,} segments have fewer copies than asked for: there are not enough nodes yet")
    print(answer.text("snapshot"))
