"""Looking into snapshots: `ls` and `cat`."""

import shlex
import stat
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hoard_p2p.cli.answers import Fields
from hoard_p2p.cli.doors import Doors, Snapshot
from hoard_p2p.cli.life import life_text
from hoard_p2p.cli.options import TEXT, data_dir_option, json_option
from hoard_p2p.cli.output import table, when_text, write_json, write_names
from hoard_p2p.cli.paths import Target, open_target, resolve, targets
from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest, NotFound
from hoard_p2p.printing import name_text, printable, size_text

if TYPE_CHECKING:
    from hoard_p2p.catalog.reader import Catalog

_TYPES = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "symlink"}


@click.command()
@click.argument("target", type=TEXT, required=False, metavar="[SNAPSHOT[:PATH]]")
@data_dir_option
@json_option
@click.option("-l", "long", is_flag=True, help="Modes, links, sizes, times and link targets too.")
@click.option("-R", "--recursive", is_flag=True, help="Everything below, as paths.")
@click.option("-0", "--null", "nul", is_flag=True, help="End each name with NUL, for xargs -0.")
@click.pass_obj
def ls(
    doors: Doors, *, target: str | None, data_dir: Path, as_json: bool, long: bool, recursive: bool, nul: bool
) -> None:
    """List the snapshots of the cluster, or what is in one.

    On a terminal, bytes of names that could act on it are shown escaped; in a pipe names are raw bytes.

    \b
    Examples:
      hoard ls
      hoard ls -l imagenet:2012:train
      hoard ls -R0 3f9a1c07 | xargs -0 -n1 echo
    """
    if target is None:
        _list_snapshots(doors, data_dir, as_json)
        return
    with open_target(doors, data_dir, targets(target)) as (snapshot, path):
        _list_entries(snapshot, path or b"", as_json=as_json, long=long, recursive=recursive, nul=nul)


def _list_snapshots(doors: Doors, data_dir: Path, as_json: bool) -> None:
    with doors.connect(data_dir) as client:
        body = client.call("snapshots", {}).body
    if as_json:
        write_json(body)
        return
    rows = [
        (
            s.text("id"),
            f"{s.number('files'):,}",
            size_text(s.number("bytes")),
            when_text(s.number("created") / 10**9) if s.number("created") else "",
            life_text(s),
            printable(" ".join(s.texts("names"))),
            printable(s.text("source")) + (" (lazy)" if s.flag("lazy") else ""),
        )
        for s in Fields(body).rows("snapshots")
    ]
    print(table(("SNAPSHOT", "FILES", "SIZE", "CREATED", "KEPT", "NAMES", "SOURCE"), rows))


def _list_entries(snapshot: Snapshot, path: bytes, *, as_json: bool, long: bool, recursive: bool, nul: bool) -> None:
    catalog = snapshot.catalog
    start = resolve(catalog, path, follow=not long)
    named = entries(catalog, start, path.rstrip(b"/").rsplit(b"/", 1)[-1], recursive=recursive)
    if as_json:
        listed: list[Json] = [entry_json(catalog, inode, name) for name, inode in named]
        write_json({"snapshot": snapshot.snapshot, "path": name_text(path), "entries": listed})
        return
    write_names((long_line(catalog, inode, name) if long else name for name, inode in named), nul=nul)


def entries(catalog: "Catalog", start: int, name: bytes, *, recursive: bool) -> Iterator[tuple[bytes, int]]:
    """What `ls` lists: the children of a directory (all below it, as paths, if `recursive`), or the entry itself."""
    if not catalog.is_dir(start):
        yield name, start
        return
    stack = [(b"", iter(catalog.children(start)))]
    while stack:
        prefix, children = stack[-1]
        inode = next(children, None)
        if inode is None:
            stack.pop()
            continue
        path = prefix + catalog.name(inode)
        yield path, inode
        if recursive and catalog.is_dir(inode):
            stack.append((path + b"/", iter(catalog.children(inode))))


def entry_json(catalog: "Catalog", inode: int, name: bytes) -> Json:
    """One entry with everything that the snapshot knows of it but its bytes."""
    own = catalog.resolve(inode)
    mode = catalog.mode(own)
    entry: dict[str, Json] = {
        "name": name_text(name),
        "type": _TYPES.get(stat.S_IFMT(mode), "other"),
        "mode": f"{stat.S_IMODE(mode):04o}",
        "size": catalog.size(own),
        "mtime_ns": catalog.mtime(own),
        "nlink": catalog.nlink(own),
        "inode": own + 1,
    }
    if catalog.is_symlink(own):
        entry["target"] = name_text(catalog.target(own))
    return entry


def long_line(catalog: "Catalog", inode: int, name: bytes) -> bytes:
    """Mode, links, size, time, name and target of one entry, as `ls -l` has them."""
    when = datetime.fromtimestamp(catalog.mtime(inode) // 10**9).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    mode = stat.filemode(catalog.mode(inode))
    target = b" -> " + catalog.target(inode) if catalog.is_symlink(inode) else b""
    return f"{mode} {catalog.nlink(inode):>3} {catalog.size(inode):>14} {when} ".encode() + name + target


@click.command()
@click.argument("target", type=TEXT, metavar="SNAPSHOT:PATH")
@data_dir_option
@click.pass_obj
def cat(doors: Doors, target: str, data_dir: Path) -> None:
    """Write one file of a snapshot to standard output. Symbolic links inside the snapshot are followed.

    \b
    Example:
      hoard cat imagenet:2012:labels.json | jq .
    """
    ways = targets(target)
    files = [way for way in ways if way.path]
    if not files:
        raise BadRequest(f"{target!r} names no file; write SNAPSHOT:PATH")
    try:
        with open_target(doors, data_dir, files) as (snapshot, path):
            _write_file(snapshot, Target(target, path))
    except NotFound as error:
        if ways[0].path is None and _is_snapshot(doors, data_dir, target):
            raise BadRequest(f"{target!r} names a snapshot; write {target}:PATH") from error
        raise


def _is_snapshot(doors: Doors, data_dir: Path, text: str) -> bool:
    try:
        with doors.reading(data_dir, text):
            return True
    except NotFound:
        return False


def _write_file(snapshot: Snapshot, target: Target) -> None:
    inode = snapshot.catalog.resolve(resolve(snapshot.catalog, target.path or b""))
    if not snapshot.catalog.is_file(inode):
        raise BadRequest(f"{target.snapshot!r} is a directory; list it with: hoard ls {shlex.quote(target.snapshot)}")
    sys.stdout.flush()
    for part in snapshot.stream(inode):
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()
