"""Where the data of a snapshot is: `where`."""

from pathlib import Path

import click

from hoard_p2p.cli.answers import Fields
from hoard_p2p.cli.doors import Body, Doors
from hoard_p2p.cli.options import SNAPSHOT, data_dir_option, json_option
from hoard_p2p.cli.output import table, write_json
from hoard_p2p.cli.progress import Display, Step, display
from hoard_p2p.printing import printable, size_text


@click.command()
@click.argument("snapshot", type=SNAPSHOT)
@data_dir_option
@json_option
@click.pass_obj
def where(doors: Doors, snapshot: str, data_dir: Path, as_json: bool) -> None:
    """Show which nodes and racks have how much of SNAPSHOT, counted from their disks; the best place for a job first.

    SCORE is 0 to 100: a byte on the node itself counts 100, on another node of its rack 50, elsewhere in the cluster
    10. docs/scheduling.md shows its use from Slurm and Kubernetes.

    \b
    Examples:
      hoard where imagenet:2012
      hoard where imagenet:2012 --json | jq -r '.nodes[0].name'
    """
    shown = display()
    try:
        with doors.connect(data_dir) as client:
            body = client.call("where", {"snapshot": snapshot}, progress=lambda report: _show(report, shown)).body
    finally:
        shown.close()
    if as_json:
        write_json(body)
    else:
        print(where_text(body))


def _show(report: Body, shown: Display) -> None:
    fields = Fields(report)
    shown.show(Step(fields.text("phase"), fields.number("done"), fields.number("total"), in_bytes=False))


def where_text(body: Body) -> str:
    """As a person reads it."""
    answer = Fields(body)
    total = answer.number("bytes")
    head = f"{answer.text('snapshot')[:12]}: {size_text(total)} in {answer.number('segments'):,} segments"
    anywhere = answer.number("held_anywhere")
    lost = f"; {size_text(total - anywhere)} are on no node that answers" if anywhere < total else ""
    if lost and (origin := answer.text("origin")):
        lost += f", and are read at {printable(origin)} when somebody wants them"
    nodes = [
        (
            printable(node.text("name")),
            node.text("id")[:12],
            printable(node.text("rack")),
            *_shares(node, total, known=node.flag("answers")),
            str(node.number("score")),
        )
        for node in answer.rows("nodes")
    ]
    parts = [head + lost, table(("NODE", "ID", "RACK", "HELD", "MISSING", "PERCENT", "SCORE"), nodes)]
    if len(racks := list(answer.rows("racks"))) > 1:
        rows = [
            (printable(rack.text("rack")), str(rack.number("nodes")), *_shares(rack, total, known=True))
            for rack in racks
        ]
        parts.append(table(("RACK", "NODES", "HELD", "MISSING", "PERCENT"), rows))
    return "\n\n".join(parts)


def _shares(fields: Fields, total: int, *, known: bool) -> tuple[str, str, str]:
    """Held, missing, percent."""
    if not known:
        return "?", "?", "?"
    held = fields.number("held")
    percent = 100 * held // total if total else 100
    return size_text(held), size_text(fields.number("missing")), f"{percent}%"
