"""How much of the disk the node may take: `capacity`."""

from pathlib import Path

import click

from hoard_p2p.cli.answers import Fields
from hoard_p2p.cli.doors import Doors
from hoard_p2p.cli.options import data_dir_option, json_option
from hoard_p2p.cli.output import write_json
from hoard_p2p.config import Json, parse_capacity, parse_floor
from hoard_p2p.errors import BadRequest
from hoard_p2p.printing import size_text

LEAST_FLOOR = 1 << 20


def floor_text(text: str) -> str:
    """The setting as given, checked: a few bytes are a forgotten unit. Raises BadRequest."""
    if 0 < parse_floor(text).size < LEAST_FLOOR:
        raise BadRequest(f"a floor of {text!r} bytes is none; write for instance 5% or 50GiB")
    return text


@click.command()
@click.argument("size", type=parse_capacity, required=False)
@click.option("--floor", type=floor_text, default=None, metavar="SIZE|PERCENT", help="What stays free for others.")
@data_dir_option
@json_option
@click.pass_obj
def capacity(doors: Doors, size: int | None, floor: str | None, data_dir: Path, as_json: bool) -> None:
    """Show how much of the disk this node may take, or change it: to SIZE, or all but a floor.

    The store never takes more than its capacity, and leaves the floor (5% of the disk if you say nothing) free for
    others. A lower capacity deletes nothing at once: the store takes no more until it is below. The capacity is also
    the node's weight: nodes with more are home of more data.

    \b
    Examples:
      hoard capacity
      hoard capacity 500GiB
      hoard capacity --floor 10%
    """
    arguments: dict[str, Json] = {}
    if size is not None:
        arguments["size"] = size
    if floor is not None:
        arguments["floor"] = floor
    with doors.connect(data_dir) as client:
        body = client.call("capacity", arguments).body
    if as_json:
        write_json(body)
    else:
        print("\n".join(room_lines(Fields(body))))


def room_lines(room: Fields) -> list[str]:
    """The store's room as a person reads it."""
    held = [f"{size_text(room.number('promised'))} promised to writes under way"] if room.number("promised") else []
    held += [f"{size_text(room.number('ghosts'))} deleted and still open somewhere"] if room.number("ghosts") else []
    setting = room.text("floor_setting")
    kept = f" ({setting} of the disk)" if setting.endswith("%") else ""
    return [
        f"capacity  {limit_text(room.number('capacity'))}",
        f"floor     {size_text(room.number('floor'))}{kept}, the disk has {size_text(room.number('disk_free'))} free",
        f"used      {', '.join([size_text(room.number('used')), *held])}",
        f"available {size_text(room.number('available'))}",
        *state_lines(room),
    ]


def state_lines(store: Fields) -> list[str]:
    """What keeps the store from taking more, if anything does."""
    state = store.text("state")
    return [f"state     {state}: {store.text('state_reason')}"] if state not in ("", "ok") else []


def limit_text(capacity: int) -> str:
    """0 stands for none."""
    return size_text(capacity) if capacity else "not set"
