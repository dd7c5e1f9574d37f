"""What S3 servers answer in XML: pages of listings, and errors. Pure.

Nothing is taken on trust: an answer that is no listing, names keys outside the prefix, or says that there is more
without saying how to get it raises; a listing is complete or it fails.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree

from hoard_p2p.errors import OriginFailed
from hoard_p2p.printing import printable

_SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ObjectInfo(NamedTuple):
    """One object of a listing. `mtime`: ns since the epoch; `etag`: without its quotes."""

    key: bytes
    size: int
    mtime: int
    etag: str


class Page(NamedTuple):
    """One page of a listing. `token`: how to get the next one, empty at the end."""

    objects: list[ObjectInfo]
    token: str


class Complaint(NamedTuple):
    """An error that a server told in XML; all empty if it did not. `region`: where the bucket is."""

    code: str = ""
    message: str = ""
    region: str = ""


def parse_page(body: bytes) -> Page:
    """A page of ListObjectsV2. Raises OriginFailed for anything else."""
    try:
        root = ElementTree.fromstring(body)
        if _local(root.tag) != "ListBucketResult":
            raise OriginFailed(f"the server answered with <{printable(root.tag[:64])}> and not with a listing")
        space = root.tag[: -len("ListBucketResult")]
        quoted = (root.findtext(f"{space}EncodingType") or "").lower() == "url"
        page = Page(list(_objects(root, space, quoted)), _token(root, space))
    except (ElementTree.ParseError, ValueError, OverflowError) as error:
        raise OriginFailed(f"the server's listing cannot be read: {error}") from error
    return page


def _token(root: ElementTree.Element, space: str) -> str:
    if (root.findtext(f"{space}IsTruncated") or "false").strip().lower() != "true":
        return ""
    token = root.findtext(f"{space}NextContinuationToken") or ""
    if not token:
        raise OriginFailed("the server's listing goes on, but it does not say how: it may not know ListObjectsV2")
    return token


def _objects(root: ElementTree.Element, space: str, quoted: bool) -> Iterator[ObjectInfo]:
    """Raises ValueError."""
    cut = len(space)
    times: dict[str, int] = {}  # neighbours were often written in the same second
    for element in root.iter(f"{space}Contents"):
        told = {child.tag[cut:]: child.text or "" for child in element}
        key, size, etag = told.get("Key", ""), int(told.get("Size", "-1")), told.get("ETag", "").strip().strip('"')
        if not key or size < 0:
            raise ValueError(f"an object has no key or size: {printable(str(told)[:200])}")
        when = told.get("LastModified", "")
        mtime = times.get(when)
        if mtime is None:
            if len(times) > 4096:
                times.clear()
            mtime = times[when] = _time_ns(when)
        yield ObjectInfo(_key(key) if quoted else key.encode(), size, mtime, etag)


def _key(text: str) -> bytes:
    """Of what `encoding-type=url` makes: spaces may be `+`."""
    if "+" in text:
        text = text.replace("+", " ")
    return unquote_to_bytes(text) if "%" in text else text.encode()


def _time_ns(text: str) -> int:
    """Raises ValueError."""
    moment = datetime.fromisoformat(text)
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    return (since.days * 86400 + since.seconds) * _SECOND + since.microseconds * 1000


def parse_error(body: bytes) -> Complaint:
    """The error in an answer, as far as there is one."""
    try:
        root = ElementTree.fromstring(body)
    except (ElementTree.ParseError, ValueError):
        return Complaint()
    if _local(root.tag) != "Error":
        return Complaint()
    told = {_local(child.tag): (child.text or "").strip() for child in root}
    return Complaint(told.get("Code", "")[:64], told.get("Message", "")[:300], told.get("Region", "")[:64])


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]
