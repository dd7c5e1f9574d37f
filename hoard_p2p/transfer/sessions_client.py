"""The caller's side of sessions for small questions: a few for each peer, each used by one question at a time."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from hoard_p2p.peer import Peer
from hoard_p2p.transfer import sessions
from hoard_p2p.transfer.keys import KeyRing
from hoard_p2p.transfer.sessions import STAY_OUT, Grant, Offer, Session, Unproven, refusal

IDLE_TIME = 60.0
"""Seconds that an unused session is kept, well below what the other side keeps it for."""
KEPT_PER_PEER = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it came, believed or not. `proof` is empty if it has none."""

    status: int
    kind: str
    proof: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Question:
    """A request: GET, or POST if there is a body."""

    path: str
    body: bytes | None = None

    @property
    def method(self) -> str:
        return "GET" if self.body is None else "POST"


Send: TypeAlias = Callable[[Question, str], Awaitable[Answer]]
"""Send a question with its proof (empty: none) to the peer."""


class Sessions:
    """For one event loop. The sessions are known by the address of the peer."""

    def __init__(self, ring: KeyRing, clock: Callable[[], float] = time.monotonic) -> None:
        self._ring = ring
        self._clock = clock
        self._idle: dict[tuple[str, int], list[Session]] = {}

    async def ask(self, peer: Peer, question: Question, send: Send) -> Answer:
        """The proven answer to one question. A peer that does not know our session any more is asked in a new one,
        once. Raises Unproven, and what `send` raises; a session in which that happened is not used again."""
        session = self._take(peer)
        if session is not None:
            answer = await self._ask_in(session, peer, question, send)
            if answer is not None:
                return answer
        session = await self._open(peer, send)
        answer = await self._ask_in(session, peer, question, send)
        if answer is None:
            raise Unproven("it does not know the session that it just granted, or somebody between us interferes")
        return answer

    async def _open(self, peer: Peer, send: Send) -> Session:
        offer = Offer.draw(self._ring)
        answer = await send(Question(sessions.PATH, offer.encode()), "")
        if answer.status != 200:
            raise Unproven(refusal(answer.status))
        return Session(self._ring, offer, Grant.decode(answer.body), peer.node_id)

    async def _ask_in(self, session: Session, peer: Peer, question: Question, send: Send) -> Answer | None:
        """None if the peer does not know the session."""
        answer = await send(question, session.sign(question.method, question.path, question.body or b""))
        if answer.status == STAY_OUT and not answer.proof:
            return None
        session.check_whole(answer.proof, answer.status, answer.kind, answer.body)
        self._keep(peer, session)
        return answer

    def _take(self, peer: Peer) -> Session | None:
        """The session used last, if one is idle that is fresh and with the right node."""
        idle = self._idle.get((peer.host, peer.port), [])
        while idle:
            session = idle.pop()
            if self._is_fresh(session) and peer.node_id in (b"", session.node):
                return session
        return None

    def _keep(self, peer: Peer, session: Session) -> None:
        now = self._clock()
        session.idle_since = now
        address = (peer.host, peer.port)
        if address not in self._idle:  # rarely: the moment to forget peers that are gone
            self._idle = {at: idle for at, idle in self._idle.items() if any(map(self._is_fresh, idle))}
        idle = self._idle.setdefault(address, [])
        if len(idle) < KEPT_PER_PEER:
            idle.append(session)

    def _is_fresh(self, session: Session) -> bool:
        return self._clock() - session.idle_since < IDLE_TIME
