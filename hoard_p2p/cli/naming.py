"""Names of snapshots: `tag`, `untag`, `refs`."""

from pathlib import Path

import click

from hoard_p2p.cli.answers import Fields
from hoard_p2p.cli.doors import Body, Doors
from hoard_p2p.cli.options import SNAPSHOT, TEXT, data_dir_option, json_option
from hoard_p2p.cli.output import table, when_text, write_json
from hoard_p2p.config import Json
from hoard_p2p.errors import SnapshotUnknown
from hoard_p2p.printing import printable


def _call(doors: Doors, data_dir: Path, op: str, **arguments: Json) -> Body:
    with doors.connect(data_dir) as client:
        return client.call(op, arguments).body


@click.command()
@click.argument("snapshot", type=SNAPSHOT)
@click.argument("name", type=TEXT, metavar="NAME[:TAG]")
@data_dir_option
@click.option("--move", is_flag=True, help="Point an existing name to SNAPSHOT.")
@click.pass_obj
def tag(doors: Doors, snapshot: str, name: str, data_dir: Path, move: bool) -> None:
    """Give SNAPSHOT a NAME[:TAG] in the whole cluster. Without --move an existing name is left alone (status 1).

    A name without :TAG means NAME:latest, here and everywhere. Nothing moves `latest` by itself: `imagenet` is unknown
    while there is only `imagenet:2012`.

    \b
    Examples:
      hoard tag 3f9a1c07 imagenet:2012
      hoard tag --move imagenet:2012-clean imagenet:latest
    """
    answer = Fields(_call(doors, data_dir, "tag", snapshot=snapshot, name=name, move=move))
    print(answer.text("snapshot"))


@click.command()
@click.argument("name", type=TEXT, metavar="NAME[:TAG]")
@data_dir_option
@click.pass_obj
def untag(doors: Doors, name: str, data_dir: Path) -> None:
    """Remove a name. The snapshot stays.

    \b
    Example:
      hoard untag imagenet:old
    """
    _call(doors, data_dir, "untag", name=name)


def _setter(ref: Fields) -> str:
    """The node that set it: its name, if it is known."""
    return printable(ref.text("node_name")) or ref.text("node")[:12]


@click.command()
@click.argument("name", type=TEXT, metavar="[NAME[:TAG]]", required=False)
@data_dir_option
@json_option
@click.pass_obj
def refs(doors: Doors, name: str | None, data_dir: Path, as_json: bool) -> None:
    """List the names of the cluster; with a NAME, what it is set to, and its last 16 values before.

    \b
    Examples:
      hoard refs
      hoard refs imagenet:latest
    """
    body = _call(doors, data_dir, "refs")
    if name is not None:
        body = {"refs": [_named(body, name)]}
    if as_json:
        write_json(body)
        return
    found = list(Fields(body).rows("refs"))
    rows = [_row(printable(ref.text("name")), ref) for ref in found]
    if name is not None:
        rows += [_row("  before", past) for past in found[0].rows("past")]
    print(table(("NAME", "SNAPSHOT", "SET", "BY"), rows))


def _named(body: Body, name: str) -> Json:
    """The ref that a user means. Raises SnapshotUnknown."""
    full = name if ":" in name else f"{name}:latest"
    listed = body.get("refs")
    for ref in listed if isinstance(listed, list) else []:
        if isinstance(ref, dict) and ref.get("name") == full:
            return ref
    raise SnapshotUnknown(f"no ref is named {full}; hoard refs lists them")


def _row(name: str, ref: Fields) -> tuple[str, ...]:
    lazy = " (lazy)" if ref.flag("lazy") else ""
    return name, ref.text("snapshot")[:12] + lazy, when_text(ref.number("when") / 1000), _setter(ref)
