"""`hoard publish`: hands an open directory to the node, shows its progress, and prints the snapshot id."""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from hoard_p2p.cli.answers import Fields
from hoard_p2p.cli.doors import Body, Doors
from hoard_p2p.cli.options import TEXT, TIME, data_dir_option, json_option
from hoard_p2p.cli.output import complain, write_json
from hoard_p2p.cli.progress import Display, Step, display
from hoard_p2p.cli.sources import S3Options, check_no_s3, origin_url, source_path
from hoard_p2p.config import DEFAULT_REPLICAS, MOST_REPLICAS, Json
from hoard_p2p.errors import BadRequest, HoardError, PathNotFound, Refused
from hoard_p2p.printing import name_text, size_text

SHOWN_NAMES = 20
"""Names printed in a warning; the rest is counted."""

_KEPT = re.compile(r"\bpublished ([0-9a-f]{64}), but\b")
"""In the refusal of a name: the snapshot is there all the same."""


def open_source(path: Path) -> int:
    """A descriptor of the directory, for the caller to close."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise PathNotFound(f"there is no directory {path}") from error
    except NotADirectoryError as error:
        raise BadRequest(f"{path} is not a directory; a data set is a directory") from error
    except OSError as error:
        raise HoardError(f"{path} cannot be read: {error.strerror}; publish as a user who may read it") from error


def check_excludes(patterns: Sequence[str], source: Path) -> None:
    """Raises BadRequest for a pattern that is an absolute path in `source`: patterns begin below it."""
    for pattern in patterns:
        below = os.path.relpath(pattern, source.absolute())
        if pattern.startswith(f"{source.absolute()}/") and below != ".":
            right = f"/{below}/" if pattern.endswith("/") else f"/{below}"
            raise BadRequest(
                f"--exclude {shlex.quote(pattern)} would match nothing: paths begin below {source}; "
                f"write --exclude {shlex.quote(right)}"
            )


def progress_step(report: Body) -> Step:
    """A progress report of the node, ready to show."""
    fields = Fields(report)
    if fields.number_or_none("segments"):
        return Step(
            fields.text("phase"), fields.number("segments_done"), fields.number_or_none("segments"), in_bytes=False
        )
    if (entries := fields.number_or_none("entries")) is not None:
        done = fields.number("done")
        return Step(fields.text("phase"), done or entries, entries if done else None, in_bytes=False)
    return Step(
        phase=fields.text("phase"),
        done=fields.number("bytes"),
        total=fields.number_or_none("total_bytes"),
        files=fields.number_or_none("files"),
        total_files=fields.number_or_none("total_files"),
        saved=fields.number("deduplicated"),
    )


def show_report(report: Body, shown: Display) -> None:
    """Progress, or a `note` for the user at once; a report with neither only says that the node is alive."""
    fields = Fields(report)
    if note := fields.text("note"):
        shown.close()
        complain(note)
    elif fields.text("phase"):
        shown.show(progress_step(report))


def _named(what: str, result: Fields, key: str) -> Iterator[str]:
    """Lines that name what was left out, up to `SHOWN_NAMES`. The names are printable already."""
    names = result.texts(key)
    count = max(result.number(f"{key}_count"), len(names))
    if not count:
        return
    yield f"warning: {count:,} {what}" + (":" if names else "")
    yield from (f"  {name}" for name in names[:SHOWN_NAMES])
    if names and count > SHOWN_NAMES:
        yield f"  and {count - SHOWN_NAMES:,} more"


def warnings(result: Body) -> list[str]:
    """What the user should know about a publish that went well."""
    fields = Fields(result)
    lines = [
        *_named("special files (devices, sockets, FIFOs) were left out", fields, "skipped_special"),
        *_named("data directory of this node was left out", fields, "own_data"),
        *_named("files vanished while they were read", fields, "vanished"),
        *_named("paths could not be read and were left out", fields, "unreadable"),
        *_named("names of the origin cannot be files and were left out", fields, "unmappable"),
    ]
    lines += [
        f"warning: the attribute {kind.text('name')} was not kept ({kind.number('count'):,} times, for instance on "
        f"{kind.text('example')})"
        for kind in fields.rows("not_kept")
    ]
    lines += [
        f"warning: --exclude {shlex.quote(pattern)} matched nothing" for pattern in fields.texts("unmatched_excludes")
    ]
    if short := fields.number("under_replicated"):
        lines.append(f"warning: {short:,} segments have fewer copies than asked for: there are not enough nodes yet")
    readers, nodes = fields.number("readers"), fields.number("nodes")
    if readers < nodes and fields.number("read"):
        lines.append(
            f"note: {readers:,} of {nodes:,} nodes could read the origin; `hoard status` on the others tells "
            "why not, and the command that allows it"
        )
    return lines


def _summary(result: Body) -> str:
    fields = Fields(result)
    if fields.flag("lazy"):
        return (
            f"{fields.number('files'):,} files, {size_text(fields.number('bytes'))}, listed and not read: "
            "what is read is kept, and once all is, hoard seals it"
        )
    return (
        f"{fields.number('files'):,} files, {size_text(fields.number('bytes'))}: "
        f"{size_text(fields.number('stored'))} new, {size_text(fields.number('deduplicated'))} already known"
        f"{_reading(fields)}"
    )


def _reading(fields: Fields) -> str:
    """How many files did not have to be read."""
    read, unchanged = fields.number("read"), fields.number("unchanged")
    if not unchanged:
        return ""
    told = f"; {read:,} {'file' if read == 1 else 'files'} read, {unchanged:,} unchanged"
    return told if read else "; nothing changed, no file was read"


@click.command()
@click.argument("source", type=TEXT)
@data_dir_option
@json_option
@click.option(
    "--name",
    type=TEXT,
    default=None,
    metavar="NAME[:TAG]",
    help="Name the snapshot, as `hoard tag` does; without :TAG the tag is `latest`.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, MOST_REPLICAS),
    default=DEFAULT_REPLICAS,
    show_default=True,
    help="Nodes that keep a copy of each segment.",
)
@click.option("--pin", is_flag=True, help="Keep it until it is unpinned, as `hoard pin` does.")
@click.option(
    "--keep",
    type=TIME,
    default=None,
    metavar="TIME",
    help="How long it lives after its last use once nothing names it: 12h, 30d [default: 30d].",
)
@click.option("--exclude", multiple=True, metavar="GLOB", help="Leave out what matches, any number of times.")
@click.option(
    "--chunker",
    type=click.Choice(("fastcdc", "fixed")),
    default=None,
    help="How files over 1 MiB of a directory are cut, by content or every 4 MiB, while this node alone reads it "
    "[default: fastcdc; what all nodes read at its origin is cut every 4 MiB, and takes no such option].",
)
@click.option("--preserve-owner", is_flag=True, help="Keep user and group ids; else the mount shows its own user.")
@click.option("--reproducible", is_flag=True, help="Drop modification times, so that equal files give an equal id.")
@click.option("--rehash", is_flag=True, help="Read every file, also those that did not change since the last publish.")
@click.option("--skip-unreadable", is_flag=True, help="Leave out what cannot be read, and name it, instead of failing.")
@click.option(
    "--shared-origin/--no-shared-origin",
    default=None,
    help="Other nodes see the directory SOURCE, too: those that may (hoard up --allow-origin) read it with this one "
    "[default: if it is on a network file system].",
)
@click.option("--lazy", is_flag=True, help="Show it as soon as it is listed; its bytes are read by who wants them.")
@click.option("--skip-unmappable", is_flag=True, help="Leave out objects that no file can be named as, and name them.")
@click.option("--endpoint-url", type=TEXT, default=None, metavar="URL", help="Of an S3 store that is not AWS's own.")
@click.option("--region", type=TEXT, default=None, help="Of an S3 bucket.")
@click.option("--anonymous", is_flag=True, help="Ask an S3 store without credentials.")
@click.option("--request-payer", is_flag=True, help="This account pays for reading an S3 bucket.")
@click.option("--try", "try_it", is_flag=True, help="Begin even if it does not seem to fit on this node.")
@click.pass_obj
def publish(
    doors: Doors,
    *,
    source: str,
    data_dir: Path,
    as_json: bool,
    name: str | None,
    replicas: int,
    pin: bool,
    keep: int | None,
    exclude: tuple[str, ...],
    chunker: str | None,
    preserve_owner: bool,
    reproducible: bool,
    rehash: bool,
    skip_unreadable: bool,
    shared_origin: bool | None,
    lazy: bool,
    skip_unmappable: bool,
    endpoint_url: str | None,
    region: str | None,
    anonymous: bool,
    request_payer: bool,
    try_it: bool,
) -> None:
    """Make a snapshot of SOURCE, a directory or s3://BUCKET/PREFIX, and show it to the cluster.

    Prints the snapshot id alone on the last line of standard output; with --json, one JSON object on one line
    instead. Progress and warnings go to standard error.

    Publishing a directory again reads only the files that changed: not those whose size, times, inode and device are
    as they were when they were read. Files changed within 2 seconds of that reading are read again, and all files
    where such stamps say little (FAT, FUSE, unknown file systems). The snapshot is the same as with --rehash.

    A GLOB without a slash matches a name at any depth; with one it matches a path below SOURCE; one that ends in a
    slash matches only directories; ** stands for any number of directories. One that matched nothing is named at the
    end.

    An S3 prefix, or a directory with --shared-origin, is read by all nodes together that may read it, each byte once;
    then it is sealed: its id says what the bytes are, wherever they came from. It stays the origin of the snapshot:
    what no node has any more is read there. Published again, only what changed is read. Endpoint and region are taken
    from AWS_ENDPOINT_URL and AWS_REGION where no option tells; credentials are each node's own.

    With --lazy nothing is read at first, and the id commits to names and versions alone. An object that changed since
    is an error for who reads it. What is read stays; once all has been, the snapshot is sealed by itself, and its names
    are moved to the sealed one (hoard seal does that now).

    What cannot fit in the store of this node is refused as soon as SOURCE was counted; --try goes on all the same.

    \b
    Examples:
      hoard publish /data/imagenet --name imagenet:2012
      id=$(hoard publish --exclude '*.tmp' --exclude .git/ /data/set)
      hoard publish /mnt/nfs/imagenet --shared-origin --name imagenet:2012
      hoard publish s3://datasets/imagenet --region eu-central-1 --name imagenet:2012
      hoard publish s3://datasets/imagenet --endpoint-url http://minio:9000 --lazy --name imagenet:dev
    """
    options: dict[str, Json] = {
        "name": name,
        "replicas": replicas,
        "pin": pin,
        "keep": keep,
        "exclude": [name_text(os.fsencode(pattern)) for pattern in exclude],
        "chunker": chunker,
        "preserve_owner": preserve_owner,
        "reproducible": reproducible,
        "rehash": rehash,
        "skip_unreadable": skip_unreadable,
        "shared_origin": shared_origin,
        "lazy": lazy,
        "skip_unmappable": skip_unmappable,
        "try": try_it,
    }
    s3 = S3Options(endpoint_url, region, anonymous, request_payer)
    try:
        result = _publish(doors, data_dir, source, s3, options)
    except Refused as error:
        if kept := _KEPT.search(str(error)):
            write_json({"snapshot": kept[1], "name": None}, indent=None) if as_json else print(kept[1])
        raise
    for line in warnings(result):
        complain(line)
    if as_json:
        write_json(result, indent=None)
        return
    complain(_summary(result))
    print(Fields(result).text("snapshot"))


def _publish(doors: Doors, data_dir: Path, source: str, s3: S3Options, options: dict[str, Json]) -> Body:
    path = source_path(source)
    if path is None:
        return _call(doors, data_dir, {"source": origin_url(source, s3, os.environ), **options}, [])
    check_no_s3(s3, source)
    patterns = options["exclude"]
    check_excludes([str(one) for one in patterns] if isinstance(patterns, list) else [], path)
    directory = open_source(path)
    try:
        return _call(doors, data_dir, {"source": name_text(os.fsencode(path.absolute())), **options}, [directory])
    finally:
        os.close(directory)


def _call(doors: Doors, data_dir: Path, arguments: dict[str, Json], fds: Sequence[int]) -> Body:
    shown = display()
    try:
        with doors.connect(data_dir) as client:
            return client.call("publish", arguments, fds=fds, progress=lambda report: show_report(report, shown)).body
    finally:
        shown.close()
