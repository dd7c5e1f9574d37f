"""The origins that this node may and can read: named by a local user, or allowed with `--allow-origin`.

Nothing is read on a peer's word: a snapshot record names an origin, this node decides whether it opens it, and tells
the others which ones it reads (`agent.stand`). Looking at an origin may take for ever (a server that is away), so that
is done in threads that nobody else needs.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest, HoardError, Refused, Unavailable
from hoard_p2p.node.blocking import in_executor
from hoard_p2p.node.names import Names
from hoard_p2p.node.names_wire import MAX_ORIGIN, fits_line
from hoard_p2p.origin.allowed import directory_of, directory_url, is_beneath, may_look, parse_prefix, real_path
from hoard_p2p.origin.directory import DirectoryOrigin
from hoard_p2p.peer import OriginId, origin_id
from hoard_p2p.printing import printable
from hoard_p2p.storage.store import Store

log = logging.getLogger(__name__)

NAMED = b"origins"
"""In META: the paths that local users named, as they wrote them and as they are, as JSON."""

MOST_NAMED = 256
MOST_ORIGINS = 256
"""As many as can be told (`peer.Standing`)."""

LOOK_THREADS = 4
LOOK_SECONDS = 10.0
LOOK_AGAIN = 60.0
TICK = 1.0


@dataclass(frozen=True, slots=True)
class Origin:
    """One origin that a known snapshot names. `opened`: None while it cannot or may not be read, `why` says why not,
    for people."""

    url: str
    id: OriginId
    opened: DirectoryOrigin | None
    why: str


class Origins:
    """For the event loop."""

    def __init__(
        self, store: Store, names: Names, allow: Iterable[str], stand: Callable[[Collection[OriginId]], None]
    ) -> None:
        """`stand` tells all which origins are read here. Raises BadRequest for a prefix that can be none."""
        self._store = store
        self._names = names
        self._prefixes = [parse_prefix(text) for text in allow]
        self._stand = stand
        self._pool = ThreadPoolExecutor(LOOK_THREADS, "origins")
        self._known: dict[str, Origin] = {}
        self._looking: dict[str, asyncio.Future[Origin]] = {}
        self._named_meanwhile: set[str] = set()
        """Since the last look began, which does not know them."""
        self._due = 0.0
        self._seen = b""
        self._soon = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Until cancelled: look at the origins of known snapshots, when some are new and once a minute."""
        while True:
            digest = self._names.digests()[0]
            if digest != self._seen or time.monotonic() >= self._due:
                self._seen, self._due = digest, time.monotonic() + LOOK_AGAIN
                try:
                    await self.look()
                except Exception:  # the door of this task: a bug must not end the node
                    log.exception("the origins of known snapshots were not looked at")
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK):
                    await self._soon.wait()
            self._soon.clear()

    def soon(self) -> None:
        """Something went wrong with an origin: look again."""
        self._due = 0.0
        self._soon.set()

    def soon_from_thread(self) -> None:
        """`soon`, for any thread but the loop's."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.soon)

    async def look(self) -> None:
        """Open what may be read, close what went away, and tell all if that changed something."""
        self._named_meanwhile.clear()
        urls = await asyncio.to_thread(self._urls)
        async with asyncio.TaskGroup() as group:
            looks = [group.create_task(self._look_at(url)) for url in urls]
        found = [look.result() for look in looks]
        for origin in found:
            before = self._known.get(origin.url)
            if origin.why and (before is None or before.why != origin.why):
                log.log(
                    logging.WARNING if before is not None and before.opened is not None else logging.INFO,
                    "%s", origin.why,
                )  # fmt: skip
        named = {url: self._known[url] for url in self._named_meanwhile}
        self._known = {origin.url: origin for origin in found} | named
        self._tell()

    def _urls(self) -> list[str]:
        """Blocking. Those that may be read first, since anybody can tell any number of others."""
        named, prefixes = self.named(), [*self._prefixes, *self._real_prefixes()]
        told = dict.fromkeys(record.origin for record in self._names.known() if record.origin)
        ours = {url for url in told if (path := directory_of(url)) and may_look(path, named, prefixes)}
        return sorted(told, key=lambda url: url not in ours)[:MOST_ORIGINS]

    def _tell(self) -> None:
        self._stand(frozenset(origin.id for origin in self._known.values() if origin.opened is not None))

    async def _look_at(self, url: str) -> Origin:
        """One that does not answer is looked at by one thread at a time."""
        looking = self._looking.get(url)
        if looking is None:
            known = self._known.get(url)
            looking = self._looking[url] = self._loop.run_in_executor(self._pool, self._open, url, known)
            looking.add_done_callback(lambda _: self._looking.pop(url, None))
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await asyncio.shield(looking)
        except TimeoutError:
            return Origin(url, origin_id(url), None, f"the origin {printable(url)} does not answer")

    def _open(self, url: str, known: Origin | None) -> Origin:
        """Blocking."""
        try:
            if known is not None and known.opened is not None:
                self._check_allowed(known.opened.path, self.named())
                known.opened.check()
                return known
            return Origin(url, origin_id(url), self._opened(url), "")
        except HoardError as error:
            return Origin(url, origin_id(url), None, str(error))

    def _opened(self, url: str) -> DirectoryOrigin:
        """A directory origin that this node may read. Raises Unavailable, Refused."""
        path, named = directory_of(url), self.named()
        if path is None:
            raise Unavailable(f"the origin {printable(url)} is of a kind that this version cannot read")
        if not may_look(path, named, [*self._prefixes, *self._real_prefixes()]):
            raise _not_allowed(path)
        try:
            real = real_path(path)
        except OSError as error:
            raise Unavailable(f"the origin {printable(url)} is not there: {error.strerror}") from error
        self._check_allowed(real, named)
        return DirectoryOrigin.open(real, as_owner=str(real) not in named)

    def _check_allowed(self, real: Path, named: Collection[str]) -> None:
        """Raises Refused."""
        if str(real) not in named and not is_beneath(real, self._real_prefixes()):
            raise _not_allowed(real)

    def _real_prefixes(self) -> list[Path]:
        found = []
        for prefix in self._prefixes:
            with suppress(OSError):  # not mounted yet
                found.append(real_path(prefix))
        return found

    # --- naming

    def named(self) -> list[str]:
        """Blocking. The paths that local users named."""
        told = json.loads(self._store.meta(NAMED) or b"[]")
        return [str(path) for path in told] if isinstance(told, list) else []

    async def name(self, source: str, directory: int) -> str:
        """A local user, who has this directory open, allows it as an origin on this node; its URL. Raises BadRequest,
        Refused, Unavailable, StoreFailed."""
        url = directory_url(source)
        if not source.startswith("/") or not fits_line(url) or len(url.encode()) > MAX_ORIGIN:
            raise BadRequest(f"{printable(source)} can be no shared origin: its path is no text of at most 4,096 bytes")
        status = os.fstat(directory)
        opened = await in_executor(self._pool, self._name, url, (status.st_dev, status.st_ino))
        self._known[url] = Origin(url, origin_id(url), opened, "")
        self._named_meanwhile.add(url)
        self._tell()
        return url

    def _name(self, url: str, identity: tuple[int, int]) -> DirectoryOrigin:
        """Blocking."""
        path = directory_of(url)
        assert path is not None
        try:
            real = real_path(path)
        except OSError as error:
            raise Unavailable(f"the node cannot see {printable(str(path))}: {error.strerror}") from error
        opened = DirectoryOrigin.open(real, as_owner=False)
        if opened.identity != identity:
            raise Refused(
                f"{printable(str(path))} is another directory for the node than for this command: are they in "
                "different containers? Publish it without --shared-origin, or where the node sees it"
            )
        named = self.named()
        fresh = [text for text in dict.fromkeys((str(path), str(real))) if text not in named]
        if fresh:
            self._store.choose(NAMED, json.dumps([*named, *fresh][-MOST_NAMED:]).encode())
        return opened

    # --- asking

    def opened(self, url: str) -> DirectoryOrigin:
        """Raises Unavailable: it may not or cannot be read here, and why."""
        origin = self._known.get(url)
        if origin is None or origin.opened is None:
            why = origin.why if origin is not None else f"the origin {printable(url)} was not looked at yet"
            raise Unavailable(why)
        return origin.opened

    def is_open(self, url: str) -> bool:
        origin = self._known.get(url)
        return origin is not None and origin.opened is not None

    def body(self, nodes: Callable[[OriginId], int]) -> list[Json]:
        """What a status shows. `nodes`: how many nodes read an origin."""
        return [_body(origin, nodes(origin.id)) for origin in self._known.values()]

    def close(self) -> None:
        """Blocking."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _not_allowed(path: Path) -> Refused:
    text = printable(str(path))
    return Refused(f"the origin {text} may not be read by this node; allow it with: hoard up --allow-origin {text}")


def _body(origin: Origin, nodes: int) -> dict[str, Json]:
    return {
        "url": origin.url,
        "readable": origin.opened is not None,
        "why": origin.why,
        "nodes": nodes,
    }
