"""Which origins a node may read: the prefixes that its operator allows (CLUSTER 4, "Who may read what"). Pure, but for
`real_path`.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from hoard_p2p.errors import BadRequest
from hoard_p2p.origin.urls import HOSTED, Address, directory_of, parse_address, scheme_of
from hoard_p2p.printing import printable

_NO_BUCKET = "any-bucket"


@dataclass(frozen=True, slots=True)
class Prefix:
    """What `--allow-origin` was told. `host` empty: every bucket. `endpoint` (S3) empty: the node's own. `pays`:
    whether this node may pay for requests. `directory`: the path of a directory."""

    scheme: str
    host: str
    parts: tuple[str, ...]
    endpoint: str = ""
    pays: bool = False
    directory: Path | None = None


def parse_prefix(text: str) -> Prefix:
    """An absolute path, also with `dir:` or `file://` before it, or the beginning of a URL. Raises BadRequest."""
    path = directory_of("dir:" + text.removeprefix("file://").removeprefix("dir:"))
    if path is not None:
        return Prefix("dir", "", (), directory=path)
    try:
        return _url_prefix(text)
    except BadRequest as error:
        raise BadRequest(f"--allow-origin: {error}") from error


def _url_prefix(text: str) -> Prefix:
    scheme = scheme_of(text)
    if not scheme:
        raise BadRequest(
            f"{printable(text)} is no absolute path and no URL; write /mnt/nfs/datasets or s3://bucket/prefix"
        )
    if scheme == "file":
        raise BadRequest("write the absolute path of a directory that is mounted here")
    name, _, options = text.partition("?")
    if name == f"{scheme}://":
        if scheme in HOSTED:
            raise BadRequest(f"it would allow peers to choose the host; name it: {scheme}://HOST/")
        address = parse_address(f"{scheme}://{_NO_BUCKET}/" + (f"?{options}" if options else ""))
        return _prefix(address, host="")
    address = parse_address(text)
    return _prefix(address, host=address.host)


def _prefix(address: Address, host: str) -> Prefix:
    s3 = address.s3
    if s3 is None:
        return Prefix(address.scheme, host, address.parts)
    return Prefix("s3", host, address.parts, s3.endpoint, s3.requester_pays)


def allows(prefix: Prefix, address: Address, default_endpoint: str = "") -> bool:
    """Whether an origin that is no directory lies beneath the prefix, by whole parts. `default_endpoint`: where this
    node's AWS tools ask if nobody tells them, empty for AWS: nobody else may choose who gets requests it signed."""
    if prefix.directory is not None or prefix.scheme != address.scheme or prefix.host not in ("", address.host):
        return False
    if address.s3 is not None:
        meant = prefix.endpoint or default_endpoint
        if (address.s3.endpoint or default_endpoint) != meant or (address.s3.requester_pays and not prefix.pays):
            return False
    return address.parts[: len(prefix.parts)] == prefix.parts


def command_to_allow(address: Address) -> str:
    """What its operator starts a node with that is to read this origin."""
    url = address.url if address.directory is None else str(address.directory)
    return f"hoard up --allow-origin {quote(printable(url))}"


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
