"""What a node answers to each path of the protocol: parse and bound, ask the service, encode."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TypeVar

from aiohttp import HttpVersion11, web

from hoard_p2p.errors import BadRequest, SnapshotUnknown
from hoard_p2p.ids import ID_SIZE, ChunkId, SnapshotId
from hoard_p2p.peer import is_loopback, is_wildcard
from hoard_p2p.transfer import wire, wire_contents, wire_life, wire_members, wire_names
from hoard_p2p.transfer.doorstep import while_connected
from hoard_p2p.transfer.feeding import Feed
from hoard_p2p.transfer.guard import Limits, Turns, admission, read_body, send, timed
from hoard_p2p.transfer.pace import Pace
from hoard_p2p.transfer.ranges import MAX_RANGE_ASK, decode_range, range_answer
from hoard_p2p.transfer.sending import Means, Sending, answer, chunk_frames, chunk_heads
from hoard_p2p.transfer.service import Located, PeerService
from hoard_p2p.transfer.sessions import frames_mark, prover
from hoard_p2p.transfer.streams import MAX_ASK, decode_ask

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_HELLO = 1 << 20
MAX_ADOPT = 64 << 10
MAX_ANNOUNCEMENT = 8 << 20
MAX_LEAVE = 4096
MAX_ASKED = 128 << 10
MAX_VOUCH = 16 << 10
MAX_HAND = 64 << 10
MAX_KNOWN = 512 << 10
MAX_COMPARISON = 4096
MAX_LACK = 1 << 20
SUPPLIES, SUPPLIES_WAITING = 2, 32
MAX_CONTENTS_REQUEST = 4096
CONTENTS, CONTENTS_WAITING = 2, 32


class Endpoints:
    """One method for each path: parse, ask the service, encode."""

    def __init__(self, service: PeerService, limits: Limits, executor: ThreadPoolExecutor) -> None:
        self._service = service
        self._limits = limits
        self._executor = executor
        self._adopts = Turns(limits.adopts, limits.adopts_waiting, limits.answer_time)
        self._supplies = Turns(SUPPLIES, SUPPLIES_WAITING, limits.answer_time)
        self._sends = Turns(limits.sends, limits.sends_waiting, limits.send_wait)
        self._streams = Turns(limits.streams, 0, 0.0)
        self._ranges = Turns(limits.ranges, limits.ranges_waiting, limits.send_wait)
        self._contents = Turns(CONTENTS, CONTENTS_WAITING, limits.answer_time)
        self._means = Means(executor, Pace(limits.send_rate), limits.stall_time)
        self._vouches = Turns(limits.vouches, limits.vouches_waiting, limits.answer_time)

    def routes(self) -> list[web.RouteDef]:
        """The table of the protocol, version 1."""
        answer, adopt = self._limits.answer_time, self._limits.adopt_time
        return [
            web.get("/v1/hello", timed(self.hello, answer)),
            web.post("/v1/hello", timed(self.hello_from, answer)),
            web.post("/v1/probe", timed(self.probe, answer)),
            web.post("/v1/probe-for", timed(self.probe_for, answer)),
            web.post("/v1/standings", timed(self.standings, answer)),
            web.get("/v1/status", timed(self.status, answer)),
            web.get("/v1/metrics", timed(self.metrics, answer)),
            web.get("/v1/root/{id}", timed(self.root, answer)),
            web.get("/v1/snapshots", timed(self.snapshots, answer)),
            web.get("/v1/refs", timed(self.refs, answer)),
            web.post("/v1/compare", timed(self.compare, answer)),
            web.post("/v1/supply", timed(self.supply, answer)),
            web.get("/v1/residency/{id}", timed(self.residency, answer)),
            web.post("/v1/chunks", self.chunks),
            web.post("/v1/stream", self.stream),
            web.post("/v1/range", self.range),
            web.post("/v1/contents", timed(self.contents, answer)),
            web.post("/v1/adopt", timed(self.adopt, adopt)),
            web.post("/v1/uses", timed(self.uses, answer)),
            web.post("/v1/vouch", timed(self.vouch, answer)),
            web.post("/v1/hand", timed(self.hand, answer)),
            web.post("/v1/announce", timed(self.announce, answer)),
            web.post("/v1/leave", timed(self.leave, answer)),
        ]

    async def hello(self, request: web.Request) -> web.Response:
        return _json(wire.encode_hello(self._service.hello()))

    async def hello_from(self, request: web.Request) -> web.Response:
        """A hello that says who asks, so that one meeting makes two acquaintances."""
        caller = await self._decoded(request, MAX_HELLO, wire.decode_hello)
        self._service.greeted(_reachable(caller, request))
        return _json(wire.encode_hello(self._service.hello()))

    async def probe(self, request: web.Request) -> web.Response:
        caller = wire_members.decode_probe(await read_body(request, wire_members.MAX_PROBE, self._limits.body_time))
        answer = self._service.probed(replace(caller, hello=_reachable(caller.hello, request)))
        return _json(wire_members.encode_probe(answer))

    async def probe_for(self, request: web.Request) -> web.Response:
        node = await self._decoded(request, MAX_LEAVE, wire_members.decode_probe_for)
        return _json(wire_members.encode_reached(await self._service.probe_for(node)))

    async def standings(self, request: web.Request) -> web.Response:
        known = await self._decoded(request, MAX_KNOWN, wire_members.decode_known)
        return _json(await asyncio.to_thread(wire_members.encode_standings, self._service.standings(known)))

    async def status(self, request: web.Request) -> web.Response:
        return _json(wire.encode(self._service.status()))

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._service.metrics(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def root(self, request: web.Request) -> web.Response:
        snapshot = _snapshot(request)
        root = await self._service.root(snapshot)
        if root is None:
            raise SnapshotUnknown(f"snapshot {snapshot.hex()} is unknown here")
        return web.Response(body=root, content_type="application/octet-stream")

    async def snapshots(self, request: web.Request) -> web.Response:
        return await self._listed(request, self._service.snapshots)

    async def refs(self, request: web.Request) -> web.Response:
        return await self._listed(request, self._service.refs)

    async def _listed(
        self, request: web.Request, list_all: Callable[[], Awaitable[Sequence[wire.Record]]]
    ) -> web.Response:
        """A few at a time, until they are sent: they may be large."""
        async with self._supplies.turn():
            response = _json(await asyncio.to_thread(wire.encode_records, await list_all()))
            await send(request, response, self._limits.answer_time)
            return response

    async def compare(self, request: web.Request) -> web.Response:
        asked = await self._decoded(request, MAX_COMPARISON, wire_names.decode_comparison)
        return _json(wire_names.encode_differences(await self._service.compare(asked)))

    async def supply(self, request: web.Request) -> web.Response:
        asked = await self._decoded(request, MAX_LACK, wire_names.decode_lack)
        async with self._supplies.turn():
            supplied = await self._service.supply(asked)
            return _json(await asyncio.to_thread(wire_names.encode_supply, supplied))

    async def residency(self, request: web.Request) -> web.Response:
        snapshot = _snapshot(request)
        residency = await self._service.residency(snapshot)
        if residency is None:
            raise SnapshotUnknown(f"snapshot {snapshot.hex()} is unknown here")
        return _json(await asyncio.to_thread(wire.encode_residency, residency))

    async def chunks(self, request: web.Request) -> web.StreamResponse:
        """Many chunks, as frames in the order asked."""
        body = await read_body(request, wire.MAX_ASKED * ID_SIZE, self._limits.body_time)
        if not body or len(body) % ID_SIZE:
            raise BadRequest(f"a body of {len(body)} bytes; ids of {ID_SIZE} bytes are expected")
        ids = [ChunkId(body[start : start + ID_SIZE]) for start in range(0, len(body), ID_SIZE)]
        async with self._sends.turn():
            located = await self._located(ids)
            heads = chunk_heads(located, prover(admission(request)))
            sending = chunk_frames(located, heads)
            try:
                mark = partial(frames_mark, b"".join(heads))
                return await answer(
                    request, lambda body: body.write(sending), self._means, length=sending.size, mark=mark
                )
            finally:
                self._release(located, sending.whole())

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Chunks of a segment as they land here."""
        ask, patience = decode_ask(await read_body(request, MAX_ASK, self._limits.body_time))
        if request.version < HttpVersion11:
            raise BadRequest("a stream needs HTTP/1.1")
        async with (
            self._streams.turn(),
            while_connected(request.transport),
            aclosing(self._service.feed(ask, patience)) as items,
        ):
            feed = Feed(items, self._service.release, patience + self._limits.answer_time, admission(request))
            try:
                await feed.begin()
                return await answer(request, feed.send, self._means, length=None)
            finally:
                feed.close()

    async def range(self, request: web.Request) -> web.StreamResponse:
        """A part of a piece, whose bytes are in memory."""
        ask = decode_range(await read_body(request, MAX_RANGE_ASK, self._limits.body_time))
        async with self._ranges.turn(), while_connected(request.transport):
            async with asyncio.timeout(ask.patience + self._limits.answer_time):
                head, data = range_answer(await self._service.range(ask))
            sending = Sending([None, None], (head, data).__getitem__, len(head) + len(data))
            mark = partial(frames_mark, head)
            return await answer(request, lambda body: body.write(sending), self._means, length=sending.size, mark=mark)

    async def contents(self, request: web.Request) -> web.Response:
        asked = await self._decoded(request, MAX_CONTENTS_REQUEST, wire_contents.decode_contents_request)
        async with self._contents.turn():
            told = await asyncio.to_thread(wire_contents.encode_contents, await self._service.contents(asked))
            response = web.Response(body=told, content_type="application/octet-stream")
            await send(request, response, self._limits.answer_time)  # a few at a time: they may be large
            return response

    async def adopt(self, request: web.Request) -> web.Response:
        wanted = await self._decoded(request, MAX_ADOPT, wire.decode_adopt_request)
        async with self._adopts.turn():
            return _json(wire.encode_adopt_reply(await self._service.adopt(wanted)))

    async def uses(self, request: web.Request) -> web.Response:
        asked = await self._decoded(request, MAX_ASKED, wire_life.decode_asked)
        return _json(wire_life.encode_uses(await self._service.uses(asked)))

    async def vouch(self, request: web.Request) -> web.Response:
        wanted = await self._decoded(request, MAX_VOUCH, wire_life.decode_vouch_request)
        async with self._vouches.turn():
            return _json(wire_life.encode_promised(await self._service.vouch(wanted)))

    async def hand(self, request: web.Request) -> web.Response:
        self._service.handed(await self._decoded(request, MAX_HAND, wire_life.decode_handed))
        return _json(wire.encode({}))

    async def announce(self, request: web.Request) -> web.Response:
        await self._service.announce(await self._decoded(request, MAX_ANNOUNCEMENT, wire.decode_announcement))
        return _json(wire.encode({}))

    async def leave(self, request: web.Request) -> web.Response:
        node, incarnation = await self._decoded(request, MAX_LEAVE, wire.decode_leave)
        await self._service.left(node, incarnation)
        return _json(wire.encode({}))

    async def _located(self, ids: list[ChunkId]) -> Located:
        """Where the chunks lie. When it takes too long, or the request ends meanwhile, what the thread still brings is
        released as soon as it does."""
        answer = asyncio.get_running_loop().run_in_executor(self._executor, self._service.locate, ids)
        try:
            async with asyncio.timeout(self._limits.answer_time):
                return await asyncio.shield(answer)
        except (asyncio.CancelledError, TimeoutError):
            answer.add_done_callback(self._release_late)
            raise

    def _release_late(self, answer: "asyncio.Future[Located]") -> None:
        error = answer.exception()
        if error is None:
            self._release(answer.result(), 0)
        else:
            log.info("chunks that nobody waits for any more were not located: %r", error)

    def _release(self, located: Located, sent: int) -> None:
        self._service.release([extent for extent in located if extent is not None], sent)

    async def _decoded(self, request: web.Request, most: int, decode: Callable[[bytes], T]) -> T:
        body = await read_body(request, most, self._limits.body_time)
        return decode(body) if len(body) <= wire.ON_LOOP else await asyncio.to_thread(decode, body)


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def _reachable(caller: wire.Hello, request: web.Request) -> wire.Hello:
    """A caller that listens everywhere can be tried where it called from. So is one that says that it is on this
    machine and is not: it shall not make this node talk to services here."""
    source, host = _source(request), caller.peer.host
    is_elsewhere = is_loopback(host) and not is_loopback(source)
    if not (is_wildcard(host) or is_elsewhere) or not source:
        return caller
    return replace(caller, peer=replace(caller.peer, host=source))


def _source(request: web.Request) -> str:
    """Where a request came from, as it can be called: IPv4 as such, link-local IPv6 with its interface."""
    host = (request.remote or "").removeprefix("::ffff:")
    name = None if request.transport is None else request.transport.get_extra_info("peername")
    is_link_local = host.lower().startswith("fe80:") and "%" not in host
    return f"{host}%{name[3]}" if is_link_local and name is not None and len(name) == 4 else host


def _id(request: web.Request) -> bytes:
    text = request.match_info["id"]
    if len(text) != 2 * ID_SIZE or not set(text) <= wire.HEX_DIGITS:
        raise BadRequest(f"an id has {2 * ID_SIZE} lower-case hex digits")
    return bytes.fromhex(text)


def _snapshot(request: web.Request) -> SnapshotId:
    return SnapshotId(_id(request))
