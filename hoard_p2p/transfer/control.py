"""Small questions to peers, from the event loop. Bulk bytes go through `transfer.bulk`."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Self, TypeVar

import aiohttp

from hoard_p2p.errors import BadRequest, HoardError, PeerStrange, PeerUnavailable, Refused, from_wire
from hoard_p2p.ids import SnapshotId, short, snapshot_id
from hoard_p2p.interfaces import Residency
from hoard_p2p.peer import NodeId, Peer, Standing, is_near
from hoard_p2p.transfer import sessions, wire, wire_contents, wire_life, wire_members, wire_names
from hoard_p2p.transfer.keys import OPEN, Security
from hoard_p2p.transfer.sessions import Unproven
from hoard_p2p.transfer.sessions_client import Answer, Question, Sessions
from hoard_p2p.transfer.wire import AdoptReply, AdoptRequest, Announcement, Hello, Record
from hoard_p2p.transfer.wire_contents import ContentsRequest
from hoard_p2p.transfer.wire_life import Handed, Use, VouchRequest
from hoard_p2p.transfer.wire_members import KnownStanding, ProbeMessage
from hoard_p2p.transfer.wire_names import Comparison, Differences, Lack, Supply

T = TypeVar("T")

ANSWER_TIME = 10.0
LIST_TIME = 30.0
CONNECTIONS_PER_PEER = 8
PROBES_PER_PEER = 4
PROBES = frozenset({"hello", "probe", "probe-for"})
CONNECT_TIME = 5.0
"""A host that is off answers nothing at all; the kernel would try for two minutes."""
IDLE_TIME = 30.0
"""A kept-alive connection is dropped well before the server would (75 s), so that no request meets its end."""
MAX_HELLO = 4 << 20
OTHER_DOORS = (aiohttp.ClientSSLError, aiohttp.ClientResponseError, aiohttp.ServerDisconnectedError)
"""How it ends when one side encrypts and the other does not, or with another key."""
OTHER_DOOR = "the same --cluster-key-file and --encrypt must be given to all nodes of a cluster"
MAX_PROBE = wire_members.MAX_PROBE
MAX_STANDINGS = wire_members.MAX_LIST
MAX_LIST = 64 << 20
MAX_ANSWER = 1 << 20
MAX_ERROR = 16 << 10
MAX_USES = 8 << 20
MAX_SUPPLY = wire_names.MAX_SUPPLIED * 2


def _new_session(connections: int, security: Security) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=0,
        limit_per_host=connections,
        keepalive_timeout=IDLE_TIME,
        use_dns_cache=False,
        ssl=True if security.tls is None else security.tls.client,
    )
    # no proxy, no cookies, no redirects: a peer is asked itself or not at all
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIME),
        auto_decompress=False,
    )


class PeerControl:
    """An async context manager around one HTTP session.

    Every method has a deadline, reads a bounded body, and raises PeerUnavailable for any failure of the peer:
    unreachable, late, an error status, or an answer that is no such record.
    """

    _session: aiohttp.ClientSession
    _probes: aiohttp.ClientSession
    """Connections of their own for what must not wait behind anything else."""

    def __init__(self, security: Security = OPEN) -> None:
        self._security = security
        self._sessions = None if security.ring is None else Sessions(security.ring)

    async def __aenter__(self) -> Self:
        self._session = _new_session(CONNECTIONS_PER_PEER, self._security)
        self._probes = _new_session(PROBES_PER_PEER, self._security)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()
        await self._probes.close()

    async def hello(self, host: str, port: int, *, me: Hello | None = None, timeout: float = 2.0) -> Hello:
        """Ask who listens there, and tell who I am if `me` is given. The peer's record has `host` and `port` as asked,
        the address it was reached at. A public address is not asked without a key."""
        self._refuse_public(host)
        place = Peer(NodeId(b""), 0, "", "", host, port, 0)
        body = None if me is None else wire.encode_hello(replace(me, members=()))
        answer = await self._ask(place, "hello", body, timeout, MAX_HELLO)
        hello = await _decoded(place, wire.decode_hello, answer)
        return replace(hello, peer=replace(hello.peer, host=host, port=port))

    async def probe(self, peer: Peer, message: ProbeMessage, *, timeout: float) -> ProbeMessage:
        """Ask whether the peer is there, and tell it the news. The answer may be another node's. The record in it has
        the host and port as asked. A peer that knows no probes is said hello to."""
        self._refuse_public(peer.host)
        answer = await self._exchange(peer, "probe", wire_members.encode_probe(message), timeout, MAX_PROBE)
        if isinstance(answer, BadRequest):
            hello = await self.hello(peer.host, peer.port, me=message.hello, timeout=timeout)
            return ProbeMessage(replace(hello, members=()))
        if isinstance(answer, HoardError):
            raise PeerUnavailable(f"{peer.url} refused a probe: {answer}") from answer
        told = await _decoded(peer, wire_members.decode_probe, answer)
        reached = replace(told.hello.peer, host=peer.host, port=peer.port)
        return replace(told, hello=replace(told.hello, peer=reached))

    async def probe_for(self, peer: Peer, node: NodeId, *, timeout: float) -> bool:
        """Whether the peer gets an answer from `node`."""
        answer = await self._ask(peer, "probe-for", wire_members.encode_probe_for(node), timeout, MAX_ANSWER)
        return await _decoded(peer, wire_members.decode_reached, answer)

    async def standings(self, peer: Peer, known: Sequence[KnownStanding]) -> tuple[Standing, ...]:
        """Standings that the peer knows and are not `known`; not always all."""
        answer = await self._ask(peer, "standings", wire_members.encode_known(known), ANSWER_TIME, MAX_STANDINGS)
        return await _decoded(peer, wire_members.decode_standings, answer)

    async def root(self, peer: Peer, snapshot: SnapshotId) -> bytes | None:
        """The encoded root, checked against its id; None if the peer does not know it."""
        root = await self._ask_known(peer, f"root/{snapshot.hex()}", ANSWER_TIME, wire.MAX_ROOT)
        if root is not None and snapshot_id(root) != snapshot:
            raise PeerUnavailable(f"{peer.url} sent another root for snapshot {short(snapshot)}")
        return root

    async def snapshots(self, peer: Peer) -> tuple[Record, ...]:
        """The snapshots that the peer knows."""
        answer = await self._ask(peer, "snapshots", None, LIST_TIME, MAX_LIST)
        return await _decoded(peer, wire.decode_records, answer)

    async def refs(self, peer: Peer) -> tuple[Record, ...]:
        """The refs that the peer knows."""
        answer = await self._ask(peer, "refs", None, LIST_TIME, MAX_LIST)
        return await _decoded(peer, wire.decode_records, answer)

    async def compare(self, peer: Peer, comparison: Comparison) -> Differences | None:
        """In which parts the peer's snapshots and refs are others; None if it is of a version that cannot tell."""
        answer = await self._exchange(
            peer, "compare", wire_names.encode_comparison(comparison), ANSWER_TIME, MAX_ANSWER
        )
        if isinstance(answer, BadRequest):
            return None
        if isinstance(answer, HoardError):
            raise PeerUnavailable(f"{peer.url} refused to compare: {answer}") from answer
        return await _decoded(peer, wire_names.decode_differences, answer)

    async def supply(self, peer: Peer, lack: Lack) -> Supply:
        """Records that the peer knows and this node does not."""
        answer = await self._ask(peer, "supply", wire_names.encode_lack(lack), LIST_TIME, MAX_SUPPLY)
        return await _decoded(peer, wire_names.decode_supply, answer)

    async def residency(self, peer: Peer, snapshot: SnapshotId) -> Residency | None:
        """What the peer holds of a snapshot; None if it does not know it."""
        most = wire.MAX_RESIDENCY * 4 // 3 + 1024
        answer = await self._ask_known(peer, f"residency/{snapshot.hex()}", ANSWER_TIME, most)
        if answer is None:
            return None
        residency = await _decoded(peer, wire.decode_residency, answer)
        if residency.snapshot != snapshot or residency.node != peer.node_id:
            raise PeerUnavailable(f"{peer.url} sent the residency of another snapshot or node")
        return residency

    async def adopt(self, peer: Peer, request: AdoptRequest, *, timeout: float) -> AdoptReply:
        """Ask a home to pull segments; waits until they are durable there."""
        answer = await self._ask(peer, "adopt", wire.encode_adopt_request(request), timeout, MAX_ANSWER)
        reply = await _decoded(peer, wire.decode_adopt_reply, answer)
        if not set(reply.stored) <= set(request.segments):
            raise PeerUnavailable(f"{peer.url} says it stored segments that it was not asked to")
        return reply

    async def uses(self, peer: Peer, snapshots: Sequence[SnapshotId]) -> tuple[Use, ...]:
        """What the peer has to do with these snapshots, at most `MAX_ASKED_USES`, in their order. A peer of a version
        that cannot tell is like one that does not answer."""
        answer = await self._ask(peer, "uses", wire_life.encode_asked(snapshots), ANSWER_TIME, MAX_USES)
        told = await _decoded(peer, wire_life.decode_uses, answer)
        if [use.snapshot for use in told] != list(snapshots):
            raise PeerUnavailable(f"{peer.url} told of other snapshots than it was asked about")
        return told

    async def vouch(self, peer: Peer, request: VouchRequest, *, timeout: float = ANSWER_TIME) -> tuple[int, ...]:
        """Which of the segments the peer holds whole and promises to keep (`vouching.PROMISED_SECONDS`)."""
        answer = await self._ask(peer, "vouch", wire_life.encode_vouch_request(request), timeout, MAX_ANSWER)
        promised = await _decoded(peer, wire_life.decode_promised, answer)
        if not set(promised) <= set(request.segments):
            raise PeerUnavailable(f"{peer.url} vouches for segments that it was not asked about")
        return promised

    async def contents(self, peer: Peer, snapshot: SnapshotId, segments: Sequence[int]) -> list[bytes]:
        """What the peer knows the pieces of these segments of a lazy snapshot to be, at most `MAX_CONTENTS_ASKED`: for
        each segment the content ids of its chunks in the catalog's order, 32 bytes each, zeros where it does not."""
        body = wire_contents.encode_contents_request(ContentsRequest(snapshot, tuple(segments)))
        answer = await self._ask(peer, "contents", body, LIST_TIME, wire_contents.MAX_CONTENTS)
        told = await _decoded(peer, wire_contents.decode_contents, answer)
        if len(told) != len(segments):
            raise PeerUnavailable(f"{peer.url} told of {len(told)} segments instead of {len(segments)}")
        return told

    async def hand(self, peer: Peer, handed: Handed) -> None:
        """Tell the peer what was read from an origin in its place."""
        await self._ask(peer, "hand", wire_life.encode_handed(handed), ANSWER_TIME, MAX_ANSWER)

    async def announce(self, peer: Peer, announcement: Announcement) -> None:
        """Tell the peer about snapshots and refs, in as many requests as the bound of one takes."""
        snapshots, refs = announcement.snapshots, announcement.refs
        for start in range(0, max(len(snapshots), len(refs)), wire.MAX_NEWS):
            stop = start + wire.MAX_NEWS
            told = replace(announcement, snapshots=snapshots[start:stop], refs=refs[start:stop])
            part = wire.encode_announcement(told)
            await self._ask(peer, "announce", part, ANSWER_TIME, MAX_ANSWER)

    async def leave(self, peer: Peer, node: NodeId, incarnation: int, *, timeout: float = 1.0) -> None:
        """Tell the peer that `node` leaves."""
        await self._ask(peer, "leave", wire.encode_leave(node, incarnation), timeout, MAX_ANSWER)

    async def _ask(self, peer: Peer, path: str, body: bytes | None, timeout: float, most: int) -> bytes:
        """The body of the answer to one request: GET, or POST if there is a body."""
        answer = await self._exchange(peer, path, body, timeout, most)
        if isinstance(answer, Refused):
            raise PeerStrange(f"{peer.url} refused {path}: {answer}") from answer
        if isinstance(answer, HoardError):
            raise PeerUnavailable(f"{peer.url} refused {path}: {answer}") from answer
        return answer

    async def _ask_known(self, peer: Peer, path: str, timeout: float, most: int) -> bytes | None:
        """The same, None if the peer answers that there is no such thing."""
        answer = await self._exchange(peer, path, None, timeout, most)
        if isinstance(answer, _Absent):
            return None
        if isinstance(answer, HoardError):
            raise PeerUnavailable(f"{peer.url} refused {path}: {answer}") from answer
        return answer

    def _refuse_public(self, host: str) -> None:
        if self._sessions is None and not is_near(host):
            raise PeerUnavailable(f"{host} is a public address; nodes without a key talk to private ones only")

    async def _exchange(
        self, peer: Peer, path: str, body: bytes | None, timeout: float, most: int
    ) -> "bytes | HoardError":
        try:
            async with asyncio.timeout(timeout):
                answer = await self._answer(peer, Question(f"/v1/{path}", body), most)
        except TimeoutError as error:
            raise PeerUnavailable(f"{peer.url} did not answer {path} in {timeout} s") from error
        except Unproven as error:
            raise PeerStrange(f"{peer.url} cannot be asked for {path}: {error}") from error
        except OTHER_DOORS as error:
            raise PeerStrange(f"{peer.url} cannot be asked for {path}: {OTHER_DOOR} ({_cause(error)})") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise PeerUnavailable(f"{peer.url} cannot be asked for {path}: {_cause(error)}") from error
        return answer.body if answer.status == 200 else _failure(answer.status, answer.body)

    async def _answer(self, peer: Peer, question: Question, most: int) -> Answer:
        """The answer to one question, proven if there is a key."""
        send = partial(self._send, peer, most)
        return await send(question, "") if self._sessions is None else await self._sessions.ask(peer, question, send)

    async def _send(self, peer: Peer, most: int, question: Question, proof: str) -> Answer:
        headers = {sessions.HEADER: proof} if proof else {}
        url, method = f"{self._security.scheme}://{peer.place}{question.path}", question.method
        session = self._probes if question.path.removeprefix("/v1/") in PROBES else self._session
        async with session.request(method, url, data=question.body, headers=headers, allow_redirects=False) as response:
            told = await _bounded(response, most if response.status == 200 else MAX_ERROR)
            return Answer(response.status, response.content_type, response.headers.get(sessions.HEADER, ""), told)


def _cause(error: Exception) -> str:
    """What went wrong, in words: a failed connection says why, not what it was for."""
    within = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return getattr(within, "strerror", None) or str(within) or type(within).__name__


class _Absent(HoardError):
    """The peer answered that it does not have what was asked for."""


async def _bounded(response: aiohttp.ClientResponse, most: int) -> bytes:
    body = bytearray()
    async for data in response.content.iter_any():
        body += data
        if len(body) > most:
            raise ValueError(f"an answer of more than {most} bytes")
    return bytes(body)


def _failure(status: int, body: bytes) -> HoardError:
    """The error that an answer with an error status tells of."""
    try:
        name, message = wire.decode_error(body)
    except BadRequest:  # no node answered, but some other server
        return HoardError(f"status {status}")
    error = from_wire(name, message)
    return _Absent(message) if status == 404 and name == "SnapshotUnknown" else error


async def _decoded(peer: Peer, decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body) if len(body) <= wire.ON_LOOP else await asyncio.to_thread(decode, body)
    except BadRequest as error:
        raise PeerUnavailable(f"{peer.url} sent an answer that makes no sense: {error}") from error
