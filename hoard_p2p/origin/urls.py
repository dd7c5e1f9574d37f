"""The URLs of origins of every kind: what they name, and the one way to write each. Pure.

A URL is the same on every node, and holds no secrets: no passwords, tokens or queries.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from hoard_p2p.errors import BadRequest
from hoard_p2p.origin.s3url import SCHEME as S3_SCHEME
from hoard_p2p.origin.s3url import S3Address, parse_s3
from hoard_p2p.printing import printable

DIRECTORY = "dir:"
"""A directory origin is `dir:` and an absolute path."""

PACKAGES = {
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "ftp": "",
    "gcs": "gcsfs",
    "gs": "gcsfs",
    "hf": "huggingface_hub",
    "oci": "ocifs",
    "oss": "ossfs",
    "sftp": "paramiko",
    "smb": "smbprotocol",
    "ssh": "paramiko",
    "webhdfs": "requests",
}
"""What fsspec reaches, by scheme, and the package that it needs besides. Not here: what reads this machine (`file`,
`memory`), hands on to another URL (`simplecache`, `zip`, `reference`, `::`), or runs code."""

HOSTED = frozenset({"http", "https", "abfs", "abfss", "ftp", "sftp", "smb", "ssh", "webhdfs"})
"""Schemes whose URLs name a host, and thereby who gets this node's credentials."""

WEB_PORTS = {"http": 80, "https": 443}

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):")
_HOST = re.compile(r"(?:[A-Za-z0-9._~-]+@)?(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_SAFE = "!$&'()*+,;=:@~-._"
"""What stands for itself in a part of a path (RFC 3986, pchar)."""


@dataclass(frozen=True, slots=True)
class Address:
    """What a URL names. `host`: with its port, if that is not the usual one; of a store its bucket; empty for a
    directory. `parts` of the path, `%XX` of the web taken apart. `url`: the one way to write it."""

    scheme: str
    host: str
    parts: tuple[str, ...]
    url: str
    s3: S3Address | None = None

    @property
    def directory(self) -> Path | None:
        """The path of a directory origin."""
        return directory_of(self.url)


def directory_url(path: str) -> str:
    """The origin that a directory is, by its absolute path."""
    return DIRECTORY + os.path.normpath(path)


def directory_of(url: str) -> Path | None:
    """The path of a directory origin; None for what is no such URL."""
    path = url.removeprefix(DIRECTORY)
    return Path(path) if path != url and path.startswith("/") and "\0" not in path else None


def scheme_of(url: str) -> str:
    """Empty if it has none."""
    match = _SCHEME.match(url)
    return match[1] if match else ""


def parse_address(url: str) -> Address:
    """What an origin's URL names. Raises BadRequest, which says what would be one."""
    if (path := directory_of(url)) is not None:
        written = directory_url(str(path))
        return Address("dir", "", tuple(written.removeprefix(DIRECTORY).split("/")[1:]), written)
    if any("\ud800" <= character <= "\udfff" for character in url):
        raise BadRequest(f"{printable(url)} is no text in UTF-8; write other bytes as %XX")
    if url.startswith(S3_SCHEME):
        return _s3_address(parse_s3(url))
    scheme = scheme_of(url)
    if scheme in WEB_PORTS:
        return _web_address(url, scheme)
    if scheme in PACKAGES:
        return _store_address(url, scheme)
    raise BadRequest(
        f"{printable(url)} is no origin that can be read: write an absolute path, s3://BUCKET/PREFIX, "
        f"https://HOST/PATH, or what fsspec reaches ({', '.join(f'{name}://' for name in PACKAGES)})"
    )


def _s3_address(s3: S3Address) -> Address:
    return Address("s3", s3.bucket, tuple(s3.prefix.split("/")[:-1]), s3.url, s3)


def _web_address(url: str, scheme: str) -> Address:
    try:
        split = urlsplit(url)
        port = split.port
    except ValueError as error:
        raise BadRequest(f"{printable(url)} cannot be read as a URL: {error}") from error
    if "@" in split.netloc:  # not shown: it may hold a secret
        raise BadRequest(f"an {scheme} origin holds no user names or passwords; write {scheme}://HOST/PATH/")
    if "?" in url or "#" in url:
        raise BadRequest(f"an {scheme} origin holds no query, such as a token, and no #; write {scheme}://HOST/PATH/")
    if not _HOST.fullmatch(split.netloc):
        raise BadRequest(f"{printable(url)} names no host; write {scheme}://HOST/PATH/")
    host = split.netloc.rpartition(":")[0] if port is not None else split.netloc
    host = host.lower() + ("" if port in (None, WEB_PORTS[scheme]) else f":{port}")
    parts = tuple(_unquoted(url, part) for part in split.path.strip("/").split("/") if split.path.strip("/"))
    _check_parts(url, parts)
    return Address(scheme, host, parts, f"{scheme}://{host}/" + "".join(quote_part(part) + "/" for part in parts))


def quote_part(part: str) -> str:
    """One part of a path as a URL of the web writes it."""
    return quote(part, safe=_SAFE)


def _unquoted(url: str, part: str) -> str:
    try:
        text = unquote(part, errors="strict")
    except UnicodeError as error:
        raise BadRequest(f"{printable(url)} holds %XX that are no UTF-8") from error
    if "/" in text:
        raise BadRequest(f"{printable(url)} hides a slash in %2F")
    return text


def _store_address(url: str, scheme: str) -> Address:
    name, _, path = url.removeprefix(f"{scheme}://").partition("/")
    hosted = scheme in HOSTED
    if not (_HOST if hosted else _NAME).fullmatch(name):
        what = "host (a password has no place in it)" if hosted else "bucket"
        raise BadRequest(f"a {scheme} origin names a {what}; write {scheme}://{'HOST' if hosted else 'BUCKET'}/PATH")
    if "::" in url:
        raise BadRequest(f"{printable(url)} leads from one URL to another, which no origin may")
    parts = tuple(path.rstrip("/").split("/")) if path.rstrip("/") else ()
    _check_parts(url, parts)
    return Address(scheme, name, parts, f"{scheme}://" + "/".join((name, *parts)))


def _check_parts(url: str, parts: tuple[str, ...]) -> None:
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise BadRequest(f"the path of {printable(url)} has an empty part, or . or ..")
