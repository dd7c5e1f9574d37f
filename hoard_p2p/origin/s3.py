"""An S3 bucket, or a part of it, as an origin: any server that speaks S3, AWS's or another.

Versions are ETags. Every read names the one that was listed (`If-Match`) and compares what the answer says of version,
range and length before a byte is handed out: what is no part of that very object is a failure. Must not know of
snapshots, peers or stores. Temporary trouble is told, not retried (but in a listing, which would start anew).
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from random import Random
from time import gmtime, strftime
from types import MappingProxyType
from typing import TypeVar

from hoard_p2p.errors import OriginBusy, OriginFailed
from hoard_p2p.objects import Kind, Listed, ObjectRange, Punctual
from hoard_p2p.origin.httpanswer import Answer
from hoard_p2p.origin.httppool import SILENT_SECONDS, Http
from hoard_p2p.origin.s3account import Account
from hoard_p2p.origin.s3failures import changed, failure, hopeless, is_expired, is_gone, is_moved
from hoard_p2p.origin.s3places import Endpoint, elsewhere, endpoint_of
from hoard_p2p.origin.s3sign import quoted_path, quoted_query
from hoard_p2p.origin.s3url import S3Address
from hoard_p2p.origin.s3xml import Complaint, Page, parse_error, parse_page
from hoard_p2p.printing import printable

MODE = 0o644
"""Objects have no permissions of their own."""

_PAGE_KEYS = 1000
_LONGEST_PAGE = 32 << 20
_LONGEST_ERROR = 1 << 20
_TURNS = 4
"""Times that one question is asked: the region learned, a redirect, credentials renewed."""

_PAGE_TRIES = 8
_FIRST_TRIES = 4
"""Times that a page is asked for while the server is not reached or fails; the first one less often, since nothing is
lost then but for who waits. One that is busy is always given time."""

PAGE_WAIT = 0.25

T = TypeVar("T")


class S3Origin(Punctual):
    """See the module. An `objects.Origin`; opens nothing before it is asked."""

    def __init__(self, address: S3Address, *, silent: float = SILENT_SECONDS, patience: float = PAGE_WAIT) -> None:
        """`silent`: seconds without a byte after which the server counts as stuck; `patience`: before a page of a
        listing is asked for again, twice as long each time."""
        self._patience = patience
        self.address = address
        self.account = Account(address)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._endpoint: Endpoint | None = None
        self._http = Http(silent)
        self._jitter = Random()
        self._amz = {"x-amz-request-payer": "requester"} if address.requester_pays else {}
        self._prefix = address.prefix.encode()

    @property
    def url(self) -> str:
        return self.address.url

    def identity(self, path: bytes) -> bytes:
        return self.address.identity(self._prefix + path)

    def check(self) -> None:
        """Lists one key, and asks for the head of that object: both need a permission."""
        page = self._page("", 1)
        if not page.objects:
            self._nothing()
            return
        first = page.objects[0].key
        self._ask("HEAD", first, _nothing_taken, name=self._name(first))

    def listing(self) -> Iterator[Listed]:
        """Every object, while the next page is on its way."""
        with ThreadPoolExecutor(1, thread_name_prefix="s3-listing") as ahead:
            page, some = self._page("", _PAGE_KEYS), False
            while True:
                after = ahead.submit(self._page, page.token, _PAGE_KEYS) if page.token else None
                for entry in self._entries(page):
                    some = True
                    yield entry
                if after is None:
                    break
                token, page = page.token, after.result()
                if page.token == token:
                    raise OriginFailed(f"{self.url}: the server's listing goes in a circle")
        if not some:
            self._nothing()

    def read(self, wanted: ObjectRange, into: memoryview, moved: Callable[[int], None]) -> None:
        if len(into) != wanted.stop - wanted.start:
            raise ValueError(f"{len(into)} bytes of room for {wanted.start} to {wanted.stop}")
        key, version = self._prefix + wanted.path, wanted.version.decode()
        if not into:
            self._compare(key, wanted)
            return
        headers = {"range": f"bytes={wanted.start}-{wanted.stop - 1}"}
        if version:
            headers["if-match"] = f'"{version}"'

        def take(answer: Answer) -> None:
            self._check(answer, key, wanted)
            answer.read_into(into, moved)

        self._ask("GET", key, take, name=self._name(key), headers=headers, wanted=wanted)

    def close(self) -> None:
        self._closed.set()
        self._http.close()

    # --- listing

    def _entries(self, page: Page) -> Iterator[Listed]:
        cut = len(self._prefix)
        for key, size, mtime, etag in page.objects:
            if not key.startswith(self._prefix):
                raise OriginFailed(f"{self.url}: the server lists {printable(key)}, which is not beneath it")
            if not etag or len(etag) > 255:
                raise hopeless(f"{self._name(key)} has no ETag in the server's listing: changes could not be noticed")
            if size or len(key) > cut:  # a marker of the prefix itself is no entry
                yield Listed(key[cut:], Kind.FILE, size, mtime, MODE, etag.encode())

    def _page(self, token: str, keys: int) -> Page:
        told = {"list-type": "2", "encoding-type": "url", "max-keys": str(keys), "prefix": self.address.prefix}
        if token:
            told["continuation-token"] = token
        for tried in range(1, _PAGE_TRIES + 1):
            try:
                return self._ask("GET", None, _page_taken, name=self.url, query=quoted_query(told))
            except OriginFailed as error:
                most = _PAGE_TRIES if token or isinstance(error, OriginBusy) else _FIRST_TRIES
                if not error.again or tried == most:
                    raise
            wait = self._patience * 2 ** (tried - 1)
            if self._closed.wait(wait * (0.5 + self._jitter.random())):
                break
        raise OriginFailed(f"{self.url}: is no longer read here")

    def _nothing(self) -> None:
        """Raises what is to be said of a prefix that has no objects; an empty bucket is an empty data set."""
        if not self.address.prefix:
            return
        alone = self._prefix.rstrip(b"/")
        try:
            self._ask("HEAD", alone, _nothing_taken, name=self.url)
        except OriginFailed:
            raise hopeless(f"{self.url}: there are no objects beneath this prefix") from None
        raise hopeless(f"{self._name(alone)} is an object, not a prefix with objects beneath it; publish what holds it")

    # --- one question

    def _ask(
        self,
        method: str,
        key: bytes | None,
        take: Callable[[Answer], T],
        *,
        name: str,
        query: str = "",
        headers: Mapping[str, str] = MappingProxyType({}),
        wanted: ObjectRange | None = None,
    ) -> T:
        """What `take` makes of an answer that is no refusal. Raises OriginFailed with `name` in its message."""
        renewed = False
        for _ in range(_TURNS):
            endpoint = self._reached()
            path = quoted_path(endpoint.path(self.address.bucket, key))
            try:
                signed = self._signed(method, endpoint, path, query)
                target = f"{path}?{query}" if query else path
                with self._http.ask(
                    endpoint.base(self.address.bucket), method, target, {**headers, **signed}
                ) as answer:
                    if answer.status in (200, 206):
                        return take(answer)
                    complaint = parse_error(answer.read_all(_LONGEST_ERROR))
            except OriginFailed as error:
                _named(error, name)
                raise
            moved = elsewhere(endpoint, answer.status, answer.headers, complaint)
            if moved:
                self._endpoint = moved
            elif is_expired(complaint) and not renewed and self.account.renew():
                renewed = True
            else:
                raise self._refusal(name, key, answer.status, complaint, wanted)
        raise OriginFailed(f"{name}: the server sends this node from one place to another")

    def _signed(self, method: str, endpoint: Endpoint, path: str, query: str) -> dict[str, str]:
        signer = self.account.signer(endpoint.region)
        if signer is None:
            return self._amz
        host, now = endpoint.base(self.address.bucket).host, strftime("%Y%m%dT%H%M%SZ", gmtime())
        return signer.headers(method, host, path, query, amz=self._amz, now=now)

    def _reached(self) -> Endpoint:
        if self._endpoint is None:
            with self._lock:
                if self._endpoint is None:
                    reach = self.account.reach()
                    self._http.trust(reach.ca_bundle)
                    style = self.address.style or reach.style
                    self._endpoint = endpoint_of(self.address.bucket, reach.endpoint, reach.region, style)
        return self._endpoint

    def _refusal(
        self, name: str, key: bytes | None, status: int, complaint: Complaint, wanted: ObjectRange | None
    ) -> OriginFailed:
        if key is not None and wanted is not None:
            if is_gone(status, complaint):
                return changed(name, wanted.version.decode() or "any", "it is gone")
            if status in (412, 416):
                return changed(name, wanted.version.decode() or f"{wanted.size} bytes", self._now(key))
        if is_moved(status, complaint):
            return OriginFailed(
                f"{name}: the server sends this node elsewhere (status {status}); name that endpoint or region"
            )
        return failure(name, status, complaint)

    # --- one object

    def _check(self, answer: Answer, key: bytes, wanted: ObjectRange) -> None:
        """Raises OriginFailed for an answer that is no such part of that version."""
        etag, version = _etag(answer), wanted.version.decode()
        length = wanted.stop - wanted.start
        if version and etag and etag != version:
            raise changed(self._name(key), version, etag)
        if version and not etag:
            raise OriginFailed(f"an answer that is no object: {_kind(answer)}")
        if answer.status == 206:
            self._check_range(answer, key, wanted)
        elif wanted.start or wanted.stop != wanted.size:
            raise OriginFailed(f"an answer that is not the range asked for: {_kind(answer)}")
        if answer.length != length:
            raise OriginFailed(f"sends {answer.length} bytes, not {length}")

    def _check_range(self, answer: Answer, key: bytes, wanted: ObjectRange) -> None:
        told = answer.headers.get("content-range", "")
        part, _, size = told.partition("/")
        if part != f"bytes {wanted.start}-{wanted.stop - 1}" or (wanted.version and size != str(wanted.size)):
            asked = f"{wanted.start}-{wanted.stop - 1}/{wanted.size}"
            raise OriginFailed(f"sends {printable(told[:80]) or 'no range'} where {asked} was asked for")
        if size != str(wanted.size):
            raise changed(self._name(key), f"{wanted.size} bytes", f"{printable(size[:20])} bytes")

    def _compare(self, key: bytes, wanted: ObjectRange) -> None:
        def take(answer: Answer) -> None:
            etag, size = _etag(answer), answer.headers.get("content-length", "")
            if size != str(wanted.size) or (wanted.version and etag != wanted.version.decode()):
                raise changed(self._name(key), wanted.version.decode() or f"{wanted.size} bytes", etag or "unknown")

        self._ask("HEAD", key, take, name=self._name(key), wanted=wanted)

    def _now(self, key: bytes) -> str:
        try:
            return self._ask("HEAD", key, _etag, name=self._name(key))
        except OriginFailed:
            return "another"

    def _name(self, key: bytes) -> str:
        return f"s3://{self.address.bucket}/{printable(key)}"


def _page_taken(answer: Answer) -> Page:
    return parse_page(answer.read_all(_LONGEST_PAGE))


def _etag(answer: Answer) -> str:
    """Without its quotes; empty if it is not told."""
    return answer.headers.get("etag", "").strip('"')


def _nothing_taken(answer: Answer) -> None:
    del answer


def _kind(answer: Answer) -> str:
    return f"status {answer.status}, {printable(answer.headers.get('content-type', 'no type')[:60])}"


def _named(error: OriginFailed, name: str) -> None:
    text = str(error)
    if not text.startswith(name):
        error.args = (f"{name}: {text}",)
