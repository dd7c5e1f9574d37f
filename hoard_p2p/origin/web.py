"""Origins on web servers that show folders as pages with links: Apache, nginx, `python -m http.server` and their like.

An object's version is its ETag, else its Last-Modified; one that has neither can be read by whoever knows the ids of
its bytes, and is no part of a lazy data set.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http.client import HTTPResponse
from urllib.parse import quote

from hoard_p2p.errors import ObjectChanged, OriginBusy, OriginFailed, OriginRefused
from hoard_p2p.objects import Kind, Listed, ObjectRange
from hoard_p2p.origin.urls import Address
from hoard_p2p.origin.webdoor import Answer, WebDoor
from hoard_p2p.origin.webindex import IndexPage
from hoard_p2p.printing import printable

LOOKERS = 8
"""Files that are asked about at a time while a folder is listed: its page tells no versions."""

MODE = 0o644
MAX_VERSION = 255
PAGE = 1 << 16
AGAIN = "publish again"


class WebOrigin:
    """An `Origin`."""

    def __init__(self, address: Address, trusted: frozenset[str] = frozenset()) -> None:
        """`trusted`: see `WebDoor`."""
        self._url = address.url
        self._door = WebDoor(trusted)

    @property
    def url(self) -> str:
        return self._url

    def identity(self, path: bytes) -> bytes:
        """See `Origin`."""
        return self._object(path).encode()

    def close(self) -> None:
        """See `Origin`."""
        self._door.close()

    def check(self) -> None:
        """See `Origin`."""
        with self._door.ask("GET", self._url, {}) as answer:
            _folder(answer)

    def _object(self, path: bytes) -> str:
        return self._url + quote(path, safe="/!$&'()*+,;=:@~-._")

    # --- listing

    def listing(self) -> Iterator[Listed]:
        """See `Origin`. Memory grows with the folders that wait, and the length of one page."""
        folders = [b""]
        with ThreadPoolExecutor(LOOKERS, "web") as pool:
            while folders:
                yield from self._listed(folders.pop(), folders, pool)

    def _listed(self, folder: bytes, folders: list[bytes], pool: ThreadPoolExecutor) -> Iterator[Listed]:
        asked: deque[Future[Listed]] = deque()
        for name in self._names(folder):
            if name.endswith(b"/"):
                yield Listed(folder + name[:-1], Kind.DIRECTORY, 0, 0, 0o755, b"")
                folders.append(folder + name)
                continue
            asked.append(pool.submit(self._look, folder + name))
            if len(asked) > 2 * LOOKERS:
                yield self._noted(asked.popleft().result(), folders)
        while asked:
            yield self._noted(asked.popleft().result(), folders)

    @staticmethod
    def _noted(entry: Listed, folders: list[bytes]) -> Listed:
        if entry.kind is Kind.DIRECTORY:
            folders.append(entry.path + b"/")
        return entry

    def _names(self, folder: bytes) -> Iterator[bytes]:
        with self._door.ask("GET", self._object(folder), {}) as answer:
            _folder(answer)
            page = IndexPage(answer.url)
            charset = answer.response.headers.get_content_charset("utf-8")
            while piece := answer.response.read(PAGE):
                yield from page.names(_decoded(piece, charset))

    def _look(self, path: bytes) -> Listed:
        url = self._object(path)
        with self._door.ask("HEAD", url, {}) as answer:
            response = answer.response
            response.read()
            if response.status == 200 and answer.url == url + "/":
                return Listed(path, Kind.DIRECTORY, 0, 0, 0o755, b"")
            if response.status in (401, 403, 404, 410):
                return _unfit(path, f"the server answers {response.status} {response.reason}")
            _check_status(response, url, (200,))
            length, version = response.getheader("Content-Length", ""), _version(response)
            if not length.isascii() or not length.isdigit():
                return _unfit(path, "the server does not tell how long it is")
            if not version:
                return _unfit(path, "the server tells neither ETag nor Last-Modified: a change could not be noticed")
            return Listed(path, Kind.FILE, int(length), _mtime(response), MODE, version)

    # --- reading

    def read(self, wanted: ObjectRange, into: memoryview, moved: Callable[[int], None]) -> None:
        """See `Origin`."""
        url = self._object(wanted.path)
        if not len(into):
            self._compare(wanted, url)
            return
        with self._door.ask("GET", url, _conditions(wanted)) as answer:
            response = answer.response
            _check_status(response, url, (200, 206))
            _check_version(response, wanted, url)
            _check_range(response, wanted, url)
            done = 0
            while done < len(into):
                count = response.readinto(into[done:])
                if not count:
                    raise OriginFailed(f"{printable(url)}: it ended after {done:,} of {len(into):,} bytes")
                done += count
                moved(count)

    def _compare(self, wanted: ObjectRange, url: str) -> None:
        """Of an empty object there is no byte to ask for."""
        with self._door.ask("HEAD", url, {}) as answer:
            answer.response.read()
            _check_status(answer.response, url, (200,))
            _check_version(answer.response, wanted, url)
            length = answer.response.getheader("Content-Length", "")
            if length != str(wanted.size):
                told = f"{printable(length)} bytes now, {wanted.size:,} when it was listed"
                raise ObjectChanged(f"{printable(url)}: {told}; {AGAIN}")


def _conditions(wanted: ObjectRange) -> dict[str, str]:
    asked = {"Range": f"bytes={wanted.start}-{wanted.stop - 1}"}
    version = wanted.version.decode("latin-1")
    if version.startswith('"'):
        asked["If-Match"] = version
    elif version and not version.startswith("W/"):
        asked["If-Unmodified-Since"] = version
    return asked


def _version(response: HTTPResponse) -> bytes:
    told = response.getheader("ETag") or response.getheader("Last-Modified") or ""
    version = told.strip().encode("latin-1", "replace")
    return version if len(version) <= MAX_VERSION else b""


def _mtime(response: HTTPResponse) -> int:
    """In ns; 0 if it is not told."""
    with suppress(ValueError, TypeError, OverflowError, OSError):
        return max(0, int(parsedate_to_datetime(response.getheader("Last-Modified") or "").timestamp())) * 10**9
    return 0


def _unfit(path: bytes, why: str) -> Listed:
    return Listed(path, Kind.UNREADABLE, 0, 0, 0, b"", target=why.encode())


def _decoded(piece: bytes, charset: str) -> str:
    """Links are ASCII, whatever else is on the page."""
    try:
        return piece.decode(charset, "replace")
    except LookupError:
        return piece.decode("latin-1")


def _folder(answer: Answer) -> None:
    response = answer.response
    _check_status(response, answer.url, (200,))
    if response.headers.get_content_type() != "text/html" or not answer.url.endswith("/"):
        raise OriginFailed(
            f"{printable(answer.url)} is no page that lists a folder, but {response.headers.get_content_type()}: "
            "name a folder whose files the server lists"
        )


def _check_status(response: HTTPResponse, url: str, good: tuple[int, ...]) -> None:
    status, shown = response.status, f"{printable(url)}: {response.status} {printable(response.reason)}"
    if status in good:
        return
    if status in (401, 403):
        raise OriginRefused(f"{shown}; the server does not let this node read it")
    if status in (404, 410, 412, 416):
        raise ObjectChanged(f"{shown}: changed or gone since it was listed; {AGAIN}")
    if status in (429, 503):
        raise OriginBusy(shown)
    raise OriginFailed(shown)


def _check_range(response: HTTPResponse, wanted: ObjectRange, url: str) -> None:
    """That the answer is what was asked for, and nothing around it."""
    shown, length = printable(url), response.getheader("Content-Length")
    if response.getheader("Content-Encoding", "identity") != "identity":
        raise OriginFailed(f"{shown}: the server sent it in another encoding than asked for")
    whole = wanted.start == 0 and wanted.stop == wanted.size
    told = response.getheader("Content-Range")
    if response.status == 200 and not whole:
        raise OriginFailed(f"{shown}: the server does not give parts of files (no Range), or gave another page")
    if response.status == 206 and told != f"bytes {wanted.start}-{wanted.stop - 1}/{wanted.size}":
        size = (told or "").rpartition("/")[2]
        if size.isdigit() and int(size) != wanted.size:
            raise ObjectChanged(f"{shown}: {int(size):,} bytes now, {wanted.size:,} when it was listed; {AGAIN}")
        raise OriginFailed(f"{shown}: the server gave another part than asked for: {printable(told or 'none')}")
    if length is not None and length != str(wanted.stop - wanted.start):
        raise OriginFailed(f"{shown}: an answer of {printable(length)} bytes, not {wanted.stop - wanted.start}")


def _check_version(response: HTTPResponse, wanted: ObjectRange, url: str) -> None:
    now = _version(response)
    if not wanted.version or now == wanted.version:
        return
    if not now or (response.status == 200 and response.headers.get_content_type() == "text/html"):
        raise OriginFailed(f"{printable(url)}: the server gave another page than the file")
    told = f"now {printable(now)}, then {printable(wanted.version)}"
    raise ObjectChanged(f"{printable(url)}: changed since it was listed: {told}; {AGAIN}")
