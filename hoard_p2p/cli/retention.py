"""What lives and what goes: `pin`, `unpin`, `replicas`, `evict`, `gc`, `rm`."""

from pathlib import Path

import click

from hoard_p2p.cli.answers import Fields
from hoard_p2p.cli.doors import Body, Doors
from hoard_p2p.cli.options import SNAPSHOT, data_dir_option, json_option
from hoard_p2p.cli.output import complain, write_json
from hoard_p2p.cli.progress import Display, Step, display
from hoard_p2p.config import MOST_REPLICAS, Json
from hoard_p2p.printing import size_text

dry_run_option = click.option("--dry-run", is_flag=True, help="Only say what would be freed.")


def _call(doors: Doors, data_dir: Path, op: str, **arguments: Json) -> Body:
    shown = display()
    try:
        with doors.connect(data_dir) as client:
            return client.call(op, arguments, progress=lambda report: _show(report, shown)).body
    finally:
        shown.close()


def _show(report: Body, shown: Display) -> None:
    fields = Fields(report)
    if fields.text("phase"):
        done, total = ("done", "total") if "done" in report else ("segments_done", "segments")
        shown.show(Step(fields.text("phase"), fields.number(done), fields.number_or_none(total), in_bytes=False))


def freed_text(answer: Fields) -> str:
    """What went, or would go, in a line."""
    would, chunks = ("would free" if answer.flag("dry_run") else "freed"), answer.number("chunks")
    back = answer.number("reclaimed")
    later = "" if answer.flag("dry_run") or not chunks else f", {size_text(back)} of the disk is back"
    return f"{would} {size_text(answer.number('bytes'))} in {chunks:,} chunks on this node{later}"


def _tell(body: Body, *, as_json: bool) -> None:
    answer = Fields(body)
    if as_json:
        write_json(body)
        return
    for reason in answer.texts("kept"):
        complain(reason)
    complain(freed_text(answer))


@click.command()
@click.argument("snapshot", type=SNAPSHOT)
@data_dir_option
@json_option
@click.pass_obj
def pin(doors: Doors, snapshot: str, data_dir: Path, as_json: bool) -> None:
    """Keep SNAPSHOT until it is unpinned: it never expires, and no node evicts its copies.

    \b
    Example:
      hoard pin imagenet:2012
    """
    _set_pin(doors, data_dir, "pin", snapshot, as_json=as_json)


@click.command()
@click.argument("snapshot", type=SNAPSHOT)
@data_dir_option
@json_option
@click.pass_obj
def unpin(doors: Doors, snapshot: str, data_dir: Path, as_json: bool) -> None:
    """Take a pin back, on whichever node it was set.

    \b
    Example:
      hoard unpin imagenet:2012
    """
    _set_pin(doors, data_dir, "unpin", snapshot, as_json=as_json)


def _set_pin(doors: Doors, data_dir: Path, op: str, snapshot: str, *, as_json: bool) -> None:
    body = _call(doors, data_dir, op, snapshot=snapshot)
    if as_json:
        write_json(body)
        return
    if not Fields(body).flag("changed"):
        complain(f"it is {op}ned already")
    print(Fields(body).text("snapshot"))


@click.command()
@click.argument("snapshot", type=SNAPSHOT)
@click.argument("copies", type=click.IntRange(1, MOST_REPLICAS), metavar="N")
@data_dir_option
@json_option
@click.pass_obj
def replicas(doors: Doors, snapshot: str, copies: int, data_dir: Path, as_json: bool) -> None:
    """From now on N nodes are to keep each segment of SNAPSHOT.

    Nodes make copies that are missing in the background (hoard status shows how many are); those that are too many
    stay until their room is needed. Publishing the set again sets what that publish says.

    \b
    Example:
      hoard replicas imagenet:2012 3
    """
    body = _call(doors, data_dir, "replicas", snapshot=snapshot, replicas=copies)
    if as_json:
        write_json(body)
        return
    if not Fields(body).flag("changed"):
        complain("it had so many already")
    nodes = Fields(body).number_or_none("nodes")
    if nodes is not None and copies > nodes:
        are = "is 1 node" if nodes == 1 else f"are {nodes} nodes"
        complain(f"there {are} now: the copies that are missing then are made when more join")
    print(Fields(body).text("snapshot"))


@click.command()
@click.argument("snapshot", type=SNAPSHOT)
@data_dir_option
@json_option
@dry_run_option
@click.pass_obj
def evict(doors: Doors, snapshot: str, data_dir: Path, as_json: bool, dry_run: bool) -> None:
    """Drop this node's copies of SNAPSHOT, as far as enough other nodes keep theirs.

    The snapshot stays: what is read again comes from other nodes. One that is mounted or in use here, or pinned, is
    left alone (status 1). The last copy of anything is never dropped, so the only node of a cluster evicts nothing:
    `hoard rm` removes a snapshot altogether.

    \b
    Examples:
      hoard evict --dry-run imagenet:2012
      hoard evict imagenet:2012
    """
    _tell(_call(doors, data_dir, "evict", snapshot=snapshot, dry_run=dry_run), as_json=as_json)


@click.command()
@data_dir_option
@json_option
@dry_run_option
@click.pass_obj
def gc(doors: Doors, data_dir: Path, as_json: bool, dry_run: bool) -> None:
    """Collect what no living snapshot holds on this node, and remove snapshots whose time is over.

    A node does this by itself, soon after something was removed and once an hour.

    \b
    Example:
      hoard gc --dry-run
    """
    body = _call(doors, data_dir, "gc", dry_run=dry_run)
    if not as_json:
        did = "would be removed" if dry_run else "was removed"
        for snapshot in Fields(body).texts("removed"):
            complain(f"{snapshot[:12]} {did}: nothing names it, and its time is over")
    _tell(body, as_json=as_json)


@click.command()
@click.argument("snapshot", type=SNAPSHOT)
@data_dir_option
@json_option
@dry_run_option
@click.option("--force", is_flag=True, help="Also if it is named (its names go too), pinned, or in use on any node.")
@click.pass_obj
def rm(doors: Doors, *, snapshot: str, data_dir: Path, as_json: bool, dry_run: bool, force: bool) -> None:
    """Remove SNAPSHOT from the whole cluster; each node frees its space soon after.

    One that has a name or a pin, is mounted or in use on any node, or that a node does not answer about, is left alone
    (status 1).

    \b
    Examples:
      hoard rm --dry-run 3f9a1c07
      hoard rm 3f9a1c07
    """
    body = _call(doors, data_dir, "rm", snapshot=snapshot, force=force, dry_run=dry_run)
    if as_json:
        write_json(body)
        return
    answer = Fields(body)
    refusal = answer.text("refusal") if dry_run else ""
    if refusal:
        complain(f"it would not be removed now: {refusal}")
    for name in answer.texts("names"):
        complain(f"the name {name} {'would go' if dry_run else 'is gone'} too")
    if dry_run:
        complain(freed_text(answer))
    print(answer.text("snapshot"))
