"""The URLs of S3 origins: `s3://BUCKET/PREFIX`, and where and how to ask, after a `?`. Pure.

A URL is the same on every node and holds no secrets. The prefix means what lies beneath it by whole parts, as a
directory does: `s3://b/bus` is `bus/...`, never `bush/...`.
"""

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from hoard_p2p.errors import BadRequest
from hoard_p2p.printing import printable

SCHEME = "s3://"
STYLES = ("path", "virtual")
FLAGS = ("requester_pays", "anonymous")

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_REGION = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_HOST = re.compile(r"[a-z0-9_.-]+|\[[0-9a-f:.]+\]")
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_AWS = re.compile(r"s3[.-]([a-z]{2}(?:-[a-z]+)+-\d)\.amazonaws\.com(?:\.cn)?")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_LONGEST_KEY = 1024
"""Bytes of UTF-8 (AWS documentation, "Naming Amazon S3 objects")."""

EXAMPLE = "write for instance s3://bucket/prefix, or s3://bucket/prefix?endpoint=http://host:8333"


@dataclass(frozen=True, slots=True)
class S3Address:
    """Where objects are. `prefix`: empty, or it ends in a slash. `endpoint`: empty, the one that AWS has for the
    region; else scheme, host, port and perhaps a path, without a slash at the end. `region`: empty, the node's own.
    `style`: `path`, `virtual`, or empty, what suits."""

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    requester_pays: bool = False
    anonymous: bool = False
    style: str = ""

    @property
    def url(self) -> str:
        """The one way to write it; `parse_s3` reads it."""
        told = [
            *(f"{name}={quote(value, safe=':/[]')}" for name, value in self._texts() if value),
            *(f"{name}=1" for name in FLAGS if getattr(self, name)),
        ]
        query = "?" + "&".join(told) if told else ""
        return f"{SCHEME}{self.bucket}/{''.join(map(_escaped, self.prefix))}{query}"

    def identity(self, key: bytes) -> bytes:
        """The whole name of an object, whatever the prefix and the ways to ask for it."""
        return f"{SCHEME}{self.endpoint}/{self.bucket}/".encode() + key

    def _texts(self) -> tuple[tuple[str, str], ...]:
        return (("endpoint", self.endpoint), ("region", self.region), ("style", self.style))


def parse_s3(url: str) -> S3Address:
    """The address that a URL names. `%XX` in its prefix stand for bytes of UTF-8. Raises BadRequest."""
    if not url.startswith(SCHEME):
        raise BadRequest(f"{printable(url)} is no S3 URL; {EXAMPLE}")
    name, _, query = url.removeprefix(SCHEME).partition("?")
    bucket, _, quoted = name.partition("/")
    if "@" in bucket:  # not shown: it may hold a secret
        raise BadRequest(f"an S3 URL holds no keys, they come from the node's own environment and files; {EXAMPLE}")
    if not _BUCKET.fullmatch(bucket):
        raise BadRequest(f"{printable(url)} names no bucket; {EXAMPLE}")
    options = _options(url, query)
    endpoint, region = _endpoint(options.pop("endpoint", ""))
    region = options.pop("region", region)
    if region and not _REGION.fullmatch(region):
        raise BadRequest(f"{printable(region)} is no region; write for instance region=eu-central-1")
    style = options.pop("style", "")
    if style and style not in STYLES:
        raise BadRequest(f"style={printable(style)} is unknown; write style=path or style=virtual")
    flags = {flag: _flag(flag, options.pop(flag, "")) for flag in FLAGS}
    if options:
        raise BadRequest(f"{printable(min(options))} means nothing in an S3 URL; it may be endpoint, region, "
                         f"requester_pays, anonymous or style")  # fmt: skip
    return S3Address(bucket, _prefix(url, quoted), endpoint, region, style=style, **flags)


def _options(url: str, query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=16)
    except ValueError as error:
        raise BadRequest(f"what follows the ? in {printable(url)} cannot be read: {error}; {EXAMPLE}") from error
    if len(dict(pairs)) != len(pairs):
        raise BadRequest(f"{printable(url)} says something twice")
    return dict(pairs)


def _prefix(url: str, quoted: str) -> str:
    try:
        prefix = unquote(quoted, errors="strict")
        size = len(prefix.encode())
    except UnicodeError as error:
        raise BadRequest(f"the prefix of {printable(url)} is no UTF-8, as names of objects are") from error
    if size > _LONGEST_KEY or "\0" in prefix:
        raise BadRequest(f"the prefix of {printable(url)} is none that an object can have: over 1024 bytes, or a NUL")
    return prefix if not prefix or prefix.endswith("/") else prefix + "/"


def _flag(name: str, value: str) -> bool:
    if value not in ("", "0", "1"):
        raise BadRequest(f"{name}={printable(value)} means nothing; write {name}=1")
    return value == "1"


def parse_endpoint(text: str) -> str:
    """An endpoint in the one way to write it, empty if it is AWS's own. Raises BadRequest."""
    return _endpoint(text)[0]


def _endpoint(text: str) -> tuple[str, str]:
    """The endpoint, and the region that it tells; AWS's own become the region alone."""
    if not text:
        return "", ""
    wrong = BadRequest("the endpoint cannot be read; write for instance endpoint=https://host:9000, without user names")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise wrong from None
    host, path = parts.netloc.rpartition(":")[0] if port is not None else parts.netloc, parts.path.rstrip("/")
    host = host.lower()
    plain = parts.scheme in _DEFAULT_PORTS and not parts.query and not parts.fragment
    if not plain or not _HOST.fullmatch(host) or not _PATH.fullmatch(path):
        raise wrong
    if parts.scheme == "https" and port in (None, 443) and not path:
        if host == "s3.amazonaws.com":
            return "", ""
        aws = _AWS.fullmatch(host)
        if aws:
            return "", aws[1]
    told = "" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{host}{told}{path}", ""


def _escaped(character: str) -> str:
    if character.isprintable() and character not in "%?# ":
        return character
    return quote(character, safe="")
