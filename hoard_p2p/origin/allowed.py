"""Which origins a node may read: URLs, and the prefixes that its operator allows (CLUSTER 4, "Who may read what")."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from hoard_p2p.errors import BadRequest
from hoard_p2p.printing import printable

DIRECTORY = "dir:"
"""A directory origin is `dir:` and an absolute path."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:")


def directory_url(path: str) -> str:
    """The origin that a directory is, by its absolute path."""
    return DIRECTORY + os.path.normpath(path)


def directory_of(url: str) -> Path | None:
    """The path of a directory origin; None for what is no such URL."""
    path = url.removeprefix(DIRECTORY)
    return Path(path) if path != url and path.startswith("/") and "\0" not in path else None


def parse_prefix(text: str) -> Path:
    """What `--allow-origin` was told: an absolute path, or `dir:` or `file://` before it. Raises BadRequest."""
    path = text.removeprefix("file://").removeprefix(DIRECTORY)
    if path.startswith("/") and "\0" not in path:
        return Path(path)
    if _SCHEME.match(path):
        raise BadRequest(f"--allow-origin {printable(text)}: origins that are no directories come in a later version")
    raise BadRequest(f"--allow-origin {printable(text)} is no absolute path; write for instance /mnt/nfs/datasets")


def is_beneath(real: Path, prefixes: Iterable[Path]) -> bool:
    """Whether a path is one of `prefixes` or beneath it, by whole components; all are real paths."""
    return any(real.is_relative_to(prefix) for prefix in prefixes)


def may_look(path: Path, named: Iterable[str], prefixes: Iterable[Path]) -> bool:
    """Whether a path that a peer told may be looked at, to see where it leads: it is written like one that is
    allowed here. Others are not even resolved: that alone can mount something (autofs), or hang."""
    plain = Path(os.path.normpath(path))
    return str(plain) in named or is_beneath(plain, prefixes)


def real_path(path: Path) -> Path:
    """Blocking. The path with every symbolic link followed. Raises OSError."""
    return Path(os.path.realpath(path, strict=True))
