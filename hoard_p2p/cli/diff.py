"""`hoard diff`: what changed between two snapshots, by content."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from hoard_p2p.cli.doors import Doors, Snapshot
from hoard_p2p.cli.options import SNAPSHOT, data_dir_option, json_option
from hoard_p2p.cli.output import write_json, write_names
from hoard_p2p.config import Json
from hoard_p2p.printing import name_text

if TYPE_CHECKING:
    from hoard_p2p.catalog.reader import Catalog

READ_SIZE = 4 << 20


class Change(NamedTuple):
    """`kind`: A added, D deleted, M other bytes, another target or another type, T other mode, time or attributes."""

    kind: str
    path: bytes


class Pair(NamedTuple):
    """A path with its inode in each snapshot, -1 where it has none."""

    path: bytes
    old: int
    new: int


def _children(old: "Catalog", new: "Catalog", pair: Pair) -> Iterator[Pair]:
    """The entries of two directories (or of one), merged by name."""
    prefix = pair.path + b"/" if pair.path else b""
    before = iter(old.children(pair.old) if pair.old >= 0 else ())
    after = iter(new.children(pair.new) if pair.new >= 0 else ())
    left, right = next(before, -1), next(after, -1)
    while left >= 0 or right >= 0:
        names = [catalog.name(inode) for catalog, inode in ((old, left), (new, right)) if inode >= 0]
        name = min(names)
        in_old = left >= 0 and old.name(left) == name
        in_new = right >= 0 and new.name(right) == name
        yield Pair(prefix + name, left if in_old else -1, right if in_new else -1)
        left = next(before, -1) if in_old else left
        right = next(after, -1) if in_new else right


def changes(old: Snapshot, new: Snapshot) -> Iterator[Change]:
    """All differences, parents first. The content of a file is compared by its chunk ids, and by its bytes where the
    two were cut differently."""
    stack = [iter((Pair(b"", 0, 0),))]
    while stack:
        pair = next(stack[-1], None)
        if pair is None:
            stack.pop()
            continue
        if kind := _kind(old, new, pair):
            yield Change(kind, pair.path or b".")
        if _is_dir(old.catalog, pair.old) or _is_dir(new.catalog, pair.new):
            below = Pair(
                pair.path,
                pair.old if _is_dir(old.catalog, pair.old) else -1,
                pair.new if _is_dir(new.catalog, pair.new) else -1,
            )
            stack.append(_children(old.catalog, new.catalog, below))


def _is_dir(catalog: "Catalog", inode: int) -> bool:
    return inode >= 0 and catalog.is_dir(inode)


def _kind(old: Snapshot, new: Snapshot, pair: Pair) -> str:
    if pair.old < 0:
        return "A"
    if pair.new < 0:
        return "D"
    if not _same_content(old, new, pair):
        return "M"
    return "" if _attributes(old.catalog, pair.old) == _attributes(new.catalog, pair.new) else "T"


def _attributes(catalog: "Catalog", inode: int) -> tuple[int, int, tuple[int, int] | None, dict[bytes, bytes]]:
    xattrs = catalog.xattrs(inode) if catalog.has_xattrs else {}
    return catalog.mode(inode), catalog.mtime(inode), catalog.uid_gid(inode), xattrs


def _same_content(old: Snapshot, new: Snapshot, pair: Pair) -> bool:
    before, after = old.catalog, new.catalog
    if before.is_file(pair.old) and after.is_file(pair.new):
        size = before.size(pair.old)
        return size == after.size(pair.new) and (_same_chunks(before, after, pair) or _same_bytes(old, new, pair, size))
    if before.is_symlink(pair.old) and after.is_symlink(pair.new):
        return before.target(pair.old) == after.target(pair.new)
    return before.is_dir(pair.old) and after.is_dir(pair.new)


def _runs(catalog: "Catalog", inode: int) -> Iterator[tuple[bytes, int]]:
    return ((catalog.chunk_id(run), catalog.length(run)) for run in catalog.runs(inode))


def _same_chunks(before: "Catalog", after: "Catalog", pair: Pair) -> bool:
    return len(before.runs(pair.old)) == len(after.runs(pair.new)) and all(
        left == right for left, right in zip(_runs(before, pair.old), _runs(after, pair.new))
    )


def _same_bytes(old: Snapshot, new: Snapshot, pair: Pair, size: int) -> bool:
    """Reads both. Files that were cut at the same places differ where their ids do, and need no reading."""
    lengths = [[length for _, length in _runs(s.catalog, i)] for s, i in ((old, pair.old), (new, pair.new))]
    if lengths[0] == lengths[1]:
        return False
    return all(
        old.read(pair.old, offset, READ_SIZE) == new.read(pair.new, offset, READ_SIZE)
        for offset in range(0, size, READ_SIZE)
    )


@click.command()
@click.argument("old", metavar="A", type=SNAPSHOT)
@click.argument("new", metavar="B", type=SNAPSHOT)
@data_dir_option
@json_option
@click.option("--exit-code", is_flag=True, help="Exit with status 1 if there is any difference.")
@click.pass_obj
def diff(doors: Doors, *, old: str, new: str, data_dir: Path, as_json: bool, exit_code: bool) -> int:
    """List what differs between snapshots A and B.

    A line is a letter and a path: A added in B, D deleted, M with other content, T with another mode, time, owner or
    attributes.

    \b
    Example:
      hoard diff set:1 set:2
    """
    found = 0
    listed: list[Json] = []
    with doors.reading(data_dir, old) as before, doors.reading(data_dir, new) as after:
        for change in changes(before, after):
            found += 1
            if as_json:
                listed.append({"change": change.kind, "path": name_text(change.path)})
            else:
                write_names([change.kind.encode() + b" " + change.path], nul=False)
        if as_json:
            write_json({"old": before.snapshot, "new": after.snapshot, "changes": listed})
    return 1 if exit_code and found else 0
