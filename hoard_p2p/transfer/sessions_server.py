"""The door of a node with a key: grants sessions, lets only proven requests in, and proves the answers.

All that a stranger can reach is the handshake; what it costs is bounded, and it cannot push out sessions that were
used once.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable

from aiohttp import web
from blake3 import blake3

from hoard_p2p.errors import BadRequest
from hoard_p2p.transfer import sessions
from hoard_p2p.transfer.guard import Handler, admission, admit, read_body
from hoard_p2p.transfer.keys import KeyRing, Security
from hoard_p2p.transfer.sessions import Admitted, Claim, Held, Offer, granted
from hoard_p2p.transfer.wire import ON_LOOP, encode_error

log = logging.getLogger(__name__)

MOST_SESSIONS = 16384
"""Sessions that were used, about 400 bytes each; the one unused for longest goes first."""
MOST_OFFERED = 4096
"""Sessions that were granted and not used yet."""
OFFERED_TIME = 30.0
IDLE_TIME = 600.0
MOST_NAMED = 256
"""Strangers that are named in the log, once each."""


class Marked(web.StreamResponse):
    """An answer whose body is not in memory, and has a mark all the same."""

    def __init__(self, mark: Callable[[], str] | None, kind: str) -> None:
        super().__init__(headers={"Content-Type": kind})
        self.mark = mark


class SessionTable:
    """The sessions that this node granted. For one thread; the clock is monotonic seconds."""

    def __init__(self, ring: KeyRing, clock: Callable[[], float] = time.monotonic) -> None:
        self._ring = ring
        self._clock = clock
        self._offered: OrderedDict[bytes, Held] = OrderedDict()
        self._used: OrderedDict[bytes, Held] = OrderedDict()

    def __len__(self) -> int:
        return len(self._offered) + len(self._used)

    def grant(self, offer: Offer) -> bytes | None:
        """The encoded grant of a new session; None if the key that the caller signs with is not ours."""
        key = self._ring.find(offer.fingerprint)
        if key is None:
            return None
        secret, grant = granted(key, offer, self._ring.me)
        self._offered[grant.session] = Held(offer.node, secret, 0, self._clock())
        _trim(self._offered, MOST_OFFERED, self._clock() - OFFERED_TIME)
        return grant.encode()

    def admit(self, header: str, method: str, path: str) -> Admitted | None:
        """The request with this header, if it is the next one of a session here; it is used up then."""
        claim = Claim.parse(header)
        if claim is None:
            return None
        held = self._used.get(claim.session) or self._offered.get(claim.session)
        if held is None or not claim.is_of(held, method, path):
            return None
        held.next += 1
        held.used = self._clock()
        self._offered.pop(claim.session, None)
        self._used[claim.session] = held
        self._used.move_to_end(claim.session)
        _trim(self._used, MOST_SESSIONS, held.used - IDLE_TIME)
        return Admitted(held.node, claim.session, held.secret, claim.number, claim.body)


def _trim(table: OrderedDict[bytes, Held], most: int, earliest: float) -> None:
    """Drop the oldest until there are at most `most`, and all that were not used since `earliest`."""
    while table and (len(table) > most or next(iter(table.values())).used < earliest):
        table.popitem(last=False)


class Sentry:
    """The middleware and the endpoint of sessions. Without a key it lets everybody in, and refuses handshakes."""

    def __init__(self, security: Security) -> None:
        self._table = None if security.ring is None else SessionTable(security.ring)
        self._named: set[str] = set()

    async def session(self, request: web.Request) -> web.Response:
        """`POST /v1/session`."""
        offer = Offer.decode(await read_body(request, sessions.OFFER_SIZE, OFFERED_TIME))
        if self._table is None:
            self._name(request, "has a key and this node has none")
            return _stay_out("this node has no key (open mode); start it with --cluster-key-file")
        grant = self._table.grant(offer)
        if grant is None:
            self._name(request, f"signs with the key {offer.fingerprint.hex()}, which this node does not have")
            return _stay_out("another key; both key files need the key that the caller signs with, its first")
        return web.Response(body=grant, content_type="application/octet-stream")

    @web.middleware
    async def check_proof(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Only what is proven passes, and the handshake."""
        if self._table is None or (request.path == sessions.PATH and request.method == "POST"):
            return await handler(request)
        header = request.headers.get(sessions.HEADER, "")
        admitted = self._table.admit(header, request.method, request.raw_path)
        if admitted is None:
            if not header:
                self._name(request, "has no key")
            return _stay_out("this cluster has a key; start your node with its --cluster-key-file")
        admit(request, admitted)
        return await handler(request)

    async def prove(self, request: web.Request, response: web.StreamResponse) -> None:
        """Called before each answer begins (`on_response_prepare`)."""
        admitted = admission(request)
        if admitted is not None:
            mark = await _mark(response)
            response.headers[sessions.HEADER] = admitted.answer(response.status, response.content_type, mark)

    def _name(self, request: web.Request, why: str) -> None:
        """Say once that a caller is left alone."""
        remote = request.remote or "somebody"
        if remote not in self._named and len(self._named) < MOST_NAMED:
            self._named.add(remote)
            log.info("%s %s and is left alone", remote, why)


async def _mark(response: web.StreamResponse) -> str:
    if not isinstance(response, web.Response):
        mark = response.mark if isinstance(response, Marked) else None
        return sessions.SELF_PROVING if mark is None else mark()
    body = response.body or b""
    if not isinstance(body, bytes | bytearray):
        raise BadRequest("an answer without bytes cannot be proven")
    return blake3(body).hexdigest() if len(body) <= 16 * ON_LOOP else await asyncio.to_thread(_digest, bytes(body))


def _digest(body: bytes) -> str:
    return blake3(body).hexdigest()


def _stay_out(why: str) -> web.Response:
    return web.Response(status=sessions.STAY_OUT, body=encode_error("Refused", why), content_type="application/json")
