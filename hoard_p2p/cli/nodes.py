"""The node of this machine: `up`, `status`, `peers`."""

import logging
import sys
import time
from pathlib import Path

import click

from hoard_p2p.cli.answers import Fields
from hoard_p2p.cli.capacity import floor_text, limit_text, state_lines
from hoard_p2p.cli.doors import Body, Doors
from hoard_p2p.cli.life import life_text
from hoard_p2p.cli.options import TEXT, data_dir_option, json_option
from hoard_p2p.cli.origins import origins_text
from hoard_p2p.cli.output import complain, table, write_json
from hoard_p2p.cli.scrubbing import scrub_text
from hoard_p2p.config import (
    DEFAULT_REPAIR_GRACE,
    DEFAULT_REPAIR_LIMIT,
    NodeSettings,
    default_cluster,
    default_name,
    parse_capacity,
    parse_days,
    parse_listen,
    parse_size,
)
from hoard_p2p.origin.allowed import parse_prefix
from hoard_p2p.peer import is_loopback
from hoard_p2p.printing import printable, size_text

OPEN_MODE = (
    "warning: open mode, there is no key: whoever can reach this node's port can read what is published, and take "
    "part; only private addresses are served (a key: hoard key new FILE, --cluster-key-file FILE)"
)
WATCH_EVERY = 1.0
UNEVEN = 1.25
"""A rack whose nodes keep so much more than their share by weight is shown."""
NO_PEERS = (
    "no peers: nodes meet if they have the same --cluster and the same key (or none), and --discovery finds them: by "
    "multicast DNS, or where that is blocked with --discovery static:HOST:PORT; the node's log names those that "
    "are left alone, and hoard doctor looks at the network"
)
_CLEAR = "\x1b[H\x1b[J"


@click.command()
@data_dir_option
@click.option("--listen", default="0.0.0.0:0", metavar="HOST:PORT", show_default=True, help="Port 0: any free port.")
@click.option(
    "--cluster", type=TEXT, default=None, help="Only nodes of the same cluster name meet [default: your user name]."
)
@click.option("--name", type=TEXT, default=None, help="What others call this node [default: the host name].")
@click.option(
    "--rack",
    default="",
    envvar="HOARD_RACK",
    show_envvar=True,
    help="Copies of a segment go to different racks where there are several.",
)
@click.option(
    "--rack-command", type=TEXT, default=None, metavar="COMMAND", help="Prints the rack, where --rack is not given."
)
@click.option(
    "--capacity",
    type=parse_capacity,
    default=None,
    metavar="SIZE",
    help="What this node may take of the disk, for instance 500GiB; nodes with more are home of more data "
    "[default: as before, at the first start 80 % of the free space, or less if the floor is higher].",
)
@click.option(
    "--floor",
    type=floor_text,
    default=None,
    metavar="SIZE|PERCENT",
    help="What stays free of the disk for others [default: as before, at first 5%].",
)
@click.option(
    "--discovery",
    multiple=True,
    default=("mdns",),
    show_default=True,
    metavar="URL",
    help="How to find others, any number of times: mdns, static:HOST:PORT,..., static:FILE, dns:NAME:PORT, "
    "etcd:HOST:PORT,..., none. A host may be a node list, as node[01-16].",
)
@click.option(
    "--scrub-days",
    type=parse_days,
    default=None,
    metavar="DAYS",
    help="In so many days everything stored is read and checked once, in the background; 0: never "
    "[default: as it was, 7 at the first start].",
)
@click.option(
    "--allow-origin",
    multiple=True,
    metavar="PREFIX",
    help="This node may read origins that begin so, any number of times: /mnt/nfs/datasets, s3://bucket/prefix, "
    "s3:// (all buckets), https://host/.",
)
@click.option(
    "--origin-streams",
    type=click.IntRange(1, 1024),
    default=64,
    show_default=True,
    metavar="N",
    help="Questions that all nodes together ask one origin at a time, and so nodes that read it at most.",
)
@click.option(
    "--origin-limit",
    type=parse_size,
    default=None,
    metavar="RATE",
    help="Bytes a second that all nodes of the cluster together read of one origin at most, for instance 500MiB "
    "[default: no limit].",
)
@click.option(
    "--peer-limit",
    type=parse_size,
    default=None,
    metavar="RATE",
    help="Bytes a second that this node sends to others at most, for instance 500MiB [default: no limit].",
)
@click.option(
    "--repair-grace",
    type=click.FloatRange(0, 86_400),
    default=DEFAULT_REPAIR_GRACE,
    show_default=True,
    metavar="SECONDS",
    help="The copies of a node that is away are made elsewhere after so long.",
)
@click.option(
    "--repair-limit",
    type=parse_size,
    default=str(DEFAULT_REPAIR_LIMIT),
    metavar="RATE",
    help="Bytes a second that this node copies to repair, 0: no limit [default: 50MiB].",
)
@click.option(
    "--cluster-key-file", type=TEXT, default=None, metavar="FILE", help="Only nodes with this key meet (hoard key new)."
)
@click.option("--encrypt", is_flag=True, help="Encrypt what nodes say to each other; needs a key.")
@click.option("--detach", is_flag=True, help="Return once the node answers, and leave it running.")
def up(
    *,
    data_dir: Path,
    listen: str,
    cluster: str | None,
    name: str | None,
    rack: str,
    rack_command: str | None,
    capacity: int | None,
    floor: str | None,
    discovery: tuple[str, ...],
    scrub_days: float | None,
    allow_origin: tuple[str, ...],
    origin_streams: int,
    origin_limit: int | None,
    peer_limit: int | None,
    repair_grace: float,
    repair_limit: int,
    cluster_key_file: str | None,
    encrypt: bool,
    detach: bool,
) -> int:
    """Run the node of this machine, until Ctrl-C or `hoard down`.

    \b
    Examples:
      hoard up --detach
      hoard up --listen 0.0.0.0:7440 --rack r12 --capacity 2TiB
      hoard up --discovery static:10.0.0.5:7440,10.0.0.6:7440
    """
    from hoard_p2p.node.background import Report
    from hoard_p2p.node.main import detach as start_detached
    from hoard_p2p.node.main import run_node

    host, port = parse_listen(listen)
    for prefix in allow_origin:
        parse_prefix(prefix)
    settings = NodeSettings(
        data_dir=data_dir,
        host=host,
        port=port,
        cluster=cluster or default_cluster(),
        name=name or default_name(),
        rack=rack,
        capacity=capacity,
        discovery=discovery,
        scrub_days=scrub_days,
        floor=floor or "",
        rack_command=rack_command or "",
        allow_origin=allow_origin,
        origin_streams=origin_streams,
        origin_limit=origin_limit or 0,
        peer_limit=peer_limit or 0,
        repair_grace=repair_grace,
        repair_limit=repair_limit,
        cluster_key_file=str(Path(cluster_key_file).absolute()) if cluster_key_file else "",
        encrypt=encrypt,
    )
    is_open = not is_loopback(host) and not cluster_key_file
    if detach:
        print(f"the node is up, pid {start_detached(settings)}")
        if is_open:
            complain(OPEN_MODE)
        return 0
    if is_open:
        complain(OPEN_MODE)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    logging.getLogger("botocore").setLevel(logging.WARNING)
    return run_node(settings, Report())


