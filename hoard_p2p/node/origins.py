"""The origins that this node may and can read: named by a local user, or allowed with `--allow-origin`.

Nothing is read on a peer's word: a snapshot record names an origin, this node decides whether it opens it, and tells
the others which ones it reads (`agent.stand`). Looking at an origin may take for ever (a server that is away), so that
is done in threads that nobody else needs.
"""

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from hoard_p2p.config import Json
from hoard_p2p.errors import BadRequest, HoardError, OriginBusy, Refused, Unavailable
from hoard_p2p.node.blocking import in_executor
from hoard_p2p.node.names import Names
from hoard_p2p.node.names_wire import MAX_ORIGIN, fits_line
from hoard_p2p.node.permitting import Grant, Permissions
from hoard_p2p.objects import Origin
from hoard_p2p.origin.allowed import real_path
from hoard_p2p.origin.directory import DirectoryOrigin
from hoard_p2p.origin.meter import Meter
from hoard_p2p.origin.opening import open_origin
from hoard_p2p.origin.urls import Address, directory_url, parse_address
from hoard_p2p.peer import OriginId, origin_id
from hoard_p2p.printing import printable
from hoard_p2p.storage.store import Store

log = logging.getLogger(__name__)

MOST_ORIGINS = 256
"""As many as can be told (`peer.Standing`)."""

LOOK_THREADS = 4
LOOK_SECONDS = 10.0
LOOK_AGAIN = 60.0
LOOK_SOON = 5.0
"""After an origin went away: it may have been a moment."""

TICK = 1.0


@dataclass(frozen=True, slots=True)
class KnownOrigin:
    """One origin that a known snapshot names. `opened`: None while it cannot or may not be read, `why` says why not,
    for people."""

    url: str
    id: OriginId
    opened: Origin | None
    why: str


