"""`SNAPSHOT:PATH`: which part is which, and which entry of the snapshot it names."""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hoard_p2p.cli.doors import Doors, Snapshot
from hoard_p2p.errors import BadRequest, PathNotFound, SnapshotUnknown
from hoard_p2p.printing import printable

if TYPE_CHECKING:
    from hoard_p2p.catalog.reader import Catalog

MAX_LINKS = 40
"""Symbolic links followed in one path, as in the kernel."""

_FULL_ID = re.compile(r"[0-9a-f]{64}", re.IGNORECASE)


class Target(NamedTuple):
    """One way to read `SNAPSHOT[:PATH]`; `path` None: the snapshot alone."""

    snapshot: str
    path: bytes | None


def targets(text: str) -> list[Target]:
    """The ways to read `text`, the first that exists is meant: NAME:TAG before NAME and a path TAG.

    A tag holds no slash, so a path that begins with one is never taken for a tag.
    """
    first, *rest = text.split(":")
    if not rest:
        return [Target(text, None)]
    path = Target(first, os.fsencode(":".join(rest)))
    if _FULL_ID.fullmatch(first) or "/" in rest[0] or not rest[0]:
        return [path]
    return [Target(f"{first}:{rest[0]}", os.fsencode(":".join(rest[1:])) if rest[1:] else None), path]


def whole_snapshot(text: str) -> str:
    """`text`, unless it can only be a path in a snapshot. Raises BadRequest then."""
    first = targets(text)[0]
    if first.path is None:
        return text
    raise BadRequest(
        f"{text!r} names a path in a snapshot, and this takes whole snapshots only; write {first.snapshot}"
    )


@contextmanager
def open_target(doors: Doors, data_dir: Path, ways: list[Target]) -> Iterator[tuple[Snapshot, bytes | None]]:
    """The open snapshot and the path of the first way that names an existing snapshot. Raises SnapshotUnknown."""
    with ExitStack() as stack:
        yield _first(stack, doors, data_dir, ways)


def _first(stack: ExitStack, doors: Doors, data_dir: Path, ways: list[Target]) -> tuple[Snapshot, bytes | None]:
    unknown: SnapshotUnknown | None = None
    for way in ways:
        try:
            return stack.enter_context(doors.reading(data_dir, way.snapshot)), way.path
        except SnapshotUnknown as error:
            unknown = unknown or error
    raise unknown or SnapshotUnknown("no snapshot was named")


def resolve(catalog: "Catalog", path: bytes, *, follow: bool = True) -> int:
    """The inode at `path`, through symbolic links inside the snapshot; `follow`: also if it is one itself.

    Raises PathNotFound, also for links that lead out of the snapshot.
    """
    shown = printable(path)
    missing = f"the snapshot has no path {shown}"
    current, links = 0, 0
    parts = path.split(b"/")[::-1]
    while parts:
        part = parts.pop()
        if part in (b"", b"."):
            continue
        if part == b"..":
            current = _parent(catalog, current, shown)
            continue
        child = _child(catalog, current, part, missing)
        if catalog.is_symlink(child) and (parts or follow):
            links += 1
            leads = printable(catalog.target(child))
            missing = f"{shown} leads nowhere: a symbolic link points to {leads}, which the snapshot does not have"
            parts += _link_parts(catalog, child, shown, links)
        else:
            current = child
    return current


def _parent(catalog: "Catalog", directory: int, shown: str) -> int:
    if directory == 0:
        raise PathNotFound(f"{shown} leads out of the snapshot")
    return catalog.parent(directory)


def _child(catalog: "Catalog", directory: int, name: bytes, missing: str) -> int:
    child = catalog.lookup(directory, name) if catalog.is_dir(directory) else -1
    if child < 0:
        raise PathNotFound(missing)
    return child


def _link_parts(catalog: "Catalog", link: int, shown: str, links: int) -> list[bytes]:
    target = catalog.target(link)
    if links > MAX_LINKS:
        raise PathNotFound(f"{shown} has too many symbolic links")
    if target.startswith(b"/"):
        raise PathNotFound(f"{shown} leads out of the snapshot: a symbolic link points to {printable(target)}")
    return target.split(b"/")[::-1]