@click.command()
@data_dir_option
@json_option
@click.option("--watch", is_flag=True, help="Show it again every second until Ctrl-C.")
@click.option("--metrics", is_flag=True, help="Print the counters for Prometheus, as GET /v1/metrics does.")
@click.pass_obj
def status(doors: Doors, data_dir: Path, as_json: bool, watch: bool, metrics: bool) -> None:
    """Show the node, its peers, snapshots, origins, store and mounts.

    SEGMENTS HERE: how many of the snapshot's segments (pieces of about 8 MiB) this node holds. UNDER-REPLICATED: how
    many segments are held by fewer nodes than REPLICAS (`hoard replicas` changes that); ? where that is not counted.
    `hoard capacity` says more of the room of the store, and changes it.

    With --watch --json, each line is one JSON object. --metrics needs no key, where the cluster has one.

    \b
    Examples:
      hoard status
      hoard status --metrics > /var/lib/node_exporter/hoard.prom.new
      hoard status --json | jq '.snapshots[].id'
    """
    if metrics and (watch or as_json):
        raise click.UsageError("--metrics has a format of its own, and is printed once: without --json and --watch")
    if metrics:
        with doors.connect(data_dir) as client:
            print(Fields(client.call("metrics", {}).body).text("text"), end="")
        return
    while True:
        with doors.connect(data_dir) as client:
            body = client.call("status", {}).body
        if watch and not as_json and sys.stdout.isatty():
            print(_CLEAR, end="")
        if as_json:
            write_json(body, indent=None if watch else 2)
        else:
            print(status_text(body))
        sys.stdout.flush()
        if not watch:
            return
        time.sleep(WATCH_EVERY)


def status_text(body: Body) -> str:
    """The whole status as a person reads it."""
    answer = Fields(body)
    sections = [_node_text(answer), peers_text(answer), _snapshots_text(answer), origins_text(answer)]
    sections.append(_mounts_text(answer))
    return "\n\n".join(section for section in sections if section)