class Origins:
    """For the event loop."""

    def __init__(
        self, store: Store, names: Names, allow: Iterable[str], stand: Callable[[Collection[OriginId]], None]
    ) -> None:
        """`stand` tells all which origins are read here. Raises BadRequest for a prefix that can be none."""
        self.permissions = Permissions(store, allow)
        self._names = names
        self._stand = stand
        self._pool = ThreadPoolExecutor(LOOK_THREADS, "origins")
        self._known: dict[str, KnownOrigin] = {}
        self._meters: dict[str, Meter] = {}
        self._looking: dict[str, asyncio.Future[KnownOrigin]] = {}
        self._named_meanwhile: set[str] = set()
        """Since the last look began, which does not know them."""
        self._published: Counter[str] = Counter()
        """What is being published from them: no snapshot need name them yet."""
        self._turn = asyncio.Lock()
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

    def refused(self, url: str, why: str) -> None:
        """This node turned out not to be allowed to read it: until the next look. For any thread but the loop's."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._refused, url, why)

    def _refused(self, url: str, why: str) -> None:
        known = self._known.get(url)
        if known is not None and known.opened is not None:
            log.warning("the origin %s is not read by this node for now: %s", url, why)
            self._known[url] = KnownOrigin(url, origin_id(url), None, why)
            self._tell()

    @contextmanager
    def publishing(self, url: str) -> Iterator[None]:
        """It stays known meanwhile, though no snapshot may name it yet."""
        self._published[url] += 1
        try:
            yield
        finally:
            self._published[url] -= 1

    async def look(self) -> None:
        """Open what may be read, close what went away, and tell all if that changed something."""
        async with self._turn:  # one that began earlier knows of fewer
            await self._look()

    async def _look(self) -> None:
        self._named_meanwhile.clear()
        urls = await asyncio.to_thread(self._urls, list(+self._published))
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
        lost = [one for one in found if one.opened is None and self.is_open(one.url)]
        if lost:
            self._due = min(self._due, time.monotonic() + LOOK_SOON)
        fresh = self._named_meanwhile | (+self._published).keys() - set(urls)
        named = {url: self._known[url] for url in fresh if url in self._known}
        self._known = {origin.url: origin for origin in found} | named
        self._tell()

    def _urls(self, published: Sequence[str]) -> list[str]:
        """Blocking. Those that may be read first, since anybody can tell any number of others."""
        told = dict.fromkeys(record.origin for record in self._names.known() if record.origin)
        told |= dict.fromkeys(published)
        ours = {url for url in told if self.permissions.may_look(url)}
        return sorted(told, key=lambda url: url not in ours)[:MOST_ORIGINS]

    def _tell(self) -> None:
        self._stand(frozenset(origin.id for origin in self._known.values() if origin.opened is not None))

    async def _look_at(self, url: str) -> KnownOrigin:
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
            return KnownOrigin(url, origin_id(url), None, f"the origin {printable(url)} does not answer")

    def _open(self, url: str, known: KnownOrigin | None) -> KnownOrigin:
        """Blocking."""
        opened = None if known is None else known.opened
        try:
            grant = self.permissions.check(url)
            opened = opened or open_origin(url, as_owner=grant.as_owner, trusted=grant.trusted)
            with suppress(OriginBusy):  # it is there
                opened.check()
        except HoardError as error:
            if opened is not None:
                opened.close()
            return KnownOrigin(url, origin_id(url), None, str(error))
        return KnownOrigin(url, origin_id(url), opened, "")

    # --- naming

    def named(self) -> list[str]:
        """Blocking. What local users named: paths and URLs."""
        return self.permissions.named()

    async def name(self, source: str, directory: int | None = None) -> str:
        """A local user allows an origin on this node: its URL, or the path of a directory that the user has open;
        the one way to write its URL. Raises BadRequest, Refused, Unavailable, StoreFailed."""
        url = directory_url(source) if source.startswith("/") else source
        if not fits_line(url) or len(url.encode()) > MAX_ORIGIN:
            raise BadRequest(f"{printable(source)} can be no shared origin: its path is no text of at most 4,096 bytes")
        address = parse_address(url)
        if address.directory is None:
            opened = await in_executor(self._pool, self._name_url, address)
        elif directory is None:
            raise BadRequest(f"{printable(source)} is a directory: name it by its absolute path")
        else:
            status = os.fstat(directory)
            opened = await in_executor(self._pool, self._name_directory, address, (status.st_dev, status.st_ino))
        self._known[address.url] = KnownOrigin(address.url, origin_id(address.url), opened, "")
        self._named_meanwhile.add(address.url)
        self._tell()
        return address.url

    def _name_url(self, address: Address) -> Origin:
        """Blocking. What nobody can read here is not remembered."""
        known = self._known.get(address.url)
        opened = known.opened if known is not None else None
        if opened is None:
            opened = open_origin(address.url, trusted=frozenset([address.host]))
        with suppress(OriginBusy):
            opened.check()
        self.permissions.add(address.url)
        return opened

    def _name_directory(self, address: Address, place: tuple[int, int]) -> Origin:
        """Blocking."""
        path = address.directory
        assert path is not None
        try:
            real = real_path(path)
        except OSError as error:
            raise Unavailable(f"the node cannot see {printable(str(path))}: {error.strerror}") from error
        opened = DirectoryOrigin.open(real, as_owner=False, url=address.url)
        if opened.place != place:
            raise Refused(
                f"{printable(str(path))} is another directory for the node than for this command: are they in "
                "different containers? Publish it without --shared-origin, or where the node sees it"
            )
        self.permissions.add(str(path), str(real))
        return opened

    async def grant(self, url: str) -> Grant:
        """How this node may read an origin: what a process that lists it has to know. Raises Refused, Unavailable,
        BadRequest."""
        return await in_executor(self._pool, self.permissions.check, url)

    # --- asking

    def opened(self, url: str) -> Origin:
        """Raises Unavailable: it may not or cannot be read here, and why."""
        origin = self._known.get(url)
        if origin is None or origin.opened is None:
            why = origin.why if origin is not None else f"the origin {printable(url)} was not looked at yet"
            raise Unavailable(why)
        return origin.opened

    def why_not(self, url: str) -> str:
        """Why it is not read here now; empty if it is, or if nobody looked yet. For any thread."""
        origin = self._known.get(url)
        return origin.why if origin is not None and origin.opened is None else ""

    def meter(self, url: str) -> Meter:
        """What was read from it since this node started, however often it was away. For any thread."""
        return self._meters.setdefault(url, Meter())

    @property
    def any_open(self) -> bool:
        """Whether some origin can be read here."""
        return any(origin.opened is not None for origin in self._known.values())

    def is_open(self, url: str) -> bool:
        origin = self._known.get(url)
        return origin is not None and origin.opened is not None

    def body(self, nodes: Callable[[OriginId], int]) -> list[Json]:
        """What a status shows. `nodes`: how many nodes read an origin."""
        return [_body(origin, self.meter(origin.url), nodes(origin.id)) for origin in self._known.values()]

    def close(self) -> None:
        """Blocking."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for origin in self._known.values():
            if origin.opened is not None:
                origin.opened.close()


def _body(origin: KnownOrigin, meter: Meter, nodes: int) -> dict[str, Json]:
    reading = meter.reading
    return {
        "url": origin.url,
        "readable": origin.opened is not None,
        "why": origin.why,
        "nodes": nodes,
        "read": reading.read,
        "good": reading.good,
        "errors": reading.errors,
        "last_error": reading.last_error,
        "spared": reading.spared,
        "bypassed": reading.bypassed,
        "rate": int(reading.rate),
    }
