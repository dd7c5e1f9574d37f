"""`warm`: bring a snapshot to this node before it is read."""

from pathlib import Path

import click

from hoard_p2p.cli.answers import Fields
from hoard_p2p.cli.doors import Body, Doors
from hoard_p2p.cli.options import SNAPSHOT, data_dir_option, json_option
from hoard_p2p.cli.output import complain, noting_interrupt, seconds_text, write_json
from hoard_p2p.cli.progress import Display, Step, display
from hoard_p2p.printing import size_text

STAYS = "what came stays on this disk; hoard warm goes on from there"


@click.command()
@click.argument("snapshot", type=SNAPSHOT)
@data_dir_option
@json_option
@click.pass_obj
def warm(doors: Doors, snapshot: str, data_dir: Path, as_json: bool) -> None:
    """Bring all of SNAPSHOT to this node's disk, and return when it is there.

    Nodes that warm or mount one snapshot at the same time pass it on to each other: each byte comes to each of them
    once. What could not be had ends it with status 5; interrupted, what came stays, and the next one goes on from
    there. What is warm may be evicted when room is needed for something else: `hoard pin` keeps it.

    \b
    Examples:
      hoard warm imagenet:2012
      hoard warm --json 3f9a1c07
    """
    shown = display()
    try:
        with noting_interrupt(STAYS), doors.connect(data_dir) as client:
            body = client.call("warm", {"snapshot": snapshot}, progress=lambda report: _show(report, shown)).body
    finally:
        shown.close()
    if as_json:
        write_json(body)
        return
    answer = Fields(body)
    size, received = answer.number("bytes"), answer.number("received")
    complain(f"{size_text(size)} are on this disk; {size_text(received)} came in {_seconds(body)}")
    print(answer.text("snapshot"))


def _seconds(body: Body) -> str:
    seconds = body.get("seconds")
    return seconds_text(seconds) if isinstance(seconds, int | float) else "?"


def _show(report: Body, shown: Display) -> None:
    fields = Fields(report)
    shown.show(Step(fields.text("phase"), fields.number("done"), fields.number("total")))