def _node_text(answer: Fields) -> str:
    node, store = answer.fields("node"), answer.fields("store")
    rack = f", rack {printable(node.text('rack'))}" if node.text("rack") else ""
    return "\n".join(
        (
            f"node      {printable(node.text('name'))} ({node.text('id')[:12]}){rack}, "
            f"cluster {printable(node.text('cluster'))}, pid {node.number('pid')}, version {node.text('version')}",
            f"address   {node.text('url')}",
            f"store     {size_text(store.number('used'))} used of {limit_text(store.number('capacity'))}, "
            f"{_room_text(store)}{store.number('chunks'):,} chunks, in {printable(node.text('data_dir'))}",
            *state_lines(store),
            *_copies_lines(answer),
            *([f"scrub     {scrub_text(answer.fields('scrub'))}"] if answer.body.get("scrub") else []),
        )
    )


def _copies_lines(answer: Fields) -> list[str]:
    """What lacks copies, what this node is about to copy, and racks that keep more than their share."""
    lines = []
    lacking, repair = answer.number_or_none("under_replicated_bytes"), answer.body.get("repair")
    if isinstance(repair, dict) and ((waiting := Fields(repair).number("waiting_bytes")) or lacking):
        known = "some" if lacking is None else size_text(lacking)
        full = "; this node has no room for more" if Fields(repair).flag("full") else ""
        lines.append(f"copies    {known} have too few copies, {size_text(waiting)} are to be copied here{full}")
    loads = {printable(rack.text("rack")): rack.body.get("load") for rack in answer.rows("racks")}
    uneven = [f"{name} {load:g} x" for name, load in loads.items() if isinstance(load, int | float) and load >= UNEVEN]
    if uneven:
        lines.append(f"racks     uneven: to keep copies in distinct racks, nodes there keep more: {', '.join(uneven)}")
    return lines


def _room_text(store: Fields) -> str:
    """What could be stored now, and why that is less than one might think."""
    parts = [f"{size_text(store.number('available'))} available"]
    parts += [f"{size_text(store.number('promised'))} being written"] if store.number("promised") else []
    parts += [f"{size_text(store.number('ghosts'))} deleted and still open"] if store.number("ghosts") else []
    return ", ".join(parts) + ", "


def peers_text(answer: Fields) -> str:
    """The other nodes, or a line that there are none."""
    rows = [
        (printable(p.text("name")), p.text("id")[:12], printable(p.text("rack")), p.text("state"), p.text("url"))
        for p in answer.rows("peers")
    ]
    return "peers\n" + table(("NAME", "ID", "RACK", "STATE", "ADDRESS"), rows, indent="  ") if rows else NO_PEERS


def _known(fields: Fields, key: str) -> str:
    number = fields.number_or_none(key)
    return "?" if number is None else f"{number:,}"


def _snapshots_text(answer: Fields) -> str:
    rows = [
        (
            s.text("id")[:12],
            printable(" ".join(s.texts("names"))),
            f"{s.number('files'):,}",
            size_text(s.number("bytes")),
            f"{_known(s, 'segments_here')} of {s.number('segments'):,}",
            _known(s, "replicas"),
            _known(s, "under_replicated"),
            f"{s.text('state')}, lazy" if s.flag("lazy") else s.text("state"),
            life_text(s),
        )
        for s in answer.rows("snapshots")
    ]
    header = ("ID", "NAMES", "FILES", "SIZE", "SEGMENTS HERE", "REPLICAS", "UNDER-REPLICATED", "STATE", "KEPT")
    return "snapshots\n" + table(header, rows, indent="  ") if rows else "no snapshots"


def _mounts_text(answer: Fields) -> str:
    ours = answer.fields("node").text("version")
    rows = [
        (
            m.text("snapshot")[:12],
            printable(m.text("mountpoint")),
            str(m.number("pid")),
            _known(m, "served"),
            _known(m, "parked"),
            _known(m, "failed"),
            _io_text(m, ours),
        )
        for m in answer.rows("mounts")
    ]
    header = ("SNAPSHOT", "MOUNT POINT", "PID", "SERVED", "WAITING", "FAILED", "IO")
    return "mounts\n" + table(header, rows, indent="  ") if rows else ""


def _io_text(mount: Fields, ours: str) -> str:
    reason, version = printable(mount.text("io_reason")), mount.text("version")
    through = printable(mount.text("reads_reason"))
    reads = f"; reads through the node: {through}" if through else ""
    other = f"; version {printable(version) or 'unknown'}" if version != ours else ""
    return printable(mount.text("io")) + (f": {reason}" if reason else "") + reads + other


@click.command()
@data_dir_option
@json_option
@click.pass_obj
def peers(doors: Doors, data_dir: Path, as_json: bool) -> None:
    """List the other nodes of the cluster, as this one sees them.

    \b
    Example:
      hoard peers
    """
    with doors.connect(data_dir) as client:
        body = client.call("peers", {}).body
    if as_json:
        write_json(body)
    else:
        print(peers_text(Fields(body)))
