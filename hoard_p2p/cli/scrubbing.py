"""`hoard scrub`, and what `hoard status` says of scrubs."""

from collections.abc import Iterator
from pathlib import Path

import click

from hoard_p2p.cli import exits
from hoard_p2p.cli.answers import Fields
from hoard_p2p.cli.doors import Body, Doors
from hoard_p2p.cli.options import SNAPSHOT, data_dir_option, json_option
from hoard_p2p.cli.output import complain, when_text, write_json
from hoard_p2p.cli.progress import Step, display
from hoard_p2p.config import Json
from hoard_p2p.printing import printable, size_text

SHOWN_FILES = 20


@click.command()
@click.argument("snapshot", type=SNAPSHOT, required=False)
@data_dir_option
@json_option
@click.pass_obj
def scrub(doors: Doors, *, snapshot: str | None, data_dir: Path, as_json: bool) -> int:
    """Read all that is stored on this node from its disk, check it, and heal what is wrong.

    With SNAPSHOT only what is here of that snapshot, and its catalog. What is damaged is replaced by another copy of
    this disk or of a peer; status 6 if something could not be healed: then the files that want it are named. It reads
    in the idle class of the disk, and Ctrl-C ends it at any time. The node does the same by itself, slowly (see
    `hoard up --scrub-days`).

    \b
    Examples:
      hoard scrub
      hoard scrub imagenet:2012
    """
    shown = display()

    def report(body: Body) -> None:
        fields = Fields(body)
        if fields.text("phase"):
            shown.show(Step(fields.text("phase"), fields.number("done"), fields.number_or_none("total")))

    arguments: dict[str, Json] = {} if snapshot is None else {"snapshot": snapshot}
    try:
        with doors.connect(data_dir) as client:
            body = client.call("scrub", arguments, progress=report).body
    finally:
        shown.close()
    result = Fields(body)
    if as_json:
        write_json(body)
    else:
        print(summary(result))
        for line in _unhealed(result):
            complain(line)
    return exits.INTEGRITY if result.number("unhealed") else exits.DONE


def summary(result: Fields) -> str:
    checked = f"{result.number('chunks'):,} chunks, {size_text(result.number('bytes'))} checked"
    absent = f"; {result.number('absent'):,} chunks of the snapshot are not here" if result.number("absent") else ""
    if not result.number("damaged"):
        return f"{checked}: all right{absent}"
    return (
        f"{checked}: {result.number('damaged'):,} damaged, {result.number('healed'):,} healed, "
        f"{result.number('unhealed'):,} not healed{absent}"
    )


def _unhealed(result: Fields) -> Iterator[str]:
    yield from result.texts("left")
    rows = list(result.rows("files"))
    for row in rows[:SHOWN_FILES]:
        path = printable(row.text("path")) if row.text("path") else "its catalog"
        yield f"damaged: {row.text('snapshot')[:12]}: {path}"
    if (count := result.number("files_count")) > min(len(rows), SHOWN_FILES):
        yield f"and {count - min(len(rows), SHOWN_FILES):,} more files (--json lists them)"
    if result.number("unhealed"):
        yield "what is damaged is served no more; publish it again, or bring back a node that has it and scrub again"


def scrub_text(status: Fields) -> str:
    """One line of `hoard status`."""
    days = status.body.get("days")
    period = f"every {days:g} days" if isinstance(days, int | float) and days else "not by itself (--scrub-days 0)"
    last = when_text(status.number("last_pass") / 1e9) if status.number("last_pass") else ""
    parts = [period, f"last pass ended {last}" if last else "no pass ended yet"]
    if status.number("slab"):
        parts.append(f"one is under way, at slab {status.number('slab')}")
    if status.flag("running"):
        parts.append("running now")
    if status.number("damaged"):
        parts.append(f"{status.number('damaged'):,} DAMAGED chunks (hoard scrub names their files)")
    return ", ".join(parts)
